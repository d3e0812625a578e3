"""What decides a dense transformer: sizes, and which of the known parts it is made of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Mapping

from model.families.protocol import check_heads
from trmcloud.core.errors import UsageError
from trmcloud.core.recipe import PhaseRecipe

NORMS = ("rms", "layer")
POSITIONS = ("rope", "learned")
MLPS = ("swiglu", "relu2", "gelu")

#: What a family is where its recipe does not say.
_OWN: Mapping[str, Mapping[str, Any]] = {
    "gpt": {"mlp": "swiglu"},
    "nanochat": {"mlp": "relu2", "qk_norm": True, "logit_cap": 15.0},
}


@dataclass(frozen=True)
class Shape:
    """One dense transformer."""

    vocab_size: int
    depth: int
    width: int
    head_dim: int
    sequence: int
    hidden: int
    """Width of the MLP's hidden layer."""
    kv_heads: int
    """Heads of keys and values; each serves as many heads of queries."""
    tied: bool = False
    """Head and embedding share their weights."""
    norm: str = "rms"
    positions: str = "rope"
    mlp: str = "swiglu"
    qk_norm: bool = False
    dropout: float = 0.0
    logit_cap: float = 0.0
    """Logits are cap·tanh(logits / cap); 0: as they are."""
    value_embeddings: bool = False
    """In every other layer, the last one included, each token adds a learned vector to its values
    (Zhou et al. 2024, "Value residual learning"), by a gate for each head."""
    windows: str = ""
    """S and L by layer, over and over, the last layer always L: S sees a quarter of the sequence,
    L all of it. Empty: every layer is L."""
    recompute: bool = False
    """Keep each block's input alone, and compute the rest again in the backward pass."""

    def __post_init__(self) -> None:
        _check(self)

    @classmethod
    def of(cls, settings: PhaseRecipe) -> Shape:
        """
        Raises:
            UsageError: settings that cannot go together.
        """
        check_heads(settings)
        return cls(
            vocab_size=settings.vocab_size,
            depth=settings.depth,
            width=settings.width,
            head_dim=settings.head_dim,
            sequence=settings.sequence,
            hidden=settings.hidden or 4 * settings.width,
            kv_heads=settings.heads,
            tied=settings.tied,
            recompute=settings.activation_checkpointing,
            **_OWN[settings.family],
        )

    @property
    def heads(self) -> int:
        return self.width // self.head_dim

    def window(self, layer: int) -> int:
        """Tokens that each one sees in this layer, itself included; 0: all."""
        if not self.windows or layer == self.depth - 1:
            return 0
        short = self.windows[layer % len(self.windows)] == "S"
        return math.ceil(self.sequence / 4) if short else 0

    def has_value_embedding(self, layer: int) -> bool:
        return self.value_embeddings and (self.depth - 1 - layer) % 2 == 0


def _check(shape: Shape) -> None:
    for name, known in (("norm", NORMS), ("positions", POSITIONS), ("mlp", MLPS)):
        if getattr(shape, name) not in known:
            raise UsageError(f"{name} is one of {', '.join(known)}, not {getattr(shape, name)!r}")
    if shape.width % shape.head_dim:
        raise UsageError(f"head_dim {shape.head_dim} must divide width {shape.width}")
    if shape.positions == "rope" and shape.head_dim % 2:
        raise UsageError(f"head_dim {shape.head_dim} is odd, and rope turns pairs")
    if shape.kv_heads < 1 or shape.heads % shape.kv_heads:
        raise UsageError(
            f"{shape.kv_heads} heads of keys and values cannot serve {shape.heads} heads of "
            "queries alike",
            next_step=f"--set kv_heads={shape.heads}",
        )
    if set(shape.windows) - set("SL"):
        raise UsageError(f"windows are made of S and L, not {shape.windows!r}")
    if not 0 <= shape.dropout < 1:
        raise UsageError(f"dropout lies between 0 and 1, not {shape.dropout}")
    if shape.logit_cap < 0:
        raise UsageError("logit_cap cannot be negative")
