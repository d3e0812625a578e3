"""The table of published trainings: one row each, checked against what is physically possible."""

from __future__ import annotations

import csv
import math
from functools import cached_property
from typing import Mapping

from trmcloud.core.catalog.hardware import GPUS
from trmcloud.core.errors import UsageError
from trmcloud.core.planner.roofline import FABRIC_GB_S, Step
from trmcloud.core.spec.work import CAUSAL_SHARE, MASKED_SHARE, Matrix, Work
from trmcloud.core.values import dataclass

COLUMNS = (
    "model", "params_m", "lookup_params_m", "layers", "dim", "ffn", "vocab", "seq_len", "gpu",
    "gpus", "precision", "power_w", "memory_gb_s", "tok_s_per_gpu", "family", "group", "quality",
    "step_tokens", "pass_tokens", "checkpointing", "attention", "kernel", "exchange", "sharded",
    "muon", "source",
)  # fmt: skip
#: Of attention's square. A window of half the context in three of four layers leaves ¾ of theirs;
#: as a table's mask it leaves all.
_MASKS: Mapping[str, float] = {
    "full": CAUSAL_SHARE,
    "window": CAUSAL_SHARE * (0.25 + 0.75 * 0.75),
    "masked": CAUSAL_SHARE * 0.25 + MASKED_SHARE * 0.75,
}
_WORDS: Mapping[str, tuple[str, ...]] = {
    "precision": ("bf16", "fp8"),
    "quality": ("1", "2", "3"),
    "checkpointing": ("none", "selective", "full"),
    "attention": tuple(_MASKS),
    "kernel": ("own", "sdpa", "flash1"),
    "exchange": ("backward", "after"),
    "sharded": ("yes", "no"),
    "muon": ("no", "shared", "whole"),
}


@dataclass(frozen=True)
class Published:
    """One published measurement: tokens/s of one GPU in a training, with what is known of it."""

    model: str
    params: float
    lookup_params: float
    """Parameters that are only looked up, such as an untied embedding: no FLOPs."""
    layers: int
    width: int
    hidden: int
    vocab: int
    sequence: int
    gpu: str
    gpus: int
    precision: str
    power_w: int
    """Power limit where it is below the chip's own; 0 where it is not known to be."""
    memory_gb_s: float
    """Where it is not the chip's own; else 0."""
    tokens_per_s: float
    family: str
    """Of training software."""
    group: str
    """Its source: what is left out together."""
    quality: int
    """1 is measured with all settings stated, 3 is derived or with settings missing."""
    step_tokens: float
    """Of one GPU, per optimizer step."""
    pass_tokens: float
    """Of one GPU, per forward and backward pass."""
    checkpointing: str
    attention: str
    kernel: str
    exchanges_after: bool
    """Gradients move when backward is done, not beside it."""
    is_sharded: bool
    muon: str
    """no, shared (its products are shared out over the GPUs) or whole (each does all of them)."""
    source: str

    @cached_property
    def work(self) -> Work:
        """Its FLOPs, where only totals are known."""
        head = float(self.vocab * self.width)
        blocks = max(0.0, self.params - self.lookup_params - head)
        return Work(
            layers=self.layers,
            matrices=(Matrix(self.width, self.width, round(blocks / self.layers / self.width**2)),),
            table_parameters=int(head + self.lookup_params),
            block_applications=self.layers,
            positions=1,
            head_applications=1,
            matmul_flops=2 * blocks,
            attention_flops=4.0 * self.layers * self.width * self.sequence,
            head_flops=2 * head,
            mask_share=_MASKS[self.attention],
            mlp_values=2.0 * self.hidden / self.width,
            mlp_matrices=2,
            kv_share=1.0,
            value_layers=0,
        )

    @cached_property
    def step(self) -> Step:
        """The step that its source describes, for the function that plans."""
        is_muon = self.muon != "no"
        return Step(
            work=self.work,
            width=self.width,
            vocab=self.vocab,
            sequence=self.sequence,
            software=self.family,
            pass_tokens=self.pass_tokens,
            passes=self.step_tokens / self.pass_tokens,
            precision=self.precision,
            kernel=self.kernel,
            checkpointing=self.checkpointing,
            is_sharded=self.is_sharded,
            exchanges_after=self.exchanges_after,
            optimizer="muon" if is_muon else "adamw",
            is_muon_shared=self.muon == "shared",
            node_gb_s=FABRIC_GB_S,
            power_w=self.power_w,
            memory_gb_s=self.memory_gb_s,
        )

    @property
    def share_of_peak(self) -> float:
        """MFU on the dense peak of its precision."""
        gpu = GPUS[self.gpu]
        peak = (gpu.fp8_tflops if self.precision == "fp8" else gpu.bf16_tflops) * 1e12
        matmul = 6 * (self.params - self.lookup_params)
        attention = 12.0 * self.layers * self.width * self.sequence
        return self.tokens_per_s * (matmul + attention) / peak

    @property
    def name(self) -> str:
        return f"{self.model} {self.precision} T={self.sequence}"


def parse_rows(text: str, where: str) -> list[Published]:
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
    header, *rows = csv.reader(line for _, line in lines)
    for column in COLUMNS:
        if column not in header:
            raise UsageError(f"the calibration table has no column {column!r}", where=where)
    return [
        _row(dict(zip(header, cells, strict=False)), f"{where}, line {number}")
        for (number, _), cells in zip(lines[1:], rows, strict=True)
    ]


def _row(cells: Mapping[str, str], where: str) -> Published:
    for column, words in _WORDS.items():
        if cells.get(column) not in words:
            raise UsageError(
                f"{column} is {cells.get(column)!r}, not one of {', '.join(words)}", where=where
            )
    try:
        row = Published(
            model=cells["model"],
            params=float(cells["params_m"]) * 1e6,
            lookup_params=float(cells["lookup_params_m"] or 0) * 1e6,
            layers=int(cells["layers"]),
            width=int(cells["dim"]),
            hidden=int(cells["ffn"]),
            vocab=int(cells["vocab"]),
            sequence=int(cells["seq_len"]),
            gpu=cells["gpu"],
            gpus=int(cells["gpus"]),
            precision=cells["precision"],
            power_w=int(cells["power_w"] or 0),
            memory_gb_s=float(cells["memory_gb_s"] or 0),
            tokens_per_s=float(cells["tok_s_per_gpu"]),
            family=cells["family"],
            group=cells["group"],
            quality=int(cells["quality"]),
            step_tokens=float(cells["step_tokens"]),
            pass_tokens=float(cells["pass_tokens"]),
            checkpointing=cells["checkpointing"],
            attention=cells["attention"],
            kernel=cells["kernel"],
            exchanges_after=cells["exchange"] == "after",
            is_sharded=cells["sharded"] == "yes",
            muon=cells["muon"],
            source=cells["source"],
        )
    except (KeyError, ValueError) as error:
        raise UsageError(f"the row cannot be read: {error}", where=where) from None
    if row.gpu not in GPUS:
        raise UsageError(f"unknown GPU {row.gpu!r}", where=where)
    if row.precision == "fp8" and not GPUS[row.gpu].fp8_tflops:
        raise UsageError(f"{row.gpu} has no precision {row.precision!r} here", where=where)
    positive = (row.params, row.layers, row.width, row.hidden, row.vocab, row.sequence, row.gpus,
                row.step_tokens, row.pass_tokens)  # fmt: skip
    if not all(value > 0 and math.isfinite(value) for value in positive):
        raise UsageError("a size of the row is not above zero", where=where)
    if not (row.tokens_per_s > 0 and math.isfinite(row.tokens_per_s)):
        raise UsageError(f"{row.tokens_per_s} tokens/s is no throughput", where=where)
    if row.share_of_peak > 1:
        raise UsageError(
            f"{row.model}: {row.tokens_per_s:,.0f} tokens/s on one {row.gpu} is"
            f" {row.share_of_peak:.0%} of its dense {row.precision} peak, which is impossible",
            where=where,
        )
    return row
