"""A trainer times its steps once it is warm, and reports its pace once for each attempt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from model.training.saver import provenance
from tests.model.attempts import TickingClock, before_steps
from trmcloud.core.contract.pace import LEAST_STEPS, PACE, WARM_UP_STEPS, pace_from

NewRun = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("keep_generator")


@pytest.fixture
def step_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[TickingClock, Callable[[int], float]], None]:
    """Has each step take so many seconds more of a clock by hand."""

    def install(hand: TickingClock, seconds: Callable[[int], float]) -> None:
        def wait(trainer: Any) -> None:
            hand.at += seconds(trainer._progress.step)

        before_steps(monkeypatch, wait)

    return install


def test_the_pace_is_told_once_with_what_it_was_measured_on(
    new_run: NewRun, step_takes: Any
) -> None:
    run, hand = new_run(steps=90, log_every=10, eval_every=30, save_every=45), TickingClock(0.001)
    step_takes(hand, lambda step: 2.0)
    assert run.train_here(clock=hand.clock()) == "finished"
    [line] = run.metrics(PACE)
    assert line["step_s"] == pytest.approx(2.0, abs=0.1)
    assert line["steps"] == LEAST_STEPS
    assert line["step"] == LEAST_STEPS + WARM_UP_STEPS, "evaluations are none of its steps"
    assert (line["tokens"], line["processes"]) == (2 * 16, 1)
    assert (line["torch"], line["board"]) == (str(torch.__version__), "")
    assert line["code"] == provenance()["code_sha256"]
    told = pace_from(run.metrics(PACE), line["at"])
    assert told is not None
    assert told.step == line["step"]


@pytest.mark.parametrize("first_s", [20.0, 0.2])
def test_odd_first_steps_are_measured_past(
    new_run: NewRun, step_takes: Any, first_s: float
) -> None:
    run, hand = new_run(steps=90, log_every=10, eval_every=90, save_every=90), TickingClock(0.001)
    step_takes(hand, lambda step: first_s if step < 20 else 2.0)
    assert run.train_here(clock=hand.clock()) == "finished"
    [line] = run.metrics(PACE)
    assert line["step_s"] == pytest.approx(2.0, abs=0.1)


def test_a_short_training_tells_no_pace_and_each_attempt_times_its_own(
    new_run: NewRun, step_takes: Any
) -> None:
    short = new_run("short", steps=LEAST_STEPS)
    hand = TickingClock(0.001)
    step_takes(hand, lambda step: 2.0 if step < 60 else 3.0)
    assert short.train_here(clock=hand.clock()) == "finished"
    assert short.metrics(PACE) == []
    run = new_run("long", steps=120, log_every=10, eval_every=60, save_every=60)
    stop_at = str(hand.at + 150.0)
    outcome = run.train_here(clock=hand.clock(), TRMCLOUD_DEADLINE_AT=stop_at)
    assert outcome == "landed_deadline"
    again = run.train_here(attempt=2, clock=hand.clock())
    assert again == "finished"
    paces = [line["step_s"] for line in run.metrics(PACE)]
    assert paces == pytest.approx([2.0, 3.0], abs=0.1)
