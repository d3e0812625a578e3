"""What a probe has measured of a command, here and for other hardware."""

from __future__ import annotations

from trmcloud.cli.views.text import duration
from trmcloud.core.catalog.hardware import GPUS
from trmcloud.core.planner.command_outlook import seconds_text
from trmcloud.core.planner.command_probe import HOST_FACTOR, Probed, elsewhere
from trmcloud.core.spec.plan import Interval


def probe_lines(probed: Probed | None, steps: int | None) -> list[str]:
    """A line for what was measured where it ran, and one for each other GPU; how long ``steps`` of
    them would take."""
    if probed is None:
        return [
            "  measured        nothing: its log told of too few steps; --metric or a longer time"
        ]
    measured = probed.measured
    step_s = Interval(measured.fast_s, measured.step_s, measured.slow_s)
    lines = [
        f"  measured        {seconds_text(step_s)} a step, over {measured.steps:,} steps",
        f"  memory          {measured.memory_bytes / 1e9:.2f} GB of the host's, by "
        f"{measured.cores:.1f} cores",
    ]
    sku, busy, used_gb = probed.sku, probed.busy, probed.used_gb
    if sku not in GPUS:
        return [*lines, "  elsewhere       not known: a processor's pace says nothing of a GPU's"]
    share = f"busy {busy:.0%}" if busy is not None else "its share of the time is not known"
    lines.append(f"  {sku:<15} {share}" + (f", {used_gb:.1f} GB in use" if used_gb else ""))
    others = [gpu for name, gpu in GPUS.items() if name != sku]
    for other in elsewhere(measured, GPUS[sku], others, busy, used_gb):
        words = f"  {other.sku:<15} {seconds_text(other.step_s)} a step"
        if steps:
            low, high = (s * steps for s in (other.step_s.p10, other.step_s.p90))
            words += f", {duration(low)} to {duration(high)} in all"
        lines.append(words + ("" if other.fits is not False else "; too little memory"))
    lines.append(
        "  · as many GPUs of each: between the ratio of peaks and that of bandwidths, and the "
        f"host's part within a factor of {HOST_FACTOR:g}"
    )
    return lines
