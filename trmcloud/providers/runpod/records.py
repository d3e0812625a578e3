"""A pod's bill from RunPod's records, which come by the hour, late, and grow for a while.

Until they are complete the bill is the larger of what they say and what rate × time says. They are
complete once the pod is gone and either

- they cover its end, amount to at least its known life at its rate, the time in which it may have
  ended unseen is short, and a billing tick has passed since; or
- they have stood still for ``UNCHANGED_S``.

A pod without any record is charged by its rate after ``NO_RECORDS_S``: unknown is never zero.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from trmcloud.adapters.pod_history import Sighting, Sightings
from trmcloud.core.control.observation import Bill, PodSeen, PodStatus
from trmcloud.core.money import ZERO, Usd, cost
from trmcloud.core.storage import running_rate
from trmcloud.core.values import dataclass
from trmcloud.providers.runpod import models
from trmcloud.providers.runpod.api import RunPodApi

ASK_EVERY_S = 20.0
UNCHANGED_S = 1800.0
"""RunPod bills every five minutes and does not say when records follow: six of those."""
NO_RECORDS_S = 6 * 3600.0
TICK_S = 300.0
"""A list that omits a live pod for a moment must not make its bill final, either."""
SHORT_S = 15.0
"""What ended unseen within this time may lack that much rent in records that look whole."""
_BEYOND_S = 2 * TICK_S
"""Records may bill so much of a pod's time beyond its end without its living on."""
_HOUR_S = 3600.0
_LOOK_BACK_S = 30 * 86_400.0


@dataclass(frozen=True)
class _Asked:
    at: float
    bill: Bill | None


class Biller:
    """Bills of pods that ``sightings`` knows. Answers are kept for ``ASK_EVERY_S``."""

    def __init__(self, api: RunPodApi, sightings: Sightings, now: Callable[[], float]) -> None:
        self._api = api
        self._seen = sightings
        self._now = now
        self._asked: dict[str, _Asked] = {}

    def bill(self, pod_id: str) -> Bill | None:
        """None where nothing at all is known of the pod.

        Raises:
            ProviderError: the records cannot be read.
        """
        now = self._now()
        asked = self._asked.get(pod_id)
        if asked is not None and 0 <= now - asked.at < ASK_EVERY_S and self._stands(asked, pod_id):
            return asked.bill
        bill = self._ask(pod_id, now)
        self._asked[pod_id] = _Asked(now, bill)
        return bill

    def billed_on(self, listed: Collection[str]) -> list[PodSeen]:
        """Pods in no list, ``listed`` being those that are, whose records of the last two hours say
        that they were billed for time well after they were first missed.

        Raises:
            ProviderError: the records cannot be read.
        """
        records: dict[str, list[models.BillingRecord]] = {}
        for record in self._api.billed_lately():
            records.setdefault(record.podId, []).append(record)
        found = []
        for sighting in self._seen.all():
            mine = records.get(sighting.pod_id)
            if not mine or sighting.gone_at is None or sighting.pod_id in listed:
                continue
            starts = [record.starts_at for record in mine if record.starts_at is not None]
            since = max(min(starts, default=0.0), sighting.made_at or 0.0)
            owed = cost(_rate(sighting), max(0.0, sighting.gone_at + _BEYOND_S - since))
            if _total(mine) > owed:
                found.append(
                    PodSeen(sighting.pod_id, sighting.name, PodStatus.UNKNOWN, sighting.rate)
                )
        return found

    def _stands(self, asked: _Asked, pod_id: str) -> bool:
        """A bill that was final is not, once the pod stands in a list again."""
        sighting = self._seen.get(pod_id)
        gone = sighting is not None and sighting.gone_at is not None
        return asked.bill is None or not asked.bill.final or gone or sighting is None

    def _ask(self, pod_id: str, now: float) -> Bill | None:
        sighting = self._seen.get(pod_id)
        made_at = sighting.made_at if sighting is not None else None
        starts_at = (made_at if made_at is not None else now - _LOOK_BACK_S) // _HOUR_S * _HOUR_S
        starts_at = min(starts_at, now - 1.0)
        records = [
            record
            for record in self._api.billing(starts_at=starts_at, ends_at=now + 1.0, pod_id=pod_id)
            if record.podId == pod_id
        ]
        total = _total(records)
        if sighting is None:
            return Bill(pod_id, total, final=False) if records else None
        sighting = self._seen.billed(pod_id, total if records else None, now) or sighting
        estimate = _estimate(sighting, now)
        if not _complete(sighting, records, total, now):
            return Bill(pod_id, max(total, estimate), final=False)
        return Bill(pod_id, total if records else estimate, final=True)


def _estimate(sighting: Sighting, now: float) -> Usd:
    """Rate × the longest life it can have had, disks included."""
    if sighting.made_at is None:
        return ZERO
    until = sighting.gone_at if sighting.gone_at is not None else now
    return cost(_rate(sighting), max(0.0, until - sighting.made_at))


def _rate(sighting: Sighting) -> Usd:
    return sighting.rate + running_rate("runpod", sighting.disk_gb)


def _total(records: list[models.BillingRecord]) -> Usd:
    return sum((models.usd_exact(max(0.0, r.totalAmount)) for r in records), ZERO)


def _complete(
    sighting: Sighting, records: list[models.BillingRecord], total: Usd, now: float
) -> bool:
    gone_at, alive_at = sighting.gone_at, sighting.alive_at
    if gone_at is None:
        return False
    still_since = max(gone_at, sighting.billed_since if sighting.billed_since is not None else now)
    if not records:
        return now - still_since >= NO_RECORDS_S
    if now - still_since >= UNCHANGED_S:
        return True
    if now - gone_at < TICK_S:
        return False
    began_at = sighting.started_at if sighting.started_at is not None else sighting.made_at
    if alive_at is None or began_at is None or gone_at - alive_at > SHORT_S:
        return False
    covers = any((record.ends_at or 0.0) >= gone_at for record in records)
    known_life = cost(_rate(sighting), max(0.0, alive_at - began_at))
    return covers and bool(known_life) and total >= known_life
