"""When a command is told, signalled and killed."""

from __future__ import annotations

import math

import pytest

from trmcloud.core.contract.command import Command
from trmcloud.pod.job.stopping import Act, Stopping

PLAIN = Command(("x",), grace_s=10.0)
BY_FILE = Command(("x",), grace_s=10.0, stop_file="stop")


def story(command: Command, *, listens: bool, asked_at: float = math.inf) -> list[tuple[int, str]]:
    """Second by second, for half a minute; the deadline is at second 20."""
    stopping, told = Stopping(command, 1000.0 + 20.0), list[tuple[int, str]]()
    for second in range(40):
        acts = stopping.acts(1000.0 + second, second, asked=second >= asked_at, listens=listens)
        told += [(second, act.name) for act in acts]
        if Act.KILL in acts:
            break
    assert stopping.killed
    assert stopping.told == ("signal" if asked_at < 20 else "deadline")
    return told


def test_a_signal_goes_at_once_to_one_that_looks_for_no_file() -> None:
    assert story(PLAIN, listens=False) == [(20, "FILES"), (20, "SIGNAL"), (30, "KILL")]


@pytest.mark.parametrize(("command", "listens"), [(PLAIN, True), (BY_FILE, False)])
def test_one_that_looks_for_a_file_has_half_its_grace_for_it(
    command: Command, listens: bool
) -> None:
    expected = [(20, "FILES"), (25, "SIGNAL"), (30, "KILL")]
    assert story(command, listens=listens) == expected


def test_one_that_is_asked_need_not_wait_for_the_deadline() -> None:
    expected = [(3, "FILES"), (3, "SIGNAL"), (13, "KILL")]
    assert story(PLAIN, listens=False, asked_at=3) == expected


def test_a_clock_that_is_set_back_gives_no_longer_grace() -> None:
    stopping = Stopping(PLAIN, 1000.0)
    stopping.acts(1000.0, 50.0, asked=False, listens=False)
    assert stopping.acts(10.0, 59.9, asked=False, listens=False) == ()
    assert stopping.acts(10.0, 60.0, asked=False, listens=False) == (Act.KILL,)
    assert stopping.waited_s(60.0) == 10.0
