"""The journal of a sweep inside a checkpoint's manifest. Pure."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from trmcloud.core.sweep import events as ev
from trmcloud.core.sweep.state import IllegalEvent, SweepState, fold

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


def state_in(extras: Sequence[Mapping[str, Any]]) -> SweepState | None:
    """Return the state after the longest journal that published checkpoints have; None without one
    that can be read."""
    longest = max(map(unpack_journal, extras), key=len, default=[])
    try:
        return fold(map(ev.read_event, longest)) if longest else None
    except (ValueError, IllegalEvent):
        return None
