"""Counts and metrics as words."""

from __future__ import annotations

from trmcloud.core.text import one_line

BITS = "bits per byte"


def count(number: float) -> str:
    """``950``, ``1.2K``, ``3.4M``, ``5.6B``."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if abs(number) >= size:
            return f"{number / size:.1f}{unit}"
    return f"{number:g}"


def bpb(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def title_of(metric: str | None) -> str:
    """Return a metric's name in a heading: ``bits per byte`` of a recipe (None), a command's own
    name, or ``metric`` where it has none."""
    return BITS if metric is None else one_line(metric)[:40] or "metric"


def value_words(metric: str | None, value: float | None) -> str:
    """``2.310`` bits per byte, or a command's own metric."""
    return bpb(value) if metric is None else number(value)
