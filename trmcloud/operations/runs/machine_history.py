"""History of a run's machine: its GPUs' counters, and the memory of its processes on this one.

An agent reports the last minutes of its GPUs, as one window. Each process that observes a run adds
that window to a file beside the run's metrics, a line every half minute. The file is bounded: once
it is full, every second line of its older half is dropped.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.contract.pod_contract import (
    GPU_NOTE,
    RUNS_DIR,
    AgentReport,
    GpuCounters,
    GpuWindow,
    PhaseState,
    window_from,
)
from trmcloud.core.contract.records import MAX_LINE_BYTES, parse_lines
from trmcloud.core.control.billing import paid_by
from trmcloud.core.control.run_state import RunState
from trmcloud.core.values import Value
from trmcloud.io.files import write_atomic
from trmcloud.operations.context import Context
from trmcloud.operations.curves.curves import MetricsLines, Phase, open_metrics, step_at
from trmcloud.pod.machine import processes

SAMPLES_NAME = "machine.jsonl"
EVERY_S = 30.0
MAX_BYTES = 1 << 20
_TAIL_BYTES = 1 << 13
"""More than the longest line: a window of ``MOST_GPUS`` GPUs."""
_MOST_MIB = 1e9


class MachineSample(Value):
    """``at``: epoch s. ``window`` is the agent's, over its last minutes; ``memory_mib`` is the
    resident memory of the run's processes on this machine."""

    at: float
    window: GpuWindow | None
    memory_mib: float | None

    def to_line(self) -> str:
        told: dict[str, Any] = {"at": round(self.at, 3)}
        if self.window is not None:
            told["gpus"] = json.loads(self.window.to_text())
        if self.memory_mib is not None:
            told["memory_mib"] = round(self.memory_mib, 1)
        return json.dumps(told, separators=(",", ":")) + "\n"


def samples_path(home: Path, run_id: str) -> Path:
    return home / RUNS_DIR / run_id / SAMPLES_NAME


def note_machine(home: Path, run: RunState, report: AgentReport) -> None:
    """Add what ``report`` says of the machine to the run's history, if the last line is old enough.

    What cannot be written is left out: a run does not depend on it.
    """
    generation = run.generation
    if generation is None or report.pod_name != generation.pod_name:
        return
    is_here = generation.provider == LOCAL
    note = report.notes.get(GPU_NOTE, "")
    trains = any(phase.state is PhaseState.RUNNING for phase in report.phases)
    if not trains or not (note or is_here):
        return
    path = samples_path(home, run.run_id)
    last = _last(path)
    is_first_window = last is not None and bool(note) and "gpus" not in last
    if last is not None and abs(report.at - last["at"]) < EVERY_S and not is_first_window:
        return
    memory_mib = _resident_mib(processes.of_pod(generation.pod_name)) if is_here else None
    sample = MachineSample(report.at, window_from(note), memory_mib)
    if sample.window is not None or sample.memory_mib is not None:
        with suppress(OSError):
            _add(path, sample.to_line())


def read_samples(home: Path, run_id: str) -> list[MachineSample]:
    """Return the history by time. The file may hold anything: what is not a sample is left out."""
    lines = MetricsLines(samples_path(home, run_id))
    found = [_sample(row) for rows in lines.read_on() for row in rows]
    return sorted((each for each in found if each is not None), key=lambda sample: sample.at)


def thinned(samples: Sequence[MachineSample], most: int) -> list[MachineSample]:
    """Return ``most`` samples at even distances, the first and the last among them."""
    if len(samples) <= most:
        return list(samples)
    last = len(samples) - 1
    return [samples[round(number * last / (most - 1))] for number in range(most)]


# -- the file ------------------------------------------------------------------------------------


def _add(path: Path, line: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
    handle = os.open(path, flags, 0o644)
    try:
        os.write(handle, line.encode())
        size = os.fstat(handle).st_size
    finally:
        os.close(handle)
    if size > MAX_BYTES:
        _thin(path)


def _thin(path: Path) -> None:
    """Drop every second line of the older half."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(handle, "rb") as file:
        lines = file.read(2 * MAX_BYTES).splitlines(keepends=True)
    half = len(lines) // 2
    kept = b"".join([*lines[:half:2], *lines[half:]])
    if len(kept) > MAX_BYTES:  # lines of another author's
        kept = b""
    write_atomic(path, kept, durable=False)


def _last(path: Path) -> dict[str, Any] | None:
    """Return the last line; None where there is none."""
    with suppress(OSError), open(open_metrics(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        tail = os.pread(file.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES))
        for row in parse_lines(reversed(tail.splitlines()[-2:])):
            if _number(row.get("at")) is not None:
                return row
    return None


def _sample(row: Any) -> MachineSample | None:
    at = _number(row.get("at"))
    if at is None:
        return None
    told = row.get("gpus")
    window = window_from(json.dumps(told)[:MAX_LINE_BYTES]) if isinstance(told, dict) else None
    memory = _number(row.get("memory_mib"))
    return MachineSample(at, window, memory if memory is not None and memory < _MOST_MIB else None)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value < 1e300 and math.isfinite(value) else None


# -- the memory of processes on this machine -----------------------------------------------------


def _resident_mib(pids: Iterable[int]) -> float | None:
    """Return the resident memory of processes in MiB; a page that several share counts for each.
    None where none of them can be read."""
    pages = []
    for pid in pids:
        with suppress(OSError, ValueError, IndexError):
            pages.append(int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]))
    return sum(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20 if pages else None


# Charts of the history.

_MOST_POINTS = 240
_MOST_LINES = 4
"""GPUs that have a line each; of more, the lowest, the mean and the highest are drawn."""
_MIB_PER_GB = 1e9 / 2**20


class Axes(Value):
    """Where each sample stands: the step on the common axis, paid hours, USD."""

    step: tuple[int, ...]
    hours: tuple[float, ...]
    usd: tuple[float, ...]


class Column(Value):
    name: str
    values: tuple[float | None, ...]


class MachineCharts(Value):
    """Three charts: the GPUs' use in percent, their memory and that of the run's processes in GB.
    ``told`` says what they show, or why there are none."""

    x: Axes
    busy: tuple[Column, ...]
    used: tuple[Column, ...]
    memory: tuple[Column, ...]
    told: str


def machine_charts(context: Context, run: RunState, phases: Sequence[Phase]) -> MachineCharts:
    """Return a run's samples, thinned out, each at its place on each axis."""
    samples = thinned(read_samples(context.home, run.run_id), _MOST_POINTS)
    hours, usd = paid_by(run, [sample.at for sample in samples])
    steps: list[int] = []
    for sample in samples:
        step = step_at(phases, sample.at) or 0
        steps.append(max(step, steps[-1]) if steps else step)
    gpus = [sample.window.gpus if sample.window is not None else () for sample in samples]
    return MachineCharts(
        x=Axes(
            tuple(steps),
            tuple(round(hour, 6) for hour in hours),
            tuple(round(spent, 6) for spent in usd),
        ),
        busy=_columns([[_busy(gpu) for gpu in row] for row in gpus]),
        used=_columns([[_gigabytes(gpu.used_mib) for gpu in row] for row in gpus]),
        memory=_columns([[_gigabytes(sample.memory_mib)] for sample in samples]),
        told=_told(run, samples),
    )


def _told(run: RunState, samples: Sequence[MachineSample]) -> str:
    """Return one line about what the charts show, or why there are none."""
    windows = [sample.window for sample in samples if sample.window is not None]
    if windows:
        total = max((gpu.total_mib or 0.0 for gpu in windows[-1].gpus), default=0.0)
        each = f" Each has {total / _MIB_PER_GB:.0f} GB." if total else ""
        return f"Use is the mean of up to 10 minutes, memory the highest value in them.{each}"
    here = run.generation is not None and run.generation.provider == LOCAL
    if samples and run.live:
        return "This machine has no GPU samples: nvidia-smi lists no GPU, or has not answered yet."
    if samples:
        return "This machine has no GPU samples: nvidia-smi listed no GPU."
    if not run.live:
        return "No samples of its machine were kept."
    where = "This machine" if here else "Its machine"
    return f"{where} has reported no samples yet."


def _columns(rows: Sequence[Sequence[float | None]]) -> tuple[Column, ...]:
    """Return named columns of ``rows``, one for each GPU or a summary of many; none where no value
    is known."""
    width = max(map(len, rows), default=0)
    columns: Mapping[str, list[float | None]]
    if width <= _MOST_LINES:
        columns = {
            f"GPU {number}": [row[number] if number < len(row) else None for row in rows]
            for number in range(width)
        }
    else:
        known = [[value for value in row if value is not None] for row in rows]
        columns = {
            "lowest": [min(row, default=None) for row in known],
            "mean": [sum(row) / len(row) if row else None for row in known],
            "highest": [max(row, default=None) for row in known],
        }
    return tuple(
        Column(name, tuple(None if v is None else float(f"{v:.4g}") for v in values))
        for name, values in columns.items()
        if any(value is not None for value in values)
    )


def _busy(gpu: GpuCounters) -> float | None:
    return None if gpu.busy_percent is None else min(100.0, gpu.busy_percent)


def _gigabytes(mib: float | None) -> float | None:
    return None if mib is None else mib / _MIB_PER_GB
