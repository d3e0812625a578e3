"""What a probe has measured of a command, here and for other hardware."""

from __future__ import annotations

from trmcloud.app.context import Context
from trmcloud.app.run_queries import last_report
from trmcloud.cli.views.text import duration
from trmcloud.core.catalog.hardware import GPUS
from trmcloud.core.contract.command_terms import MEASURED, MeasuredSteps
from trmcloud.core.contract.gpu_counters import GPU_NOTE, GpuWindow, window_from
from trmcloud.core.contract.records import ContractError, record_of
from trmcloud.core.control.run_state import RunState
from trmcloud.core.planner.command_probe import HOST_FACTOR, elsewhere
from trmcloud.core.spec.plan import Interval


def probe_lines(context: Context, run: RunState, sku: str | None) -> list[str]:
    """A line for what was measured on a machine with ``sku`` (None: no GPU of the catalogue), and
    one for each other GPU."""
    command = run.spec.command
    assert command is not None
    measured = _measured(context, run)
    if measured is None:
        return [
            "  measured        nothing: its log told of too few steps; --metric or a longer time"
        ]
    step_s = Interval(measured.fast_s, measured.step_s, measured.slow_s)
    lines = [
        f"  measured        {_seconds(step_s)} a step, over {measured.steps:,} steps",
        f"  memory          {measured.memory_bytes / 1e9:.2f} GB of the host's, by "
        f"{measured.cores:.1f} cores",
    ]
    report = last_report(context, run)
    window = window_from(report.notes.get(GPU_NOTE, "")) if report is not None else None
    if sku is None or sku not in GPUS:
        return [*lines, "  elsewhere       not known: a processor's pace says nothing of a GPU's"]
    busy, used_gb = _gpus(window)
    share = f"busy {busy:.0%}" if busy is not None else "its share of the time is not known"
    lines.append(f"  {sku:<15} {share}" + (f", {used_gb:.1f} GB in use" if used_gb else ""))
    others = [gpu for name, gpu in GPUS.items() if name != sku]
    for other in elsewhere(measured, GPUS[sku], others, busy, used_gb):
        words = f"  {other.gpu.name:<15} {_seconds(other.step_s)} a step"
        if run.spec.steps:
            low, high = (s * run.spec.steps for s in (other.step_s.p10, other.step_s.p90))
            words += f", {duration(low)} to {duration(high)} in all"
        lines.append(words + ("" if other.fits is not False else "; too little memory"))
    lines.append(
        "  · as many GPUs of each: between the ratio of peaks and that of bandwidths, and the "
        f"host's part within a factor of {HOST_FACTOR:g}"
    )
    return lines


def _measured(context: Context, run: RunState) -> MeasuredSteps | None:
    for phase in run.phases:
        for line in reversed(context.files.metrics(run.run_id, phase)):
            if line.get("kind") == MEASURED:
                said = {k: v for k, v in line.items() if k not in ("kind", "step", "at")}
                try:
                    return record_of(MeasuredSteps, said)
                except ContractError:
                    return None
    return None


def _gpus(window: GpuWindow | None) -> tuple[float | None, float | None]:
    """(busy share, GB in use of the fullest)"""
    if window is None:
        return None, None
    busy = [gpu.busy_percent / 100 for gpu in window.gpus if gpu.busy_percent is not None]
    used = [gpu.used_mib * 2**20 / 1e9 for gpu in window.gpus if gpu.used_mib is not None]
    return sum(busy) / len(busy) if busy else None, max(used, default=None)


def _seconds(step_s: Interval) -> str:
    return f"{step_s.p50:.3g} s ({step_s.p10:.3g} to {step_s.p90:.3g})"
