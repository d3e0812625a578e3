"""Muon's arithmetic on stacks of matrices, without any state.

``torch.optim.Muon`` (2.9 and later) is not used: it orthogonalises in bfloat16 alone, one matrix
at a time, which on a CPU is slower than the training step it follows. Here equal shapes go through
one batched product, in float32 on a CPU and bfloat16 on a GPU.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: Quintic coefficients of K. Jordan's Muon (2024): steepest at zero, singular values end near 1.
_QUINTIC = (3.4445, -4.7750, 2.0315)
_NEWTON_SCHULZ_STEPS = 5
_NORM_FLOOR = 1e-7
VARIANCE_DECAY = 0.95
_VARIANCE_FLOOR = 1e-10


def muon_momentum(step: int) -> float:
    """Momentum for the update after ``step`` finished ones: .85, rising to .95 at 300."""
    return 0.85 + 0.10 * min(step / 300.0, 1.0)


def muon_scale(rows: int, columns: int) -> float:
    """√max(1, rows/columns): tall matrices take longer steps."""
    return max(1.0, rows / columns) ** 0.5


def orthogonalise(matrices: Tensor) -> Tensor:
    """The nearest (semi-)orthogonal matrices, roughly: singular values within about .7 to 1.2.

    Five Newton–Schulz steps X ← aX + (bA + cA²)X with A = XXᵀ, started at X / ‖X‖.

    Args:
        matrices: (count, rows, columns), float32.

    Returns:
        The same shape, float32; a matrix of zeros stays zeros.
    """
    a, b, c = _QUINTIC
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp_min(_NORM_FLOOR)
    x = x.to(torch.bfloat16 if x.is_cuda else torch.float32)
    for _ in range(_NEWTON_SCHULZ_STEPS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    x = x.float()
    return x.mT if tall else x


def even_rows(updates: Tensor, variance: Tensor) -> Tensor:
    """NorMuon (Li et al. 2025): divides each row by the root of the running mean of its squares.

    Orthogonal updates still give some neurons far larger steps than others. What a matrix as a
    whole moves by stays: the result has the norm that ``updates`` had.

    Args:
        updates: (count, rows, columns).
        variance: (count, rows, 1), the running means; brought up to date in place.
    """
    variance.lerp_(updates.square().mean(-1, keepdim=True), 1.0 - VARIANCE_DECAY)
    evened = updates * variance.clamp_min(_VARIANCE_FLOOR).rsqrt()
    before = updates.norm(dim=(-2, -1), keepdim=True)
    after = evened.norm(dim=(-2, -1), keepdim=True).clamp_min(_VARIANCE_FLOOR)
    return evened * (before / after)


def cautious(weights: Tensor, update: Tensor) -> Tensor:
    """Cautious weight decay (Chen et al. 2025): those weights that the update shrinks anyway, the
    others as zeros."""
    return weights * (weights * update >= 0)
