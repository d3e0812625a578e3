"""Who sees whom in block diffusion, where noisy and clean tokens go through the net side by side.

A row of T tokens is cut into blocks, and goes in as 2·T: a noisy copy, then the clean one (Arriola
et al. 2025). A noisy token sees its own noisy block and the clean blocks before it; a clean one
sees the clean blocks up to its own. So every block is judged as if all before it were known, in one
pass.
"""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

Rule = Callable[[Any, Any, Tensor, Tensor], Tensor]


def blocks_of(lengths: Sequence[int]) -> Tensor:
    """(T,) the number of each token's block, of blocks as long as ``lengths`` say."""
    return torch.tensor([block for block, length in enumerate(lengths) for _ in range(length)])


def rule(block_of: Tensor) -> Rule:
    """Whether the token at one place sees the one at another; places run from 0 to 2·T − 1. As
    FlexAttention asks it: of any batch and head."""
    tokens = len(block_of)

    def sees(batch: Any, head: Any, query: Tensor, key: Tensor) -> Tensor:
        own, other = block_of[query % tokens], block_of[key % tokens]
        noisy, noisy_key = query < tokens, key < tokens
        among_noisy = noisy & noisy_key & (own == other)
        among_clean = ~noisy & ~noisy_key & (other <= own)
        return among_noisy | among_clean | (noisy & ~noisy_key & (other < own))

    return sees


def table(block_of: Tensor) -> Tensor:
    """(2·T, 2·T) bool, for SDPA."""
    places = torch.arange(2 * len(block_of), device=block_of.device)
    return rule(block_of)(None, None, places[:, None], places[None, :])


def tiles(block_of: Tensor) -> BlockMask:
    """For FlexAttention, which leaves out the tiles in which nothing is seen."""
    size = 2 * len(block_of)
    return create_block_mask(rule(block_of), None, None, size, size, device=block_of.device.type)
