"""A training against its deadline: when it cools down and lands, and how it is replayed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable

import pytest
import torch

from model import loop
from model.landing import Landing, Limits
from model.schedule import Cooldown
from model.signals import SignalFlag
from model.telemetry import Clock
from trmcloud.core.errors import UsageError
from trmcloud.core.recipe import PhaseRecipe

NewRun = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("keep_generator")


class TickingClock:
    """Each look at it takes a fixed time: a run against a deadline, without waiting for it."""

    def __init__(self, tick: float = 0.01) -> None:
        self.at = 1000.0
        self.tick = tick

    def __call__(self) -> float:
        self.at += self.tick
        return self.at

    def clock(self) -> Clock:
        return Clock(epoch=self, monotonic=self)


def test_a_deadline_already_gone_lands_at_once(new_run: NewRun) -> None:
    run = new_run()
    assert run.train_here(TRMCLOUD_DEADLINE_AT="1.0") == "landed_deadline"
    assert sorted(run.manifests()) == [0]


def test_a_run_killed_in_its_cooldown_keeps_its_decision(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is, to the last bit, what a replay of that decision gives."""
    run = new_run("timed", steps=10_000, save_every=8, keep_best=99)
    hand = TickingClock()
    deadline = {"TRMCLOUD_DEADLINE_AT": str(hand.at + 8.0)}
    real = loop.Trainer._step

    def die_in_cooldown(self: Any) -> Any:
        cooldown = self._progress.cooldown
        if cooldown is not None and self._progress.step == cooldown.start + 12:
            raise RuntimeError("struck by lightning")
        return real(self)

    monkeypatch.setattr(loop.Trainer, "_step", die_in_cooldown)
    assert run.train_here(clock=hand.clock(), **deadline) == "crashed"
    monkeypatch.undo()
    [decision] = run.metrics("decision")
    start, steps = decision["cooldown_from"], decision["cooldown_steps"]
    assert run.train_here(attempt=2, clock=hand.clock(), **deadline) == "landed_deadline"
    assert run.metrics("start")[-1]["from_step"] > start
    assert run.metrics("decision") == [decision], "decided once"
    assert hand.at <= float(deadline["TRMCLOUD_DEADLINE_AT"]) + 1.0
    last = run.heartbeat.step
    assert start < last <= start + steps
    replayed = new_run("replayed", steps=10_000, save_every=8, keep_best=99)
    record = {"TRMCLOUD_REPLAY_DECISION": f"{start}:{steps}:{last}"}
    assert replayed.train_here(**record) == "landed_deadline"
    assert replayed.weights_at(last) == run.weights_at(last)
    rates = [[line["lr"] for line in each.metrics("train")] for each in (run, replayed)]
    assert rates[0] == rates[1]


def test_a_run_topped_up_after_its_cooldown_goes_on_at_the_full_rate(new_run: NewRun) -> None:
    run = new_run("timed", steps=10_000, keep_best=99)
    hand = TickingClock(tick=0.05)
    for attempt in (1, 2):
        deadline = {"TRMCLOUD_DEADLINE_AT": str(hand.at + 35.0)}
        assert run.train_here(attempt, hand.clock(), **deadline) == "landed_deadline"
    first, second = run.metrics("decision")
    topped_up = run.metrics("start")[-1]["from_step"]
    rates = {line["step"]: line["lr"] for line in run.metrics("train")}
    assert rates[topped_up] < 0.15
    assert rates[topped_up + 1] == pytest.approx(1 / 4), "a short warm-up"
    assert rates[topped_up + 4] == 1.0
    assert second["cooldown_from"] > topped_up > first["cooldown_from"]
    assert rates[run.heartbeat.step] < 0.15


def test_a_timed_run_whose_steps_end_first_finishes(new_run: NewRun) -> None:
    run = new_run(steps=40)
    hand = TickingClock()
    far = {"TRMCLOUD_DEADLINE_AT": str(hand.at + 10_000)}
    assert run.train_here(clock=hand.clock(), **far) == "finished"
    [decision] = run.metrics("decision")
    assert (decision["cooldown_from"], decision["cooldown_steps"]) == (28, 12)
    alone = new_run("alone", steps=40)
    alone.train_here()
    assert alone.weights_at(40) == run.weights_at(40), "the clock made no difference"


def landing_of(settings: PhaseRecipe, limits: Limits, flag: SignalFlag | None = None) -> Landing:
    from model.distributed import World

    return Landing(settings, limits, World(0, 1, torch.device("cpu")), flag or SignalFlag())


def test_a_signal_lands_before_the_next_step(settings: PhaseRecipe) -> None:
    flag = SignalFlag()
    landing = landing_of(settings, Limits(), flag)
    assert landing.consult(3, None, now=0.0, elapsed_s=1.0).outcome is None
    flag.raised = True
    assert landing.consult(4, None, now=0.0, elapsed_s=1.0).outcome == "landed_signal"
    assert landing.consult(12, None, now=0.0, elapsed_s=1.0).outcome == "finished"


def test_no_step_is_begun_that_would_pass_the_deadline(settings: PhaseRecipe) -> None:
    landing = landing_of(replace(settings, steps=1000), Limits(deadline_at=100.0))
    for _ in range(5):
        landing.took(2.0)
    cooldown = Cooldown(0, 999, 100.0)
    assert landing.consult(3, cooldown, now=97.9, elapsed_s=90.0).outcome is None
    assert landing.consult(3, cooldown, now=98.1, elapsed_s=90.0).outcome == "landed_deadline"


def test_the_cooldown_is_decided_once_and_its_end_lands(settings: PhaseRecipe) -> None:
    landing = landing_of(replace(settings, steps=1000), Limits(deadline_at=100.0))
    landing.took(1.0)
    assert landing.consult(50, None, now=50.0, elapsed_s=50.0).cooldown is None
    decided = landing.consult(76, None, now=77.0, elapsed_s=77.0).cooldown
    assert decided is not None
    assert decided.start == 76
    assert 20 <= decided.steps <= 24
    later = landing.consult(80, decided, now=78.0, elapsed_s=78.0)
    assert (later.cooldown, later.outcome) == (None, None)
    done = landing.consult(decided.end, decided, now=90.0, elapsed_s=90.0)
    assert done.outcome == "landed_deadline"


def test_a_cooldown_holds_until_the_run_is_topped_up(settings: PhaseRecipe) -> None:
    cooldown = Cooldown(10, 5, 100.0)
    assert landing_of(settings, Limits(deadline_at=100.0)).keeps(cooldown)
    assert landing_of(settings, Limits(deadline_at=90.0)).keeps(cooldown)
    assert not landing_of(settings, Limits(deadline_at=500.0)).keeps(cooldown)
    assert not landing_of(settings, Limits()).keeps(cooldown)


def test_limits_are_read_from_the_environment() -> None:
    assert Limits.from_environment({}) == Limits()
    assert Limits.from_environment({"TRMCLOUD_DEADLINE_AT": "12.5"}).deadline_at == 12.5
    replay = Limits.from_environment({"TRMCLOUD_REPLAY_DECISION": "7:3:9"}).replay
    assert replay is not None
    assert (replay.cooldown.start, replay.cooldown.steps, replay.last_step) == (7, 3, 9)
    with pytest.raises(UsageError):
        Limits.from_environment({"TRMCLOUD_REPLAY_DECISION": "7:3"})
