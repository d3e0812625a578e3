"""How well the planner predicts trainings it has not seen; ``make calibrate`` prints this alone."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bench.calibration import Calibration, Residual, bootstrapped, calibrate, repeated_runs, repeats
from bench.published import Published, parse_rows
from bench.row import Row

TABLE = Path(__file__).with_name("throughput.csv")
LATER = Path(__file__).with_name("throughput-2026.csv")
"""Rows that came to hand later; the constants were chosen without them."""
WALLCLOCK = Path(__file__).with_name("wallclock.csv")
"""Whole trainings: tokens ÷ GPU hours."""
BIAS_ROWS, BIAS_SOURCES = 4, 2
"""A GPU's bias is one of its sources' where it has fewer."""
FAMILY_ROWS, FAMILY_SOURCES = 20, 5
SEED = 1


_HEAD = """# How far off plans are

`make calibrate PAGE=docs/bench/planner.md` writes this page. Each row is a published training
(`bench/throughput.csv`; `bench/throughput-2026.csv` has those that came to hand later, and
`bench/wallclock.csv` whole trainings by their GPU hours), predicted by the function that plans,
whose constants were fitted without any row of that source. An interval beside a figure is an 80 %
bootstrap over whole sources. The floor is the error of a prediction without any bias, where a
source is off by what sources differ by: no table of published trainings can remove it, a minute on
the rented machine can.

```
"""


def tables() -> list[Published]:
    return [row for table in (TABLE, LATER, WALLCLOCK) for row in rows_of(table)]


def rows_of(table: Path) -> list[Published]:
    return parse_rows(table.read_text(encoding="utf-8"), str(table))


def run() -> list[Row | str]:
    """Leave-one-source-out errors of time per token, row by row, then the figures."""
    found = calibrate(tables())
    lines: list[Row | str] = ["each source left out, predicted from the others (+ is too slow)"]
    lines += [_line(residual) for residual in found.residuals]
    lines += [*_fitted(found), *_figures(found)]
    if page := os.environ.get("PAGE"):
        Path(page).write_text(_HEAD + "\n".join(map(str, lines)) + "\n```\n", encoding="utf-8")
    return lines


def _figures(found: Calibration) -> list[Row | str]:
    later, whole = set(rows_of(LATER)), rows_of(WALLCLOCK)
    of_any = calibrate(tables(), sorted({row.family for row in whole})).residuals
    parts = {
        "all": found.residuals,
        "older": tuple(r for r in found.residuals if r.row not in later and r.row not in whole),
        "newer": tuple(r for r in found.residuals if r.row in later),
        "wall-clock": tuple(r for r in of_any if r.row in whole),
    }
    rows: list[Row | str] = []
    draw = random.Random(SEED)
    floors = found.floor()
    for name, some in parts.items():
        what = f"{len(some)} rows of {len({r.row.group for r in some})} sources"
        errors = [abs(r.error) for r in some]
        for label, quantile, floor, limit in (
            ("median", 0.5, floors[0], 0.11),
            ("P90", 0.9, floors[1], 0.30),
        ):
            low, high = bootstrapped(some, quantile, draw)
            detail = f"{low:.3f}–{high:.3f}, floor {floor:.3f}; {what}"
            value = float(np.quantile(errors, quantile))
            rows.append(Row(f"error, {label}, {name} rows", value, limit, "lower", "", detail))
    newest = [abs(r.error) for r in found.residuals if r.row.gpu == "B200"]
    rows.append(Row("error, median on B200", float(np.median(newest)), 0.15, "lower", "",
                    f"{len(newest)} rows, at the board's 1,000 W"))  # fmt: skip
    rows += _repeated(found)
    families = [""] + [
        family
        for family in dict.fromkeys(r.row.family for r in found.residuals)
        if _is_many([r for r in found.residuals if r.row.family == family])
    ]
    for family in families:
        covered, ratio = found.covered(family)
        what = family or "all rows"
        rows += [
            Row(f"80 % intervals cover, {what}", covered, 0.75, "higher", "", ""),
            Row(f"80 % intervals cover, {what}", covered, 0.88, "lower", "",
                f"median P90 ÷ P10 {ratio:.2f}"),
        ]  # fmt: skip
    for gpu, bias in found.biases().items():
        detail = f"{bias.rows_number} rows of {bias.sources_number} sources"
        told = f"{bias.sources:+.3f} ({bias.rows:+.3f} by rows), {detail}"
        if bias.rows_number >= BIAS_ROWS and bias.sources_number >= BIAS_SOURCES:
            rows.append(Row(f"bias, {gpu}, either way", abs(bias.sources), 0.10, "lower", "", told))
        else:
            rows.append(f"bias, {gpu}: {told}: too few to say")
    return rows


def _repeated(found: Calibration) -> list[Row | str]:
    """The error that is left once a script was timed on such a machine."""
    runs = repeated_runs()
    later = [run for run in runs if run.later]
    rows: list[Row | str] = []
    for label, some in (
        ("timed once before", later),
        ("timed once on another machine", [run for run in later if not run.same_machine]),
    ):
        errors = [abs(run.error) for run in some]
        detail = f"{len(some)} runs of {len({run.script for run in some})} scripts"
        for name, quantile, limit in (("median", 0.5, 0.02), ("P90", 0.9, 0.06)):
            value = float(np.quantile(errors, quantile))
            rows.append(Row(f"error, {name}, {label}", value, limit, "lower", "", detail))
    pairs = repeats(found)
    for label, some_pairs in (
        ("another script of the same settings", [pair for pair in pairs if pair.alike]),
        ("the same software, other settings", [pair for pair in pairs if not pair.alike]),
    ):
        errors = [abs(pair.error) for pair in some_pairs]
        median, most = (float(np.quantile(errors, quantile)) for quantile in (0.5, 0.9))
        told = f"timed once was {label}: median {median:.3f}, P90 {most:.3f}"
        rows.append(f"{told}; {len(some_pairs)} ordered pairs of one source and machine")
    return rows


def _is_many(some: Sequence[Residual]) -> bool:
    return len(some) >= FAMILY_ROWS and len({r.row.group for r in some}) >= FAMILY_SOURCES


def _fitted(found: Calibration) -> list[str]:
    values = found.parameters
    common = ", ".join(
        f"{name} {value:.4g}"
        for name, value in values._asdict().items()
        if isinstance(value, float)
    )
    return [
        f"fitted: {common}; half of an 80 % interval {found.half_width:.3f}",
        f"  software: {_factors(values.software)}",
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
