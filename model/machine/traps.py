"""Known faults of GPU and torch together, each with its remedy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

KNOWN = (
    "torch 2.10 with compile on an A100: NaN",
    "bfloat16 below compute capability 8.0: emulated",
    "torch.compile below compute capability 7.0: not supported",
    "different GPUs: all wait for the slowest",
    "memory used by other processes",
)
"""The faults that ``traps_of`` looks for, in its order."""


def traps_of(devices: Sequence[Mapping[str, Any]], torch_version: str) -> list[str]:
    """One line each.

    Args:
        devices: ``kind``, ``name``, ``capability`` as (major, minor), ``failed`` by figure.
        torch_version: as ``torch.__version__`` has it.
    """
    gpus = [device for device in devices if device["kind"] == "cuda"]
    capabilities = {tuple(device["capability"]) for device in gpus}
    made = []
    # KellerJordan/modded-nanogpt, issue 268.
    if (8, 0) in capabilities and _version(torch_version) == (2, 10):
        made.append(
            "torch 2.10 with compile gives NaN on an A100: --set compile=false, or another torch"
        )
    if any(capability < (8, 0) for capability in capabilities):
        made.append("bfloat16 is emulated below compute capability 8.0: --set dtype=float16")
    if any(capability < (7, 0) for capability in capabilities):
        made.append("torch.compile needs compute capability 7.0: --set compile=false")
    if len({device["name"] for device in gpus}) > 1:
        made.append(
            "these GPUs differ, and all wait for the slowest: set CUDA_VISIBLE_DEVICES to those to "
            "use"
        )
    for device in gpus:
        free, whole = device["free_gb"], device["memory_gb"]
        if free < 0.9 * whole:
            made.append(
                f"other processes use {whole - free:.1f} GB of GPU {device['index']}: nvidia-smi "
                "lists them"
            )
    return made


def _version(text: str) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None
