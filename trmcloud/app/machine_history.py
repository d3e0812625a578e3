"""History of a run's machine: its GPUs' counters, and the memory of its processes on this one.

An agent reports the last minutes of its GPUs, as one window. Each process that observes a run adds
that window to a file beside the run's metrics, a line every half minute. The file is bounded: once
it is full, every second line of its older half is dropped.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trmcloud.app.curves import MetricsLines, open_metrics
from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.contract.pod_contract import (
    GPU_NOTE,
    RUNS_DIR,
    AgentReport,
    GpuWindow,
    PhaseState,
    window_from,
)
from trmcloud.core.contract.records import MAX_LINE_BYTES, parse_lines
from trmcloud.core.control.run_state import RunState
from trmcloud.core.values import dataclass
from trmcloud.io.files import write_atomic
from trmcloud.pod.machine import processes

SAMPLES_NAME = "machine.jsonl"
EVERY_S = 30.0
MAX_BYTES = 1 << 20
_TAIL_BYTES = 1 << 13
"""More than the longest line: a window of ``MOST_GPUS`` GPUs."""
_MOST_MIB = 1e9


@dataclass(frozen=True)
class MachineSample:
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
