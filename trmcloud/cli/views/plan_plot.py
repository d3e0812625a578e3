"""A plan's cost against time, as SVG, HTML and PNG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from trmcloud.core.errors import ConflictError, MissingExtra, UsageError
from trmcloud.core.spec.plan import Candidate, Plan
from trmcloud.io.installation import install_command
from trmcloud.operations.plans.plan_choices import pareto

_PLOT_WIDTH, _PLOT_HEIGHT, _MARGIN = 860, 480, 70


def write_plot(plan: Plan, path: Path) -> None:
    """The chart as a file, by its suffix.

    Raises:
        UsageError: a suffix other than .svg, .html or .png.
        MissingExtra: PNG without matplotlib.
        ConflictError: the file cannot be written.
    """
    points = [c for c in _best_of_each(plan) if c.fits_memory]
    suffix = path.suffix.lower()
    try:
        if suffix == ".svg":
            path.write_text(svg(plan, points), encoding="utf-8")
        elif suffix in (".html", ".htm"):
            path.write_text(_html(plan, points), encoding="utf-8")
        elif suffix == ".png":
            _write_png(plan, points, path)
        else:
            raise UsageError(
                f"--plot: {path.name} must end in .svg, .html or .png",
                next_step="--plot plan.svg",
            )
    except OSError as error:
        raise ConflictError(f"the plot cannot be written: {error}", where=str(path)) from None


def svg(plan: Plan, points: Sequence[Candidate]) -> str:
    """A self-contained SVG: P50 cost against P50 hours with P10–P90 bars, the front joined."""
    front = pareto(points)
    xs = [math.log(h) for p in points for h in (p.hours.p10, p.hours.p90)] or [0.0, 1.0]
    top = max([float(p.cost_p90) for p in points] or [1.0]) * 1.08 or 1.0
    low, high = min(xs), max(xs)

    def at(hours: float, dollars: float) -> tuple[float, float]:
        share = (math.log(hours) - low) / ((high - low) or 1.0)
        x = _MARGIN + share * (_PLOT_WIDTH - 2 * _MARGIN)
        return x, _PLOT_HEIGHT - _MARGIN - dollars / top * (_PLOT_HEIGHT - 2 * _MARGIN)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_PLOT_WIDTH} {_PLOT_HEIGHT}"'
        ' font-family="sans-serif" font-size="13">',
        f"<title>{escape(_title(plan))}</title>",
        f'<rect width="{_PLOT_WIDTH}" height="{_PLOT_HEIGHT}" fill="white"/>',
        f'<text x="{_MARGIN}" y="32" font-size="16">{escape(_title(plan))}</text>',
    ]
    for dollars in _ticks(top):
        _, y = at(math.exp(low), dollars)
        parts.append(f'<path d="M{_MARGIN} {y:.1f}H{_PLOT_WIDTH - _MARGIN}" stroke="#ddd"/>')
        parts.append(f'<text x="8" y="{y + 4:.1f}">${dollars:,.0f}</text>')
    for hours in (m * 10.0**e for e in range(-3, 6) for m in (1, 2, 5)):
        if math.exp(low) <= hours <= math.exp(high):
            x, y = at(hours, 0)
            label = f'<text x="{x:.1f}" y="{y + 22:.1f}" text-anchor="middle">{hours:g} h</text>'
            parts.append(label)
    joined = [at(p.hours.p50, float(p.cost_p50)) for p in _by_hours(points) if p.id in front]
    if joined:
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in joined)
        parts.append(f'<polyline points="{line}" fill="none" stroke="#888" stroke-dasharray="4"/>')
    for point in points:
        parts += _svg_point(point, at, point.id in front, point.id == plan.recommended_id)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _svg_point(point: Candidate, at: Any, on_front: bool, chosen: bool) -> list[str]:
    x, y = at(point.hours.p50, float(point.cost_p50))
    left, _ = at(point.hours.p10, 0)
    right, _ = at(point.hours.p90, 0)
    _, low = at(point.hours.p50, float(point.cost_p10))
    _, high = at(point.hours.p50, float(point.cost_p90))
    fill = "#1558b0" if on_front else "white"
    radius = 8 if chosen else 5
    label = f"{'▸ ' if chosen else ''}{point.hardware} {point.provider}"
    return [
        f'<path d="M{left:.1f} {y:.1f}H{right:.1f}M{x:.1f} {low:.1f}V{high:.1f}" stroke="#9bd"/>',
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{fill}" stroke="#1558b0"/>',
        f'<text x="{x + 11:.1f}" y="{y - 6:.1f}">{escape(label)}</text>',
    ]


def _html(plan: Plan, points: Sequence[Candidate]) -> str:
    rows = "".join(
        f"<tr><td>{escape(p.hardware)}<td>{escape(p.sku)}<td>{escape(p.provider)} "
        f"{escape(p.region)}<td>{p.rate}<td>{p.hours.p50:.2f}<td>{p.cost_p50}<td>{p.cost_p90}"
        for p in points
    )
    return (
        f"<!doctype html><meta charset=utf-8><title>{escape(_title(plan))}</title>\n"
        "<style>body{font-family:sans-serif;max-width:60em;margin:2em auto}"
        "td,th{padding:.2em .8em;text-align:left}</style>\n"
        f"{svg(plan, points)}<table><tr><th>hardware<th>sku<th>where<th>$/h<th>hours p50"
        f"<th>cost p50<th>cost p90</tr>{rows}</table>\n"
    )


def _write_png(plan: Plan, points: Sequence[Candidate], path: Path) -> None:
    import importlib

    try:
        matplotlib: Any = importlib.import_module("matplotlib")
        matplotlib.use("Agg")
        pyplot: Any = importlib.import_module("matplotlib.pyplot")
    except ImportError:
        raise MissingExtra(
            "--plot to PNG (SVG and HTML work without it)", "plot", install_command("plot")
        ) from None
    figure, axes = pyplot.subplots(figsize=(9, 5))
    front = pareto(points)
    for point in points:
        cost = [float(getattr(point, f"cost_{p}")) for p in ("p10", "p50", "p90")]
        hours = point.hours
        axes.errorbar(
            hours.p50, cost[1], fmt="o", mfc="C0" if point.id in front else "white", color="C0",
            xerr=[[hours.p50 - hours.p10], [hours.p90 - hours.p50]],
            yerr=[[cost[1] - cost[0]], [cost[2] - cost[1]]],
        )  # fmt: skip
        mark = "▸ " if point.id == plan.recommended_id else ""
        axes.annotate(f"{mark}{point.hardware}", (hours.p50, cost[1]), xytext=(6, 6),
                      textcoords="offset points")  # fmt: skip
    joined = [p for p in _by_hours(points) if p.id in front]
    line = [p.hours.p50 for p in joined], [float(p.cost_p50) for p in joined]
    axes.plot(*line, "--", color="grey")
    axes.set(xscale="log", xlabel="hours (p50)", ylabel="USD (p50)", title=_title(plan))
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _best_of_each(plan: Plan) -> list[Candidate]:
    best: dict[str, Candidate] = {}
    for candidate in plan.candidates:
        if candidate.rate:
            best.setdefault(candidate.hardware, candidate)
    return list(best.values())


def _by_hours(points: Sequence[Candidate]) -> list[Candidate]:
    return sorted(points, key=lambda p: p.hours.p50)


def _title(plan: Plan) -> str:
    budget = f", budget {plan.spec.budget}" if plan.spec.budget is not None else ""
    return f"{plan.spec.recipe} {' + '.join(plan.spec.phases)}: cost against time{budget}"


def _ticks(top: float) -> list[float]:
    stride = 10 ** math.floor(math.log10(top))
    if top / stride < 3:
        stride /= 2
    return [stride * n for n in range(int(top / stride) + 1)]
