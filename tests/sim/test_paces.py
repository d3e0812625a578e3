"""Machines that are faster or slower than planned and time their steps: every promise under every
fault, and, where nothing else goes wrong, what a measurement leads to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.sim.drawing import draw, with_paces
from tests.sim.faults import arm_all
from tests.sim.paces import paced_scenario
from tests.sim.play import PlayResult, play
from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.control import events as ev
from trmcloud.core.errors import Outcome
from trmcloud.sim.scenario import Scenario
from trmcloud.sim.world.facts import TruePaces
from trmcloud.sim.world.world import SimWorld


@pytest.mark.parametrize("seed", range(700_001, 700_061))
def test_what_times_its_steps_keeps_every_promise(seed: int) -> None:
    played = play(paced_scenario(seed), arm_all)
    assert not played.violation, played.detail


class Kept:
    """Keeps the world that is played."""

    world: SimWorld

    def __call__(self, world: SimWorld, scenario: Scenario) -> None:
        self.world = world


def healthy(policy: str, paces: TruePaces) -> Iterator[Scenario]:
    """Worlds in which nothing goes wrong, with one rented run that a command stays with."""
    for seed in range(100_000):
        made = with_paces(draw(seed, ()))
        wish = made.wishes[0]
        spec = wish.plan.spec
        rented = wish.plan.candidates[0].provider != LOCAL
        if made.off or not rented or not spec.bucket or spec.patience:
            continue
        if not wish.plan.candidates[0].within_budget:
            continue
        plan = replace(wish.plan, spec=replace(spec, if_slow=policy))
        wish = replace(wish, plan=plan, detached=False, stop_after_s=0.0, resume_after_s=0.0)
        yield replace(
            made, wishes=(wish,), account_cap=None, foreign=False, paces={wish.run_id: paces}
        )


def played(policy: str, paces: TruePaces, worlds: int) -> Iterator[tuple[PlayResult, SimWorld]]:
    for scenario, _ in zip(healthy(policy, paces), range(worlds), strict=False):
        kept = Kept()
        result = play(scenario, kept)
        assert not result.violation, result.detail
        yield result, kept.world


def paces_in(world: SimWorld) -> list[ev.PaceMeasured]:
    events = (record.event for record in world.ledger.records())
    return [event for event in events if isinstance(event, ev.PaceMeasured)]


@pytest.mark.parametrize("first", [10.0, 0.1])
def test_odd_first_steps_stop_no_run(first: float) -> None:
    timed = 0
    for result, world in played("stop", TruePaces((1.0,), first=first), 12):
        timed += len(paces_in(world))
        assert all(pace.slow is None or "fits" in pace.slow.kind.value for pace in paces_in(world))
        assert result.paces[0] == len(paces_in(world))
    assert timed >= 8


def test_a_slow_machine_is_stopped_with_its_checkpoint_kept() -> None:
    stopped = 0
    for result, _ in played("stop", TruePaces((2.5,)), 12):
        if result.paces[3]:
            stopped += 1
            assert result.runs[0][1] == Outcome.STOPPED.value
            assert result.saved[0] > 0
    assert stopped >= 5


def test_by_default_a_slow_machine_is_told_of_and_trains_on() -> None:
    slow = 0
    for result, world in played("continue", TruePaces((1.6,)), 12):
        slow += result.paces[2]
        assert result.paces[3] == 0
        assert all(pace.follows in ("", "continue") for pace in paces_in(world))
        assert result.runs[0][1] != Outcome.STOPPED.value
    assert slow >= 5


@pytest.mark.parametrize("lie", [0.002, 1000.0])
def test_an_impossible_pace_leads_to_nothing(lie: float) -> None:
    doubted = 0
    for result, world in played("stop", TruePaces((1.0,), lie=lie), 12):
        doubted += sum(pace.doubt is not None for pace in paces_in(world))
        assert all(pace.doubt is not None for pace in paces_in(world))
        assert result.paces[2:] == (0, 0)
    assert doubted >= 5
