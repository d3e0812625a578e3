"""Twenty thousand worlds with every fault enabled, and not one invariant broken."""

from __future__ import annotations

import pytest

from trmcloud.sim.faults.table import NAMES, arm_all
from trmcloud.sim.play import play
from trmcloud.sim.scenario import draw
from trmcloud.sim.shrink import shrink, timeline

SEEDS = 20_000
BATCH = 250


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_no_invariant_breaks(first: int) -> None:
    for seed in range(first, first + BATCH):
        scenario = draw(seed, NAMES)
        played = play(scenario, arm_all)
        if played.violation:
            smaller, shown = shrink(scenario)
            story = timeline(shown.told)
            pytest.fail(f"seed {seed}, faults {smaller.faults}: {shown.detail}\n{story}")
