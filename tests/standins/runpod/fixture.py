"""Fixtures: import the ones you use into a conftest.

``judged`` runs what its pods contain (see ``machines``); ``runpod_on_paper`` keeps books only,
which is what a test of the API wants; ``runpod_and_clock`` is on paper too, with a clock that the
test moves. Where RunPod's contract is at hand it judges every answer that any of them gave.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.standins.runpod import oracle
from tests.standins.runpod.standin import StandIn, running
from tests.standins.web import GivenClock


@contextlib.contextmanager
def judged(folder: Path, **settings: Any) -> Iterator[StandIn]:
    """A stand-in whose answers must all have been as published."""
    judge = oracle.given()
    with running(folder, judge=judge, **settings) as standin:
        yield standin
    if judge is not None:
        assert judge.faults == []


@pytest.fixture
def runpod_on_paper(tmp_path: Path) -> Iterator[StandIn]:
    with judged(tmp_path / "runpod", real_pods=False) as standin:
        yield standin


@pytest.fixture
def paper(runpod_on_paper: StandIn, user: Any) -> StandIn:
    """Such a one, whose account is the user's."""
    user.environment |= runpod_on_paper.environment
    return runpod_on_paper


@pytest.fixture
def runpod_and_clock(tmp_path: Path) -> Iterator[tuple[StandIn, GivenClock]]:
    clock = GivenClock()
    with judged(tmp_path / "runpod", real_pods=False, clock=clock) as standin:
        yield standin, clock
