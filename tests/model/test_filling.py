"""A training that the clock ends: planned with the steps of a fast machine (``FASTER``), trained on
one that is slower or faster than its plan. Its schedule is whole on each."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
import torch

from model.machine.distributed import World
from model.machine.signals import SignalFlag
from model.training.landing import Landing, Limits
from model.training.schedule import (
    CONSTANT,
    COSINE,
    LEAST_COOLDOWN,
    MOST_COOLDOWN,
    WSD,
    Cooldown,
    Schedule,
)
from trmcloud.core.planner.estimates import FASTER
from trmcloud.core.spec.settings import PhaseRecipe

SPEEDS = (0.75, 0.85, 0.95, 1.0, 1.05, 1.15, 1.25)
LIKELY_STEPS, STEP_S = 4_000, 2.0
EVALUATION_S, SAVE_S, EVERY = 20.0, 3.0, 250
AT = 1_000_000.0
LIKELY_S = LIKELY_STEPS * STEP_S + (LIKELY_STEPS // EVERY - 1) * (EVALUATION_S + SAVE_S)


@dataclass
class Trained:
    outcome: str
    step: int
    factors: list[float]
    at: list[float]
    """When each step began, from the training's start."""
    in_steps_s: float
    cooldown: Cooldown | None
    schedule: Schedule
    left_s: float
    """At the end, until the deadline."""

    @property
    def cooldown_from_s(self) -> float:
        assert self.cooldown is not None
        return self.at[self.cooldown.first]


def train(
    settings: PhaseRecipe,
    speed: float,
    *,
    kind: str = WSD,
    fraction: float = 0.4,
    jitter: float = 0.0,
    steps: int = int(LIKELY_STEPS / FASTER),
) -> Trained:
    """One training until it ends, by the real ``Landing`` and ``Schedule``, on a clock by hand."""
    made = replace(
        settings, steps=steps, schedule=kind, cooldown_fraction=fraction, warmup_steps=100,
        eval_every=EVERY, save_every=EVERY,
    )  # fmt: skip
    deadline = AT + LIKELY_S
    world = World(0, 1, torch.device("cpu"))
    landing = Landing(made, Limits(deadline_at=deadline), world, SignalFlag())
    landing.evaluation_s, landing.save_s, landing.stall_s = EVALUATION_S / speed, SAVE_S, SAVE_S
    schedule, dice = Schedule.of(made), random.Random(f"{speed} {kind}")
    now, step, in_steps_s, cooldown = AT, 0, 0.0, None
    factors: list[float] = []
    at: list[float] = []
    while True:
        verdict = landing.consult(step, cooldown, now=now, elapsed_s=now - AT)
        if verdict.outcome is not None:
            return Trained(
                *(verdict.outcome, step, factors, at, in_steps_s, cooldown, schedule),
                left_s=deadline - now,
            )
        cooldown = verdict.cooldown or cooldown
        factors.append(schedule.factor(step, cooldown))
        at.append(now - AT)
        took_s = STEP_S / speed * dice.uniform(1 - jitter, 1 + jitter)
        landing.took(took_s)
        now, step, in_steps_s = now + took_s, step + 1, in_steps_s + took_s
        pause_s = EVALUATION_S / speed + SAVE_S
        if step % EVERY == 0 and landing.leaves_time_for(pause_s, now):
            now += pause_s


@pytest.mark.parametrize("jitter", [0.0, 0.2])
@pytest.mark.parametrize("fraction", [0.2, 0.4, 0.65])
@pytest.mark.parametrize("speed", SPEEDS)
def test_warm_up_and_cooldown_are_whole_whatever_the_speed(
    settings: PhaseRecipe, speed: float, fraction: float, jitter: float
) -> None:
    run = train(settings, speed, fraction=fraction, jitter=jitter)
    assert run.outcome == "landed_deadline"
    longest_s = STEP_S / speed * (1 + jitter)
    assert -longest_s <= run.left_s <= 0.01 * LIKELY_S, "it does not end early"
    assert run.in_steps_s >= 0.97 * (LIKELY_S - (LIKELY_S - LIKELY_STEPS * STEP_S) / speed)
    assert run.cooldown is not None
    assert run.factors[:100] == pytest.approx([(n + 1) / 101 for n in range(100)])
    assert set(run.factors[100 : run.cooldown.first]) == {1.0}
    cooling = run.factors[run.cooldown.first :]
    assert cooling == sorted(cooling, reverse=True)
    assert run.schedule.has_come_down(run.step, run.cooldown)
    before_s = run.cooldown_from_s
    share = (LIKELY_S - before_s) / before_s
    assert share >= LEAST_COOLDOWN * 0.9
    if fraction <= MOST_COOLDOWN:
        assert share <= MOST_COOLDOWN * 1.6, "the steps' own cooldown may begin a little sooner"


@pytest.mark.parametrize("speed", SPEEDS)
def test_a_cosine_comes_down_from_wherever_it_stands(settings: PhaseRecipe, speed: float) -> None:
    run = train(settings, speed, kind=COSINE)
    assert run.outcome == "landed_deadline"
    assert run.left_s <= 0.01 * LIKELY_S
    falling = run.factors[100:]
    assert falling == sorted(falling, reverse=True)
    assert run.factors[-1] < 0.05


@pytest.mark.parametrize("speed", SPEEDS)
def test_a_constant_rate_stays_until_the_deadline(settings: PhaseRecipe, speed: float) -> None:
    run = train(settings, speed, kind=CONSTANT)
    assert (run.outcome, run.cooldown) == ("landed_deadline", None)
    assert set(run.factors[100:]) == {1.0}


def test_with_the_likely_steps_alone_a_faster_machine_ended_early(settings: PhaseRecipe) -> None:
    """``--fill`` until 2026-11-26: the error of its prediction was left unused."""
    run = train(settings, 1.25, steps=LIKELY_STEPS)
    assert run.outcome == "finished"
    assert run.left_s > 0.15 * LIKELY_S


def test_one_that_is_faster_than_any_planned_for_ends_by_its_steps(settings: PhaseRecipe) -> None:
    run = train(settings, 1.0 / FASTER + 0.1)
    assert run.outcome == "finished"
    assert run.schedule.has_come_down(run.step, run.cooldown)
    assert run.left_s > 0.02 * LIKELY_S
