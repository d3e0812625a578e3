"""What a plan needs to know of nanochat's transformers: their settings, and a guide's claims."""

from __future__ import annotations

from typing import ClassVar, Mapping

from trmcloud.core.errors import UsageError
from trmcloud.core.spec import dense
from trmcloud.core.spec.dense import DENSE_CHOICES, DenseSettings
from trmcloud.core.spec.guides import Guide
from trmcloud.core.spec.settings import NANOCHAT, PLAIN
from trmcloud.core.values import dataclass

GATE_INPUTS, SMEAR_INPUTS = 12, 24
"""Channels of a token's state that a value embedding's gate and the smear's read."""

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
    architecture: str = PLAIN
    """nanochat-2026: what nanochat has added since: scaled residuals with the embedding mixed in,
    smear, backout, sharper attention, RoPE's base 10⁵, its value gates, its initial weights; and
    its update rules: Polar Express, rows made even before and after, momentum and decay that fall,
    AdamW's rates, betas and decay by what a table is for. They imply NorMuon and cautious decay."""
    mlp: str = "relu2"
    qk_norm: bool = True
    logit_cap: float = 15.0

    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **DENSE_CHOICES,
        "architecture": (PLAIN, NANOCHAT),
    }
    shape_keys: ClassVar[tuple[str, ...]] = (*DenseSettings.shape_keys, "architecture")
    decisive: ClassVar[tuple[str, ...]] = (*DenseSettings.decisive, "architecture")
    guides: ClassVar[Mapping[str, Guide]] = {"d64": _D64}
    reached: ClassVar[Mapping[str, str]] = {"speedrun": "CORE 0.26 in nanochat's run: GPT-2's"}

    @property
    def update_rules(self) -> str:  # type: ignore[override]
        return self.architecture

    def check_shape(self, where: str) -> None:
        super().check_shape(where)
        if self.architecture != PLAIN and self.optimizer != "muon":
            raise UsageError(
                f"architecture={self.architecture} needs Muon, and the optimizer is "
                f"{self.optimizer}",
                where=where,
                next_step="--set architecture=plain, or --set optimizer=muon",
            )

    @property
    def gate_inputs(self) -> int:  # type: ignore[override]
        return GATE_INPUTS if self.architecture == NANOCHAT else dense.GATE_INPUTS

    @property
    def small_parameters(self) -> int:  # type: ignore[override]
        if self.architecture != NANOCHAT:
            return 0
        return 2 * self.depth + min(SMEAR_INPUTS, self.width) + 2
