"""Calibration: what share of the roofline real trainings reach, learnt from published throughput.

The roofline of ``roofline.py`` is first principles up to one share per GPU ("reached") and three
constants that all GPUs have in common. They are fitted to a table of measurements with priors, and
judged by leaving out each row in turn and predicting it from the others, priors included. A GPU
with a single row has no share of its own: it is predicted by the others' mean and listed apart.
"""

from __future__ import annotations

import math
from typing import Mapping, NamedTuple, Sequence

from trmcloud.core.errors import UsageError
from trmcloud.core.hardware import GPUS
from trmcloud.core.roofline import Parameters, token_seconds, work_of_gpt

COLUMNS = (
    "model", "params_m", "lookup_params_m", "layers", "dim", "vocab", "seq_len", "gpu", "gpus",
    "precision", "power_w", "tok_s_per_gpu", "source",
)  # fmt: skip

#: Expected values before any row is seen; the fit may move them by about these factors (1σ of the
#: logarithm). Shares of 0.65 are what large matmuls lose to launch gaps, clocks and stragglers.
PRIOR = Parameters(reached={}, pooled=0.65, fill=128.0, traffic_values=40.0, attention_share=0.5)
_SIGMA_REACHED, _SIGMA_COMMON, _SIGMA_ROW = 0.3, 0.4, 0.15


class Row(NamedTuple):
    """One published measurement: tokens/s of one GPU in a data-parallel training."""

    model: str
    params: float
    lookup_params: float
    """Parameters that are only looked up, such as an untied embedding: no FLOPs."""
    layers: int
    width: int
    vocab: int
    sequence: int
    gpu: str
    gpus: int
    precision: str
    power_w: int
    """Power limit where it is below the chip's own; 0 where it is not known to be."""
    tokens_per_s: float
    source: str

    @property
    def flops_per_token(self) -> float:
        matmul = 6 * (self.params - self.lookup_params)
        return matmul + 12.0 * self.layers * self.width * self.sequence

    @property
    def share_of_peak(self) -> float:
        """MFU on the dense peak of its precision."""
        gpu = GPUS[self.gpu]
        peak = (gpu.fp8_tflops if self.precision == "fp8" else gpu.bf16_tflops) * 1e12
        return self.tokens_per_s * self.flops_per_token / peak

    @property
    def name(self) -> str:
        return f"{self.model} {self.precision} T={self.sequence}"


class Residual(NamedTuple):
    """A row predicted without having been seen: ``error`` is predicted ÷ measured time − 1."""

    row: Row
    predicted_tokens_per_s: float
    error: float


class Calibration(NamedTuple):
    """Leave-one-out residuals of GPUs with at least two rows, and the others apart."""

    parameters: Parameters
    residuals: tuple[Residual, ...]
    apart: tuple[Residual, ...]

    @property
    def median_error(self) -> float:
        return _median(sorted(abs(r.error) for r in self.residuals))

    @property
    def worst_error(self) -> float:
        return max(abs(r.error) for r in self.residuals)

    @property
    def sigma(self) -> float:
        """Root mean square of the logarithmic errors."""
        logs = [math.log1p(r.error) for r in self.residuals]
        return math.sqrt(sum(value * value for value in logs) / len(logs))


def parse_rows(text: str, where: str) -> list[Row]:
    """The measurements of a CSV table.

    Raises:
        UsageError: by line — a missing column, a GPU not in the table, a number that is none, or a
            throughput above 100 % of the dense peak, which no training reaches.
    """
    lines = [
        (number, line)
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.startswith("#")
    ]
    if not lines:
        raise UsageError("the calibration table is empty", where=where)
    header = lines[0][1].split(",")
    for column in COLUMNS:
        if column not in header:
            raise UsageError(f"the calibration table has no column {column!r}", where=where)
    return [
        _row(dict(zip(header, line.split(","), strict=False)), f"{where}, line {number}")
        for number, line in lines[1:]
    ]


def calibrate(rows: Sequence[Row]) -> Calibration:
    """Fits the roofline to ``rows``, and predicts each from a fit that has not seen it."""
    counted = {row.gpu: sum(other.gpu == row.gpu for other in rows) for row in rows}
    usable = [row for row in rows if counted[row.gpu] >= 2]
    alone = [row for row in rows if counted[row.gpu] < 2]
    parameters = fit(usable)
    residuals = [
        _residual(row, fit([other for other in usable if other is not row])) for row in usable
    ]
    return Calibration(
        parameters, tuple(residuals), tuple(_residual(row, parameters) for row in alone)
    )


def fit(rows: Sequence[Row]) -> Parameters:
    """The most probable parameters given ``rows`` and the priors: coordinate search on logs."""
    chips = sorted({row.gpu for row in rows})
    values = [PRIOR.pooled] * len(chips) + [
        PRIOR.fill, PRIOR.traffic_values, PRIOR.attention_share
    ]  # fmt: skip
    centres = list(values)
    sigmas = [_SIGMA_REACHED] * len(chips) + [_SIGMA_COMMON] * 3

    def misfit(point: Sequence[float]) -> float:
        made = _parameters(chips, point)
        data = sum((math.log(_predict(row, made) * row.tokens_per_s)) ** 2 for row in rows)
        prior = sum(
            (math.log(value / centre) / sigma) ** 2
            for value, centre, sigma in zip(point, centres, sigmas, strict=True)
        )
        return data / _SIGMA_ROW**2 + prior

    best, stride = misfit(values), 0.2
    while stride > 2e-4:
        moved = False
        for index in range(len(values)):
            for factor in (1 + stride, 1 / (1 + stride)):
                tried = list(values)
                tried[index] *= factor
                found = misfit(tried)
                if found < best:
                    best, values, moved = found, tried, True
        if not moved:
            stride /= 2
    return _parameters(chips, values)


def _parameters(chips: Sequence[str], values: Sequence[float]) -> Parameters:
    reached: Mapping[str, float] = dict(zip(chips, values, strict=False))
    logs = [math.log(value) for value in reached.values()]
    pooled = math.exp(sum(logs) / len(logs)) if logs else PRIOR.pooled
    fill, traffic, attention = values[len(chips) :]
    return Parameters(reached, pooled, fill, traffic, attention)


def _predict(row: Row, parameters: Parameters) -> float:
    """Seconds per token of one GPU."""
    work = work_of_gpt(
        params=row.params,
        lookup_params=row.lookup_params,
        layers=row.layers,
        width=row.width,
        vocab=row.vocab,
        sequence=row.sequence,
    )
    return token_seconds(
        work, row.width, row.vocab, GPUS[row.gpu], parameters, precision=row.precision,
        power_w=row.power_w,
    ).total  # fmt: skip


def _residual(row: Row, parameters: Parameters) -> Residual:
    seconds = _predict(row, parameters)
    return Residual(row, 1 / seconds, seconds * row.tokens_per_s - 1)


def _row(cells: Mapping[str, str], where: str) -> Row:
    try:
        row = Row(
            model=cells["model"],
            params=float(cells["params_m"]) * 1e6,
            lookup_params=float(cells["lookup_params_m"] or 0) * 1e6,
            layers=int(cells["layers"]),
            width=int(cells["dim"]),
            vocab=int(cells["vocab"]),
            sequence=int(cells["seq_len"]),
            gpu=cells["gpu"],
            gpus=int(cells["gpus"]),
            precision=cells["precision"],
            power_w=int(cells["power_w"] or 0),
            tokens_per_s=float(cells["tok_s_per_gpu"]),
            source=cells["source"],
        )
    except (KeyError, ValueError) as error:
        raise UsageError(f"the row cannot be read: {error}", where=where) from None
    if row.gpu not in GPUS:
        raise UsageError(f"unknown GPU {row.gpu!r}", where=where)
    if row.precision not in ("bf16", "fp8") or (
        row.precision == "fp8" and not GPUS[row.gpu].fp8_tflops
    ):
        raise UsageError(f"{row.gpu} has no precision {row.precision!r} here", where=where)
    if not (row.tokens_per_s > 0 and math.isfinite(row.tokens_per_s)):
        raise UsageError(f"{row.tokens_per_s} tokens/s is no throughput", where=where)
    if row.share_of_peak > 1:
        raise UsageError(
            f"{row.model}: {row.tokens_per_s:,.0f} tokens/s on one {row.gpu} is"
            f" {row.share_of_peak:.0%} of its dense {row.precision} peak, which is impossible",
            where=where,
        )
    return row


def _median(ordered: Sequence[float]) -> float:
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2
