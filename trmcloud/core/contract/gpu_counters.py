"""What a machine's GPUs say of themselves while it trains: a note of the agent's report.

The note is JSON: ``{"samples": 40, "over_s": 585.0, "gpus": [[busy, used, total, clock], …]}``, a
row for each GPU in nvidia-smi's order; null stands for what it did not say.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from trmcloud.core.values import dataclass

GPU_NOTE = "gpus"
"""The topic of that note."""
MOST_GPUS = 64
LEAST_SAMPLES = 8
"""Before which nothing is judged by a window."""
_MOST = 1e9
_MOST_CHARS = 8192


class GpuCounters(NamedTuple):
    """One GPU: percent of the time in which it computed, MiB of its memory, MHz of its
    multiprocessors. Over a window: the mean, the most, and the mean."""

    busy_percent: float | None
    used_mib: float | None
    total_mib: float | None
    clock_mhz: float | None


@dataclass(frozen=True)
class GpuWindow:
    """The last ``over_s`` seconds of training, sampled so often."""

    samples: int
    over_s: float
    gpus: tuple[GpuCounters, ...]

    def memory_share(self) -> float | None:
        """What is in use of the fullest GPU's memory; None where none says so, or too little was
        sampled."""
        if self.samples < LEAST_SAMPLES:
            return None
        shares = [
            g.used_mib / g.total_mib for g in self.gpus if g.used_mib is not None and g.total_mib
        ]
        return max(shares, default=None)

    def to_text(self) -> str:
        rows = [[_short(value) for value in gpu] for gpu in self.gpus]
        record = {"samples": self.samples, "over_s": round(self.over_s, 1), "gpus": rows}
        return json.dumps(record, separators=(",", ":"))


def window_from(text: str) -> GpuWindow | None:
    """The window that a note tells of; None where it is none, as a pod may write anything."""
    if not text or len(text) > _MOST_CHARS:
        return None
    try:
        data = json.loads(text, parse_int=float)
        gpus = tuple(GpuCounters(*map(_counter, row)) for row in data["gpus"])
        samples, over_s = _counter(data["samples"]), _counter(data["over_s"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if samples is None or over_s is None or not 0 < len(gpus) <= MOST_GPUS:
        return None
    return GpuWindow(int(samples), over_s, gpus)


def summed_up(samples: Sequence[Sequence[GpuCounters]], over_s: float) -> GpuWindow:
    """``samples``, each of the same number of GPUs, as one window."""
    return GpuWindow(
        len(samples),
        over_s,
        tuple(
            GpuCounters(
                _mean([gpu.busy_percent for gpu in rows]),
                max((g.used_mib for g in rows if g.used_mib is not None), default=None),
                rows[-1].total_mib,
                _mean([gpu.clock_mhz for gpu in rows]),
            )
            for rows in zip(*samples, strict=True)
        ),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _short(value: float | None) -> float | None:
    return round(value, 1) if value is not None else None


def _counter(value: Any) -> float | None:
    """
    Raises:
        ValueError: it is none that any GPU could give.
    """
    if value is None:
        return None
    if type(value) is not float or not (math.isfinite(value) and 0 <= value < _MOST):
        raise ValueError("no counter")
    return value
