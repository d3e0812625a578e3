"""Memory of one process: weights, gradients, optimizer, activations, logits, workspace.

The recursion keeps every block application's activations for the backward pass, so a TRM needs
N·(n+1) times what a plain transformer of its size would. All figures are GB of 10⁹ bytes.
"""

from __future__ import annotations

from typing import Iterator, Mapping, NamedTuple

from trmcloud.core.flops import Work, work_of
from trmcloud.core.recipe import PhaseRecipe

GB = 1e9
BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}

#: Values of width D that one block application keeps per token for the backward pass: x and its
#: norm, q, k, v before and after QK-norm and RoPE, the attention's output (7 + 2 + 1), the second
#: norm and residual (2), gate, up and their product at hidden 4·D (12).
BLOCK_VALUES_PER_TOKEN = 26
#: Per logit and supervision step: the capped logits at the compute dtype, their float32 copy and
#: the float32 softmax that the loss keeps.
LOGIT_BYTES_FLOAT32 = 8
#: Largest share of a GPU's memory to plan with: the rest is the allocator's fragments.
USABLE_SHARE = 0.92
CUDA_CONTEXT_GB = 1.0
WORKSPACE_GB = 1.0
CPU_PROCESS_GB = 0.6
DDP_BUCKET_BYTES_PER_PARAMETER = 4


class Memory(NamedTuple):
    """GB of one process by what they hold."""

    weights: float
    gradients: float
    optimizer: float
    communication: float
    activations: float
    logits: float
    workspace: float

    @property
    def total(self) -> float:
        return sum(self)


def predict_memory(settings: PhaseRecipe, processes: int, *, on_gpu: bool = True) -> Memory:
    """GB of one of ``processes`` data-parallel processes with ``settings.batch`` sequences each.

    Weights and gradients are float32 (matmuls run at ``dtype`` by autocast), Muon holds one
    float32 momentum per block matrix, AdamW two states per embedding and head parameter.
    """
    work = work_of(settings)
    tokens = settings.batch * settings.sequence
    compute = BYTES[settings.dtype]
    cast = 0 if settings.dtype == "float32" else compute
    return Memory(
        weights=work.parameters * (4 + cast) / GB,
        gradients=work.parameters * 4 / GB,
        optimizer=(work.matrix_parameters * 4 + work.table_parameters * 8) / GB,
        communication=_ddp_bytes(work, processes) / GB,
        activations=tokens
        * work.block_applications
        * BLOCK_VALUES_PER_TOKEN
        * settings.width
        * compute
        / GB,
        logits=tokens
        * settings.vocab_size
        * work.head_applications
        * (LOGIT_BYTES_FLOAT32 + compute)
        / GB,
        workspace=(CUDA_CONTEXT_GB + WORKSPACE_GB) if on_gpu else CPU_PROCESS_GB,
    )


def smaller_batches(settings: PhaseRecipe) -> Iterator[tuple[int, int]]:
    """(batch, accumulation) that keep the global batch, from the asked batch downwards."""
    whole = settings.batch * settings.accumulation
    for batch in range(settings.batch, 0, -1):
        if whole % batch == 0:
            yield batch, whole // batch


def _ddp_bytes(work: Work, processes: int) -> float:
    """DDP's buckets hold the gradients once more."""
    return work.parameters * DDP_BUCKET_BYTES_PER_PARAMETER if processes > 1 else 0.0


def checkpoint_bytes(settings: PhaseRecipe) -> int:
    """Bytes of one checkpoint on disk: float32 weights, and the optimizer's state beside them."""
    work = work_of(settings)
    return 4 * work.parameters + 4 * work.matrix_parameters + 8 * work.table_parameters
