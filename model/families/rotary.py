"""Rotary positions (RoPE, Su et al. 2021): each pair (hⱼ, hⱼ₊ₕₐₗ𝒻) is turned by its place's angle.

(h₁, h₂) → (h₁·cos + h₂·sin,  h₂·cos − h₁·sin)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

BASE = 10_000.0

Turn = tuple[Tensor, Tensor]
"""Cosines (T, head_dim), the same for both halves, and sines (T, head_dim / 2)."""


def turns(places: Tensor, head_dim: int, dtype: torch.dtype) -> Turn:
    """The turn of each of ``places`` (…, T), float32; the angles are, too, whatever ``dtype``."""
    half = head_dim // 2
    rates = BASE ** (-torch.arange(half, device=places.device, dtype=torch.float32) / half)
    angles = places[..., None] * rates
    cosines = angles.cos()
    return torch.cat((cosines, cosines), dim=-1).to(dtype), angles.sin().to(dtype)


def rotate(h: Tensor, turn: Turn) -> Tensor:
    """(…, T, head_dim), or with a dimension between the two where ``turn`` has it, too."""
    cosines, sines = turn
    if h.is_cpu and not torch.compiler.is_compiling():
        if not torch.is_grad_enabled():
            return _turned(h, cosines, sines, 1.0)
        made: Tensor = _Rotation.apply(h, cosines, sines)
        return made
    first, second = h.chunk(2, dim=-1)
    cos = cosines[..., : sines.shape[-1]]
    return torch.cat((first * cos + second * sines, second * cos - first * sines), dim=-1)


class _Rotation(torch.autograd.Function):
    """Two thirds of the time where it runs on a CPU and is not compiled: nothing is copied, and
    the gradient is turned back by the same three products."""

    @staticmethod
    def forward(context: Any, h: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        context.save_for_backward(cosines, sines)
        return _turned(h, cosines, sines, 1.0)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        cosines, sines = context.saved_tensors
        return _turned(gradient, cosines, sines, -1.0), None, None


def _turned(h: Tensor, cosines: Tensor, sines: Tensor, way: float) -> Tensor:
    first, second = h.chunk(2, dim=-1)
    made = h * cosines
    one, other = made.chunk(2, dim=-1)
    one.addcmul_(second, sines, value=way)
    other.addcmul_(first, sines, value=-way)
    return made
