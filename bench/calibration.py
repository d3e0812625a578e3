"""Calibration: what published trainings say of the roofline's constants, and how far off it is.

``roofline.py`` is first principles up to seven constants that all chips share, and one factor per
family of training software. They are fitted together, in logarithms of time, each with a prior: the
factors are drawn to 1 and so to one another, rows are weighed by the quality of their source and by
how far off they are (Student's t), and each source has an offset of its own, so that a source of
many rows does not speak for many.

Judged is what a user gets: all rows of a source are left out together, every constant is fitted
anew without them, and they are predicted with no offset. Intervals come from those residuals; how
many rows they cover is asked of each source with the residuals of the others alone.
"""

from __future__ import annotations

import csv
import itertools
import math
import random
from pathlib import Path
from typing import Final, NamedTuple, Sequence

import numpy as np

from bench.published import Published
from trmcloud.core.catalog.hardware import GPUS
from trmcloud.core.planner.roofline import Parameters, time_step

JUDGED = ("torch-compile", "torchtitan-compile")
"""Trainers like ours."""

_COMMON: Final = {
    # Expected before any row is seen, and by how much the fit may move it (1σ of the logarithm).
    "sustained": (0.95, 0.2),
    "half_w": (0.30, 0.5),
    "traffic_values": (40.0, 0.4),
    # FlashAttention 2, forward and backward: up to 335 TFLOP/s on an H100, two thirds of an A100's
    # peak, and half of it at a few hundred tokens (Dao 2023, figures 5 to 7).
    "attention_share": (0.87, 0.07),
    "attention_fill": (450.0, 0.3),
    "memory_share": (0.85, 0.1),
    "pcie_share": (0.4, 0.5),
}
_SIGMA_SOFTWARE, _SIGMA_SOURCE = 0.3, 0.2
_SIGMA_ROW: Final = {1: 0.08, 2: 0.12, 3: 0.20}
"""By the quality that the table gives its source."""
_FREEDOM = 4.0
"""Degrees of freedom of Student's t: a row far off pulls less."""
Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


class Residual(NamedTuple):
    """A row predicted without its source: ``error`` is predicted ÷ measured time − 1."""

    row: Published
    predicted_tokens_per_s: float
    error: float

    @property
    def log(self) -> float:
        return math.log1p(self.error)


class Bias(NamedTuple):
    """Means of the logarithm of predicted ÷ measured time on one GPU."""

    sources: float
    """Each source counted once, with the mean of its rows."""
    rows: float
    rows_number: int
    sources_number: int


class Calibration(NamedTuple):
    """The constants that all rows give, and how the judged ones were predicted without their own
    source."""

    parameters: Parameters
    residuals: tuple[Residual, ...]

    @property
    def errors(self) -> list[float]:
        return sorted(abs(r.error) for r in self.residuals)

    @property
    def half_width(self) -> float:
        return half_width([abs(r.log) for r in self.residuals])

    def covered(self, family: str = "") -> tuple[float, float]:
        """(share of rows in their interval, median P90 ÷ P10), of one family's where it is named;
        each source's interval is that which the other sources' residuals give."""
        inside, ratios = [], []
        for residual in self.residuals:
            wide = half_width(
                [abs(r.log) for r in self.residuals if r.row.group != residual.row.group]
            )
            if family in ("", residual.row.family):
                inside.append(abs(residual.log) <= wide)
                ratios.append(math.exp(2 * wide))
        return sum(inside) / len(inside), float(np.median(ratios))

    def biases(self) -> dict[str, Bias]:
        """By GPU: what all its sources are off by in one direction."""
        found: dict[str, dict[str, list[float]]] = {}
        for r in self.residuals:
            found.setdefault(r.row.gpu, {}).setdefault(r.row.group, []).append(r.log)
        return {
            gpu: Bias(
                float(np.mean([np.mean(some) for some in groups.values()])),
                float(np.mean(list(itertools.chain(*groups.values())))),
                sum(map(len, groups.values())),
                len(groups),
            )
            for gpu, groups in found.items()
        }

    def floor(self) -> tuple[float, float]:
        """(median, P90) of the error that a source not seen has where each of its rows is off by
        what sources differ by and by what rows of one source do: normal logarithms, whose
        variances are those of the residuals (one-way analysis of variance)."""
        groups: dict[str, list[float]] = {}
        for residual in self.residuals:
            groups.setdefault(residual.row.group, []).append(residual.log)
        within, between = _variances(list(groups.values()))
        sigma = math.sqrt(within + between)
        return 0.6745 * sigma, 1.6449 * sigma


def _variances(groups: Sequence[Sequence[float]]) -> tuple[float, float]:
    """(within groups, between them), by moments."""
    rows, many = sum(map(len, groups)), len(groups)
    mean = sum(map(sum, groups)) / rows
    means = [sum(group) / len(group) for group in groups]
    inner = sum((x - m) ** 2 for group, m in zip(groups, means, strict=True) for x in group)
    within = inner / max(1, rows - many)
    outer = sum(len(g) * (m - mean) ** 2 for g, m in zip(groups, means, strict=True)) / (many - 1)
    typical = (rows - sum(len(g) ** 2 for g in groups) / rows) / (many - 1)
    return within, max(0.0, (outer - within) / typical)


def bootstrapped(
    residuals: Sequence[Residual], quantile: float, draw: random.Random, rounds: int = 1000
) -> tuple[float, float]:
    """The 80 % interval of a quantile of the errors, whole sources drawn again."""
    groups: dict[str, list[float]] = {}
    for residual in residuals:
        groups.setdefault(residual.row.group, []).append(abs(residual.error))
    sources = list(groups.values())
    found = []
    for _ in range(rounds):
        drawn = [error for _ in sources for error in draw.choice(sources)]
        found.append(float(np.quantile(drawn, quantile)))
    low, high = np.quantile(found, (0.1, 0.9))
    return float(low), float(high)


def half_width(logs: Sequence[float]) -> float:
    """Of an 80 % interval for a row of a source not seen: the ⌈0.8·(n + 1)⌉-th smallest of n
    residuals (split conformal prediction)."""
    ordered = sorted(logs)
    return ordered[min(len(ordered), math.ceil(0.8 * (len(ordered) + 1))) - 1]


def calibrate(rows: Sequence[Published], judged: Sequence[str] = JUDGED) -> Calibration:
    """Fits the roofline to ``rows``, and predicts each source of the families ``judged`` from the
    others."""
    fit = _Fit(rows)
    whole = fit.solve(None)
    residuals: dict[int, Residual] = {}
    for group in dict.fromkeys(row.group for row in rows if row.family in judged):
        parameters = fit.parameters(fit.solve(group, whole))
        for index, row in enumerate(rows):
            if row.group == group and row.family in judged:
                seconds = row_seconds(row, parameters)
                residuals[index] = Residual(row, 1 / seconds, seconds * row.tokens_per_s - 1)
    return Calibration(
        fit.parameters(whole), tuple(residuals[index] for index in sorted(residuals))
    )


def row_seconds(row: Published, parameters: Parameters) -> float:
    """Seconds per token of one GPU, as ``parameters`` have it: by the function that plans."""
    nodes = -(-row.gpus // 8)
    step = time_step(row.step, GPUS[row.gpu], row.gpus, parameters, nodes=nodes)
    return step.total / row.step_tokens


REPEATS = Path(__file__).with_name("repeats.csv")


class RepeatedRun(NamedTuple):
    """A run of a script, predicted by the first run of it on such GPUs: ``error`` is predicted ÷
    measured time − 1. ``later``: it is not that first run itself."""

    script: tuple[str, ...]
    error: float
    later: bool
    same_machine: bool


def repeated_runs(table: Path = REPEATS) -> list[RepeatedRun]:
    """The runs of ``repeats.csv``, each script's in the order of their dates."""
    lines = table.read_text(encoding="utf-8").splitlines()
    first: dict[tuple[str, ...], tuple[float, str]] = {}
    made = []
    for cells in csv.DictReader(line for line in lines if not line.startswith("#")):
        script = tuple(cells[name] for name in ("code", "gpu", "gpus", "torch", "steps"))
        for text in cells["step_ms"].split():
            later = script in first
            first_ms, machine = first.setdefault(script, (float(text), cells["machine"]))
            error = first_ms / float(text) - 1
            made.append(RepeatedRun(script, error, later, machine == cells["machine"]))
    return made


class Repeat(NamedTuple):
    """A row predicted from one measurement of another run of its script on as many of the same
    GPUs: ``error`` is predicted ÷ measured time − 1. ``alike``: both runs had the same settings;
    else what the model says of the two is between them."""

    row: Published
    by: Published
    error: float
    alike: bool


def repeats(found: Calibration) -> list[Repeat]:
    """Every ordered pair of rows of one source, one software and one kind of machine: what a plan
    knows once its script was timed there, by the function that plans."""
    made = []
    rows = [residual.row for residual in found.residuals]
    for row in rows:
        for by in rows:
            same = (row.group, row.family, row.gpu, row.gpus, row.precision) == (
                *(by.group, by.family, by.gpu, by.gpus, by.precision),
            )
            if row is by or not same:
                continue
            scale = 1 / by.tokens_per_s / row_seconds(by, found.parameters)
            predicted_s = scale * row_seconds(row, found.parameters)
            error = predicted_s * row.tokens_per_s - 1
            made.append(Repeat(row, by, error, row.step == by.step))
    return made


class _Fit:
    """Penalised least squares on the logarithms (Gauss–Newton, reweighted)."""

    def __init__(self, rows: Sequence[Published]) -> None:
        self.rows = rows
        self.families = sorted({row.family for row in rows})
        groups = sorted({row.group for row in rows})
        offsets_at = len(_COMMON) + len(self.families)
        self.columns = [
            [*range(len(_COMMON)), len(_COMMON) + self.families.index(row.family)] for row in rows
        ]
        self.offsets = [offsets_at + groups.index(row.group) for row in rows]
        factors = [_SIGMA_SOFTWARE] * len(self.families) + [_SIGMA_SOURCE] * len(groups)
        centres = [math.log(centre) for centre, _ in _COMMON.values()]
        self.centres = np.array(centres + [0.0] * len(factors))
        self.sigmas = np.array([sigma for _, sigma in _COMMON.values()] + factors)
        self.row_sigmas = np.array([_SIGMA_ROW[row.quality] for row in rows])
        self.measured = np.array([-math.log(row.tokens_per_s) for row in rows])

    def parameters(self, point: Array) -> Parameters:
        values = iter([math.exp(each) for each in point])
        return Parameters(
            **dict(zip(_COMMON, values, strict=False)),
            software=dict(zip(self.families, values, strict=False)),
        )

    def solve(self, left_out: str | None, start: Array | None = None) -> Array:
        """The most probable point given the rows of all groups but one."""
        used = [index for index, row in enumerate(self.rows) if row.group != left_out]
        point = np.array(self.centres if start is None else start)
        if left_out is not None:
            gone = {offset for row, offset in zip(self.rows, self.offsets, strict=True)
                    if row.group == left_out}  # fmt: skip
            point[list(gone)] = 0.0
        for _ in range(30):
            now = self._logs(point, used)
            slopes = np.zeros((len(used), len(point)))
            for column in range(len(point)):
                hit = [n for n, index in enumerate(used) if column in self.columns[index]]
                if not hit:
                    continue
                moved = point.copy()
                moved[column] += 1e-4
                slopes[hit, column] = (self._logs(moved, [used[n] for n in hit]) - now[hit]) / 1e-4
            offsets = [self.offsets[index] for index in used]
            slopes[np.arange(len(used)), offsets] = 1.0
            away = now + point[offsets] - self.measured[used]
            sigmas = self.row_sigmas[used]
            weights = (_FREEDOM + 1) / (_FREEDOM + (away / sigmas) ** 2) / sigmas**2
            curvature = slopes.T @ (slopes * weights[:, None]) + np.diag(self.sigmas**-2)
            gradient = slopes.T @ (away * weights) + (point - self.centres) / self.sigmas**2
            stride = np.clip(-np.linalg.solve(curvature, gradient), -0.4, 0.4)
            point = point + stride
            if np.abs(stride).max() < 1e-3:
                break
        return np.asarray(point)

    def _logs(self, point: Array, used: Sequence[int]) -> Array:
        parameters = self.parameters(point)
        return np.array([math.log(row_seconds(self.rows[index], parameters)) for index in used])
