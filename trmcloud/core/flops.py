"""What one token costs to train: parameters and floating-point operations from a recipe's shape.

A multiply and an add count as two. The backward pass costs twice the forward one. Attention is
counted over the whole square of positions, as the usual MFU convention does, though a causal
kernel skips half of it.
"""

from __future__ import annotations

from typing import NamedTuple

from trmcloud.core.recipe import PhaseRecipe

BACKWARD_FACTOR = 3
"""Forward and backward together, in forward passes."""


class Work(NamedTuple):
    """Sizes of one model. FLOPs are forward, per token of the sequence that is trained on."""

    matrix_parameters: int
    """Block matrices: what Muon optimises."""
    table_parameters: int
    """Embedding and head: what AdamW optimises."""
    block_applications: int
    """How often a block runs on a token in one forward pass, all layers together."""
    head_applications: int
    """How often the head turns a token's state into logits."""
    matmul_flops: float
    attention_flops: float
    head_flops: float

    @property
    def parameters(self) -> int:
        return self.matrix_parameters + self.table_parameters

    @property
    def forward_flops(self) -> float:
        """FLOP per token, forward."""
        return self.matmul_flops + self.attention_flops + self.head_flops

    @property
    def train_flops(self) -> float:
        """FLOP per token, forward and backward."""
        return BACKWARD_FACTOR * self.forward_flops


def work_of(settings: PhaseRecipe) -> Work:
    """Parameters and FLOPs of the model that ``settings`` describe.

    TRM, with depth L, width D, N supervision steps of n loops, vocabulary V and sequence T: each of
    the L blocks (16·D² parameters: attention 4·D², SwiGLU of hidden 4·D 12·D²) runs N·(n+1) times,
    the head N times. Training costs 6·[16·L·D²·N·(n+1) + N·V·D] + 12·L·D·T·N·(n+1) per token.
    """
    layers, width, sequence = settings.depth, settings.width, settings.sequence
    steps, vocab = settings.supervision_steps, settings.vocab_size
    applications = layers * steps * (settings.loops + 1)
    matrix = 16 * width * width
    return Work(
        matrix_parameters=layers * matrix,
        table_parameters=2 * vocab * width,
        block_applications=applications,
        head_applications=steps,
        matmul_flops=2.0 * matrix * applications,
        attention_flops=4.0 * sequence * width * applications,
        head_flops=2.0 * steps * vocab * width,
    )
