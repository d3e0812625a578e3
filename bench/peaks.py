"""How well the planner's memory predicts published peaks, and how many lie in its range."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bench.row import Row
from trmcloud.core.planner.memory import (
    ACTIVATION_RANGE,
    AUTOCAST_VALUES,
    COMPILED_SHARE,
    CUDA_CONTEXT_GB,
    GB,
    Memory,
    block_values,
)
from trmcloud.core.spec.work import block_matrices, work_of_blocks

TABLE = Path(__file__).with_name("peaks.csv")


def rows() -> list[dict[str, str]]:
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def memory_of(row: Mapping[str, str]) -> Memory:
    """The planner's memory for a published row: its activations, the row's own states and head."""
    width, matrices = int(row["dim"]), int(row["mlp_matrices"])
    kv = float(row["kv_share"])
    hidden = int(row["hidden"])
    work = work_of_blocks(
        depth=int(row["layers"]),
        width=width,
        vocab_size=int(row["vocab"]),
        sequence=1024,
        matrices=block_matrices(width, hidden, matrices, int(width * kv)),
        mlp_values=float(matrices * hidden / width),
        kv_share=kv,
    )
    tokens = float(row["tokens"])
    one = tokens * width * 2
    block = one * (block_values(work) + AUTOCAST_VALUES)
    if row["compile"] == "yes":
        block *= COMPILED_SHARE
    kept = block * work.layers
    if row["checkpointing"] == "full":
        kept = one * work.layers + block
    logits = tokens * int(row["vocab"]) * float(row["logit_bytes"])
    context = CUDA_CONTEXT_GB if row["of"] == "seen" else 0.0
    return Memory(float(row["state_gb"]), 0.0, 0.0, 0.0, kept / GB, logits / GB, context)


def run() -> list[Row | str]:
    lines: list[Row | str] = []
    ratios, inside = [], 0
    for row in rows():
        memory, peak = memory_of(row), float(row["peak_gb"])
        ratios.append(memory.total / peak)
        inside += memory.least <= peak <= memory.most
        lines.append(
            f"  {row['name']:<20}{peak:>6.1f} GB published {memory.total:>6.1f} predicted"
            f" ({memory.least:.1f}–{memory.most:.1f})  {memory.total / peak - 1:+.0%}"
        )
    what = f"{len(ratios)} peaks, ranges {ACTIVATION_RANGE[0]:g} to {ACTIVATION_RANGE[1]:g}"
    errors = [abs(ratio - 1) for ratio in ratios]
    return [
        *lines,
        Row("memory, median error", float(np.median(errors)), 0.15, "lower", "", what),
        Row("memory, published peaks in range", inside / len(ratios), 0.8, "higher", "", what),
    ]
