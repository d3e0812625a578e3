"""Some hundred worlds with every fault enabled that this version of the code was never tried on,
and not one invariant broken."""

from __future__ import annotations

import pytest

from tests.sim.drawing import draw
from tests.sim.faults import NAMES, arm_all
from tests.sim.kept import KEEP_IT
from tests.sim.play import play
from tests.sim.shrinking import shrink
from tests.sim.soak import code_hash, first_seed
from trmcloud.sim.play import timeline

SEEDS = 240
BATCH = 60


@pytest.mark.slow
@pytest.mark.parametrize("offset", range(0, SEEDS, BATCH))
def test_no_invariant_breaks(offset: int) -> None:
    first = first_seed(code_hash()) + offset
    for seed in range(first, first + BATCH):
        scenario = draw(seed, NAMES)
        played = play(scenario, arm_all)
        if played.violation:
            smaller, shown = shrink(scenario)
            story = timeline(shown.timeline)
            told = f"seed {seed}, faults {smaller.faults}: {shown.detail}"
            pytest.fail(f"{told}\n{KEEP_IT.format(seed=seed, kind='drawn')}\n{story}")
