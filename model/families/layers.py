"""Layers that the families share: norms, activations, rotary positions, and the head's loss
in pieces.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

# Norms without parameters, over the last dimension.

NORM_EPS = 1e-6
_WIDE = (torch.float32, torch.float64)
"""The types whose squares may be added up as they are."""


def rms(h: Tensor) -> Tensor:
    """h / √(mean(h²) + ε), in h's own dtype."""
    if h.is_cpu and h.dtype in _WIDE and not torch.compiler.is_compiling():
        if not torch.is_grad_enabled():
            return h * _scale(h)
        made: Tensor = _Rms.apply(h)
        return made
    return F.rms_norm(h, (h.shape[-1],), eps=NORM_EPS).to(h.dtype)


def layer(h: Tensor) -> Tensor:
    """(h − mean(h)) / √(var(h) + ε), in h's own dtype."""
    return F.layer_norm(h, (h.shape[-1],), eps=NORM_EPS).to(h.dtype)


def _scale(h: Tensor) -> Tensor:
    return torch.rsqrt((h * h).mean(-1, keepdim=True) + NORM_EPS)


class _Rms(torch.autograd.Function):
    """With y = r·h and r = (mean(h²) + ε)^−½, the gradient is r·(g − y·mean(g·y)).

    Half the time where it runs on a CPU and is not compiled: torch's own is put together of
    eight kernels each way.
    """

    @staticmethod
    def forward(context: Any, h: Tensor) -> Tensor:
        scale = _scale(h)
        y = h * scale
        context.save_for_backward(y, scale)
        return y

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        y, scale = context.saved_tensors
        along = (gradient.unsqueeze(-2) @ y.unsqueeze(-1)).squeeze(-1)
        return torch.addcmul(gradient, y, along, value=-1.0 / y.shape[-1]).mul_(scale)


# Activations that torch puts together of more kernels than they need.


def relu_squared(h: Tensor) -> Tensor:
    """max(h, 0)² (So et al. 2021)."""
    if h.is_cpu and not torch.compiler.is_compiling():
        made: Tensor = _ReluSquared.apply(h)
        return made
    return F.relu(h).square()


class _ReluSquared(torch.autograd.Function):
    """Two fifths of the time where it runs on a CPU and is not compiled: the gradient, 2·r·g with
    r = max(h, 0), needs neither the power's derivative nor the threshold's."""

    @staticmethod
    def forward(context: Any, h: Tensor) -> Tensor:
        positive = F.relu(h)
        context.save_for_backward(positive)
        return positive * positive

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        (positive,) = context.saved_tensors
        return (gradient * positive).mul_(2.0)


# Rotary positions (RoPE, Su et al. 2021): each pair (hⱼ, hⱼ₊ₕₐₗ𝒻) is turned by its place's angle.
#
# (h₁, h₂) → (h₁·cos + h₂·sin,  h₂·cos − h₁·sin)

BASE = 10_000.0

Turn = tuple[Tensor, Tensor]
"""Cosines (T, head_dim), the same for both halves, and sines (T, head_dim / 2)."""


def turns(places: Tensor, head_dim: int, dtype: torch.dtype, base: float = BASE) -> Turn:
    """The turn of each of ``places`` (…, T), float32; the angles are, too, whatever ``dtype``."""
    half = head_dim // 2
    rates = base ** (-torch.arange(half, device=places.device, dtype=torch.float32) / half)
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


# From a model's last state to the nats of its targets.

#: The most logits (tokens × vocabulary) alive at once: 2²⁷ floats are half a GiB. Beyond it the
#: head runs in pieces; N steps of 32 × 1024 tokens at 65,536 ids would otherwise hold 34 GB for
#: their logits alone.
MAX_LOGITS = 1 << 27


def mean_in_pieces(
    token_losses: Callable[[Tensor, Tensor], Tensor],
    states: Tensor,
    targets: Tensor,
    head: Tensor,
    vocab_size: int,
) -> Tensor:
    """The mean of ``token_losses`` of ``states`` (n, D) and ``targets`` (n,), scalar, with no more
    than MAX_LOGITS logits at a time.

    A mean's gradient is known but for one factor before anything follows it. So each piece is
    differentiated right after it, and its logits need be neither kept nor computed again.

    Args:
        head: the parameter that ``token_losses`` multiplies states by; it depends on no other.
    """
    rows = _rows_of_a_piece(len(states), vocab_size)
    # float16 needs the loss's scale in every gradient, or the small ones are lost.
    if rows >= len(states) or states.dtype == torch.float16 or not torch.is_grad_enabled():
        return in_pieces(token_losses, states, targets, vocab_size).mean()
    mean: Tensor = _MeanInPieces.apply(states, head, targets, token_losses, rows)
    return mean


class _MeanInPieces(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        states: Tensor,
        head: Tensor,
        targets: Tensor,
        token_losses: Callable[[Tensor, Tensor], Tensor],
        rows: int,
    ) -> Tensor:
        sums, of_states = [], torch.empty_like(states)
        of_head = torch.zeros_like(head, dtype=torch.float32)
        for start in range(0, len(states), rows):
            here = slice(start, start + rows)
            piece = states[here].detach().requires_grad_()
            with torch.enable_grad():
                total = token_losses(piece, targets[here]).sum()
            with torch.autocast(states.device.type, enabled=False):
                of_states[here], part = torch.autograd.grad(total, (piece, head))
            of_head += part
            sums.append(total.detach())
        context.save_for_backward(of_states, of_head.to(head.dtype))
        return torch.stack(sums).sum() / len(states)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        of_states, of_head = context.saved_tensors
        each = gradient / len(of_states)
        return of_states * each, of_head * each, None, None, None


def _rows_of_a_piece(rows: int, vocab_size: int) -> int:
    most = max(1, MAX_LOGITS // vocab_size)
    # All alike where that is to be had: of another length the last would be compiled for itself.
    least = math.ceil(rows / most)
    pieces = next((n for n in range(least, 2 * least) if rows % n == 0), least)
    return math.ceil(rows / pieces)


def likeliest_in_pieces(
    logits: Callable[[Tensor], Tensor], states: Tensor, vocab_size: int
) -> Tensor:
    """(n,) the id with the largest of ``logits`` of each of ``states`` (n, D), with no more than
    MAX_LOGITS logits at a time."""
    rows = _rows_of_a_piece(len(states), vocab_size)
    pieces = [logits(states[at : at + rows]).argmax(-1) for at in range(0, len(states), rows)]
    return torch.cat(pieces)


def in_pieces(
    token_losses: Callable[[Tensor, Tensor], Tensor],
    states: Tensor,
    targets: Tensor,
    vocab_size: int,
) -> Tensor:
    """``token_losses`` of ``states`` (n, D) and ``targets`` (n,), with no more than MAX_LOGITS
    logits at a time, which the backward pass computes again.

    Returns:
        (n,) nats.
    """
    rows = _rows_of_a_piece(len(states), vocab_size)
    if rows >= len(states):
        return token_losses(states, targets)
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
