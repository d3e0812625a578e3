"""Pieces of a run's training logs: the end of one, and what has come since."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import NotFoundError
from trmcloud.core.text import strip_control
from trmcloud.core.values import Value
from trmcloud.operations.context import Context
from trmcloud.operations.curves.curves import open_metrics

MOST_BYTES = 1 << 16
"""Of one piece."""
END_BYTES = 1 << 14
"""Of the first piece: about two hundred lines."""


class LogPiece(Value):
    """Bytes ``start`` to ``end`` of a log of ``size`` bytes. ``text`` has no control characters but
    newlines, tabs, and carriage returns, by which a progress bar draws its line again."""

    start: int
    end: int
    size: int
    text: str


def logs_of(context: Context, run: RunState) -> Sequence[str]:
    """Return the phases that have a log on this machine, in their order."""
    phases = context.files.phases(run.run_id)
    return [phase for phase in phases if log_size(context, run, phase) is not None]


def log_size(context: Context, run: RunState, phase: str) -> int | None:
    """Return a log's bytes; None where there is no plain file."""
    with suppress(OSError):
        found = os.lstat(context.files.logs(run.run_id, phase))
        return found.st_size if stat.S_ISREG(found.st_mode) else None
    return None


def read_log(context: Context, run: RunState, phase: str, after: int | None = None) -> LogPiece:
    """Return the lines behind byte ``after``, or the log's last ones: where there is no ``after``,
    where the file is shorter by now, and where more has come than one piece holds.

    A line is returned once it is whole, or the run has ended.

    Raises:
        NotFoundError: the run has no such log on this machine.
    """
    if phase not in logs_of(context, run):
        raise NotFoundError(f"{run.run_id} has no log of {phase or 'any phase'} on this machine")
    path = Path(context.files.logs(run.run_id, phase))
    try:
        handle = open_metrics(path)
    except OSError as error:
        raise NotFoundError(f"{path}: {error.strerror}") from None
    try:
        size = os.fstat(handle).st_size
        start, is_cut = after or 0, False
        if after is None or not 0 <= after <= size or size - after > MOST_BYTES:
            start = max(0, size - END_BYTES)
            is_cut = start > 0
        data = os.pread(handle, min(size - start, MOST_BYTES), start)
    finally:
        os.close(handle)
    if is_cut:  # the rest of a line
        first = data.find(b"\n") + 1
        start, data = start + first, data[first:]
    if run.live and len(data) < MOST_BYTES:
        data = data[: max(data.rfind(b"\n"), data.rfind(b"\r")) + 1]
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    clean = "\r".join(strip_control(part) for part in text.split("\r"))
    return LogPiece(start, start + len(data), size, clean)
