"""What a plan needs to know of block diffusion: its settings and its work.

Its blocks run on [noisy ; clean], so on two positions per token that attend over 2·T; its head runs
on the noisy half alone.
"""

from __future__ import annotations

from typing import ClassVar, Mapping

from trmcloud.core.errors import UsageError
from trmcloud.core.spec.dense import BlockSettings
from trmcloud.core.spec.guides import DIFFUSION_GUIDE, Guide
from trmcloud.core.spec.work import Work
from trmcloud.core.values import dataclass

#: Of the (2L)² square of [noisy ; clean], the noisy half sees its own block and the clean ones
#: before it, the clean half those up to its own: a quarter, and kernels skip in tiles of 128.
BLOCK_DIFFUSION_SHARE = 0.4


@dataclass(frozen=True)
class Settings(BlockSettings):
    block: int = 16
    """Tokens that are brought out of the noise together."""
    resample: bool = False
    """Draw a block's masks again until their share is within the times that training is clipped
    to."""
    mlp: str = "gelu"

    head_again: ClassVar[bool] = True
    may_be_slower: ClassVar[tuple[float, str]] = (
        1.3,
        "timed on one H200 only, 5 % below the plan",  # docs/bench/gpu.md
    )
    own_ids: ClassVar[int] = 1
    pads: ClassVar[bool] = True
    positive: ClassVar[tuple[str, ...]] = ("block",)
    decisive: ClassVar[tuple[str, ...]] = ("block", "resample", *BlockSettings.decisive)
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
        return self.work_of_blocks(positions=2, mask_share=BLOCK_DIFFUSION_SHARE)
