"""Settings of the dense transformer, which ``gpt`` and ``nanochat`` are shapes of."""

from __future__ import annotations

import dataclasses
import math
from typing import Mapping

from trmcloud.core.errors import UsageError
from trmcloud.core.values import dataclass

NORMS = ("rms", "layer")
POSITIONS = ("rope", "learned")
MLPS = ("swiglu", "relu2", "gelu")
WINDOW_SHARE = 4
"""A short window sees one in so many of the sequence's tokens."""


@dataclass(frozen=True, kw_only=True)
class DenseKeys:
    """What a dense block is made of."""

    hidden: int = 0
    """Width of the MLP's hidden layer; 0: 4 × width."""
    tied: bool = False
    """Head and embedding share their weights."""
    norm: str = "rms"
    """rms or layer; without weights of its own, either."""
    positions: str = "rope"
    mlp: str = "swiglu"
    qk_norm: bool = False
    """Queries and keys are normalised."""
    kv_heads: int = 0
    """Heads of keys and values, each of which serves as many of queries; 0: all heads."""
    dropout: float = 0.0
    logit_cap: float = 0.0
    """Logits are cap·tanh(logits / cap); 0: as they are."""
    value_embeddings: bool = False
    """In every other layer, the last one included, each token adds a learned vector to its values,
    by a gate for each head (Zhou et al. 2024)."""
    windows: str = ""
    """S and L by layer, over and over, the last layer always L: S sees a quarter of the sequence,
    L all of it. Empty: every layer is L."""
    activation_checkpointing: bool = False
    """Keep each block's input alone, and compute the rest again in the backward pass."""
    selective_checkpointing: bool = False
    """Of that, keep what products and attention made too: the cheap rest alone is computed again.
    """


DENSE_KEYS = tuple(field.name for field in dataclasses.fields(DenseKeys))
DENSE_CHOICES: Mapping[str, tuple[str, ...]] = {
    "norm": NORMS,
    "positions": POSITIONS,
    "mlp": MLPS,
}


def has_value_embedding(layer: int, depth: int) -> bool:
    """Whether this layer has one where there are any."""
    return (depth - 1 - layer) % 2 == 0


def window_of(windows: str, layer: int, depth: int, sequence: int) -> int:
    """Tokens that each one sees in this layer, itself included; 0: all."""
    if not windows or layer == depth - 1:
        return 0
    short = windows[layer % len(windows)] == "S"
    return math.ceil(sequence / WINDOW_SHARE) if short else 0


def check_dense(keys: DenseKeys, *, heads: int, head_dim: int, rope: bool, where: str) -> None:
    """
    Args:
        rope: positions are rotary whatever ``keys`` say.

    Raises:
        UsageError: settings that cannot go together.
    """
    if (rope or keys.positions == "rope") and head_dim % 2:
        raise UsageError(
            f"head_dim {head_dim} is odd, and rotary positions turn pairs",
            where=where,
            next_step=f"--set head_dim={head_dim + 1}",
        )
    served = keys.kv_heads or heads
    if served < 1 or heads % served:
        fitting = max(n for n in range(1, heads + 1) if heads % n == 0 and n <= max(1, served))
        raise UsageError(
            f"kv_heads {served} cannot serve {heads} heads of queries alike",
            where=where,
            next_step=f"--set kv_heads={fitting}",
        )
    if wrong := set(keys.windows) - set("SL"):
        raise UsageError(
            f"windows are made of S and L, not {''.join(sorted(wrong))!r}",
            where=where,
            next_step="--set windows=SSSL",
        )
    if not 0 <= keys.dropout < 1:
        raise UsageError(f"dropout lies between 0 and 1, not {keys.dropout:g}", where=where)
    for name in ("hidden", "kv_heads", "logit_cap"):
        if getattr(keys, name) < 0:
            raise UsageError(f"{name} cannot be negative", where=where)
