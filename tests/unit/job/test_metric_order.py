"""Which value of the metric a checkpoint carries: scripts as timelines, in both orders."""

from __future__ import annotations

import math
import random
from typing import NamedTuple

import pytest

from tests.present import present
from trmcloud.pod.job.artifacts import NameNumbers, marks_of
from trmcloud.pod.job.metric_order import AFTER, BEFORE, MetricOrder, SavedCheckpoint, Value


class Script(NamedTuple):
    """A script's rounds: it trains, and then evaluates and saves in one of the orders."""

    order: str
    train_s: float
    eval_s: float
    save_s: float = 0.1
    lines: bool = True
    """It prints lines of training."""
    steps: bool = False
    """Its lines of values bear the step."""
    marks: str = ""
    """The mark in its files' names: step or epoch."""
    first_value: bool = False
    """It evaluates once before it trains."""


def play(script: Script, rounds: int, rng: random.Random) -> tuple[MetricOrder, dict[float, float]]:
    """The order as it was learned, and the true value of each save by its time."""
    seen, truth, now = MetricOrder(), {}, 1000.0
    if script.first_value:
        seen.saw(Value(now, 9.0, 0 if script.steps else None))
    for number in range(1, rounds + 1):
        step, value = number * 100, rng.random()
        if script.lines:
            for part in range(1, 5):
                seen.saw_training(now + script.train_s * part / 5, None)
        now += script.train_s
        marks = NameNumbers(step if script.marks == "step" else None)
        if script.marks == "epoch":
            marks = NameNumbers(None, number)
        told = Value(0.0, value, step if script.steps else None, number)
        jitter = rng.uniform(0.0, 0.2)
        if script.order == BEFORE:
            now += script.eval_s
            seen.saw(told._replace(at=now + jitter))
            now += script.save_s
            seen.saw_save(SavedCheckpoint(now, marks))
            truth[now] = value
        else:
            now += script.save_s
            seen.saw_save(SavedCheckpoint(now, marks))
            truth[now] = value
            now += script.eval_s
            seen.saw(told._replace(at=now + jitter))
    return seen, truth


SCRIPTS = [
    Script(order, train_s, eval_s, save_s, lines, steps, marks, first)
    for order in (BEFORE, AFTER)
    for train_s, eval_s, save_s in ((30.0, 2.0, 0.5), (4.0, 4.0, 0.05), (2.0, 20.0, 1.0))
    for lines, steps, marks in (
        (True, False, ""),
        (True, True, "step"),
        (False, True, "step"),
        (False, False, "epoch"),
    )
    for first in ((False, True) if order == BEFORE or lines or marks else (False,))
]


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_every_checkpoint_carries_its_own_value(script: Script, rounds: int) -> None:
    seen, truth = play(script, rounds, random.Random(rounds))
    seen.has_ended = True
    for saved in seen.saves:
        assigned = seen.value_of(saved)
        assert not assigned.pending
        if assigned.is_ambiguous:
            either = {v.value for v in (assigned.value, assigned.other) if v is not None}
            assert truth[saved.at] in either, "both candidates are kept"
        else:
            assert assigned.value is not None
            assert assigned.value.value == truth[saved.at]


@pytest.mark.parametrize("script", [s for s in SCRIPTS if s.lines or s.marks], ids=str)
def test_where_training_is_logged_nothing_stays_open(script: Script) -> None:
    seen, _ = play(script, 4, random.Random(1))
    seen.has_ended = True
    assert not any(seen.value_of(saved).is_ambiguous for saved in seen.saves)


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_no_value_is_given_while_another_may_come(script: Script) -> None:
    """Killed at any moment, a checkpoint carries its own value, or none."""
    whole, truth = play(script, 4, random.Random(2))
    events: list[Value | SavedCheckpoint] = [*whole.values, *whole.saves]
    events.sort(key=lambda event: event.at)
    for last in range(len(events)):
        seen = MetricOrder()
        for at in (t for t in whole._training if t <= events[last].at):
            seen.saw_training(at, None)
        for event in events[: last + 1]:
            seen.saw(event) if isinstance(event, Value) else seen.saw_save(event)
        for saved in seen.saves:
            assigned = seen.value_of(saved)
            if not assigned.pending and assigned.value is not None:
                assert assigned.value.value == truth[saved.at], (last, assigned)


@pytest.mark.parametrize(("of_names", "of_log"), [(0, 1), (1, 0), (0, 0), (1, 1)])
@pytest.mark.parametrize("order", [BEFORE, AFTER])
def test_names_and_log_may_count_epochs_from_different_numbers(
    order: str, of_names: int, of_log: int
) -> None:
    script = Script(order, train_s=30.0, eval_s=2.0, marks="epoch")
    whole, truth = play(script, 4, random.Random(3))
    seen = MetricOrder()
    for at in whole._training:
        seen.saw_training(at, None)
    for saved in whole.saves:
        seen.saw_save(
            SavedCheckpoint(saved.at, NameNumbers(None, (saved.marks.epoch or 0) - 1 + of_names))
        )
    for value in whole.values:
        seen.saw(value._replace(epoch=(value.epoch or 0) - 1 + of_log))
    seen.has_ended = True
    carried = [seen.value_of(saved).value for saved in seen.saves]
    assert [value.value for value in carried if value] == list(truth.values())


def test_a_step_without_a_value_of_its_own_has_the_last_one_before_and_says_so() -> None:
    seen = MetricOrder()
    seen.saw(Value(1.0, 2.5, 50))
    saved = SavedCheckpoint(2.0, NameNumbers(60))
    assert seen.value_of(saved).pending
    seen.saw(Value(3.0, 1.5, 100))
    assigned = seen.value_of(saved)
    assert assigned.value is not None
    assert (assigned.value.step, assigned.value.value, assigned.pending) == (50, 2.5, False)


def test_a_value_of_another_state_is_not_given() -> None:
    seen = MetricOrder()
    seen.saw(Value(1.0, 2.5))
    seen.saw_save(SavedCheckpoint(2.0))
    seen.saw_training(5.0, None)
    seen.saw_save(SavedCheckpoint(9.0))
    seen.has_ended = True
    assert seen.value_of(SavedCheckpoint(9.0)).value is None


def test_nan_is_a_value_like_any_other() -> None:
    seen = MetricOrder()
    seen.saw(Value(1.0, math.nan, 5))
    value = present(seen.value_of(SavedCheckpoint(2.0, NameNumbers(5))).value)
    assert math.isnan(value.value)


def test_the_number_of_a_checkpoint_is_an_epoch_where_the_log_counts_no_steps() -> None:
    order = MetricOrder()
    saves = [SavedCheckpoint(10.0 * n + 0.1, marks_of(f"checkpoint-{n}.pth")) for n in (1, 2, 3)]
    for n, saved in enumerate(saves, 1):
        order.saw(Value(10.0 * n, 1.0 / n, epoch=n))
        order.saw_save(saved)
    assert [order.value_of(saved).by for saved in saves] == ["epoch"] * 3
    named = SavedCheckpoint(20.1, marks_of("step-2.pth"))
    assert order.value_of(named).by == "time", "a step is no epoch"
