"""Memory of one process: weights, gradients, optimizer, activations, logits, workspace.

The recursion keeps every block application's activations for the backward pass, so a TRM needs
N·(n+1) times what a plain transformer of its size would. All figures are GB of 10⁹ bytes.
"""

from __future__ import annotations

from typing import Iterable, Iterator, Mapping, NamedTuple

from trmcloud.core.planner.roofline import MAX_LOGITS, assumed_format
from trmcloud.core.spec.settings import CommandSettings, PhaseRecipe
from trmcloud.core.spec.work import Work
from trmcloud.core.values import replace

GB = 1e9
BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "float8": 2}
"""Of what is kept between products; float8's own are rounded anew for each."""

#: Values of width D that one block application keeps per position for the backward pass, beside
#: its MLP: input, norms, q, k, v before and after RoPE and norm, attention's output. Counted on
#: the real TRM block: 27 in all at float32, 31 under bfloat16 autocast, of which the gated MLP's
#: gate, SiLU, up and product are 16 (hidden 4·D). Compiled blocks keep ``COMPILED_SHARE`` of that.
ATTENTION_VALUES = 11.0
KV_VALUES = 4.0
"""Of these, the keys' three and the values, which are fewer where heads share them."""
AUTOCAST_VALUES = 4.0
COMPILED_SHARE = 0.65
"""Of these, what a GPU's compiled block keeps: norms, rotations and activations are computed again
from what it does keep. By published peaks 0.62 to 0.88 (``bench/peaks.csv``)."""
ACTIVATION_RANGE = (0.8, 1.4)
"""Of activations and logits, the least and the most that published peaks leave open: seven of eight
lie between (``python -m bench peaks``)."""
SELECTED_VALUES = 5.0
"""The values that selective checkpointing keeps of one beside keys, values and the MLP's first
products: its input, queries, attention's output, and the results of the two last products of each
half."""
KEPT_MLP_TENSORS = {3: 4 / 3, 2: 1.5}
"""MLP tensors kept per hidden tensor computed, by the number of MLP matrices."""
LOGIT_BYTES = 8
"""Kept per logit: the capped logits and their softmax, in float32."""
LOGIT_SCRATCH_BYTES = 20
"""Per logit of the piece at work: head output, float32 copy, cap, softmax, gradient."""
#: Largest share of a GPU's memory to plan with: the rest is the allocator's fragments.
USABLE_SHARE = 0.92
CUDA_CONTEXT_GB = 1.0
COMPILE_WORKSPACE_GB = 1.0
CPU_PROCESS_GB = 0.6
BUCKET_GB = 0.03
"""DDP reduces in buckets of 25 MB that the gradients themselves live in."""


class Memory(NamedTuple):
    """GB of one process by what they hold."""

    weights: float
    gradients: float
    optimizer: float
    communication: float
    activations: float
    logits: float
    workspace: float
    snapshot: float = 0.0
    """Copy of what it saves; a GPU's is in its host's memory."""

    @property
    def total(self) -> float:
        return sum(self)

    @property
    def least(self) -> float:
        """The low end of what it may need."""
        return self.total - (1.0 - ACTIVATION_RANGE[0]) * (self.activations + self.logits)

    @property
    def most(self) -> float:
        """The high end."""
        return self.total + (ACTIVATION_RANGE[1] - 1.0) * (self.activations + self.logits)


def predict_memory(settings: PhaseRecipe, processes: int, *, on_gpu: bool = True) -> Memory:
    """GB of one of ``processes`` data-parallel processes with ``settings.batch`` sequences each.

    Weights and gradients are float32, with a copy of the weights at ``dtype`` that autocast holds.
    Muon keeps one float32 momentum per block matrix, AdamW two states per parameter, an EMA one.
    FSDP divides all of these by ``processes``, and gathers two blocks at a time. A save copies what
    a process writes, for DDP the first one everything.
    """
    dtype = assumed_format(settings, None, on_gpu=on_gpu).dtype
    if dtype != settings.dtype:
        settings = replace(settings, dtype=dtype)
    work = settings.work()
    compute = BYTES[settings.dtype]
    cast = 0 if settings.dtype == "float32" else compute
    states = state_bytes(settings, work)
    sharded = settings.sharding == "fsdp" and processes > 1
    share = processes if sharded else 1
    if sharded:
        # Two blocks' weights at the compute dtype (at work, and fetched ahead), one block's
        # gradients, and the tables, which are gathered whole.
        communication = 1.0 * work.block_parameters * (2 * compute + 4)
        communication += work.table_parameters * compute
        weights = work.parameters * 4 / share
    else:
        communication = BUCKET_GB * GB if processes > 1 else 0.0
        weights = work.parameters * (4 + cast)
    fixed = (CUDA_CONTEXT_GB + COMPILE_WORKSPACE_GB) if on_gpu else CPU_PROCESS_GB
    return Memory(
        weights=weights / GB,
        gradients=work.parameters * 4 / share / GB,
        optimizer=states / share / GB,
        communication=communication / GB,
        activations=_activation_bytes(settings, work, compute, on_gpu=on_gpu) / GB,
        logits=_logit_bytes(settings, work) / GB,
        workspace=fixed,
        snapshot=0.0 if on_gpu else checkpoint_bytes(settings) / share / GB,
    )


def state_bytes(settings: PhaseRecipe, work: Work) -> float:
    """Optimizer states and EMA, over all processes."""
    if settings.optimizer == "muon":
        states = work.matrix_parameters * 4.0 + work.table_parameters * 8.0
    else:
        states = work.parameters * 8.0
    return states + (work.parameters * 4.0 if settings.ema else 0.0) + settings.carried_bytes


def checkpoint_bytes(settings: PhaseRecipe) -> int:
    """One checkpoint on disk: float32 weights and optimizer states; of a command, the most."""
    if isinstance(settings, CommandSettings):
        return settings.checkpoint_bytes
    work = settings.work()
    return work.parameters * 4 + round(state_bytes(settings, work))


def stored_bytes(phases: Iterable[PhaseRecipe]) -> int:
    """The checkpoints that a machine's disk holds at most: those kept of each phase, and the one
    being written."""
    return sum(checkpoint_bytes(phase) * (phase.kept_checkpoints + 1) for phase in phases)


def weights_bytes(settings: PhaseRecipe) -> float:
    return settings.work().parameters * 4.0


def kept_values(settings: PhaseRecipe, work: Work) -> float:
    """Values of D kept per position and block application, where blocks are not compiled."""
    return block_values(work) + (0 if settings.dtype == "float32" else AUTOCAST_VALUES)


def block_values(work: Work) -> float:
    """Of these, those that are kept in any number format."""
    mlp = work.mlp_values * KEPT_MLP_TENSORS[work.mlp_matrices]
    attention = ATTENTION_VALUES - KV_VALUES * (1.0 - work.kv_share)
    # A value embedding is read, and gated, into the values.
    attention += 2.0 * work.kv_share * work.value_layers / work.layers
    return attention + mlp + work.modulated_values


def batches(settings: PhaseRecipe, largest: int | None = None) -> Iterator[tuple[int, int]]:
    """(batch, accumulation) that keep the global batch, from ``largest`` (or the asked batch)
    downwards."""
    whole = settings.batch * settings.accumulation
    for batch in range(min(whole, largest or settings.batch), 0, -1):
        if whole % batch == 0:
            yield batch, whole // batch


def _activation_bytes(settings: PhaseRecipe, work: Work, compute: int, *, on_gpu: bool) -> float:
    positions = settings.batch * settings.sequence * work.positions
    one = positions * settings.width * compute
    block = one * kept_values(settings, work)
    if on_gpu and settings.compile:
        block *= COMPILED_SHARE
    if settings.activation_checkpointing:
        kept = 1.0
        if settings.selective_checkpointing:  # all but the products is computed again
            products = work.mlp_values / work.mlp_matrices * (work.mlp_matrices - 1)
            kept = SELECTED_VALUES + 2.0 * work.kv_share + products
        return work.block_applications * one * kept + block
    return work.block_applications * block


def _logit_bytes(settings: PhaseRecipe, work: Work) -> float:
    logits = settings.batch * settings.sequence * settings.vocab_size
    if logits > MAX_LOGITS:
        return float(MAX_LOGITS * LOGIT_SCRATCH_BYTES)
    return float(logits * (LOGIT_BYTES * work.head_applications + LOGIT_SCRATCH_BYTES))
