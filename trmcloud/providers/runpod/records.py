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
from trmcloud.core.control.observation import BootTrouble, PodSeen, PodStatus
from trmcloud.core.errors import ProviderError
from trmcloud.core.money import ZERO, Usd, cost
from trmcloud.core.values import Value
from trmcloud.ports.compute import ThrottledError
from trmcloud.providers.listed import RecordBiller
from trmcloud.providers.runpod import models
from trmcloud.providers.runpod.api import RunPodApi

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


class Biller(RecordBiller[models.BillingRecord]):
    """By RunPod's billing records."""

    def __init__(self, api: RunPodApi, sightings: Sightings, now: Callable[[], float]) -> None:
        super().__init__("runpod", sightings, now)
        self._api = api

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
            owed = cost(self.rate_of(sighting), max(0.0, sighting.gone_at + _BEYOND_S - since))
            if self._total(mine) > owed:
                disks = self.disk_rate_of(sighting)
                pod_id, name, rate = sighting.pod_id, sighting.name, sighting.rate
                found.append(PodSeen(pod_id, name, PodStatus.UNKNOWN, rate, disk_rate=disks))
        return found

    def _records(self, pod_id: str, since: float, now: float) -> list[models.BillingRecord]:
        starts_at = min(since // _HOUR_S * _HOUR_S, now - 1.0)
        found = self._api.billing(starts_at=starts_at, ends_at=now + 1.0, pod_id=pod_id)
        return [record for record in found if record.podId == pod_id]

    def _total(self, records: list[models.BillingRecord]) -> Usd:
        return sum((models.usd_exact(max(0.0, r.totalAmount)) for r in records), ZERO)

    def _is_complete(
        self, sighting: Sighting, gone_at: float, records: list[models.BillingRecord], now: float
    ) -> bool:
        billed_since = sighting.billed_since if sighting.billed_since is not None else now
        still_s = now - max(gone_at, billed_since)
        if not records:
            return still_s >= NO_RECORDS_S
        if still_s >= UNCHANGED_S:
            return True
        if now - gone_at < TICK_S:
            return False
        began_at = sighting.started_at if sighting.started_at is not None else sighting.made_at
        alive_at = sighting.alive_at
        if alive_at is None or began_at is None or gone_at - alive_at > SHORT_S:
            return False
        covers = any((record.ends_at or 0.0) >= gone_at for record in records)
        known_life = cost(self.rate_of(sighting), max(0.0, alive_at - began_at))
        return covers and bool(known_life) and self._total(records) >= known_life


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


class LogLine(Value):
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
