"""What one token costs to train: parameters and floating-point operations of a model's sizes.

A multiply and an add count as two. The backward pass of a matmul costs twice its forward pass.
Attention is counted over the whole square of positions, as the usual MFU convention and torch's
counter do; what a kernel really executes is half of that under a causal mask (``mask_share``).
Each family counts its own (``work`` in its ``plan.py``) with what stands here.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import NamedTuple

from trmcloud.core.values import Value

BACKWARD_FACTOR = 3
"""Forward and backward together, in forward passes."""
CAUSAL_SHARE = 0.5
MASKED_SHARE = 1.0
"""A window's mask goes to the kernel as a table, which skips none of the square."""


class Matrix(NamedTuple):
    """``number`` weight matrices of ``rows`` × ``columns``."""

    rows: int
    columns: int
    number: int

    @property
    def parameters(self) -> int:
        return self.rows * self.columns * self.number


class Work(Value):
    """Sizes of one model. FLOPs are forward, per trained token."""

    layers: int
    """Blocks with weights of their own."""
    matrices: tuple[Matrix, ...]
    """Of one block: what Muon optimises."""
    table_parameters: int
    """Embeddings, head, gates and conditioning: what AdamW optimises."""
    block_applications: int
    """The number of block applications to a token in one forward pass, all layers together."""
    positions: float
    """Positions that pass through the blocks per trained token: two in block diffusion."""
    head_applications: float
    """The number of times the head turns a token's state into logits; in segments, on average."""
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
    modulated_values: float = 0.0
    """Values of a block's width that adaLN adds to those kept per position."""

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


@lru_cache(maxsize=64)
def work_of_blocks(
    *,
    depth: int,
    width: int,
    vocab_size: int,
    sequence: int,
    matrices: tuple[Matrix, ...],
    mlp_values: float,
    tied: bool = False,
    layers: int = 0,
    applications: int = 0,
    head_applications: float = 1,
    positions: float = 1,
    mask_share: float = CAUSAL_SHARE,
    extra_parameters: int = 0,
    extra_flops: float = 0.0,
    kv_share: float = 1.0,
    value_layers: int = 0,
    modulated_values: float = 0.0,
) -> Work:
    """The work of a model of equal blocks between an embedding and a head.

    Args:
        matrices: of one block.
        mlp_values, layers, applications, …: see ``Work``; 0 layers or applications: ``depth``.
    """
    applications = applications or depth
    per_block = sum(matrix.parameters for matrix in matrices)
    tables = vocab_size * width * (1 if tied else 2)
    return Work(
        layers=layers or depth,
        matrices=matrices,
        table_parameters=tables + extra_parameters,
        block_applications=applications,
        positions=positions,
        head_applications=head_applications,
        matmul_flops=2.0 * per_block * applications * positions + extra_flops,
        attention_flops=4.0 * sequence * width * applications * positions**2,
        head_flops=2.0 * head_applications * vocab_size * width,
        mask_share=mask_share,
        mlp_values=mlp_values,
        mlp_matrices=1 + matrices[-2].number,
        kv_share=kv_share,
        value_layers=value_layers,
        modulated_values=modulated_values,
    )


def block_matrices(
    width: int, hidden: int, mlp_matrices: int, kv_width: int = 0
) -> tuple[Matrix, ...]:
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


def muon_flops(work: Work) -> float:
    """FLOP of five Newton–Schulz iterations over every block matrix, per optimizer step.

    One iteration on a matrix of m ≤ n is X·Xᵀ, A·A and B·X: 4·m²·n + 2·m³.
    """
    total = 0.0
    for matrix in work.matrices:
        small, large = sorted((matrix.rows, matrix.columns))
        total += matrix.number * 5 * (4.0 * small * small * large + 2.0 * small**3)
    return total * work.layers
