"""From a model's last state to the nats of its targets."""

from __future__ import annotations

import math
from typing import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

#: The most logits (tokens × vocabulary) alive at once: 2²⁷ floats are half a GiB. Beyond it the
#: head runs in pieces that the backward pass computes again; N steps of 32 × 1024 tokens at 65,536
#: ids would otherwise hold 34 GB for their logits alone.
MAX_LOGITS = 1 << 27


def in_pieces(
    token_losses: Callable[[Tensor, Tensor], Tensor],
    states: Tensor,
    targets: Tensor,
    vocab_size: int,
) -> Tensor:
    """``token_losses`` of ``states`` (n, D) and ``targets`` (n,), with no more than MAX_LOGITS
    logits at a time.

    Returns:
        (n,) nats.
    """
    most = max(1, MAX_LOGITS // vocab_size)
    if len(states) <= most:
        return token_losses(states, targets)
    # All alike where that is to be had: of another length the last would be compiled for itself.
    least = math.ceil(len(states) / most)
    pieces = next((n for n in range(least, 2 * least) if len(states) % n == 0), least)
    rows = math.ceil(len(states) / pieces)
    return torch.cat(
        [
            checkpoint(
                token_losses,
                states[start : start + rows],
                targets[start : start + rows],
                use_reentrant=False,
                preserve_rng_state=False,
            )
            for start in range(0, len(states), rows)
        ]
    )
