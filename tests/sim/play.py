"""A play of a whole scenario before all judges."""

from __future__ import annotations

import random
from dataclasses import fields
from typing import Any

from tests.sim.oracle.invariants import Invariants
from tests.sim.users import Users
from trmcloud.core.values import dataclass
from trmcloud.sim import play as product
from trmcloud.sim.scenario import Scenario
from trmcloud.sim.world.world import SimWorld


@dataclass(frozen=True)
class PlayResult(product.PlayResult):
    """The result of one seed, and what some judges have counted."""

    paces: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Paces that were measured, believed, slow, and for which the run was stopped."""
    grants: tuple[int, int, int] = (0, 0, 0)
    """Reservations of principals, what their grants refused, and revocations."""
    extensions: tuple[int, int] = (0, 0)
    """Stops that were moved, and runs that landed at one that could have been."""


def play(scenario: Scenario, arm: product.Arm | None = None) -> PlayResult:
    """The scenario from launch to the last bill. ``arm`` sets its faults."""
    world = SimWorld(random.Random(scenario.seed), scenario.providers)
    check, users = Invariants(world), Users(world, scenario)

    def finish() -> None:
        check.finish()
        users.judge()

    played = product.play_in(users, check, finish, arm)
    values: dict[str, Any] = {each.name: getattr(played, each.name) for each in fields(played)}
    return PlayResult(
        **values,
        paces=check.truth.paces.counts,
        grants=check.grants.counts,
        extensions=check.truth.extensions.counts,
    )
