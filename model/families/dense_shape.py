"""What decides a dense transformer: sizes, and which of the known parts it is made of."""

from __future__ import annotations

import dataclasses

from model.families.protocol import check_heads
from trmcloud.core.errors import UsageError
from trmcloud.core.spec.dense import (
    DENSE_CHOICES,
    DenseKeys,
    check_dense,
    has_value_embedding,
    window_of,
)
from trmcloud.core.spec.recipe import PhaseRecipe
from trmcloud.core.values import dataclass

_KEYS = tuple(field.name for field in dataclasses.fields(DenseKeys))


@dataclass(frozen=True)
class Shape(DenseKeys):
    """One dense transformer; ``hidden`` and ``kv_heads`` are never 0."""

    vocab_size: int
    depth: int
    width: int
    head_dim: int
    sequence: int

    def __post_init__(self) -> None:
        for name, known in DENSE_CHOICES.items():
            if getattr(self, name) not in known:
                told = f"{name} is one of {', '.join(known)}, not {getattr(self, name)!r}"
                raise UsageError(told)
        check_heads(self.width, self.head_dim)
        check_dense(self, heads=self.heads, head_dim=self.head_dim, where="the model")
        object.__setattr__(self, "hidden", self.hidden or 4 * self.width)
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)

    @classmethod
    def of(cls, settings: PhaseRecipe) -> Shape:
        """
        Raises:
            UsageError: settings that cannot go together.
        """
        return cls(
            settings.vocab_size,
            settings.depth,
            settings.width,
            settings.head_dim,
            settings.sequence,
            **{name: getattr(settings, name) for name in _KEYS if hasattr(settings, name)},
        )

    @property
    def heads(self) -> int:
        return self.width // self.head_dim

    def window(self, layer: int) -> int:
        """Tokens that each one sees in this layer, itself included; 0: all."""
        return window_of(self.windows, layer, self.depth, self.sequence)

    def has_value_embedding(self, layer: int) -> bool:
        return self.value_embeddings and has_value_embedding(layer, self.depth)
