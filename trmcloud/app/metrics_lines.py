"""The lines of a phase's ``metrics.jsonl``, read on as they grow. The file may be hostile."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trmcloud.core.contract.pod_contract import MAX_METRICS_BYTES
from trmcloud.core.contract.records import MAX_LINE_BYTES, parse_lines

_MOST_LINES = 1 << 18
_SLICE_LINES = 500


class MetricsLines:
    """Not for two threads at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset, self._count, self._inode = 0, 0, -1
        self.is_first_slice = False
        """Whether the slice that was given last is the first of its file."""
        self.is_whole = False
        """Whether it was read to what its end was then."""

    @property
    def unread_bytes(self) -> int:
        with suppress(OSError):
            return max(0, min(self._path.stat().st_size, MAX_METRICS_BYTES) - self._offset)
        return 0

    @property
    def is_another(self) -> bool:
        """Whether another file stands in its place since it was read, or it was begun anew."""
        with suppress(OSError):
            stat = self._path.stat()
            return stat.st_ino != self._inode or stat.st_size < self._offset
        return False

    def read_on(self) -> Iterator[Sequence[Mapping[str, Any]]]:
        """What has come since, a slice of lines at a time. What was begun anew is read anew, and
        its first slice may be empty: a trainer that goes back to a checkpoint drops what it had
        logged since."""
        try:
            file = open(open_metrics(self._path), "rb")  # noqa: SIM115  # closed below
        except OSError:
            return
        with file:
            stat = os.fstat(file.fileno())
            anew = stat.st_ino != self._inode or stat.st_size < self._offset
            if anew:
                self._offset, self._count, self._inode = 0, 0, stat.st_ino
                self.is_whole = False
            file.seek(self._offset)
            while self._count < _MOST_LINES and self._offset < MAX_METRICS_BYTES:
                lines = [
                    line for _ in range(_SLICE_LINES) if (line := file.readline(MAX_LINE_BYTES + 1))
                ]
                if lines and not lines[-1].endswith(b"\n") and len(lines[-1]) <= MAX_LINE_BYTES:
                    lines.pop()  # it is being written
                if not lines:
                    break
                self._offset += sum(map(len, lines))
                file.seek(self._offset)
                self._count += len(lines)
                self.is_first_slice, anew = anew, False
                yield list(parse_lines(lines))
            if anew:
                self.is_first_slice = True
                yield ()
        self.is_whole = True


def open_metrics(path: Path) -> int:
    """Its descriptor: of a plain file alone, no link, and nothing that would wait.

    Raises:
        OSError: it cannot be opened.
    """
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
