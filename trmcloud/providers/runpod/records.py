"""RunPod's records of one pod beside its state: billing records, and the log of its boot.

Records come by the hour, late, and grow for a while. Until they are complete the bill is the larger
of what they say and what rate × time says. They are complete once the pod is gone and either

- they cover its end, amount to at least its known life at its rate, the time in which it may have
  ended unseen is short, and a billing tick has passed since; or
- they have stood still for ``UNCHANGED_S``.

A pod without any record is charged by its rate after ``NO_RECORDS_S``: unknown is never zero.

The log of a pod that boots is read while nothing of its agent was heard, and judged. ``GET
/v2/pods/{id}/logs`` streams Server-Sent Events whose ``data`` is ``{source, line, ts}``; ``tail``
lines come first, and then the stream stays open. ``source`` is ``system`` for what the host says
and ``container`` for what runs in the pod. Only the host's lines are judged: whatever a
pod prints is in the other source, and proves no more than that its container runs.

The texts of ``FATAL`` were met in public threads: dstackai/dstack #1976 and #2729,
Nerogar/OneTrainer #981 and #1160, runpod/containers #98, docker/for-mac #5383. After any of them a
pod was seen to stay RUNNING, billed, until somebody ended it.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

from trmcloud.adapters.pod_history import Sighting, Sightings
from trmcloud.core.control.observation import Bill, BootTrouble, PodSeen, PodStatus
from trmcloud.core.errors import ProviderError
from trmcloud.core.money import ZERO, Usd, cost
from trmcloud.core.storage import price_per_hour
from trmcloud.ports.compute import ThrottledError
from trmcloud.providers.runpod import models
from trmcloud.providers.runpod.api import RunPodApi

ASK_EVERY_S = 20.0
UNCHANGED_S = 1800.0
"""RunPod bills every five minutes and does not say when records follow: six of those."""
NO_RECORDS_S = 6 * 3600.0
TICK_S = 300.0
"""A list that omits a live pod for a moment must not make its bill final, either."""
SHORT_S = 15.0
"""The time within which an unseen end may lack that much rent in records that look complete."""
_BEYOND_S = 2 * TICK_S
"""Records may bill so much of a pod's time beyond its end without its living on."""
_HOUR_S = 3600.0
_LOOK_BACK_S = 30 * 86_400.0


@dataclass(frozen=True)
class _BillAnswer:
    at: float
    bill: Bill | None


class Biller:
    """Bills of pods that ``sightings`` knows. Answers are kept for ``ASK_EVERY_S``."""

    def __init__(self, api: RunPodApi, sightings: Sightings, now: Callable[[], float]) -> None:
        self._api = api
        self._seen = sightings
        self._now = now
        self._asked: dict[str, _BillAnswer] = {}

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
        self._asked[pod_id] = _BillAnswer(now, bill)
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
                disks = _disk_rate(sighting)
                pod_id, name, rate = sighting.pod_id, sighting.name, sighting.rate
                found.append(PodSeen(pod_id, name, PodStatus.UNKNOWN, rate, disk_rate=disks))
        return found

    def _stands(self, asked: _BillAnswer, pod_id: str) -> bool:
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
    return sighting.rate + _disk_rate(sighting)


def _disk_rate(sighting: Sighting) -> Usd:
    return price_per_hour("runpod", "running", sighting.disk_gb)


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


# -- boot log ------------------------------------------------------------

EVERY_S = 10.0
"""One pod's log is read no more often: RunPod takes 60 requests a minute in all."""
ALL_EVERY_S = 5.0
"""Nor is any other pod's, so that logs take no more than 12 of those 60."""
CONFIRM_S = 8.0
"""For so long a fatal line must have been the last word: a host may try again by itself."""
HOLD_S = 60.0
"""For so long a log that was refused is left alone, where RunPod does not say."""
TAIL = 200
_START, _PULL = "start", "pull"
#: What ends a boot: of the container's start, or of pulling its image. Lower case.
FATAL: Sequence[tuple[str, re.Pattern[str]]] = tuple(
    (stage, re.compile(text))
    for stage, text in (
        (_START, r"unsatisfied condition: cuda\s*[>=]"),
        (_START, r"nvidia-container-cli: (initialization|detection|requirement|device) error"),
        (_START, r"could not select device driver"),
        (_PULL, r"layer does not exist"),
        (_PULL, r"failed to register layer"),
        (_PULL, r"cannot be mapped to a host id"),
        (_PULL, r"manifest (for \S+ )?(unknown|not found)"),
        (_PULL, r"no matching manifest for"),
        (_PULL, r"toomanyrequests"),
        (_PULL, r"pull access denied"),
        (_PULL, r"no space left on device"),
    )
)
_TROUBLE = re.compile(
    r"\b(errors?|fail(ed|ure)|fatal|denied|unauthorized|cannot|could not|unable|timed? ?out)\b"
)
_PULLED = re.compile(r"status: (downloaded newer image|image is up to date)")


@dataclass(frozen=True)
class LogLine:
    """``source`` is "system" or "container"."""

    source: str
    text: str


def log_lines(stream: Iterable[str]) -> list[LogLine]:
    """The log lines in the text lines of an event stream; what is no event of a log is left out."""
    found: list[LogLine] = []
    data: list[str] = []
    for line in (*stream, ""):
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        if line or not data:
            continue
        try:
            event = json.loads("\n".join(data))
        except (ValueError, RecursionError):
            event = None
        data = []
        if not isinstance(event, dict):
            continue
        source, text = event.get("source"), event.get("line")
        if isinstance(source, str) and isinstance(text, str):
            found.append(LogLine(source, text))
    return found


def judge(lines: Sequence[LogLine], clean: Callable[[str], str]) -> BootTrouble | None:
    """Return the trouble in the newest line that reports one; None where no line does.

    A fatal line counts until something later shows that it was overcome: a line of the container,
    or, of an image that could not be had, that it was pulled after all.
    """
    trouble: BootTrouble | None = None
    stage = ""
    for line in lines:
        if line.source != "system":
            trouble, stage = None, ""
            continue
        text = line.text.casefold()
        fatal = next((stage for stage, pattern in FATAL if pattern.search(text)), "")
        if fatal:
            trouble, stage = BootTrouble(clean(line.text), fatal=True), fatal
        elif stage == _PULL and _PULLED.search(text):
            trouble, stage = None, ""
        elif _TROUBLE.search(text) and not stage:
            trouble = BootTrouble(clean(line.text), fatal=False)
    return trouble


@dataclass
class _KnownTrouble:
    read_at: float = -inf
    trouble: BootTrouble | None = None
    fatal_since: float | None = None


@dataclass
class BootLogs:
    """The troubles of pods that boot, each read at most every ``EVERY_S``."""

    api: RunPodApi
    now: Callable[[], float]
    _known: dict[str, _KnownTrouble] = field(default_factory=dict)
    _read_at: float = -inf
    _held_until: float = -inf
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def trouble(self, pod_id: str) -> BootTrouble | None:
        """By what was read last, or is read now where that is due. A log that cannot be read says
        nothing: it ends no pod."""
        with self._lock:
            known = self._known.setdefault(pod_id, _KnownTrouble())
            now = self.now()
            if self._is_due(known, now):
                self._read_at = known.read_at = now
                self._read(pod_id, known)
            found = known.trouble
            if found is None or not found.fatal or known.fatal_since is None:
                return found
            stood_s = known.read_at - known.fatal_since
            return found if stood_s >= CONFIRM_S else BootTrouble(found.text, fatal=False)

    def _is_due(self, known: _KnownTrouble, now: float) -> bool:
        if now < known.read_at or now < self._read_at:
            known.read_at, self._read_at, self._held_until = -inf, -inf, -inf  # it was set back
            known.fatal_since = None
        due = now - known.read_at >= EVERY_S and now - self._read_at >= ALL_EVERY_S
        return due and now >= self._held_until

    def _read(self, pod_id: str, known: _KnownTrouble) -> None:
        try:
            stream = self.api.log_text(pod_id, TAIL)
        except ProviderError as error:
            told_s = error.retry_after_s if isinstance(error, ThrottledError) else None
            self._held_until = known.read_at + (told_s if told_s is not None else HOLD_S)
            return
        trouble = judge(log_lines(stream), self.api.http.clean)
        if trouble is None or not trouble.fatal:
            known.fatal_since = None
        elif known.fatal_since is None:
            known.fatal_since = known.read_at
        known.trouble = trouble
