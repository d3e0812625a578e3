"""Worlds in which machines are rare: runs wait for them, under every fault of the market."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.sim.drawing import draw
from tests.sim.faults import MARKET, NAMES, arm_all
from tests.sim.market import market_scenario
from tests.sim.play import PlayResult, play
from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO
from trmcloud.sim.scenario import Scenario
from trmcloud.sim.world.world import SimWorld

SEEDS = (*range(900_001, 900_061), 884_835)
"""In the last one the ledger is restored from a backup while a run waits."""


@pytest.mark.parametrize("seed", SEEDS)
def test_what_waits_keeps_every_promise(seed: int) -> None:
    played = play(market_scenario(seed), arm_all)
    assert not played.violation, played.detail


def test_the_market_is_drawn_apart_from_all_else() -> None:
    for seed in range(1, 40):
        plain, rare = draw(seed, NAMES), draw(seed, NAMES, market=tuple(MARKET))
        assert rare.faults[: len(plain.faults)] == plain.faults
        assert rare.fault_seeds[: len(plain.faults)] == plain.fault_seeds
        for before, after in zip(plain.wishes, rare.wishes, strict=True):
            assert (before.run_id, before.shapes) == (after.run_id, after.shapes)
            rented = before.plan.candidates[0].provider != LOCAL
            assert (after.plan.spec.wait_s > 0) is rented
            most = after.plan.spec.max_rate or ZERO
            assert all(c.reserved_rate == most for c in after.plan.candidates if rented)
            assert after.plan.reservation >= before.plan.reservation


@pytest.mark.more
def test_every_fault_of_the_market_is_felt_somewhere() -> None:
    felt: set[str] = set()
    for seed in SEEDS:
        felt |= play(market_scenario(seed), arm_all).observed & set(MARKET)
    assert felt == set(MARKET)


@pytest.mark.slow
def test_of_two_runs_that_wait_for_the_last_machine_one_gets_it() -> None:
    """Both ask, by controllers of their own; the other one keeps waiting, gives up at its time, and
    has spent nothing, or is given the machine once the first has done with it."""
    waited = taken_over = 0
    for scenario in itertools.islice(of_two_runs(), 30):
        played = play(scenario, one_machine_alone)
        assert not played.violation, played.detail
        spent = [billed for _, _, billed, _ in played.runs]
        assert max(spent) > 0, "one of them gets the machine"
        for _, outcome, billed, _ in played.runs:
            if outcome == NO_MACHINE:
                assert billed == 0, "it has spent nothing"
                waited += 1
        assert min(spent) == 0 or len(trained(played)) == 2
        taken_over += len(trained(played)) == 2
        lives = machines(played)
        assert all(a_end <= b_begin for (_, a_end), (b_begin, _) in itertools.pairwise(lives))
    assert waited >= 5
    assert taken_over >= 1


NO_MACHINE = Outcome.NO_MACHINE.value


def of_two_runs() -> Iterator[Scenario]:
    """Healthy worlds in which two runs are launched side by side, and both wait."""
    for seed in range(100_000):
        drawn = draw(seed, (), market=tuple(MARKET))
        rented = all(w.plan.candidates[0].provider != LOCAL for w in drawn.wishes)
        if len(drawn.wishes) != 2 or drawn.off or not rented:
            continue
        wishes = tuple(
            replace(w, at_s=30.0 + n, detached=False, stop_after_s=0.0, resume_after_s=0.0)
            for n, w in enumerate(drawn.wishes)
        )
        yield replace(
            drawn, wishes=wishes, faults=(), fault_seeds=(), foreign=False, account_cap=None,
            reaper="none",
        )  # fmt: skip


def one_machine_alone(world: SimWorld, scenario: Scenario) -> None:
    world.fire("101", "there is one machine for all")
    world.knobs.most_machines = 1


def trained(played: PlayResult) -> set[str]:
    """Machines on which a trainer was started."""
    starts = (line.text for line in played.timeline if " attempt 1 from step " in line.text)
    return {text.split()[0] for text in starts}


def machines(played: PlayResult) -> list[tuple[float, float]]:
    """From when to when each machine was there, in order."""
    made = {t.text.split()[0]: t.at for t in played.timeline if " is made as " in t.text}
    gone = {t.text.split()[0]: t.at for t in played.timeline if " is gone (" in t.text}
    return sorted((at, gone[name]) for name, at in made.items())
