"""A plan for one machine as several carry it out. Pure; no pod needs it."""

from __future__ import annotations

import math

from trmcloud.core.errors import UsageError
from trmcloud.core.spec.plan import Candidate
from trmcloud.core.values import replace


def shared(candidate: Candidate, count: int) -> Candidate:
    """``candidate`` as ``count`` nodes like the one it was planned for carry it out: the same most
    that it may cost, so their time is divided; the same global batch where it can be divided.

    Raises:
        UsageError: two phases, of which only node 0 could judge the first; or too little time.
    """
    if count == 1:
        return candidate
    if len(candidate.phases) > 1:
        raise UsageError(
            "several nodes train one phase at a time", next_step="export --phase fast, then extreme"
        )
    hard_stop_s = candidate.hard_stop_s / count
    if hard_stop_s <= 2 * candidate.landing_s:
        raise UsageError(
            f"{hard_stop_s:.0f} s are what the budget buys of {count} nodes: too few to train in",
            next_step="fewer nodes, or export with more budget",
        )
    phases = tuple(
        replace(
            phase,
            settings=replace(
                phase.settings, accumulation=math.ceil(phase.settings.accumulation / count)
            ),
        )
        for phase in candidate.phases
    )
    return replace(
        candidate,
        nodes=count,
        rate=candidate.rate * count,
        phases=phases,
        soft_stop_s=hard_stop_s - candidate.landing_s,
        hard_stop_s=hard_stop_s,
    )
