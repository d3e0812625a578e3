"""Queries about a run and the process that drives it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trmcloud.operations.run_queries import is_driven
from trmcloud.ports.ledger import ControllerId, Driver

HERE = ControllerId("here", 7, "started")


@pytest.mark.parametrize(
    ("alive", "silent_s", "driven"),
    [
        (True, 9_000.0, True),
        (False, 1.0, False),
        (None, 119.0, True),
        (None, 120.0, False),
    ],
)
def test_whoever_is_dead_drives_nothing_and_one_elsewhere_is_judged_by_its_beat(
    alive: bool | None, silent_s: float, driven: bool
) -> None:
    """On this machine a process is seen to live or not; None: it is on another."""
    context: Any = SimpleNamespace(
        caller=SimpleNamespace(is_alive=lambda who: alive if who == HERE else None),
        wall=lambda: 10_000.0,
    )
    assert is_driven(context, Driver(1, HERE, 10_000.0 - silent_s)) is driven


def test_a_run_without_a_controller_is_not_driven() -> None:
    context: Any = SimpleNamespace()
    assert not is_driven(context, None)
    assert not is_driven(context, Driver(1, None, 1e9))
