"""Attention by the kernel that a mask asks for: SDPA for a table, FlexAttention for a rule."""

from __future__ import annotations

import warnings
from typing import Any, Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from model.machine.precision import RejectedOption

Mask = Tensor | BlockMask | None
"""(queries, keys) bool, or a rule with the tiles it leaves out; None: no more than what ``causal``
says."""

_compiled: dict[str, Callable[..., Any]] = {}


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask, *, causal: bool, dropout: float) -> Tensor:
    """Return each query's mix of the values that it sees: (B, heads, queries, head_dim).

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
        q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal, enable_gqa=shared
    )


def _flex(on_gpu: bool) -> Callable[..., Any]:
    """Uncompiled it makes the whole square; within a graph that is being compiled it becomes part
    of that one."""
    if not on_gpu or torch.compiler.is_compiling():
        return flex_attention
    if "flex" not in _compiled:
        _compiled["flex"] = torch.compile(flex_attention)
    return _compiled["flex"]


# -- which kernel it will be ----------------------------------------------------------------------

FLEX, FLASH, EFFICIENT = "FlexAttention", "flash attention", "memory-efficient attention"
LEAST_FLEX_HEAD = 16
"""FlexAttention's kernels have no narrower heads."""
_TOKENS = 256
_OFF = 0.05


def why_not_flex(heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> str:
    """Why FlexAttention cannot be taken here; empty where it can, forward and backward."""
    if head_dim < LEAST_FLEX_HEAD:
        return f"it does not support heads of {head_dim}, only of {LEAST_FLEX_HEAD} or more"
    try:
        _prove_flex(heads, head_dim, dtype, device)
    except Exception as error:  # of a compiler, a kernel or a driver: SDPA takes its place
        return str(error).strip().partition("\n")[0][:200] or type(error).__name__
    return ""


def _prove_flex(heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
    """
    Raises:
        RuntimeError: it is too far off SDPA. And whatever a kernel or a compiler raises.
    """
    shape = (3, 1, heads, _TOKENS, head_dim)
    q, k, v = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    made, wanted = (each.detach().clone().requires_grad_() for each in (q, q))

    def sees(batch: Any, head: Any, query: Tensor, key: Tensor) -> Tensor:
        return key <= query

    mask = create_block_mask(sees, None, None, _TOKENS, _TOKENS, device=device.type)
    by_rule = attend(made, k, v, mask, causal=False, dropout=0.0)
    by_table = attend(wanted, k, v, None, causal=True, dropout=0.0)
    for each in (by_rule, by_table):
        each.float().square().sum().backward()
    assert made.grad is not None
    assert wanted.grad is not None
    for one, other in ((by_rule, by_table), (made.grad, wanted.grad)):
        off = float((one.float() - other.float()).norm() / other.float().norm())
        if not off <= _OFF:
            raise RuntimeError(f"it differs from SDPA by {off:.0%}")


def slower_sdpa(
    heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    kv_heads: int = 0,
    masked: bool = False,
    dropout: float = 0.0,
) -> list[RejectedOption]:
    """The kernels that SDPA leaves for slower ones on this GPU, and why; nothing elsewhere."""
    if device.type != "cuda":
        return []
    q = torch.empty(1, heads, _TOKENS, head_dim, dtype=dtype, device=device, requires_grad=True)
    k = torch.empty(1, kv_heads or heads, _TOKENS, head_dim, dtype=dtype, device=device)
    mask = torch.ones(_TOKENS, _TOKENS, dtype=torch.bool, device=device) if masked else None
    shared = bool(kv_heads) and kv_heads != heads
    cuda = torch.backends.cuda
    try:
        asked = cuda.SDPAParams(q, k, k, mask, dropout, mask is None, shared)
    except (AttributeError, TypeError):
        return []  # a torch that is asked in other words: it takes what it takes
    return rejected_sdpa_kernels(
        [
            (FLASH, lambda: cuda.can_use_flash_attention(asked, True)),
            (EFFICIENT, lambda: cuda.can_use_efficient_attention(asked, True)),
        ]
    )


def rejected_sdpa_kernels(kernels: list[tuple[str, Callable[[], bool]]]) -> list[RejectedOption]:
    """The first of ``kernels`` that are not to be had, with what torch warns of about each."""
    left = []
    for name, can_use in kernels:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            if can_use():
                break
        why = "; ".join(str(each.message).partition(" (Triggered")[0] for each in told)
        left.append(RejectedOption(name, why or "torch gives no reason"))
    return left
