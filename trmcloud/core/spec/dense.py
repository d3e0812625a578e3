"""Settings of transformer blocks, and of the dense transformer, which some families are shapes of.

With K of H heads for keys and values and an MLP of hidden width F, a block has 2·D²·(1 + K/H)
parameters in attention and 2·D·F (SwiGLU: 3·D·F) in its MLP; a value embedding is a table of
V × D·K/H in every other layer.
"""

from __future__ import annotations

import dataclasses
import math
from functools import lru_cache
from operator import attrgetter
from typing import ClassVar, Mapping, NamedTuple

from trmcloud.core.errors import UsageError
from trmcloud.core.spec.settings import PhaseRecipe, check_rotary
from trmcloud.core.spec.work import CAUSAL_SHARE, MASKED_SHARE, Work, block_matrices, work_of_blocks
from trmcloud.core.values import dataclass

NORMS = ("rms", "layer")
POSITIONS = ("rope", "learned")
MLPS = ("swiglu", "relu2", "gelu", "gelu-tanh")
WINDOW_SHARE = 4
"""A short window sees one in so many of the sequence's tokens."""
GATE_INPUTS = 32
"""Of a token's state that decide how much of its value embedding is let in."""


@dataclass(frozen=True, kw_only=True)
class BlockKeys:
    """What a block of a transformer is made of."""

    hidden: int = 0
    """Width of the MLP's hidden layer; 0: 4 × width."""
    tied: bool = False
    """Head and embedding share their weights."""
    norm: str = "rms"
    """rms or layer; without weights of its own, either."""
    mlp: str = "swiglu"
    """gelu-tanh: GELU by its approximation, as GPT-2 has it."""
    qk_norm: bool = False
    """Queries and keys are normalised."""
    dropout: float = 0.0
    activation_checkpointing: bool = False
    """Keep each block's input alone, and compute the rest again in the backward pass."""


@dataclass(frozen=True, kw_only=True)
class DenseKeys(BlockKeys):
    """What a dense transformer may have beside that."""

    positions: str = "rope"
    kv_heads: int = 0
    """Heads of keys and values, each of which serves as many of queries; 0: all heads."""
    logit_cap: float = 0.0
    """Logits are cap·tanh(logits / cap); 0: as they are."""
    value_embeddings: bool = False
    """In every other layer, the last one included, each token adds a learned vector to its values,
    by a gate for each head (Zhou et al. 2024)."""
    windows: str = ""
    """S and L by layer, over and over, the last layer always L: S sees a quarter of the sequence,
    L all of it. Empty: every layer is L."""
    selective_checkpointing: bool = False
    """Of activation checkpointing, keep what products and attention made too: the cheap rest alone
    is computed again."""


BLOCK_CHOICES: Mapping[str, tuple[str, ...]] = {"norm": NORMS, "mlp": MLPS}
DENSE_CHOICES: Mapping[str, tuple[str, ...]] = {**BLOCK_CHOICES, "positions": POSITIONS}
_BLOCK_SHAPE = ("hidden", "tied", "mlp")


@dataclass(frozen=True)
class BlockSettings(BlockKeys, PhaseRecipe):
    """Settings of a family made of such blocks."""

    not_set: ClassVar[tuple[str, ...]] = ("selective_checkpointing",)
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = BLOCK_CHOICES
    shape_keys: ClassVar[tuple[str, ...]] = _BLOCK_SHAPE
    decisive: ClassVar[tuple[str, ...]] = ("hidden", "tied", "norm", "mlp", "qk_norm", "dropout")

    def check_shape(self, where: str) -> None:
        check_rotary(self.head_dim, where)
        check_block(self, where)

    def work_of_blocks(
        self,
        *,
        positions: float,
        mask_share: float,
        head_applications: float = 1,
        extra_parameters: int = 0,
        modulated_values: float = 0.0,
    ) -> Work:
        """See ``Work``."""
        hidden, matrices = mlp_sizes(self.width, self.hidden, self.mlp)
        return work_of_blocks(
            depth=self.depth,
            width=self.width,
            vocab_size=self.vocab_size,
            sequence=self.sequence,
            tied=self.tied,
            matrices=block_matrices(self.width, hidden, matrices),
            mlp_values=float(matrices * hidden / self.width),
            positions=positions,
            mask_share=mask_share,
            head_applications=head_applications,
            extra_parameters=extra_parameters,
            modulated_values=modulated_values,
        )


@dataclass(frozen=True)
class DenseSettings(DenseKeys, PhaseRecipe):
    """Settings of a dense transformer, whose blocks are each applied once in a pass."""

    why_not_sharded: ClassVar[str] = ""
    chats: ClassVar[bool] = True
    not_set: ClassVar[tuple[str, ...]] = ()
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = DENSE_CHOICES
    gate_inputs: ClassVar[int] = GATE_INPUTS
    small_parameters: ClassVar[int] = 0
    """Parameters outside of every matrix and table."""
    shape_keys: ClassVar[tuple[str, ...]] = (
        *_BLOCK_SHAPE, "positions", "kv_heads", "value_embeddings",
    )  # fmt: skip
    decisive: ClassVar[tuple[str, ...]] = tuple(
        field.name
        for field in dataclasses.fields(DenseKeys)
        if not field.name.endswith("_checkpointing")
    )

    def check_shape(self, where: str) -> None:
        check_dense(self, heads=self.heads, head_dim=self.head_dim, where=where)

    def fixed_keys(self) -> tuple[str, ...]:
        # Learned positions are weights, one row each.
        return (*super().fixed_keys(), *(("sequence",) if self.positions == "learned" else ()))

    def work(self) -> Work:
        return _work(DenseSizes._make(_sizes_of(self)))


class DenseSizes(NamedTuple):
    """The settings that decide a dense transformer's sizes and FLOPs."""

    depth: int
    width: int
    vocab_size: int
    sequence: int
    hidden: int
    tied: bool
    head_dim: int
    kv_heads: int
    mlp: str
    positions: str
    value_embeddings: bool
    windows: str
    gate_inputs: int
    small_parameters: int


_sizes_of = attrgetter(*DenseSizes._fields)


@lru_cache(maxsize=64)
def _work(s: DenseSizes) -> Work:
    hidden, matrices = mlp_sizes(s.width, s.hidden, s.mlp)
    heads = s.width // s.head_dim
    kv_heads = s.kv_heads or heads
    with_values = 0
    if s.value_embeddings:
        with_values = sum(has_value_embedding(layer, s.depth) for layer in range(s.depth))
    gate = min(s.gate_inputs, s.width) * kv_heads
    learned = s.sequence * s.width if s.positions == "learned" else 0
    masked = sum(window_of(s.windows, each, s.depth, s.sequence) > 0 for each in range(s.depth))
    return work_of_blocks(
        depth=s.depth,
        width=s.width,
        vocab_size=s.vocab_size,
        sequence=s.sequence,
        tied=s.tied,
        matrices=block_matrices(s.width, hidden, matrices, kv_heads * s.head_dim),
        mlp_values=float(matrices * hidden / s.width),
        mask_share=CAUSAL_SHARE + (MASKED_SHARE - CAUSAL_SHARE) * masked / s.depth,
        extra_parameters=with_values * (s.vocab_size * kv_heads * s.head_dim + gate)
        + learned
        + s.small_parameters,
        extra_flops=2.0 * gate * with_values,
        kv_share=kv_heads / heads,
        value_layers=with_values,
    )


def mlp_sizes(width: int, hidden: int, mlp: str) -> tuple[int, int]:
    """The hidden width, and how many matrices."""
    return hidden or 4 * width, 3 if mlp == "swiglu" else 2


def has_value_embedding(layer: int, depth: int) -> bool:
    """Whether this layer has one where there are any."""
    return (depth - 1 - layer) % 2 == 0


def window_of(windows: str, layer: int, depth: int, sequence: int) -> int:
    """Tokens that each one sees in this layer, itself included; 0: all."""
    if not windows or layer == depth - 1:
        return 0
    short = windows[layer % len(windows)] == "S"
    return math.ceil(sequence / WINDOW_SHARE) if short else 0


def check_block(keys: BlockKeys, where: str) -> None:
    """
    Raises:
        UsageError: settings that cannot be.
    """
    if not 0 <= keys.dropout < 1:
        raise UsageError(
            f"dropout must be at least 0 and below 1, not {keys.dropout:g}", where=where
        )
    if keys.hidden < 0:
        raise UsageError("hidden cannot be negative", where=where)


def check_dense(keys: DenseKeys, *, heads: int, head_dim: int, where: str) -> None:
    """
    Raises:
        UsageError: settings that cannot go together.
    """
    if keys.positions == "rope":
        check_rotary(head_dim, where)
    served = keys.kv_heads or heads
    if served < 1 or heads % served:
        fitting = max(n for n in range(1, heads + 1) if heads % n == 0 and n <= max(1, served))
        raise UsageError(
            f"{heads} query heads are not a multiple of kv_heads {served}",
            where=where,
            next_step=f"--set kv_heads={fitting}",
        )
    if wrong := set(keys.windows) - set("SL"):
        raise UsageError(
            f"windows must consist of S and L, not {''.join(sorted(wrong))!r}",
            where=where,
            next_step="--set windows=SSSL",
        )
    check_block(keys, where)
    for name in ("kv_heads", "logit_cap"):
        if getattr(keys, name) < 0:
            raise UsageError(f"{name} cannot be negative", where=where)
