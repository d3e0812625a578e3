"""Calibration: what published trainings say of the roofline's constants, and how far off it is.

``roofline.py`` is first principles up to a few constants that all chips share, one factor per chip
and one per family of training software. They are fitted together, in logarithms of time, each
with a prior: the factors are drawn to 1 and so to one another, rows are weighed by the quality of
their source and by how far off they are (Student's t), and each source has an offset of its own,
so that a source of many rows does not speak for many.

Judged is what a user gets: all rows of a source are left out together, every constant is fitted
anew without them, and they are predicted with no offset. Intervals come from those residuals; how
many rows they cover is asked of each source with the residuals of the others alone.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple, Sequence

import numpy as np

from bench.published import Published
from trmcloud.core.catalog.hardware import GPUS, Gpu
from trmcloud.core.planner.roofline import (
    ATTENTION_BACKWARD,
    HIDDEN_SHARE,
    NEWTON_SCHULZ_SHARE,
    NVLINK_SHARE,
    OPTIMIZER_BYTES,
    PASS_OVERHEAD_S,
    PCIE_SHARE,
    SDPA_KERNEL,
    STEP_OVERHEAD_S,
    Parameters,
    token_seconds,
)
from trmcloud.core.spec.work import Work, muon_flops

JUDGED = ("torch-compile", "torchtitan-compile")
"""Trainers like ours."""

_COMMON: Final = {
    # Expected before any row is seen, and by how much the fit may move it (1σ of the logarithm).
    "sustained": (0.95, 0.2),
    "half_w": (0.30, 0.5),
    "fill": (128.0, 0.5),
    "pass_fill": (1500.0, 0.5),
    "traffic_values": (40.0, 0.4),
    "eager_traffic": (1.5, 0.3),
    "attention_share": (0.5, 0.3),
    "masked_cost": (2.0, 0.3),
    "memory_share": (0.85, 0.1),
}
_SIGMA_SOFTWARE, _SIGMA_FP8, _SIGMA_CHIP, _SIGMA_SOURCE = 0.3, 0.12, 0.15, 0.2
_SIGMA_ROW: Final = {1: 0.08, 2: 0.12, 3: 0.20}
"""By the quality that the table gives its source."""
_FREEDOM = 4.0
"""Degrees of freedom of Student's t: a row far off pulls less."""
_EAGER: Final = ("composer", "torch-eager")
_FABRIC_GB_S = 200.0
"""Between machines of published clusters, whose every GPU has a rail of its own (400 Gbit/s)."""
_FLASH_1_SHARE = 0.5
"""Of what FlashAttention 2 reaches, as the paper of that one has it (Dao 2023)."""
_KEPT_SHARE: Final = {"none": 0.0, "selective": 0.5, "full": 1.0}
"""Of the forward matmuls that checkpointing computes again."""

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


class Residual(NamedTuple):
    """A row predicted without its source: ``error`` is predicted ÷ measured time − 1."""

    row: Published
    predicted_tokens_per_s: float
    error: float

    @property
    def log(self) -> float:
        return math.log1p(self.error)


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

    def covered(self) -> tuple[float, float]:
        """(share of rows in their interval, median P90 ÷ P10), each source's interval being that
        which the other sources' residuals give."""
        inside, ratios = 0, []
        for residual in self.residuals:
            wide = half_width(
                [abs(r.log) for r in self.residuals if r.row.group != residual.row.group]
            )
            inside += abs(residual.log) <= wide
            ratios.append(math.exp(2 * wide))
        return inside / len(self.residuals), float(np.median(ratios))


def half_width(logs: Sequence[float]) -> float:
    """Of an 80 % interval for a row of a source not seen: the ⌈0.8·(n + 1)⌉-th smallest of n
    residuals (split conformal prediction)."""
    ordered = sorted(logs)
    return ordered[min(len(ordered), math.ceil(0.8 * (len(ordered) + 1))) - 1]


def calibrate(rows: Sequence[Published]) -> Calibration:
    """Fits the roofline to ``rows``, and predicts each judged source from the others."""
    fit = _Fit(rows)
    whole = fit.solve(None)
    residuals: dict[int, Residual] = {}
    for group in dict.fromkeys(row.group for row in rows if row.family in JUDGED):
        parameters = fit.parameters(fit.solve(group, whole))
        for index, row in enumerate(rows):
            if row.group == group and row.family in JUDGED:
                seconds = row_seconds(row, parameters)
                residuals[index] = Residual(row, 1 / seconds, seconds * row.tokens_per_s - 1)
    return Calibration(
        fit.parameters(whole), tuple(residuals[index] for index in sorted(residuals))
    )


def row_seconds(row: Published, parameters: Parameters) -> float:
    """Seconds per token of one GPU, as ``parameters`` have it."""
    gpu, work = GPUS[row.gpu], row.work
    token = token_seconds(
        work,
        row.width,
        row.vocab,
        gpu,
        parameters,
        share=parameters.reached(row.gpu, row.family),
        pass_tokens=row.pass_tokens,
        precision=row.precision,
        power_w=row.power_w,
        memory_gb_s=row.memory_gb_s,
        fp8_factor=parameters.fp8.get(row.fp8, 1.0),
        kernel_share=_kernel_share(row.kernel, gpu),
        is_fused=row.family not in _EAGER,
    )
    compute = token.total + _again_seconds(row, token.total, work)
    states = row.params / (row.gpus if row.is_sharded else 1)
    step = states * OPTIMIZER_BYTES["adamw"] / (gpu.memory_gb_s * 1e9) + STEP_OVERHEAD_S
    if row.is_muon:
        rate = gpu.bf16_tflops * 1e12 * NEWTON_SCHULZ_SHARE
        step += muon_flops(work) / row.gpus / rate
    passes = row.step_tokens / row.pass_tokens
    step += passes * PASS_OVERHEAD_S
    return compute + (step + _exposed_seconds(row, gpu, compute)) / row.step_tokens


def _kernel_share(kernel: str, gpu: Gpu) -> float:
    """Of the attention rate that a kernel written for ``gpu`` has."""
    if kernel == "own":
        return 1.0
    return SDPA_KERNEL.get(gpu.name, 1.0) * (_FLASH_1_SHARE if kernel == "flash1" else 1.0)


def _again_seconds(row: Published, seconds: float, work: Work) -> float:
    """What checkpointing computes again, of ``seconds`` forward and backward."""
    blocks = work.matmul_flops / (work.matmul_flops + work.head_flops)
    attention = work.attention_flops * work.mask_share
    share = attention / (attention + work.matmul_flops + work.head_flops)
    again = _KEPT_SHARE[row.checkpointing] * (1 - share) * blocks / 3
    if row.checkpointing == "full":
        again += share / (1 + ATTENTION_BACKWARD)
    return seconds * again


def _exposed_seconds(row: Published, gpu: Gpu, token_s: float) -> float:
    """Communication of a step that nothing hides."""
    if row.gpus == 1:
        return 0.0
    within = min(row.gpus, 8)
    joined = gpu.nvlink_gb_s and within <= gpu.nvlink_span
    gb_s = gpu.link_gb_s(within) * (NVLINK_SHARE if joined else PCIE_SHARE)
    if row.gpus > within:
        gb_s = min(gb_s, _FABRIC_GB_S)
    per_parameter = 6 if row.is_sharded or row.exchanges_after else 8
    links = row.params * per_parameter * (row.gpus - 1) / row.gpus / (gb_s * 1e9)
    if row.exchanges_after:
        return links
    hidden = token_s * row.pass_tokens * HIDDEN_SHARE["fsdp" if row.is_sharded else "ddp"]
    each = row.step_tokens / row.pass_tokens if row.is_sharded else 1
    return max(0.0, links - hidden) * each


class _Fit:
    """Penalised least squares on the logarithms (Gauss–Newton, reweighted)."""

    def __init__(self, rows: Sequence[Published]) -> None:
        self.rows = rows
        self.families = sorted({row.family for row in rows})
        self.scalings = sorted({row.fp8 for row in rows if row.fp8})
        self.chips = sorted({row.gpu for row in rows})
        groups = sorted({row.group for row in rows})
        scalings_at = len(_COMMON) + len(self.families)
        chips_at = scalings_at + len(self.scalings)
        offsets_at = chips_at + len(self.chips)
        self.columns = [
            [
                *range(len(_COMMON)),
                len(_COMMON) + self.families.index(row.family),
                *([scalings_at + self.scalings.index(row.fp8)] if row.fp8 else []),
                chips_at + self.chips.index(row.gpu),
            ]
            for row in rows
        ]
        self.offsets = [offsets_at + groups.index(row.group) for row in rows]
        factors = (
            [_SIGMA_SOFTWARE] * len(self.families)
            + [_SIGMA_FP8] * len(self.scalings)
            + [_SIGMA_CHIP] * len(self.chips)
            + [_SIGMA_SOURCE] * len(groups)
        )
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
            fp8=dict(zip(self.scalings, values, strict=False)),
            chip=dict(zip(self.chips, values, strict=False)),
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
