"""Manifests with plain values, of which a test changes those that it is about, and their files."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract import pod_contract as contract


def a_manifest(
    step: int = 10, val_bpb: float | None = 1.5, **changes: Any
) -> mf.CheckpointManifest:
    values: dict[str, Any] = {
        "run_id": "r1", "phase": "fast", "step": step, "tokens": step, "val_bpb": val_bpb,
        "created_at": 1000.0 + step, "recipe": "t", "settings": {}, "world_size": 1,
        "step_losses": (), "cooled": False, "data_sha256": "0" * 64, "tokenizer_sha256": "0" * 64,
        "files": (),
    }  # fmt: skip
    return mf.CheckpointManifest(**{**values, **changes})


def checkpoint(
    folder: Path,
    step: int,
    val_bpb: float | None,
    size: int = 3000,
    kinds: Sequence[str] = ("weights", "optimizer"),
    **changes: Any,
) -> mf.CheckpointManifest:
    """Write a file of ``size`` bytes of each kind, without their manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for kind in kinds:
        data = hashlib.shake_128(f"{kind}{step}".encode()).digest(size)
        (folder / f"{kind}.safetensors").write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        files.append(mf.CheckpointFile(f"{kind}.safetensors", kind, size, digest))
    return a_manifest(step, val_bpb, files=tuple(files), **changes)


def whole_checkpoint(
    root: Path, step: int, val_bpb: float | None, **more: Any
) -> tuple[Path, mf.CheckpointManifest]:
    """Write a checkpoint of r1's fast phase below a pod's or a home's folder, its manifest last."""
    phase = root / contract.RUNS_DIR / "r1" / "fast"
    folder = phase / contract.CHECKPOINTS_DIR / mf.step_dir_name(step)
    made = checkpoint(folder, step, val_bpb, **more)
    (folder / mf.MANIFEST_NAME).write_text(mf.to_json(made))
    return folder, made
