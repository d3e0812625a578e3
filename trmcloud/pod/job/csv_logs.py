"""Numbers in CSV logs that a script writes beside its checkpoints, as they grow: ``results.csv`` of
Ultralytics, ``metrics.csv`` of Lightning's CSVLogger, ``summary.csv`` of timm, the files of Keras'
CSVLogger.

A file is never trusted: the lengths of its lines, its columns and its numbers are bounded.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from trmcloud.io.foreign_files import open_unlinked
from trmcloud.pod.job.readings import LOOK_EVERY_S, LogFiles, Reading, whole_step

_NAME = re.compile(
    r"(results?|metrics|summary|history|log|logs|training|train_log|progress)\.csv", re.I
)
"""Names of logs; others may be of data, and are not read."""
_MOST_FILES = 16
_MOST_READ = 1 << 20
_MOST_LINE = 1 << 14
_MOST_COLUMNS = 64
_TASK = re.compile(r"\([A-Z]\)$")
"""Ultralytics' mark of a task, as in ``metrics/mAP50-95(B)``: a name with brackets could not be
given as ``--metric``, where it is a pattern. The first task, boxes, has the bare name as well."""
_STEPS, _EPOCHS = ("step", "global_step", "iter", "iteration"), ("epoch",)


class _Read(NamedTuple):
    """How far a log was read: its first line, the bytes, the rows behind the first line, and when
    the log was written then, in epoch seconds."""

    header: bytes
    at: int
    rows: int
    written_at: float


class CsvLogs:
    """Those below ``work`` that come or grow after ``began``, in epoch seconds: now."""

    def __init__(self, work: Path, began: float) -> None:
        self._began = began
        self._files = LogFiles(work, lambda name: bool(_NAME.fullmatch(name)), _MOST_FILES)
        self._read: dict[Path, _Read] = {}
        self.seen = 0
        """The number of rows: a sign that the command makes progress."""
        for path in self._files.paths:
            for _ in self._grown(path):
                self.seen = 0

    def take(self, now: float) -> list[Reading]:
        """Return the rows written since the last call; ``now`` in seconds of a steady clock."""
        # The last row of a read alone has the time of its file, so the first is not to be missed;
        # rows that were read together are spread over the time since the read before.
        files = self._files.as_of(now, LOOK_EVERY_S if self._files.paths else 0.0)
        return [reading for path in files for reading in self._grown(path)]

    def _grown(self, path: Path) -> Iterator[Reading]:
        """Rows beyond those that were read; a log that is written anew with more columns, as
        Lightning's is, is read on after as many rows."""
        try:
            with open_unlinked(path) as file:
                written_at = os.fstat(file.fileno()).st_mtime
                header = file.readline(_MOST_LINE)
                before = self._read.get(path)
                if before is None or before.header != header:
                    text, rows = file.read(_MOST_READ), before.rows if before else 0
                    at, skipped = len(header), rows
                else:
                    at, rows, skipped = before.at, before.rows, 0
                    file.seek(at)
                    text = file.read(_MOST_READ)
        except OSError:
            return
        if not header.endswith(b"\n"):
            return
        names = _cells(header)
        lines = text[: text.rfind(b"\n") + 1].splitlines(keepends=True)
        new = lines[skipped:]
        since = before.written_at if before is not None else self._began
        done = _Read(header, at + sum(map(len, lines)), rows + len(new), written_at)
        self._read[path] = done
        for number, line in enumerate(new, 1):
            row_at = written_at - max(0.0, written_at - since) * (1 - number / len(new))
            if (reading := reading_of_row(names, _cells(line), row_at)) is not None:
                self.seen += 1
                yield reading


def _cells(line: bytes) -> list[str]:
    text = line[:_MOST_LINE].decode("utf-8", "replace")
    try:
        row = next(csv.reader([text]), [])
    except csv.Error:
        return []
    return [cell.strip()[:80] for cell in row[:_MOST_COLUMNS]]


def reading_of_row(header: Sequence[str], cells: Sequence[str], at: float) -> Reading | None:
    """The step, epoch and numbers of a row; empty cells are left out. None where it is no row of
    this header, or has no numbers."""
    if len(cells) != len(header):
        return None
    numbers: dict[str, float] = {}
    for name, cell in zip(header, cells, strict=True):
        try:
            numbers[name] = float(cell)
        except ValueError:
            continue
        numbers.setdefault(_TASK.sub("", name), numbers[name])
    step, epoch = (
        next((s for name in names if (s := whole_step(numbers.pop(name, None))) is not None), None)
        for names in (_STEPS, _EPOCHS)
    )
    return Reading(step, numbers, epoch, at) if numbers else None
