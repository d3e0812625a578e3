"""Text for terminals: tables, amounts, durations, lines of progress."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Sequence
from typing import Any

from trmcloud.cli.views.streams import columns, draw, padded, width
from trmcloud.core.contract.manifest import CheckpointManifest, own_name
from trmcloud.core.durations import duration as duration
from trmcloud.core.text import one_line

CHECKPOINTS = "checkpoints in"
"""The name of the row that says where a run's checkpoints are stored."""


def losses(values: Sequence[float]) -> str:
    """Every supervision step's loss, first to last: ``5.91 > 4.72 > 4.31``."""
    if not values:
        return "–"
    text = f"{values[0]:.3f}"
    for before, after in itertools.pairwise(values):
        text += f" {'>' if before > after else '≤'} {after:.3f}"
    return text


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned columns; on a narrow terminal or through a pipe, a block of lines per row."""
    rows = [tuple(map(one_line, row)) for row in rows]
    cells = [tuple(header), *rows]
    widths = [max(width(row[n]) for row in cells) for n in range(len(header))]
    if sys.stdout.isatty() and sum(widths) + 2 * len(widths) > columns():
        return [
            line
            for row in rows
            for line in (
                row[0],
                *(f"  {name:<{max(map(len, header))}}  {cell}"
                  for name, cell in zip(header[1:], row[1:], strict=True)),
            )
        ]  # fmt: skip
    return [
        "  ".join(padded(cell, most) for cell, most in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def fields(rows: Sequence[tuple[str, str]], indent: str = "") -> list[str]:
    """A line for each named value, one below the other."""
    most = max(len(name) for name, _ in rows)
    return [f"{indent}{name:<{most}}  {one_line(text)}" for name, text in rows]


def pick(record: object, *names: str) -> dict[str, Any]:
    """Return these fields of a record, for JSON that names them alike."""
    return {name: getattr(record, name) for name in names}


def not_evaluated(latest: CheckpointManifest) -> str:
    """Why the script's own best, or the latest, stands for the best."""
    if latest.is_named_best:
        return (
            f"{latest.run_id}: no metric to compare checkpoints of {latest.phase} by: "
            f"this is the script's own best, {own_name(latest)}"
        )
    return (
        f"{latest.run_id}: no checkpoint of {latest.phase} was evaluated; "
        f"this is the latest, step {latest.step:,}"
    )


def on_volume(run_id: str) -> str:
    """Return the place of a run's checkpoints that were not fetched yet."""
    return f"on its network volume; to fetch it: trmcloud fetch-best {run_id}"


class Progress:
    """Megabytes on a terminal, with their speed and what is left; silence elsewhere."""

    def __init__(self, source: str = "") -> None:
        self._source = source
        self._began: float | None = None
        self._before = 0

    def __call__(self, done: int, total: int) -> None:
        if not sys.stderr.isatty():
            return
        now = time.monotonic()
        if self._began is None:
            self._began, self._before = now, done
        words = [f"{done / 1e6:,.1f} of {total / 1e6:,.1f} MB", self._source]
        took_s = now - self._began
        if took_s > 0.5 and done > self._before:
            rate = (done - self._before) / took_s
            words += [f"{rate / 1e6:,.1f} MB/s", f"{duration((total - done) / rate)} left"]
        end = "\r\x1b[K" if done == total else ""
        text = "\r\x1b[K  " + one_line(" · ".join(filter(None, words)))
        draw(text + end)


# How far data is that is made ready here: on stderr, one line that replaces itself on terminals,
# one line a stage elsewhere.


class DataProgress:
    """Told (stage, done, total), total 0 where that is not known."""

    def __init__(self) -> None:
        self._said: list[str] = []

    def __call__(self, stage: str, done: int, total: int) -> None:
        if not sys.stderr.isatty():
            if stage not in self._said and stage not in ("ready", "done"):
                self._said.append(stage)
                print(f"data: {stage}", file=sys.stderr)
            return
        if " " in stage and not total:  # a sentence of its own stays on the screen
            if stage not in self._said:
                self._said.append(stage)
                draw(f"\r\x1b[K  data: {one_line(stage)}\n")
            return
        share = f" {100 * done / total:3.0f} %" if total else ""
        draw(f"\r\x1b[K  data: {one_line(stage)}{share}")
        if stage == "done":
            draw("\r\x1b[K")
