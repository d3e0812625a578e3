"""The faults that a rehearsal knows, by number."""

from __future__ import annotations

import random
from collections.abc import Mapping

from trmcloud.sim.faults import controller, provider, training
from trmcloud.sim.faults.arm import Fault, FaultContext
from trmcloud.sim.scenario import Scenario
from trmcloud.sim.world.world import SimWorld

ALL: Mapping[str, tuple[str, Fault]] = dict(
    sorted(
        {**controller.FAULTS, **provider.FAULTS, **training.FAULTS}.items(),
        key=lambda item: int(item[0]),
    )
)
NAMES = tuple(ALL)


def arm_all(
    world: SimWorld, scenario: Scenario, faults: Mapping[str, tuple[str, Fault]] = ALL
) -> None:
    """Set every fault of the scenario, each with dice of its own."""
    for number, seed in zip(scenario.faults, scenario.fault_seeds, strict=True):
        faults[number][1](FaultContext(number, world, scenario, random.Random(seed)))
