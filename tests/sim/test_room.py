"""Runs that give money which they do not need to another one: every promise under every fault."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from tests.sim.playing import seeds_of
from tests.sim.squeezes import squeezed_scenario
from trmcloud.core.control import events as ev
from trmcloud.sim.faults.table import arm_all
from trmcloud.sim.play import play
from trmcloud.sim.scenario import Scenario
from trmcloud.sim.world.world import SimWorld

SEEDS = tuple(itertools.islice(seeds_of(squeezed_scenario, 700_001), 60))


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_squeezed_keeps_every_promise(seed: int) -> None:
    scenario = squeezed_scenario(seed)
    assert scenario is not None
    played = play(scenario, arm_all)
    assert not played.violation, played.detail


class Kept:
    """Keeps the world that is played."""

    world: SimWorld

    def __call__(self, world: SimWorld, scenario: Scenario) -> None:
        self.world = world


@pytest.mark.slow
def test_the_second_run_gets_what_the_first_can_spare_but_not_without_a_reaper_elsewhere() -> None:
    freed = alone = 0
    for seed in itertools.islice(seeds_of(squeezed_scenario, 720_001), 90):
        scenario = squeezed_scenario(seed)
        assert scenario is not None
        calm = replace(scenario, faults=(), fault_seeds=(), off=frozenset(), reaper="server")
        kept = Kept()
        played = play(calm, kept)
        assert not played.violation, played.detail
        events = [record.event for record in kept.world.ledger.records()]
        kinds = [type(event) for event in events]
        if ev.StopLowered in kinds:
            freed += 1
            order = [k for k in kinds if k in (ev.StopLowering, ev.StopKnown, ev.StopLowered)]
            assert order[:3] == [ev.StopLowering, ev.StopKnown, ev.StopLowered]
            second = [at for at, kind in enumerate(kinds) if kind is ev.RunPlanned][1]
            assert kinds.index(ev.StopLowered) < second, "the money was free before it was held"
            unguarded = play(replace(calm, reaper="none"), kept)
            assert not unguarded.violation, unguarded.detail
            assert unguarded.squeezes == (0, 0)
            alone += 1
    assert freed >= 10, "too few of these worlds have a run that gives"
    assert alone == freed
