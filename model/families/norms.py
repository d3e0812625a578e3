"""Norms without parameters, over the last dimension."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

NORM_EPS = 1e-6
_WIDE = (torch.float32, torch.float64)
"""Whose squares may be added up as they are."""


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
