"""How well the planner predicts trainings it has not seen; ``make calibrate`` prints this alone."""

from __future__ import annotations

from pathlib import Path

import trmcloud.adapters.prices
from bench.row import Row
from trmcloud.core.calibration import Residual, calibrate, parse_rows

TABLE = Path(trmcloud.adapters.prices.__file__).parent / "data" / "calibration.csv"
MEDIAN_TARGET, WORST_TARGET = 0.12, 0.30


def run() -> list[Row | str]:
    """Leave-one-out errors of time per token, row by row, then the two figures."""
    found = calibrate(parse_rows(TABLE.read_text(encoding="utf-8"), str(TABLE)))
    fitted = found.parameters
    lines: list[Row | str] = ["left out, predicted from the others (time: + is too slow)"]
    lines += [_line(residual) for residual in found.residuals]
    lines.append("apart: a GPU with one row is predicted by the others' mean, and planned wide")
    lines += [_line(residual) for residual in found.apart]
    reached = ", ".join(f"{sku} {share:.4f}" for sku, share in fitted.reached.items())
    lines.append(
        f"fitted: reached {reached}; pooled {fitted.pooled:.4f}; fill {fitted.fill:.1f}; traffic"
        f" {fitted.traffic_values:.2f}; attention {fitted.attention_share:.4f}; σ {found.sigma:.3f}"
    )
    rows = f"{len(found.residuals)} rows"
    lines.append(
        Row("leave-one-out error, median", found.median_error, MEDIAN_TARGET, "lower", "", rows)
    )
    lines.append(
        Row("leave-one-out error, worst", found.worst_error, WORST_TARGET, "lower", "", rows)
    )
    return lines


def _line(residual: Residual) -> str:
    row = residual.row
    return (
        f"  {row.name:<26}{row.gpu:<15}{row.tokens_per_s:>9,.0f} measured"
        f"{residual.predicted_tokens_per_s:>9,.0f} predicted tokens/s  {residual.error:+7.1%}"
    )
