"""How often a machine is asked for that cannot be had; and the boot budget: for how long a rented
one may boot, and what boots that fail may cost. Pure.

A provider bills a pod from its creation, whether or not it ever starts. A pod whose agent was not
heard within its provider's boot deadline is ended; what it has cost by then is lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from trmcloud.core.catalog.providers import find_traits
from trmcloud.core.money import ZERO, Usd, cost
from trmcloud.core.spec.plan import Candidate

ASK_EVERY_S = 480.0
"""So often, give or take a fifth, a run that waits for a machine asks a provider for one."""
LEAST_BOOTS = 3
"""So many boots may fail, at the dearest candidate's price, where a run waits for a machine."""


def boot_limit_s(candidate: Candidate) -> float:
    """Seconds from a pod's creation until it is ended where its agent was not heard; 0 where no
    machine is rented."""
    traits = find_traits(candidate.provider)
    return traits.boot_deadline_s if traits is not None and traits.rented else 0.0


def boot_cost(candidate: Candidate, rate: Usd | None = None) -> Usd:
    """The most that one boot that fails costs, its end included, at ``rate`` USD an hour; None: at
    the rate that is reserved."""
    traits = find_traits(candidate.provider)
    if traits is None or not traits.rented:
        return ZERO
    hourly = (rate or candidate.reserved_rate) + candidate.disk_rate
    return cost(hourly, traits.boot_deadline_s + traits.kill_latency_s)


def boot_budget(candidates: Sequence[Candidate], held: Usd, rate: Usd | None = None) -> Usd:
    """The most that all boots that fail may cost together: one of each candidate, and no fewer than
    ``LEAST_BOOTS``, at the price of the dearest; never more than what is ``held`` for the run."""
    dearest = max((boot_cost(candidate, rate) for candidate in candidates), default=ZERO)
    return min(held, Usd.from_micros(dearest.micros * max(LEAST_BOOTS, len(candidates))))
