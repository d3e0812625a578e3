"""Simulated sweeps: worlds that the hash of the core draws, and single ones by hand."""

from __future__ import annotations

import pytest

from tests.sim.soak import first_seed
from tests.sim.sweeps import code_hash, draw_world, play_world

WORLDS = 160
BATCH = 40


@pytest.mark.parametrize("offset", range(0, WORLDS, BATCH))
def test_no_invariant_of_a_sweep_breaks(offset: int) -> None:
    first = first_seed(code_hash()) + offset
    ended = 0
    for seed in range(first, first + BATCH):
        world = draw_world(seed)
        if world is not None:
            ended += play_world(world).events > 0
    assert ended > BATCH // 2


def test_the_faults_of_worlds_happen() -> None:
    seen = set[str]()
    for seed in range(60):
        world = draw_world(seed)
        if world is not None:
            seen.update(+play_world(world).faults)
    faults = {"crash", "lost machine", "killed", "slow", "not a number", "no metric"}
    assert seen >= faults
