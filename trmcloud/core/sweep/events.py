"""The events of a sweep, and its journal: one line of JSON for each event, also inside the manifest
of a published checkpoint. Pure.

Events are facts in the past tense, except for those that say that a trial runs: they are written
before the trial is started, so that no process is unknown. Money in them is text. An amount is of
one slot: seconds × the slot's rate.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from trmcloud.core.codec import from_json, to_json
from trmcloud.core.money import Usd
from trmcloud.core.sweep.space import Point
from trmcloud.core.values import Value


class Purpose(str, Enum):
    """What an interval is for, which says out of what it is paid."""

    SEARCH = "search"
    WINNER = "winner"
    """To train the best trial to the end."""
    CONFIRM = "confirm"
    """To compare the winner with the default at the last rung, with several seeds."""


EVENT_KIND = "sweep"
"""The kind of a line of metrics that has an event of the journal, with its number ``n``."""
CPU_KIND = "sweep_cpu"
"""The kind of a line of metrics with the seconds of processor time that an attempt has taken."""


class SweepEvent(Value):
    """A fact in a sweep's journal."""


class TrialStarted(SweepEvent):
    """Trial ``trial`` (1 is the default) trains at ``point`` from the start until ``rung``, for at
    most ``most_usd``. Also of a trial that was lost before its first rung."""

    trial: int
    point: Point
    seed: int
    rung: int
    most_usd: Usd
    repeats: int = 0
    """The trial whose settings it repeats with another seed; 0: none."""
    to_end: bool = False
    """Whether the rung is the last: its training is whole there."""


class TrialContinued(SweepEvent):
    """The trial trains on from its last rung until ``rung``, for at most ``most_usd``."""

    trial: int
    rung: int
    most_usd: Usd
    to_end: bool = False
    """Whether the rung is the last: its training is whole there."""
    purpose: Purpose = Purpose.SEARCH


class RungReached(SweepEvent):
    """What runs of the trial has landed at ``rung`` with a checkpoint. ``usd`` and ``seconds`` are
    of this interval alone, ``step`` the trainer's. ``metric`` None: it has none, or NaN, see
    ``problem``. ``complete``: its training is whole before the last rung; no
    later rung would add a step."""

    trial: int
    rung: int
    metric: float | None
    usd: Usd
    seconds: float
    step: int = 0
    problem: str = ""
    complete: bool = False


class TrialLanded(SweepEvent):
    """What ran of the trial has landed before its rung, with a checkpoint: by the soft stop. It may
    be the best, and is not compared at a rung; it can train on to the rung."""

    trial: int
    metric: float | None
    usd: Usd
    seconds: float
    step: int = 0


class TrialFailed(SweepEvent):
    """What runs of the trial has crashed. Its earlier checkpoints stay; it is not promoted."""

    trial: int
    usd: Usd
    seconds: float
    error: str = ""


class TrialLost(SweepEvent):
    """What ran of the trial is gone with its machine, or with the executor: the interval's money is
    spent and its work is lost. ``kept_rung`` is the last rung whose checkpoint there still is; −1:
    none, and it would begin anew."""

    trial: int
    usd: Usd
    seconds: float
    kept_rung: int


class TrialDropped(SweepEvent):
    """The trial's checkpoints are gone while it did not run, or were pruned: it is not promoted."""

    trial: int


class PaceMeasured(SweepEvent):
    """A trial's step was measured at ``usd_per_step``: a number, not an amount, as it is far below
    a micro-dollar."""

    trial: int
    usd_per_step: float
    step: int = 0


class SlotsIdle(SweepEvent):
    """Slots without a trial cost ``usd``, as their machine is paid for whole."""

    usd: Usd
    seconds: float = 0.0


class StopAsked(SweepEvent):
    """No trial is started any more: by the soft stop, or a user."""

    why: str


class Ended(SweepEvent):
    """The sweep is over; ``reason`` is a value of ``halving.Reason``."""

    reason: str


EVENT_TYPES: Mapping[str, type[Any]] = {kind.__name__: kind for kind in SweepEvent.__subclasses__()}

NO_METRIC = "no metric"
NOT_A_NUMBER = "not a number"


def rung_reached(
    trial: int,
    rung: int,
    metric: float | None,
    usd: Usd,
    seconds: float,
    step: int = 0,
    *,
    complete: bool = False,
) -> RungReached:
    """Return the event for a metric as the trainer gave it: None, NaN and infinities included."""
    problem = ""
    if metric is None:
        problem = NO_METRIC
    elif not math.isfinite(metric):
        metric, problem = None, NOT_A_NUMBER
    return RungReached(trial, rung, metric, usd, seconds, step, problem, complete)


def write_event(event: SweepEvent) -> str:
    """The event as a line of the journal, without its newline."""
    data = {"event": type(event).__name__, **to_json(event)}
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def read_event(line: str) -> SweepEvent:
    """
    Raises:
        ValueError: the line is no event, or that of a newer version.
    """
    try:
        data = json.loads(line)
        event: SweepEvent = from_json(EVENT_TYPES[data.pop("event")], data, known=True)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"no event of a sweep: {line!r:.120}") from error
    return event


def read_journal(text: str) -> tuple[SweepEvent, ...]:
    """Return the events of a journal. A last line without its newline was cut while it was written,
    and counts as not written.

    Raises:
        ValueError: another line is no event.
    """
    return tuple(read_event(line) for line in text.split("\n")[:-1] if line)


# The journal inside a checkpoint's manifest.

SWEEP = "sweep"
"""The key in ``extra`` of a published checkpoint: its trial, rung and settings, and the fields of
the trial's own manifest that differ."""
JOURNAL = "journal"
"""The key in that of the journal until then: its lines, compressed, as pieces of base64. Not a file
of its own: a bucket grants a checkpoint's files by their names."""
_PIECE_CHARS = 12_000
_MOST_BYTES = 16 << 20


def about_trial(extra: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the facts of a published checkpoint's trial; empty for one that is no sweep's."""
    about = extra.get(SWEEP)
    if not isinstance(about, dict):
        return {}
    is_known = all(type(about.get(name)) is int for name in ("trial", "rung", "step"))
    return about if is_known else {}


def pack_journal(lines: Sequence[str]) -> list[str]:
    text = base64.b64encode(zlib.compress("\n".join(lines).encode(), 9)).decode()
    return [text[start : start + _PIECE_CHARS] for start in range(0, len(text), _PIECE_CHARS)]


def unpack_journal(extra: Mapping[str, Any]) -> list[str]:
    """Return the lines of the journal in a published checkpoint's ``extra``; none where it is
    damaged."""
    try:
        packed = base64.b64decode("".join(about_trial(extra)[JOURNAL]), validate=True)
        opened = zlib.decompressobj()
        text = opened.decompress(packed, _MOST_BYTES)
        return text.decode().split("\n") if opened.eof and text else []
    except (KeyError, TypeError, ValueError, zlib.error):
        return []
