"""The same work on a spot machine, beside a plan on demand, with the cost of its preemptions."""

from __future__ import annotations

from typing import NamedTuple

from trmcloud.core.catalog.providers import has_spot
from trmcloud.core.errors import BudgetRefused, DoesNotFit, NotFoundError, UsageError
from trmcloud.core.money import Usd, cost
from trmcloud.core.planner.candidates import interruptions_of
from trmcloud.core.planner.estimates import HOUR_S
from trmcloud.core.spec.plan import Candidate, Plan
from trmcloud.core.values import replace
from trmcloud.operations.plans.planning import Planner

_LEAST_SAVED = Usd("0.50")
_ANY_BUCKET = "s3://BUCKET/PREFIX"
"""Stands for the user's own, where none was named: a spot machine's checkpoints need one."""


class SpotBeside(NamedTuple):
    """A spot machine of the recommended hardware."""

    candidate: Candidate
    preemptions: float
    """That are expected until the end."""
    lost: Usd
    """Expected cost of the work that is repeated, and of the restarts; part of its cost."""


def spot_beside(planner: Planner, plan: Plan) -> SpotBeside | None:
    """The cheapest spot machine of the recommended hardware, where it costs less than one on demand
    (P50); None where there is none, or the plan is of a command or of this machine."""
    chosen, spec = plan.recommended, plan.spec
    if chosen is None or not chosen.rate or spec.command or spec.volume:
        return None
    wish = replace(spec, spot=True, bucket=spec.bucket or _ANY_BUCKET, hardware=chosen.hardware)
    try:
        rows = planner.plan(wish).candidates
    except (UsageError, NotFoundError, DoesNotFit, BudgetRefused):
        return None
    alike = [row for row in rows if row.hardware == chosen.hardware and row.fits_memory]
    spot = min(
        (row for row in alike if row.spot and has_spot(row.provider)),
        key=lambda row: (not row.within_budget, row.cost_p50),
        default=None,
    )
    steady = next((row for row in alike if not row.spot), None)
    if spot is None or steady is None or spot.cost_p50 + _LEAST_SAVED > steady.cost_p50:
        return None
    return SpotBeside(
        spot,
        interruptions_of(spot.provider).planned_per_hour * spot.nodes * spot.hours.p50,
        cost(spot.planned_rate or spot.rate, (spot.hours.p50 - steady.hours.p50) * HOUR_S),
    )
