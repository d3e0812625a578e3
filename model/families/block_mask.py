"""Who sees whom in block diffusion, where noisy and clean tokens go through the net side by side.

A row is cut into blocks. What is to be judged of it goes in as noise, and behind it, clean, what
that is judged by (Arriola et al. 2025). A noisy token sees its own noisy block and the clean blocks
before it; a clean one sees the clean blocks up to its own. So every block is judged as if all
before it were known, in one pass.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Sequence

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

Rule = Callable[[Any, Any, Tensor, Tensor], Tensor]


def blocks_of(lengths: Sequence[int]) -> Tensor:
    """(T,) the number of each token's block, of blocks as long as ``lengths`` say."""
    return torch.tensor([block for block, length in enumerate(lengths) for _ in range(length)])


class Places(NamedTuple):
    """What goes in: S places, each with the number of its block (S,), the first ``noisy`` of them
    out of noise."""

    block_of: Tensor
    noisy: int


def beside(block_of: Tensor) -> Places:
    """A whole row as noise, and clean: 2·T places."""
    return Places(torch.cat((block_of, block_of)), len(block_of))


def rule(places: Places) -> Rule:
    """Whether the token at one place sees the one at another. As FlexAttention asks it: of any
    batch and head."""
    block_of, first_clean = places

    def sees(batch: Any, head: Any, query: Tensor, key: Tensor) -> Tensor:
        own, other = block_of[query], block_of[key]
        noisy, noisy_key = query < first_clean, key < first_clean
        among_noisy = noisy & noisy_key & (own == other)
        among_clean = ~noisy & ~noisy_key & (other <= own)
        return among_noisy | among_clean | (noisy & ~noisy_key & (other < own))

    return sees


def table(places: Places) -> Tensor:
    """(S, S) bool, for SDPA."""
    every = torch.arange(len(places.block_of), device=places.block_of.device)
    return rule(places)(None, None, every[:, None], every[None, :])


def tiles(places: Places) -> BlockMask:
    """For FlexAttention, which leaves out the tiles in which nothing is seen."""
    size, device = len(places.block_of), places.block_of.device.type
    return create_block_mask(rule(places), None, None, size, size, device=device)
