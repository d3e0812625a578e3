"""What one token costs to train: parameters and floating-point operations from a recipe's shape.

A multiply and an add count as two. The backward pass of a matmul costs twice its forward pass.
Attention is counted over the whole square of positions, as the usual MFU convention and torch's
counter do; what a kernel really executes is half of that under a causal mask (``mask_share``).
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Callable, Mapping, NamedTuple

from trmcloud.core.spec.dense_keys import has_value_embedding, window_of
from trmcloud.core.spec.recipe import PhaseRecipe
from trmcloud.core.values import dataclass

BACKWARD_FACTOR = 3
"""Forward and backward together, in forward passes."""
CAUSAL_SHARE = 0.5
#: Of the (2L)² square of [noisy ; clean], the noisy half sees its own block and the clean ones
#: before it, the clean half those up to its own: a quarter, and kernels skip in tiles of 128.
BLOCK_DIFFUSION_SHARE = 0.4
MASKED_SHARE = 1.0
"""A window's mask goes to the kernel as a table, which skips none of the square."""
GATE_INPUTS = 32
"""Of a token's state that decide how much of its value embedding is let in."""


class Matrix(NamedTuple):
    """``number`` weight matrices of ``rows`` × ``columns``."""

    rows: int
    columns: int
    number: int

    @property
    def parameters(self) -> int:
        return self.rows * self.columns * self.number


class Shape(NamedTuple):
    """The settings that decide sizes and FLOPs."""

    family: str
    depth: int
    width: int
    hidden: int
    vocab_size: int
    sequence: int
    supervision_steps: int
    loops: int
    control: bool
    tied: bool
    head_dim: int
    kv_heads: int
    mlp: str
    positions: str
    value_embeddings: bool
    windows: str
    segments: tuple[int, int, int]


@dataclass(frozen=True)
class Work:
    """Sizes of one model. FLOPs are forward, per trained token."""

    layers: int
    """Blocks with weights of their own."""
    matrices: tuple[Matrix, ...]
    """Of one block: what Muon optimises."""
    table_parameters: int
    """Embeddings, head, gates and conditioning: what AdamW optimises."""
    block_applications: int
    """How often a block runs on a token in one forward pass, all layers together."""
    positions: float
    """Positions that pass through the blocks per trained token: two in block diffusion."""
    head_applications: float
    """How often the head turns a token's state into logits; in segments, on average."""
    matmul_flops: float
    attention_flops: float
    head_flops: float
    mask_share: float
    """Share of attention's square that a kernel executes."""
    mlp_values: float
    """Values of the MLP's hidden tensors per position, in widths."""
    mlp_matrices: int
    kv_share: float
    """Heads of keys and values per head of queries."""
    value_layers: int
    """Layers that add an embedding to their values."""

    @cached_property
    def matrix_parameters(self) -> int:
        return self.layers * self.block_parameters

    @cached_property
    def block_parameters(self) -> int:
        return sum(matrix.parameters for matrix in self.matrices)

    @cached_property
    def parameters(self) -> int:
        return self.matrix_parameters + self.table_parameters

    @property
    def forward_flops(self) -> float:
        """FLOP per token, forward."""
        return self.matmul_flops + self.attention_flops + self.head_flops

    @cached_property
    def train_flops(self) -> float:
        """FLOP per token, forward and backward."""
        return BACKWARD_FACTOR * self.forward_flops


def work_of(settings: PhaseRecipe) -> Work:
    """Parameters and FLOPs of the model that ``settings`` describe, by its family.

    TRM, with depth L, width D, N supervision steps of n loops, vocabulary V and sequence T: each of
    the L blocks (16·D² parameters: attention 4·D², SwiGLU of hidden 4·D 12·D²) runs N·(n+1) times,
    the head N times. Training costs 6·[16·L·D²·N·(n+1) + N·V·D] + 12·L·D·T·N·(n+1) per token. Its
    control has as many blocks as TRM has applications.

    The others run L blocks once. gpt and nanochat: with K of H heads for keys and values and an MLP
    of hidden width F, a block has 2·D²·(1 + K/H) parameters in attention and 2·D·F (SwiGLU: 3·D·F)
    in its MLP; a value embedding is a table of V × D·K/H in every other layer. bd3lm: such blocks,
    run on [noisy ; clean], so on two positions per token that attend over 2·T; its head runs on the
    noisy half alone. hdp: such blocks, run on [noisy plan, execution ; clean question, plan], its
    head on plan and execution.
    """
    s = settings
    return _of_shape(
        Shape(
            s.family,
            s.depth,
            s.width,
            s.hidden,
            s.vocab_size,
            s.sequence,
            s.supervision_steps,
            s.loops,
            s.control,
            s.tied,
            s.head_dim,
            s.kv_heads,
            s.mlp,
            s.positions,
            s.value_embeddings,
            s.windows,
            s.segments,
        )
    )


def muon_flops(work: Work) -> float:
    """FLOP of five Newton–Schulz iterations over every block matrix, per optimizer step.

    One iteration on a matrix of m ≤ n is X·Xᵀ, A·A and B·X: 4·m²·n + 2·m³.
    """
    total = 0.0
    for matrix in work.matrices:
        small, large = sorted((matrix.rows, matrix.columns))
        total += matrix.number * 5 * (4.0 * small * small * large + 2.0 * small**3)
    return total * work.layers


@lru_cache(maxsize=64)
def _of_shape(shape: Shape) -> Work:
    return _FAMILIES[shape.family](shape)


def _trm(s: Shape) -> Work:
    applications = s.depth * s.supervision_steps * (s.loops + 1)
    return _work(
        s,
        _block(s.width, 4 * s.width, 3),
        layers=applications if s.control else s.depth,
        applications=applications,
        head_applications=s.supervision_steps,
        mlp_values=12.0,
    )


def _dense(s: Shape) -> Work:
    hidden = s.hidden or 4 * s.width
    matrices = 3 if s.mlp == "swiglu" else 2
    heads = s.width // s.head_dim
    kv_heads = s.kv_heads or heads
    with_values = 0
    if s.value_embeddings:
        with_values = sum(has_value_embedding(layer, s.depth) for layer in range(s.depth))
    gate = min(GATE_INPUTS, s.width) * kv_heads
    learned = s.sequence * s.width if s.positions == "learned" else 0
    masked = sum(window_of(s.windows, each, s.depth, s.sequence) > 0 for each in range(s.depth))
    return _work(
        s,
        _block(s.width, hidden, matrices, kv_heads * s.head_dim),
        mlp_values=float(matrices * hidden / s.width),
        mask_share=CAUSAL_SHARE + (MASKED_SHARE - CAUSAL_SHARE) * masked / s.depth,
        extra_parameters=with_values * (s.vocab_size * kv_heads * s.head_dim + gate) + learned,
        extra_flops=2.0 * gate * with_values,
        kv_share=kv_heads / heads,
        value_layers=with_values,
    )


def _diffusion(s: Shape) -> Work:
    hidden = s.hidden or 4 * s.width
    matrices = 3 if s.mlp == "swiglu" else 2
    return _work(
        s,
        _block(s.width, hidden, matrices),
        positions=2,
        mask_share=BLOCK_DIFFUSION_SHARE,
        mlp_values=float(matrices * hidden / s.width),
    )


def _in_segments(s: Shape) -> Work:
    question, plan, execution = s.segments
    places = question + 2 * plan + execution
    # Noisy segments see themselves and the clean ones before, clean ones those up to their own.
    seen = execution * s.sequence + 2 * plan * (question + plan) + question**2
    hidden = s.hidden or 4 * s.width
    matrices = 3 if s.mlp == "swiglu" else 2
    return _work(
        s,
        _block(s.width, hidden, matrices),
        positions=places / s.sequence,
        head_applications=(plan + execution) / s.sequence,
        mask_share=seen / places**2,
        mlp_values=float(matrices * hidden / s.width),
    )


_FAMILIES: Mapping[str, Callable[[Shape], Work]] = {
    "trm": _trm,
    "gpt": _dense,
    "nanochat": _dense,
    "bd3lm": _diffusion,
    "hdp": _in_segments,
}


def _block(width: int, hidden: int, mlp_matrices: int, kv_width: int = 0) -> tuple[Matrix, ...]:
    """Four attention matrices, two of them narrower where heads share keys and values, and an MLP
    of two matrices or a gated one of three."""
    attention: tuple[Matrix, ...] = (Matrix(width, width, 4),)
    if 0 < kv_width < width:
        attention = (Matrix(width, width, 2), Matrix(kv_width, width, 2))
    return (
        *attention,
        Matrix(hidden, width, mlp_matrices - 1),
        Matrix(width, hidden, 1),
    )


def _work(
    s: Shape,
    matrices: tuple[Matrix, ...],
    *,
    mlp_values: float,
    layers: int = 0,
    applications: int = 0,
    head_applications: float = 1,
    positions: float = 1,
    mask_share: float = CAUSAL_SHARE,
    extra_parameters: int = 0,
    extra_flops: float = 0.0,
    kv_share: float = 1.0,
    value_layers: int = 0,
) -> Work:
    applications = applications or s.depth
    per_block = sum(matrix.parameters for matrix in matrices)
    tables = s.vocab_size * s.width * (1 if s.tied else 2)
    return Work(
        layers=layers or s.depth,
        matrices=matrices,
        table_parameters=tables + extra_parameters,
        block_applications=applications,
        positions=positions,
        head_applications=head_applications,
        matmul_flops=2.0 * per_block * applications * positions + extra_flops,
        attention_flops=4.0 * s.sequence * s.width * applications * positions**2,
        head_flops=2.0 * head_applications * s.vocab_size * s.width,
        mask_share=mask_share,
        mlp_values=mlp_values,
        mlp_matrices=1 + matrices[-2].number,
        kv_share=kv_share,
        value_layers=value_layers,
    )
