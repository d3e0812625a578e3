"""All faults by number, and the pairs of them that cannot both strike."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping

from trmcloud.sim.faults import controller, hostile, market, provider, training
from trmcloud.sim.faults.arm import Fault, FaultContext
from trmcloud.sim.scenario import Scenario
from trmcloud.sim.world.world import SimWorld

ALL: Mapping[str, tuple[str, Fault]] = dict(
    sorted(
        {**controller.FAULTS, **provider.FAULTS, **training.FAULTS, **hostile.FAULTS}.items(),
        key=lambda item: int(item[0]),
    )
)
NAMES = tuple(ALL)
MARKET = market.FAULTS
"""Apart: they strike where runs wait for a machine, and all other worlds stay what they were."""
PAIRS = tuple(itertools.combinations(NAMES, 2))

#: Pairs that cannot both be felt in one world, and why.
IMPOSSIBLE: Mapping[tuple[str, str], str] = {}


def arm_all(world: SimWorld, scenario: Scenario) -> None:
    """Set every fault of the scenario, each with dice of its own."""
    for number, seed in zip(scenario.faults, scenario.fault_seeds, strict=True):
        (ALL.get(number) or MARKET[number])[1](
            FaultContext(number, world, scenario, random.Random(seed))
        )
