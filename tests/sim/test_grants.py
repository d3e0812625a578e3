"""Principals that spend within grants: every promise, G1 among them, under every fault."""

from __future__ import annotations

import pytest

from tests.sim.faults import arm_all
from tests.sim.grants import granted_scenario
from tests.sim.kept import KEEP_IT
from tests.sim.play import PlayResult, play
from tests.sim.soak import code_hash, first_seed
from trmcloud.core.control import bookkeeping

SEEDS = 60


@pytest.mark.parametrize("offset", range(SEEDS))
def test_grants_keep_every_promise(offset: int) -> None:
    played = play(granted_scenario(first_seed(code_hash()) + offset), arm_all)
    keep_it = KEEP_IT.format(seed=played.seed, kind="grants")
    assert not played.violation, f"{played.seed}: {played.detail}\n{keep_it}"


@pytest.mark.parametrize("seed", [356, 532])
def test_the_link_is_that_of_the_machine_which_is_left_of_two(seed: int) -> None:
    """Two are made of one name, and the first is deleted."""
    played = play(granted_scenario(seed), arm_all)
    assert not played.violation, f"{played.seed}: {played.detail}"


def worlds(first: int, count: int) -> list[PlayResult]:
    return [play(granted_scenario(seed), arm_all) for seed in range(first, first + count)]


def test_these_worlds_reserve_refuse_and_revoke() -> None:
    reserved, refused, revoked = zip(*(each.grants for each in worlds(1, 40)), strict=True)
    assert sum(map(bool, reserved)) >= 15
    assert sum(map(bool, refused)) >= 15
    assert sum(map(bool, revoked)) >= 8


def test_a_seed_is_one_world() -> None:
    assert worlds(7, 1)[0].digest == worlds(7, 1)[0].digest


def test_the_judge_sees_what_no_grant_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the transaction looks at no grant, most of these worlds break G1."""
    monkeypatch.setattr(bookkeeping, "refuse_by_grant", lambda *_: None)
    broken = [each for each in worlds(1, 20) if each.violation == "G1"]
    assert len(broken) >= 8
