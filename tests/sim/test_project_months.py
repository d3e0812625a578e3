"""Worlds in which a project's month has a cap and anything fails: the oracle's own sums hold."""

from __future__ import annotations

import itertools
from dataclasses import replace

from tests.sim.drawing import draw
from tests.sim.faults import NAMES, arm_all
from tests.sim.play import play
from trmcloud.core.control import events as ev
from trmcloud.core.control.budget import PROJECT_MONTH, project_month
from trmcloud.core.control.grants import month_of
from trmcloud.core.money import Usd
from trmcloud.sim.scenario import Scenario
from trmcloud.sim.world.world import SimWorld

WORLDS = 24


class CapsTheMonth:
    """Caps each project's month: the largest reservation of its runs fits, not all do."""

    world: SimWorld

    def __call__(self, world: SimWorld, scenario: Scenario) -> None:
        self.world = world
        arm_all(world, scenario)
        for project in {wish.project for wish in scenario.wishes}:
            most = max(w.plan.reservation for w in scenario.wishes if w.project == project)
            cap = Usd.from_micros(most.micros * 11 // 10)
            world.ledger.set_cap(ev.CapSet(PROJECT_MONTH, project, cap), world.queue.now)


def test_a_projects_month_holds_no_more_than_its_cap_whatever_fails() -> None:
    refused = held = 0
    several = (
        made for seed in itertools.count(7_300) if len((made := draw(seed, NAMES)).wishes) > 1
    )
    for each in itertools.islice(several, WORLDS):
        drawn, seed = replace(each, account_cap=None), each.seed
        caps = CapsTheMonth()
        played = play(drawn, caps)
        assert not played.violation, (seed, played.detail)
        ledger = caps.world.ledger.read()
        refused += len(drawn.wishes) - len(ledger.runs)
        for run in ledger.runs.values():
            line = ledger.line(PROJECT_MONTH, project_month(run.project, month_of(run.reserved_at)))
            assert line.cap is not None
            held += bool(line.settled + line.reserved)
            assert line.settled + line.reserved <= line.cap or line.strays, seed
    assert refused > 3, "the cap binds in some worlds"
    assert held > 3
