"""JSON for the lower part of a run's page: its log, its machine's history, its configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trmcloud.app.context import Context
from trmcloud.app.curves import Phase, step_at
from trmcloud.app.machine_history import MachineSample, read_samples, thinned
from trmcloud.app.run_logs import logs_of, read_log
from trmcloud.app.steering import LAND, RAISE, SAVE, STOP, foresee
from trmcloud.cli.views.launched import launched_of
from trmcloud.cli.views.text import pick
from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.contract.pod_contract import GpuCounters
from trmcloud.core.control.billing import paid_by
from trmcloud.core.control.run_state import RunState
from trmcloud.core.text import one_line
from trmcloud.wiring_plans import build_planner

_MOST_POINTS = 240
_MOST_LINES = 4
"""GPUs that have a line each; of more, the lowest, the mean and the highest are drawn."""
_MIB_PER_GB = 1e9 / 2**20
_MOST_CELL = 200


def log_json(context: Context, run: RunState, phase: str, after: int | None) -> dict[str, Any]:
    """Return the end of the log of ``phase``, or of the newest one; what is behind ``after``."""
    logs = list(logs_of(context, run))
    told: dict[str, Any] = {"logs": logs, "live": run.live}
    if not logs and not phase:
        return {**told, "log": "", "start": 0, "end": 0, "size": 0, "text": ""}
    name = phase or logs[-1]
    piece = read_log(context, run, name, after)
    return {**told, "log": name, **pick(piece, "start", "end", "size", "text")}


def launched_json(context: Context, run: RunState) -> dict[str, Any]:
    made = launched_of(run, build_planner(context.home).recipe)
    return {
        "recipe": one_line(run.spec.recipe) if run.spec.command is None else "",
        "rows": [[one_line(name), one_line(text)] for name, text in made.rows],
        "differences": None if made.differences is None else [
            {name: one_line(text)[:_MOST_CELL] for name, text in each._asdict().items()}
            for each in made.differences
        ],
    }  # fmt: skip


def refusals_of(context: Context, run: RunState) -> dict[str, str]:
    """Return why each action cannot be done now, by its verb; those that can are left out. A raise
    whose amount alone is too small counts as one that can."""
    seen = (foresee(context, run, verb) for verb in (SAVE, LAND, STOP, RAISE))
    return {each.verb: one_line(each.refused) for each in seen if each.refused and not each.cap}


# -- the machine's history -------------------------------------------------------------------------


def machine_json(context: Context, run: RunState, phases: Sequence[Phase]) -> dict[str, Any]:
    """Return columns for three charts, each sample at its place on each axis: the GPUs' use and
    memory, and the memory of the run's processes."""
    samples = thinned(read_samples(context.home, run.run_id), _MOST_POINTS)
    hours, usd = paid_by(run, [sample.at for sample in samples])
    steps: list[int] = []
    for sample in samples:
        step = step_at(phases, sample.at) or 0
        steps.append(max(step, steps[-1]) if steps else step)
    gpus = [sample.window.gpus if sample.window is not None else () for sample in samples]
    return {
        "x": {
            "step": steps,
            "hours": [round(hour, 6) for hour in hours],
            "usd": [round(spent, 6) for spent in usd],
        },
        "busy": _lines([[_busy(gpu) for gpu in row] for row in gpus]),
        "used": _lines([[_gigabytes(gpu.used_mib) for gpu in row] for row in gpus]),
        "memory": _lines([[_gigabytes(sample.memory_mib)] for sample in samples]),
        "told": _told(run, samples),
    }


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


def _lines(rows: Sequence[Sequence[float | None]]) -> list[dict[str, Any]]:
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
    return [
        {"name": name, "values": [None if v is None else float(f"{v:.4g}") for v in values]}
        for name, values in columns.items()
        if any(value is not None for value in values)
    ]


def _busy(gpu: GpuCounters) -> float | None:
    return None if gpu.busy_percent is None else min(100.0, gpu.busy_percent)


def _gigabytes(mib: float | None) -> float | None:
    return None if mib is None else mib / _MIB_PER_GB
