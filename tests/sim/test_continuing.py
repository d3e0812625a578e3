"""Machines that are taken away at work: the run continues at whatever provider its plan allows, the
old pod proven gone first, and trains at most one save interval twice."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from tests.sim.drawing import draw
from tests.sim.play import PlayResult, play
from trmcloud.core.control import events as ev
from trmcloud.core.control.reason import ReasonKind
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import Outcome
from trmcloud.sim.scenario import Scenario
from trmcloud.sim.world.account import RentedMachine
from trmcloud.sim.world.facts import START_AT
from trmcloud.sim.world.world import SimWorld

_LOOK_S = 15.0
_STORED_S = 25.5 + 2 * _LOOK_S
"""A checkpoint that is written is in the bucket by then: see ``sim.world.host``."""


def drawn() -> Iterator[Scenario]:
    """Healthy worlds with one attended run, a bucket and two providers."""
    for seed in range(100_000):
        made = draw(seed, (), elsewhere=True)
        wish = made.wishes[0]
        if len(made.providers) > 1 and wish.plan.spec.bucket and not made.off:
            wish = replace(wish, detached=False, stop_after_s=0.0, resume_after_s=0.0)
            yield replace(made, wishes=(wish,), account_cap=None, foreign=False)


WORLDS = tuple(itertools.islice(drawn(), 12))


@dataclass
class Taken:
    """Takes the run's machine away ``times`` times, each ``share`` of the plan's time later;
    ``often``: agents look as often as they really do."""

    share: float
    times: int = 1
    often: bool = False
    world: SimWorld | None = None
    until: float = 0.0
    steps: list[tuple[str, int]] = field(default_factory=list)
    """(phase, step) that the machine was at each time."""

    def __call__(self, world: SimWorld, scenario: Scenario) -> None:
        self.world = world
        wish = scenario.wishes[0]
        lasts_s = wish.plan.candidates[0].soft_stop_s
        for number in range(1, self.times + 1):
            at = START_AT + wish.at_s + number * self.share * lasts_s
            world.queue.at(at, self.take)
            self.until = at
        if self.often:
            world.queue.at(START_AT + wish.at_s, self.look)

    def look(self) -> None:
        """An agent looks every few seconds, where the simulator leaves out most of that."""
        assert self.world is not None
        for rented in self.world.living():
            rented.pod.wake()
        if self.world.queue.now < self.until:
            self.world.queue.after(_LOOK_S, self.look)

    def take(self) -> None:
        assert self.world is not None
        for rented in self.world.living():
            trainer = rented.pod.trainer
            if trainer is not None and trainer.runs(self.world.queue.now):
                self.steps.append((trainer.shape.phase, trainer.step(self.world.queue.now)))
                self.world.fire("34", f"{rented.pod_id} is preempted")
                rented.account.host_lost(rented, "preempted")
                self.world.wake()

    def run(self) -> RunState:
        assert self.world is not None
        [run] = self.world.ledger.read().runs.values()
        return run

    def machines(self) -> list[RentedMachine]:
        assert self.world is not None
        every = [r for a in self.world.accounts.values() for r in a.pods.values()]
        return sorted(every, key=lambda rented: rented.created_at)


def taken(
    scenario: Scenario, share: float, times: int = 1, *, often: bool = False
) -> tuple[Taken, PlayResult]:
    taking = Taken(share, times, often)
    played = play(scenario, taking)
    assert played.violation == "", played.detail
    return taking, played


def continued_from(played: PlayResult, phase: str) -> int | None:
    """The step from which the phase's first trainer after the loss began; None: there was none."""
    texts = [line.text for line in played.timeline]
    lost = next(at for at, text in enumerate(texts) if text.endswith("is gone (preempted)"))
    found = (re.search(rf" {phase} attempt 1 from step (\d+)", text) for text in texts[lost:])
    return next((int(each[1]) for each in found if each), None)


@pytest.mark.parametrize("scenario", WORLDS, ids=lambda each: str(each.seed))
def test_a_run_that_is_preempted_continues_at_the_other_provider(scenario: Scenario) -> None:
    taking, _ = taken(scenario, 0.5)
    if not taking.steps:
        return  # it was not at work just then
    run = taking.run()
    lost, *others = run.generations
    assert others, f"closed as {run.outcome}"
    rates = {c.id: c.rate for c in run.plan.candidates}
    rest = [name for name in run.plan.launchable if name != lost.candidate_id]
    assert others[0].candidate_id == min(rest, key=lambda name: rates[name])
    assert run.outcome in (
        Outcome.FINISHED, Outcome.LANDED, Outcome.NEXT_PHASE_REFUSED, Outcome.GATE_FAILED,
    )  # fmt: skip
    assert run.settled <= run.cap
    assert taking.world is not None
    said = [r.event for r in taking.world.ledger.records() if isinstance(r.event, ev.PlanRevised)]
    assert [each.reason.kind for each in said] == [ReasonKind.MACHINE_LOST]


@pytest.mark.parametrize("scenario", WORLDS[:6], ids=lambda each: str(each.seed))
def test_at_most_one_save_interval_is_trained_twice(scenario: Scenario) -> None:
    taking, played = taken(scenario, 0.4, often=True)
    if not taking.steps:
        return
    phase, reached = taking.steps[0]
    shape, again = scenario.wishes[0].shapes[phase], continued_from(played, phase)
    assert again is not None
    stored_late = (shape.save_s + shape.eval_s + _STORED_S) / shape.step_s
    assert reached - again <= shape.save_every + stored_late


@pytest.mark.parametrize("scenario", WORLDS[:6], ids=lambda each: str(each.seed))
def test_the_next_pod_is_made_after_the_end_of_the_one_before(scenario: Scenario) -> None:
    taking, _ = taken(scenario, 0.2, times=3)
    machines = taking.machines()
    for before, after in itertools.pairwise(machines):
        assert before.ended_at is not None
        assert before.ended_at <= after.created_at


def test_without_a_command_that_stays_nothing_is_rented_by_itself() -> None:
    ends = []
    for scenario in WORLDS[:4]:
        wish = replace(scenario.wishes[0], detached=True)
        taking, _ = taken(replace(scenario, wishes=(wish,)), 0.5)
        run = taking.run()
        ends += [(run.outcome, len(run.generations))] if taking.steps else []
    assert set(ends) == {(Outcome.UNREPORTED, 1)}
