"""What a plan needs to know of nanochat's transformers: their settings, and a guide's claims."""

from __future__ import annotations

from typing import ClassVar, Mapping

from trmcloud.core.spec.dense import DenseSettings
from trmcloud.core.spec.guides import Guide
from trmcloud.core.values import dataclass

_D64 = Guide(
    said=(
        (
            "4.3B parameters in 75 GB",
            "12.9B: 4.3B counts only attention, and the MLPs are twice that",
        ),
        ("batch 4 on 8 GPUs fits", "DDP holds 12 bytes a parameter on every GPU: more than 80 GB"),
        ("8 × 4 × 2048 = 524,288 tokens per step", "65,536: it takes 8 passes of accumulation"),
        ("730 steps an hour, 22,630 in 31 h", "147 % of the peak of eight H100 PCIe"),
        ("17 GB a checkpoint, 31 of them 527 GB", "103 GB each with optimizer, 3.2 TB for 31"),
    ),
    steps_in_hours=31.0,
)


@dataclass(frozen=True)
class Settings(DenseSettings):
    mlp: str = "relu2"
    qk_norm: bool = True
    logit_cap: float = 15.0

    guides: ClassVar[Mapping[str, Guide]] = {"d64": _D64}
    reached: ClassVar[Mapping[str, str]] = {"speedrun": "CORE 0.26 in nanochat's own run: GPT-2's"}
