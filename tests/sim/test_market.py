"""Worlds in which machines are rare: runs wait for them, under every fault of the market."""

from __future__ import annotations

import pytest

from tests.sim.market import market_scenario
from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.money import ZERO
from trmcloud.sim.faults.table import MARKET, NAMES, arm_all
from trmcloud.sim.play import play
from trmcloud.sim.scenario import draw

SEEDS = range(900_001, 900_061)


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


def test_every_fault_of_the_market_is_felt_somewhere() -> None:
    felt: set[str] = set()
    for seed in SEEDS:
        felt |= play(market_scenario(seed), arm_all).observed & set(MARKET)
    assert felt == set(MARKET)
