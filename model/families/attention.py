"""Attention by the kernel that a mask asks for: SDPA for a table, FlexAttention for a rule."""

from __future__ import annotations

from typing import Any, Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

Mask = Tensor | BlockMask | None
"""(queries, keys) bool, or a rule with the tiles it leaves out; None: no more than what ``causal``
says."""

_compiled: dict[str, Callable[..., Any]] = {}


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask, *, causal: bool, dropout: float) -> Tensor:
    """What each query sees, mixed: (B, heads, queries, head_dim).

    Args:
        q, k, v: (B, heads, …, head_dim); keys and values may have fewer heads, each serving as many
            of the queries'.
        causal: every query sees the keys up to itself; there is no mask then.
        dropout: of attention's weights; FlexAttention has none.
    """
    shared = q.shape[1] != k.shape[1]
    if isinstance(mask, BlockMask):
        mixed: Tensor = _flex(q.is_cuda)(q, k, v, block_mask=mask, enable_gqa=shared)
        return mixed
    return F.scaled_dot_product_attention(
        *(q, k, v), attn_mask=mask, dropout_p=dropout, is_causal=causal, enable_gqa=shared
    )


def _flex(on_gpu: bool) -> Callable[..., Any]:
    """Uncompiled it makes the whole square; within a graph that is being compiled it becomes part
    of that one."""
    if not on_gpu or torch.compiler.is_compiling():
        return flex_attention
    if "flex" not in _compiled:
        _compiled["flex"] = torch.compile(flex_attention)
    return _compiled["flex"]
