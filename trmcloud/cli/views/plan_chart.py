"""Cost against time, in the terminal."""

from __future__ import annotations

import math
from typing import Sequence

from trmcloud.core.spec.plan import Candidate, Plan

CHART_ROWS = 9
LEAST_COLUMNS = 60
"""Of a terminal that a chart is drawn on."""


def pareto(candidates: Sequence[Candidate]) -> set[str]:
    """Ids of those that none beats in both P50 cost and P50 hours."""
    front: set[str] = set()
    least: int | None = None
    usable = [c for c in candidates if c.fits_memory]
    for candidate in sorted(usable, key=lambda c: (c.hours.p50, c.cost_p50.micros)):
        if least is None or candidate.cost_p50.micros < least:
            front.add(candidate.id)
            least = candidate.cost_p50.micros
    return front


def terminal_chart(plan: Plan, rows: Sequence[Candidate], columns: int) -> list[str]:
    """One point per candidate that fits and costs something; hours are logarithmic.

    ● none is both cheaper and faster; ○ some is; ▸ recommended.
    """
    points = [row for row in rows if row.fits_memory and row.rate]
    if len(points) < 2 or columns < LEAST_COLUMNS:
        return []
    front = pareto(points)
    width = min(columns, 110) - 24
    low, high = (f(math.log(p.hours.p50) for p in points) for f in (min, max))
    bottom, top = (f(float(p.cost_p50) for p in points) for f in (min, max))
    span_x, span_y = (high - low) or 1.0, (top - bottom) or 1.0
    canvas = [[" "] * (width + 14) for _ in range(CHART_ROWS)]
    for point in sorted(points, key=lambda p: (p.id != plan.recommended_id, p.id not in front)):
        x = round((math.log(point.hours.p50) - low) / span_x * (width - 1)) + 2
        y = CHART_ROWS - 1 - round((float(point.cost_p50) - bottom) / span_y * (CHART_ROWS - 1))
        label = f"{'●' if point.id in front else '○'} {point.hardware}"
        if point.id == plan.recommended_id:
            x, label = x - 2, f"▸ {label}"
        _put(canvas, x, y, label)
    lines = []
    for number, cells in enumerate(canvas):
        dollars = top - span_y * number / (CHART_ROWS - 1)
        margin = f"${dollars:,.0f}" if number % 2 == 0 else ""
        lines.append(f"{margin:>8} ┤{''.join(cells).rstrip()}")
    axis = f"{_hours(math.exp(low))} h"
    axis = axis.ljust(width // 2) + f"{_hours(math.exp((low + high) / 2))} h"
    axis = axis.ljust(width - 4) + f"{_hours(math.exp(high))} h"
    key = "● none is both cheaper and faster   ○ some is"
    return [*lines, f"{'':8} └{'─' * width}", f"{'':10}{axis}", f"{'':10}{key}"]


def _put(canvas: list[list[str]], x: int, y: int, label: str) -> None:
    """``label`` at its place or a row beside it; its mark alone where there is no room."""
    x = max(0, min(x, len(canvas[0]) - len(label)))
    for row in (y, y - 1, y + 1):
        if 0 <= row < len(canvas) and all(
            cell == " " for cell in canvas[row][max(0, x - 1) : x + len(label) + 1]
        ):
            canvas[row][x : x + len(label)] = label
            return
    if canvas[y][x] == " ":
        canvas[y][x] = label[0]


def _hours(number: float) -> str:
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 1 else f"{number:.2f}"
