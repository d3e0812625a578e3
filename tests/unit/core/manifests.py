"""A manifest, and what it says of its files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.checkpoints import a_manifest
from trmcloud.core.contract.manifest import CheckpointFile, CheckpointManifest

WEIGHTS = CheckpointFile("weights.safetensors", "weights", 1000, "ab" * 32)
STATE = CheckpointFile("state.json", "state", 10, "cd" * 32)


def manifest(
    step: int = 120, bpb: float | None = 1.5, phase: str = "fast", **changes: Any
) -> CheckpointManifest:
    made = a_manifest(
        step, bpb, run_id="r-1", phase=phase, tokens=step * 100, created_at=1_790_000_000.0 + step,
        recipe="trm", settings={"depth": 2}, world_size=2, step_losses=(5.0, 4.0),
        data_sha256="ef" * 32, tokenizer_sha256="01" * 32, files=(WEIGHTS, STATE),
    )  # fmt: skip
    return replace(made, **changes)
