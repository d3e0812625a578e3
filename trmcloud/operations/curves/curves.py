"""Curves of a run, from the metrics files of its phases on this machine."""

from __future__ import annotations

import math
import os
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass as mutable
from dataclasses import field
from pathlib import Path
from typing import Any

from trmcloud.core.contract.command import shown_metric
from trmcloud.core.contract.pod_contract import MAX_METRICS_BYTES, METRICS_NAME
from trmcloud.core.contract.records import MAX_LINE_BYTES, parse_lines
from trmcloud.core.control.billing import paid_by
from trmcloud.core.control.run_state import RunState
from trmcloud.core.values import Value, replace
from trmcloud.operations.context import Context

# The lines of a phase's ``metrics.jsonl``, read on as they grow. The file may be hostile.

_MOST_LINES = 1 << 18
_SLICE_LINES = 500


class MetricsLines:
    """Not for two threads at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset, self._count, self._inode = 0, 0, -1
        self.is_first_slice = False
        """Whether the slice returned last is the first of its file."""
        self.is_whole = False
        """Whether the file was read to its end at that time."""

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
        """Yield the new lines, a slice at a time. A file that was begun again is read again, and
        its first slice may be empty: a trainer that goes back to a checkpoint drops the lines that
        it had logged since."""
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


# A run's curves, from the metrics of its phases that are on this machine: thinned out to be drawn,
# and read on as they grow.
#
# A file may hold a hundred thousand lines, and may be hostile. At first its lines are sampled,
# which takes no longer for many than for few; then it is read whole, and what is thinned out
# keeps the highest and the lowest loss of every stretch, so that no spike is lost.

POINTS = 800
"""Of one phase and kind: more than most screens are wide."""
READ_AT_ONCE_BYTES = 1 << 19
_MOST_PASSES = 32
_MOST_STEP = 10**12
_TRAIN, _EVAL, _SAVE = "train", "eval", "save"
_WINDOWS = 400
_WINDOW_BYTES = 1 << 14
"""Of a sample: all lines of a file of up to 6.5 MB are looked at, and a part of a longer one's."""
_MARKS = tuple(f'"kind": "{kind}"'.encode() for kind in (_EVAL, _SAVE))
"""The marks of rare lines by the bundled trainer, which a sample would miss."""


@mutable
class Rows:
    """One kind's points in columns, in the order of the file. ``value`` is the loss (train, nats a
    token) or bits per byte (eval); NaN where there is none."""

    step: array[float] = field(default_factory=lambda: array("d"))
    at: array[float] = field(default_factory=lambda: array("d"))
    value: array[float] = field(default_factory=lambda: array("d"))
    speed: array[float] = field(default_factory=lambda: array("d"))
    passes: list[Sequence[float]] = field(default_factory=list)
    """Nats a token after each supervision step."""

    def __len__(self) -> int:
        return len(self.step)

    def add(
        self, step: int, at: float, value: float, speed: float, passes: Sequence[float]
    ) -> None:
        self.at.append(at)
        self.value.append(value)
        self.speed.append(speed)
        self.passes.append(passes)
        self.step.append(step)  # last: a reader in another thread goes by its length


@mutable
class Phase:
    """One phase's metrics. ``whole``: they were read to their end, not sampled."""

    name: str
    train: Rows = field(default_factory=Rows)
    evals: Rows = field(default_factory=Rows)
    saves: list[tuple[int, float]] = field(default_factory=list)
    """(step, epoch s)"""
    whole: bool = False

    def take(self, line: Mapping[str, Any]) -> None:
        """One line; what it should not be is passed over."""
        kind, step, at = line.get("kind"), line.get("step"), _number(line.get("at"))
        if type(step) is not int or not 0 <= step <= _MOST_STEP or math.isnan(at):
            return
        if kind == _TRAIN:
            speed = _number(line.get("tokens_per_second"))
            passes = _passes(line.get("step_losses"))
            self.train.add(step, at, _number(line.get("loss")), speed, passes)
        elif kind == _EVAL:
            passes = _passes(line.get("val_step_losses"))
            self.evals.add(step, at, _number(line.get("val_bpb")), math.nan, passes)
        elif kind == _SAVE:
            self.saves.append((step, at))

    @property
    def last_step(self) -> int:
        newest = [rows.step[-1] for rows in (self.train, self.evals) if len(rows)]
        return int(max(newest, default=0))


class MetricsFile(MetricsLines):
    """A phase's ``metrics.jsonl`` as it grows, in columns. Not for two threads at a time."""

    def __init__(self, path: Path, name: str) -> None:
        super().__init__(path)
        self._name, self.phase = name, Phase(name)

    def read_on(self) -> Iterator[Sequence[Mapping[str, Any]]]:
        for lines in super().read_on():
            if self.is_first_slice:
                self.phase = Phase(self._name)
            for line in lines:
                self.phase.take(line)
            yield lines
        self.phase.whole = self.phase.whole or self.is_whole

    def read_all(self) -> None:
        for _ in self.read_on():
            pass


def sample_metrics(path: Path, name: str, windows: int = _WINDOWS) -> Phase:
    """A line at each of so many even distances, and what evaluations and saves stand near them: in
    milliseconds, however many lines there are."""
    phase, found = Phase(name), dict[int, bytes]()
    try:
        with open(open_metrics(path), "rb", buffering=0) as file:
            size = min(os.fstat(file.fileno()).st_size, MAX_METRICS_BYTES)
            for number in range(windows if size else 0):
                start = number * size // windows
                found.update(_lines_in(os.pread(file.fileno(), _WINDOW_BYTES, start), start))
    except OSError:
        return phase
    for line in parse_lines(found[start] for start in sorted(found)):
        phase.take(line)
    return phase


def _lines_in(window: bytes, start: int) -> Iterator[tuple[int, bytes]]:
    """(where it begins in the file, itself) of its first whole line, and of the rare ones."""
    first = window.find(b"\n") + 1 if start else 0
    begins = {first}
    for mark in _MARKS:
        at = window.find(mark, first)
        while at >= 0:
            begins.add(window.rfind(b"\n", 0, at) + 1)
            at = window.find(mark, at + len(mark))
    for begin in begins:
        end = window.find(b"\n", begin)
        if end >= 0:
            yield start + begin, window[begin:end]


def metrics_paths(context: Context, run: RunState) -> dict[str, Path]:
    """By name, the file of each phase that has begun, in their order."""
    folder = Path(context.files.folder(run.run_id))
    return {name: folder / name / METRICS_NAME for name in context.files.phases(run.run_id)}


def metrics_files(context: Context, run: RunState) -> list[MetricsFile]:
    return [MetricsFile(path, name) for name, path in metrics_paths(context, run).items()]


# -- curves, to be drawn -------------------------------------------------------------------------


class Series(Value):
    """Columns of one length. ``step`` counts on over phases; ``hours`` are paid ones. ``value``,
    ``speed`` (tokens/s) and each of ``passes`` have None where nothing is known."""

    step: Sequence[int]
    at: Sequence[float]
    hours: Sequence[float]
    usd: Sequence[float]
    value: Sequence[float | None]
    speed: Sequence[float | None]
    passes: Sequence[Sequence[float | None]]

    def to_json(self) -> dict[str, Any]:
        return {
            "step": list(self.step),
            "at": [round(at, 1) for at in self.at],
            "hours": [_short(x) for x in self.hours],
            "usd": [_short(x) for x in self.usd],
            "value": [_short(x) for x in self.value],
            "speed": [_short(x) for x in self.speed],
            "passes": [[_short(x) for x in column] for column in self.passes],
        }


class Curves(Value):
    """``phases``: (name, the step on the common axis at which it begins). ``whole``: every line
    was read, where otherwise lines were sampled."""

    train: Series
    evals: Series
    phases: tuple[tuple[str, int], ...]
    saves: tuple[tuple[str, int, float], ...]
    """(phase, its own step, epoch s)"""
    whole: bool


def starts(phases: Sequence[Phase]) -> list[tuple[str, int]]:
    """(name, the step on the common axis at which it begins) of each."""
    found, begun = [], 0
    for phase in phases:
        found.append((phase.name, begun))
        begun += phase.last_step
    return found


def step_at(phases: Sequence[Phase], at: float) -> int | None:
    """The step on the common axis that was the newest at an instant; None where none is known."""
    newest = None
    for phase, (_, begun) in zip(phases, starts(phases), strict=True):
        for rows in (phase.train, phase.evals):
            if len(rows) and (newest is None or rows.at[0] <= at):
                place = bisect_right(rows.at, at, hi=len(rows))
                newest = begun + (int(rows.step[place - 1]) if place else 0)
                break
    return newest


def draw_curves(run: RunState, phases: Sequence[Phase], points: int = POINTS) -> Curves:
    """Of all phases on one axis, thinned out to so many points of each phase and kind."""
    begun = starts(phases)
    placed = [(phase, offset) for phase, (_, offset) in zip(phases, begun, strict=True)]
    return Curves(
        train=_series(run, ((p.train, at, _kept(p.train, points)) for p, at in placed)),
        evals=_evaluated(run, ((p.evals, at, _kept(p.evals, points)) for p, at in placed)),
        phases=tuple(begun),
        saves=tuple((p.name, step, at) for p in phases for step, at in p.saves),
        whole=all(phase.whole for phase in phases),
    )


def curves_since(
    run: RunState, phases: Sequence[Phase], known: Mapping[str, tuple[int, int]]
) -> Curves:
    """Likewise of what came after ``known``: phase → how many points of training and of evaluation
    that is."""
    train, evals, begun = [], [], starts(phases)
    for phase, (name, offset) in zip(phases, begun, strict=True):
        trained, judged = known.get(name, (0, 0))
        train.append((phase.train, offset, range(trained, len(phase.train))))
        evals.append((phase.evals, offset, range(judged, len(phase.evals))))
    return Curves(_series(run, train), _evaluated(run, evals), tuple(begun), (), whole=True)


def _kept(rows: Rows, points: int) -> Sequence[int]:
    """Of every stretch of rows, those with the lowest and the highest value; first and last."""
    count = len(rows)
    if count <= points:
        return range(count)
    kept, stretches, value = {0, count - 1}, max(1, points // 2), rows.value
    for number in range(stretches):
        stretch = range(number * count // stretches, (number + 1) * count // stretches)
        known = [at for at in stretch if not math.isnan(value[at])]
        if known:
            kept |= {min(known, key=value.__getitem__), max(known, key=value.__getitem__)}
    return sorted(kept)


def _evaluated(run: RunState, parts: Iterable[tuple[Rows, int, Sequence[int]]]) -> Series:
    """Its values are of a command's metric as it logged it."""
    made = _series(run, parts)
    return replace(made, value=[shown_metric(run.spec.command, each) for each in made.value])


def _series(run: RunState, parts: Iterable[tuple[Rows, int, Sequence[int]]]) -> Series:
    step: list[int] = []
    at: list[float] = []
    value: list[float | None] = []
    speed: list[float | None] = []
    passes: list[Sequence[float]] = []
    for rows, offset, kept in parts:
        step += [int(rows.step[each]) + offset for each in kept]
        at += [rows.at[each] for each in kept]
        value += [_known(rows.value[each]) for each in kept]
        speed += [_known(rows.speed[each]) for each in kept]
        passes += [rows.passes[each] for each in kept]
    hours, usd = paid_by(run, at)
    columns = [
        [_known(row[number]) if number < len(row) else None for row in passes]
        for number in range(max(map(len, passes), default=0))
    ]
    return Series(step, at, hours, usd, value, speed, columns)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def _number(value: object) -> float:
    """A finite one; NaN for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return math.nan
    return float(value) if abs(value) < 1e300 else math.nan


def _passes(value: object) -> Sequence[float]:
    if not isinstance(value, list):
        return ()
    return array("d", map(_number, value[:_MOST_PASSES]))
