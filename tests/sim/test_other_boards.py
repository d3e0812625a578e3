"""Hosts of another board than was rented, in the simulated world."""

from __future__ import annotations

import pytest

from tests.sim.test_found import held, pods_made, world


@pytest.mark.parametrize("reaper", ["none", "always"])
def test_a_host_of_another_board_costs_no_more_than_was_reserved(reaper: str) -> None:
    seen, more, refused = 0, 0, 0
    for seed in range(100, 220, 10):
        played = held(world("96", seed=seed, reaper=reaper))
        seen += "96" in played.observed
        more += pods_made(played) > 1
        refused += any(outcome == "unfit" for _, outcome, _, _ in played.runs)
    assert seen >= 6
    assert more + refused >= 3, "some of them are refused"
