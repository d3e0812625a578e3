"""What the observer in a command's Python processes has noted: see ``trmcloud_observer``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from trmcloud.core.contract.records import parse_lines
from trmcloud.core.values import replace
from trmcloud.io.foreign_files import read_part
from trmcloud.pod.job.artifacts import Artifact
from trmcloud.pod.job.metric_order import OBSERVED, WeightsState
from trmcloud.pod.job.readings import Reading, of_object

_MOST_BYTES = 1 << 20
"""Of lines, read at once."""
_CLOCKS_S = 0.02
"""A file's time is that of the kernel's last tick."""
_MOST_WRITES, _MOST_PATHS = 16, 4096


class JsonLines:
    """Objects of JSON that are appended to a file, a line each. A file that another one took the
    place of has none; a line without an end is none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.read_bytes = 0

    def take(self) -> list[dict[str, Any]]:
        """Return the objects of whole lines that came since the last call."""
        text = read_part(self._path, _MOST_BYTES, self.read_bytes)
        whole = text[: text.rfind(b"\n") + 1]
        if not whole and len(text) == _MOST_BYTES:
            whole = text
        self.read_bytes += len(whole)
        return list(parse_lines(whole.splitlines()))


class LowestRank:
    """Of several ranks the lowest one that tells anything counts."""

    def __init__(self) -> None:
        self._rank: int | None = None

    def counts(self, said: Mapping[str, object]) -> bool:
        rank = said.get("rank")
        rank = rank if type(rank) is int and rank >= 0 else 0
        if self._rank is None or rank < self._rank:
            self._rank = rank
        return rank == self._rank


def metrics_of(said: Mapping[str, Any]) -> Reading | None:
    """Return the metrics of a line; None where it has none."""
    if not isinstance(metrics := said.get("metrics"), dict):
        return None
    reading = of_object({**metrics, "step": said.get("step")})
    at = said.get("at")
    written_at = at if type(at) is float else None
    return replace(reading, at=written_at, state=state_in(said), source=OBSERVED)


class _Write(NamedTuple):
    since: float
    until: float | None
    """None: its end is not known."""
    state: WeightsState | None


class SavedStates:
    """The states in which files were saved."""

    def __init__(self) -> None:
        self._writes: dict[str, list[_Write]] = {}

    def note(self, said: Mapping[str, Any]) -> None:
        """Note a line of a saved or renamed file; other lines are passed over."""
        path, moved = said.get("saved"), said.get("moved")
        if isinstance(path, str):
            since, until = said.get("since"), said.get("until")
            if type(since) is float and len(self._writes) < _MOST_PATHS:
                end = until if type(until) is float else None
                self._add(path, _Write(since, end, state_in(said)))
        elif isinstance(moved, list) and len(moved) == 2 and all(type(p) is str for p in moved):
            self._move(*moved, copied=bool(said.get("copied")), said=said)

    def _add(self, path: str, write: _Write) -> None:
        writes = self._writes.setdefault(path, [])
        writes.append(write)
        del writes[:-_MOST_WRITES]

    def _move(self, source: str, target: str, *, copied: bool, said: Mapping[str, Any]) -> None:
        below = source + os.sep
        for path in [p for p in self._writes if p == source or p.startswith(below)]:
            last = self._writes[path][-1]
            at = said.get("at")
            # A copy is written now, by the content of then; a renamed file keeps its time.
            write = _Write(at, None, last.state) if copied and type(at) is float else last
            self._add(target + path[len(source) :], write)

    def of(self, artifact: Artifact) -> WeightsState | None:
        """Return the state that all weights of a checkpoint were saved in; None where that is not
        known of one of them, or they differ."""
        found = {
            self._at(artifact.root / file.path, file.mtime_ns / 1e9) for file in artifact.weights
        }
        return found.pop() if len(found) == 1 else None

    def _at(self, path: Path, written_at: float) -> WeightsState | None:
        names = (str(path), os.path.realpath(path))
        writes = next((self._writes[name] for name in names if name in self._writes), [])
        for write in reversed(writes):
            if write.since - _CLOCKS_S <= written_at:
                is_over = write.until is not None and written_at > write.until + _CLOCKS_S
                return None if is_over else write.state
        return None


def state_in(said: Mapping[str, Any]) -> WeightsState | None:
    """Return the state of the weights that a line was noted in; None where it is not known."""
    told = said.get("state")
    if isinstance(told, list) and len(told) == 2 and all(type(each) is int for each in told):
        return told[0], told[1]
    return None
