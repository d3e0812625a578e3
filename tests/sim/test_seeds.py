"""Two thousand worlds with every fault enabled that this version of the code was never tried on,
and not one invariant broken."""

from __future__ import annotations

import json

import pytest

from tests.sim.soak import code_hash, first_seed
from trmcloud.sim.faults.table import NAMES, arm_all
from trmcloud.sim.play import play, shrink, timeline
from trmcloud.sim.scenario import draw
from trmcloud.sim.world.provider_profiles import PROFILES

SEEDS = 2_000
BATCH = 125
KEEP_IT = """
This seed was drawn by the hash of the code, and with the next change of it will not be drawn again.
Add it to tests/sim/kept.json, with what it teaches, before anything else is done about it:
"{seed}": {{"faults": {faults}, "providers": {providers}, "elsewhere": true, "taught": "…"}}"""


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
            drawn = json.dumps([each.provider for each in PROFILES.values() if each.shares])
            keep_it = KEEP_IT.format(seed=seed, faults=len(NAMES), providers=drawn)
            pytest.fail(f"{told}{keep_it}\n{story}")
