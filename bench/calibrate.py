"""How well the planner predicts trainings it has not seen; ``make calibrate`` prints this alone."""

from __future__ import annotations

from pathlib import Path
from typing import Mapping

import numpy as np

from bench.calibration import Calibration, Residual, calibrate
from bench.published import parse_rows
from bench.row import Row

TABLE = Path(__file__).with_name("throughput.csv")


def run() -> list[Row | str]:
    """Leave-one-source-out errors of time per token, row by row, then the figures."""
    found = calibrate(parse_rows(TABLE.read_text(encoding="utf-8"), str(TABLE)))
    lines: list[Row | str] = ["each source left out, predicted from the others (+ is too slow)"]
    lines += [_line(residual) for residual in found.residuals]
    return [*lines, *_fitted(found), *_figures(found)]


def _figures(found: Calibration) -> list[Row | str]:
    groups = len({residual.row.group for residual in found.residuals})
    what = f"{len(found.residuals)} rows of {groups} sources"
    newest = [abs(r.error) for r in found.residuals if r.row.gpu == "B200"]
    covered, ratio = found.covered()
    return [
        Row("error, median", float(np.median(found.errors)), 0.10, "lower", "", what),
        Row("error, P90", float(np.quantile(found.errors, 0.9)), 0.24, "lower", "", what),
        Row("error, median on B200", float(np.median(newest)), 0.15, "lower", "",
            f"{len(newest)} rows"),
        Row("80 % intervals cover, at least", covered, 0.72, "higher", "", what),
        Row("80 % intervals cover, at most", covered, 0.88, "lower", "", what),
        Row("80 % intervals, median P90 ÷ P10", ratio, 2.0, "lower", "", what),
    ]  # fmt: skip


def _fitted(found: Calibration) -> list[str]:
    values = found.parameters
    common = ", ".join(
        f"{name} {value:.4g}"
        for name, value in values._asdict().items()
        if isinstance(value, float)
    )
    return [
        f"fitted: {common}; half of an 80 % interval {found.half_width:.3f}",
        *(f"  {name}: {_factors(getattr(values, name))}" for name in ("software", "fp8", "chip")),
    ]


def _factors(factors: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {factor:.3f}" for name, factor in factors.items())


def _line(residual: Residual) -> str:
    row = residual.row
    machine = f"{row.gpus}x{row.gpu}"
    return (
        f"  {row.name[:32]:<33}{machine:<17}{row.tokens_per_s:>9,.0f} measured"
        f"{residual.predicted_tokens_per_s:>9,.0f} predicted tokens/s  {residual.error:+7.1%}"
        f"  {row.group}"
    )
