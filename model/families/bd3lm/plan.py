"""What a plan needs to know of block diffusion: its settings and its work.

Its blocks run on [noisy ; clean], so on two positions per token that attend over 2·T; its head runs
on the noisy half alone.
"""

from __future__ import annotations

from typing import ClassVar, Mapping

from trmcloud.core.errors import UsageError
from trmcloud.core.spec.dense import BLOCK_CHOICES, BlockSettings
from trmcloud.core.spec.guides import DIFFUSION_GUIDE, Guide
from trmcloud.core.spec.work import Work
from trmcloud.core.values import dataclass

#: Of the (2L)² square of [noisy ; clean], the noisy half sees its own block and the clean ones
#: before it, the clean half those up to its own: a quarter, and kernels skip in tiles of 128.
BLOCK_DIFFUSION_SHARE = 0.4

ADALN = "adaln"
TIME_INPUTS, CONDITION_WIDTH = 256, 128
"""Cosines and sines of a time, and the width of the vector made of them."""


@dataclass(frozen=True)
class Settings(BlockSettings):
    block: int = 16
    """Tokens that are brought out of the noise together."""
    conditioning: str = "none"
    """adaln: a learned vector shifts, scales and gates each block's halves and shifts and scales
    the last norm. It is made of the time, and the published training holds that at 0."""
    resample: bool = False
    """Draw a block's masks again until their share is within the times that training is clipped
    to."""
    mlp: str = "gelu"

    head_again: ClassVar[bool] = True
    may_be_slower: ClassVar[tuple[float, str]] = (
        1.3,
        "timed on one H200 only, 1 % below the plan; "  # docs/bench/gpu.md
        "its authors' own code took 2.8 × the prediction on their GPUs",
    )
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **BLOCK_CHOICES,
        "conditioning": ("none", ADALN),
    }
    shape_keys: ClassVar[tuple[str, ...]] = (*BlockSettings.shape_keys, "conditioning")
    own_ids: ClassVar[int] = 1
    pads: ClassVar[bool] = True
    positive: ClassVar[tuple[str, ...]] = ("block",)
    decisive: ClassVar[tuple[str, ...]] = (
        *("block", "conditioning", "resample"),
        *BlockSettings.decisive,
    )
    guides: ClassVar[Mapping[str, Guide]] = {"bd3lm": DIFFUSION_GUIDE}

    @property
    def row_multiple(self) -> int:
        return self.block

    def check_rows(self, where: str) -> None:
        super().check_rows(where)
        if self.sequence % self.block:
            fitting = [n for n in range(1, self.block + 1) if self.sequence % n == 0]
            raise UsageError(
                f"a sequence of {self.sequence} is not a multiple of blocks of {self.block}",
                where=where,
                next_step=f"--set block={fitting[-1]}",
            )

        if self.resample and self.block == 1:
            raise UsageError(
                "a block of one token is hidden whole or not at all: resample needs larger ones",
                where=where,
                next_step="--set resample=false",
            )

    def work(self) -> Work:
        if self.conditioning == "none":
            return self.work_of_blocks(positions=2, mask_share=BLOCK_DIFFUSION_SHARE)
        # One vector serves all tokens, so what makes it costs no FLOPs worth counting.
        of_time = (TIME_INPUTS + 1 + CONDITION_WIDTH + 1) * CONDITION_WIDTH
        modulations = (CONDITION_WIDTH + 1) * (6 * self.depth + 2) * self.width
        return self.work_of_blocks(
            positions=2,
            mask_share=BLOCK_DIFFUSION_SHARE,
            extra_parameters=of_time + modulations,
            modulated_values=4.0,  # both norms scaled, and both halves' results before their gates
        )
