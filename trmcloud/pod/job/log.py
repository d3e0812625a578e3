"""What a command prints: drained as fast as it comes, so that it never waits for a reader; kept up
to a size; and handed out in lines that are no longer than anybody looks at."""

from __future__ import annotations

import os
import re
import threading
import time
from collections import deque

from trmcloud.core.contract.command_terms import MOST_LINE_CHARS, MOST_LOG_BYTES

_CHUNK = 1 << 16
_LITTLE = 1 << 12
_LET_GATHER_S = 0.1
"""After little was read the pipe, which holds 64 KiB, may take some more: who prints a line a step
would wake this for each, which costs more than to read it."""
_MOST_LINES = 20_000
"""That wait to be looked at: older ones are let go."""
_TAIL_BYTES = 1 << 16
_ENDS = re.compile(rb"[\r\n]+")


class LogPump:
    """Reads ``source`` to its end in a thread, into ``target``: descriptors, both.

    Beyond ``most_bytes`` of ``target`` nothing is written but, at ``close``, the end of what came.
    """

    def __init__(self, source: int, target: int, most_bytes: int = MOST_LOG_BYTES) -> None:
        self._source, self._target = source, target
        self._room = max(0, most_bytes - os.fstat(target).st_size)
        self._lines: deque[bytes] = deque(maxlen=_MOST_LINES)
        self._rest = b""
        self._skips = False
        self._tail = b""
        self._left_out = 0
        self.lines_seen = 0
        """How many lines came, looked at or not."""
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def take(self) -> list[bytes]:
        """The lines that came since, each cut to ``MOST_LINE_CHARS`` bytes."""
        taken = []
        while self._lines:
            taken.append(self._lines.popleft())
        return taken

    def put_back(self, lines: list[bytes]) -> None:
        """Lines that there was no time for, to be taken first next time where there is room."""
        room = _MOST_LINES - len(self._lines)
        self._lines.extendleft(reversed(lines[-room:] if room else []))

    def say(self, text: str) -> None:
        """A line of our own, among the command's."""
        self._write(f"trmcloud: {text}\n".encode())

    def close(self, wait_s: float) -> None:
        """Once the command has ended; a child of its that holds the pipe open is waited for no
        longer than ``wait_s``."""
        self._thread.join(wait_s)
        if self._rest:
            self._add(self._rest)
            self._rest = b""
        if self._left_out:
            told = f"\ntrmcloud: {self._left_out} bytes of log are left out here; it ended so:\n"
            self._write(told.encode() + self._tail, always=True)

    def _drain(self) -> None:
        while True:
            try:
                chunk = os.read(self._source, _CHUNK)
            except OSError:
                return
            if not chunk:
                return
            self._keep(chunk)
            self._split(chunk)
            if len(chunk) < _LITTLE:
                time.sleep(_LET_GATHER_S)

    def _keep(self, chunk: bytes) -> None:
        kept, beyond = chunk[: self._room], chunk[self._room :]
        if kept:
            self._room -= len(kept)
            self._write(kept, always=True)
        if beyond:
            self._left_out += len(beyond)
            self._tail = (self._tail + beyond)[-_TAIL_BYTES:]

    def _split(self, chunk: bytes) -> None:
        parts = _ENDS.split(chunk)
        if len(parts) == 1:
            if not self._skips:
                self._rest += chunk
        else:
            first, *between, last = parts
            if not self._skips:
                self._add(self._rest + first)
            for line in between:
                self._add(line)
            self._rest, self._skips = last, False
        if len(self._rest) > MOST_LINE_CHARS:
            # One without an end: its beginning is looked at, and the rest passed over.
            self._add(self._rest)
            self._rest, self._skips = b"", True

    def _add(self, line: bytes) -> None:
        if line.strip():
            self.lines_seen += 1
            self._lines.append(line[:MOST_LINE_CHARS])

    def _write(self, text: bytes, *, always: bool = False) -> None:
        if not always and self._room < len(text):
            return
        view = memoryview(text)
        while view:
            try:
                view = view[os.write(self._target, view) :]
            except OSError:
                return  # a full disk must not stop the command
