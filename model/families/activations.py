"""Activations that torch puts together of more kernels than they need."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


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
