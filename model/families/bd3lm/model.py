"""Block diffusion (BD3-LM, Arriola et al. 2025): blocks one after the other, each out of noise.

A row x of T tokens is cut into blocks. For each a time t is drawn and each of its tokens hidden
with probability t; the net sees the hidden row beside the clean one (``block_mask``), and predicts
what is hidden. With N tokens that are no padding,

    loss = 1/N · Σ over hidden tokens of −ln p(x) / t

which over t in [0, 1] is a bound from above on the nats of a token (NELBO). What is visible is
copied, and the mask itself never predicted (SUBS, Sahoo et al. 2024): so neither costs anything.

The blocks are the dense transformer's. They are not told the time: a hidden token's distribution
given the visible ones does not depend on it (Ou et al. 2024), and BD3-LM switches it off, too.
"""

from __future__ import annotations

from typing import Iterator, Sequence

import torch
from torch import Tensor

from model.data.batch import RowSelection
from model.data.packing import PAD
from model.families import masked_diffusion
from model.families.bd3lm.plan import Settings
from model.families.dense import Shape
from model.families.masked_diffusion import (
    WHOLE,
    MaskedDiffusion,
    Span,
    generate,
    hidden_within,
)
from model.families.protocol import Sampling
from model.machine.precision import DTYPES
from trmcloud.core.errors import UsageError


def build(settings: Settings, device: torch.device) -> BlockDiffusion:
    """Raises: UsageError: settings that cannot go together."""
    shape = Shape.of(settings)
    dtype = DTYPES[settings.dtype]
    return BlockDiffusion(shape, settings.block, dtype, resample=settings.resample).to(device)


class BlockDiffusion(MaskedDiffusion):
    """The model of this module's docstring. Its last id is the mask."""

    def __init__(
        self,
        shape: Shape,
        block: int,
        compute_dtype: torch.dtype = torch.float32,
        *,
        resample: bool = False,
    ) -> None:
        """
        Args:
            resample: hide of each block a share within the span that training is clipped to.

        Raises:
            UsageError: blocks that do not divide the sequence, or have no such share.
        """
        if shape.sequence % block:
            raise UsageError(
                f"a sequence of {shape.sequence} is not a multiple of blocks of {block}"
            )
        super().__init__(shape, [block] * (shape.sequence // block), compute_dtype)
        if resample and block == 1:
            raise UsageError("resample needs blocks of two tokens or more")
        self.block, self.resample = block, resample

    def generate(self, start: Sequence[int], sampling: Sampling) -> Iterator[int]:
        return generate(self, start, sampling, self.embedding.weight.device)

    def _bound(self, targets: Tensor, draws: RowSelection, span: Span) -> Tensor:
        """(B, T) what each token adds to the bound: 0 where it is visible, or padding."""
        device = targets.device
        each = masked_diffusion.times(draws, self.timed, span)
        at = each.to(device)[:, self.block_of]
        if self.resample and span != WHOLE:
            of_tokens = each.repeat_interleave(self.block, dim=1)
            hidden = hidden_within(draws, of_tokens, self.block, span).to(device)
        else:
            hidden = masked_diffusion.thresholds(draws, self.sequence).to(device) < at
        there = targets != PAD
        clean = targets.where(there, self.mask_id)
        noisy = clean.masked_fill(hidden, self.mask_id)
        nats = self._nats_of(self._noisy_states(noisy, clean), targets)
        return nats * (hidden & there) / at

    def _noisy_states(self, noisy: Tensor, clean: Tensor) -> Tensor:
        """(B, T, D) of the noisy half after the last block."""
        row = torch.arange(self.sequence, device=noisy.device)
        return self._states(
            noisy,
            clean,
            torch.cat((row, row)),
            masked_diffusion.noisy_and_clean_places(self.block_of),
        )
