"""What a cluster has cost, as far as anyone here can know: an estimate.

SkyPilot reports its own catalogue's price × the time for which it believes the cluster was up. That
lacks provisioning, disks and traffic, and is nothing where its catalogue lacks the price; so the
bill is no less than the planned rate × the time from the launch until the cluster was missed. What
was missed long after it was last seen counts until its hard stop had been kept: nobody had looked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trmcloud.adapters.pod_history import Sighting, Sightings
from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.contract.pod_contract import parse_pod_name
from trmcloud.core.control.observation import Bill
from trmcloud.core.errors import ProviderError
from trmcloud.core.money import ZERO, Usd, cost
from trmcloud.providers.skypilot.command import Sky

ASK_EVERY_S = 30.0
FINAL_AFTER_S = 20.0
"""A list that omits a cluster for a moment must not make its bill final."""
_DAYS = 30
_MOST_USD = 1e7


_ALL_OR_NONE = ("aws", "gcp")
"""They make the machines of a cluster by one request."""


def may_be_billed(provider: str, sighting: Sighting) -> bool:
    """Whether a launch that failed for want of machines may have had some for a while."""
    return sighting.nodes > 1 and provider not in _ALL_OR_NONE


class Biller:
    """Bills of clusters that ``seen`` knows. Reports are kept for ``ASK_EVERY_S``."""

    def __init__(self, provider: str, sky: Sky, seen: Sightings, now: Callable[[], float]) -> None:
        self._provider = provider
        self._sky, self._seen, self._now = sky, seen, now
        self._asked_at: float | None = None
        self._reported: dict[str, Usd] = {}

    def bill(self, name: str) -> Bill | None:
        """None where nothing is known of the cluster. Final once it has been missed for a while:
        nobody will say more.

        Raises:
            ProviderError: SkyPilot cannot be asked.
        """
        sighting = self._seen.get(name)
        reported = self._report().get(name)
        if sighting is None:
            return Bill(name, reported, final=False) if reported is not None else None
        if sighting.never_made and not may_be_billed(self._provider, sighting):
            # SkyPilot reports the time that it spent looking for one.
            return Bill(name, ZERO, final=True)
        now = self._now()
        gone_at = sighting.gone_at
        final = gone_at is not None and now - gone_at >= FINAL_AFTER_S
        least = _least(sighting, now, traits_of(self._provider).kill_latency_s)
        return Bill(name, max(reported or ZERO, least), final=final)

    def _report(self) -> dict[str, Usd]:
        now = self._now()
        if self._asked_at is None or not 0 <= now - self._asked_at < ASK_EVERY_S:
            rows = self._sky.read("cost-report", "--days", str(_DAYS))
            if not isinstance(rows, list):
                raise ProviderError("sky cost-report printed no list")
            found: dict[str, Usd] = {}
            for row in rows:
                name, amount = _amount(row)
                # A name that was used twice has cost both.
                found[name] = found.get(name, ZERO) + amount
            self._reported, self._asked_at = found, now
        return self._reported


def _least(sighting: Sighting, now: float, kill_latency_s: float) -> Usd:
    if sighting.made_at is None:
        return ZERO
    until, name = sighting.gone_at, parse_pod_name(sighting.name)
    if until is None:
        until = now
    elif name is not None and (sighting.alive_at or 0.0) < name.hard_stop_at + kill_latency_s:
        # A laptop that was off for a week has not rented for a week.
        until = min(until, name.hard_stop_at + kill_latency_s)
    return cost(sighting.rate, max(0.0, until - sighting.made_at))


def _amount(row: Any) -> tuple[str, Usd]:
    if not isinstance(row, dict):
        return "", ZERO
    name, total = str(row.get("name")), row.get("total_cost")
    if isinstance(total, bool) or not isinstance(total, int | float) or not 0 < total < _MOST_USD:
        return name, ZERO
    return name, Usd.from_micros(round(total * 1e6))
