"""RunPod's own log of a pod that boots: read while nothing of its agent was heard, and judged.

``GET /v2/pods/{id}/logs`` streams Server-Sent Events whose ``data`` is ``{source, line, ts}``;
``tail`` lines come first, and then the stream stays open. ``source`` is ``system`` for what the
host says and ``container`` for what runs in the pod. Only the host's lines are judged: whatever a
pod prints is in the other source, and proves no more than that its container runs.

The texts of ``FATAL`` were met in public threads: dstackai/dstack #1976 and #2729,
Nerogar/OneTrainer #981 and #1160, runpod/containers #98, docker/for-mac #5383. After any of them a
pod was seen to stay RUNNING, billed, until somebody ended it.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

from trmcloud.core.control.observation import BootTrouble
from trmcloud.core.errors import ProviderError
from trmcloud.providers.runpod.api import RunPodApi
from trmcloud.providers.runpod.http import Throttled

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
    """What is wrong by the newest line that says so; None where nothing does.

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
class _Known:
    read_at: float = -inf
    trouble: BootTrouble | None = None
    fatal_since: float | None = None


@dataclass
class BootLogs:
    """The troubles of pods that boot, each read at most every ``EVERY_S``."""

    api: RunPodApi
    now: Callable[[], float]
    _known: dict[str, _Known] = field(default_factory=dict)
    _read_at: float = -inf
    _held_until: float = -inf
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def trouble(self, pod_id: str) -> BootTrouble | None:
        """By what was read last, or is read now where that is due. A log that cannot be read says
        nothing: it ends no pod."""
        with self._lock:
            known = self._known.setdefault(pod_id, _Known())
            now = self.now()
            if self._is_due(known, now):
                self._read_at = known.read_at = now
                self._read(pod_id, known)
            found = known.trouble
            if found is None or not found.fatal or known.fatal_since is None:
                return found
            stood_s = known.read_at - known.fatal_since
            return found if stood_s >= CONFIRM_S else BootTrouble(found.text, fatal=False)

    def _is_due(self, known: _Known, now: float) -> bool:
        if now < known.read_at or now < self._read_at:
            known.read_at, self._read_at, self._held_until = -inf, -inf, -inf  # it was set back
            known.fatal_since = None
        due = now - known.read_at >= EVERY_S and now - self._read_at >= ALL_EVERY_S
        return due and now >= self._held_until

    def _read(self, pod_id: str, known: _Known) -> None:
        try:
            stream = self.api.log_text(pod_id, TAIL)
        except ProviderError as error:
            told_s = error.retry_after_s if isinstance(error, Throttled) else None
            self._held_until = known.read_at + (told_s if told_s is not None else HOLD_S)
            return
        trouble = judge(log_lines(stream), self.api.http.clean)
        if trouble is None or not trouble.fatal:
            known.fatal_since = None
        elif known.fatal_since is None:
            known.fatal_since = known.read_at
        known.trouble = trouble
