"""One optimizer step from first principles, with number formats and the calibration's
constants. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from trmcloud.core.catalog.hardware import GPUS, Gpu, HardwareRequest, LocalMachine, least_step_s
from trmcloud.core.catalog.torch_builds import POD_BUILD, POD_RELEASE, POD_TORCH
from trmcloud.core.errors import UsageError
from trmcloud.core.spec.settings import AUTO, FLOAT8, PhaseRecipe
from trmcloud.core.spec.spec import RunSpec
from trmcloud.core.spec.work import BACKWARD_FACTOR, Work, muon_flops

# Which number format a plan counts with, where the machine is to find that out. Pure.

PAYS_FROM = 1_000_000_000
"""Parameters from which float8 is counted on: 8B gain a quarter on eight H100 (pytorch/ao), d26
(about 1B) 17 %, d12 loses (karpathy/nanochat). Below, a trial decides, and the plan hopes for
nothing."""


class AssumedFormat(NamedTuple):
    dtype: str
    why: str
    """Empty where nothing was left open."""


def assumed_format(settings: PhaseRecipe, gpu: Gpu | None, *, on_gpu: bool = True) -> AssumedFormat:
    """The format that ``settings`` are taken to be trained in on ``gpu``."""
    if settings.dtype == FLOAT8:
        return AssumedFormat(FLOAT8, "as requested")
    if settings.dtype != AUTO:
        return AssumedFormat(settings.dtype, "")
    if not on_gpu:
        return AssumedFormat("float32", "the fastest on a CPU")
    if settings.sharding == "fsdp":
        return AssumedFormat(
            "bfloat16", "weights that are sharded over GPUs are not supported in float8"
        )
    if gpu is None:
        return AssumedFormat(
            "bfloat16", "this GPU is not in our table; its formats are found at the start"
        )
    if not gpu.fp8_tflops:
        return AssumedFormat("bfloat16", f"{gpu.name} has no float8")
    trial = "decided by 20 timed steps: float8 if it is more than 1.03 × as fast"
    if settings.work().parameters < PAYS_FROM:
        return AssumedFormat("bfloat16", f"float8 is seldom faster below 1B parameters; {trial}")
    return AssumedFormat(FLOAT8, f"it is faster from about 1B parameters; {trial}")


def needs_float8(spec: RunSpec) -> bool:
    """Whether float8 was requested by name, and its products by a GPU's own units."""
    chosen = dict(spec.overrides)
    return chosen.get("dtype") == FLOAT8 and chosen.get("float8") != "emulated"


def refuse_float8(
    spec: RunSpec, request: HardwareRequest | None, local: LocalMachine | None
) -> None:
    """
    Raises:
        UsageError: it was requested, and the hardware that was requested has none.
    """
    if request is None or not needs_float8(spec):
        return
    skus = request.skus
    if request.is_local:
        if local is not None and not local.gpus and dict(spec.overrides).get("float8") == "native":
            return  # slowly, and by name
        skus = (local.gpu_sku or "",) if local is not None and local.gpus else ()
        if skus and skus[0] not in GPUS:
            return  # in no table: the trainer sees
    if not any(GPUS[sku].fp8_tflops for sku in skus):
        what = request.text if not request.is_local else "this machine"
        raise UsageError(
            f"{what} has no float8",
            next_step="--precision auto uses the best format; H100, H200, B200, L40S, RTX4090 and "
            "L4 have float8",
        )


# One optimizer step from first principles: matmuls, attention, memory traffic, optimizer, links.
#
#     matmul      FLOPs ÷ (dense peak × share that the board's power sustains)
#     attention   executed FLOPs (a causal kernel skips half, its backward is 2.5 × its forward)
#                 ÷ (sustained peak × attention share × what SDPA's kernel reaches on the chip)
#     traffic     bytes of norms, residuals, activations and logits ÷ memory bandwidth
#     optimizer   Newton–Schulz FLOPs, and the bytes of weights, gradients and states
#     links       gradient or shard bytes over the slowest link of the ring, minus what hides behind
#                 the backward pass
#     host        what each step, and each pass of it, costs beside the GPU
#
# The first three are scaled by one factor of the software, near 1. Seconds and bytes throughout.

CUDNN_FROM = ((2, 11), (12, 9))
"""The release of torch and of CUDA from which SDPA takes cuDNN's kernel on Hopper and Blackwell,
which is written for the chip (huggingface/transformers pull 48163, pytorch/pytorch pull 171627).
The pods' torch is older, and takes FlashAttention 2's."""
FLASH_1_SHARE = 0.5
"""Of what FlashAttention 2 reaches, as the paper of that one has it (Dao 2023)."""
SDPA_KERNEL: Mapping[str, float] = {
    "H100": 0.65,
    "H100-PCIe": 0.65,
    "H100-NVL": 0.65,
    "H200": 0.65,
    "B200": 0.32,
    "B300": 0.32,
    "GB200": 0.32,
    "GH200": 0.65,
}
"""Of the attention rate a kernel written for the chip has: the FlashAttention-2 kernel that SDPA
takes issues Ampere's matrix instructions, which newer chips' peaks have left behind."""
LOGIT_BYTES = 12.0
"""Memory traffic per logit, forward and backward: written and read at two bytes, four for the
softmax and its gradient."""
ATTENTION_BACKWARD = 2.5
"""Backward matmuls of a fused attention kernel per forward one: it computes the scores again."""
OPTIMIZER_BYTES = {"muon": 28.0, "adamw": 32.0}
"""Traffic per parameter and step: gradient, weight and states read and written in float32."""
NEWTON_SCHULZ_SHARE = 0.5
"""Of the matmul ceiling."""
NODE_LINK_GB_S = 5.0
"""One way between two machines, all that a ring of NCCL's reaches: a prior for TCP over 100 Gbit/s.
A cloud's own fabric is several times as fast, and is not counted on."""
NVLINK_SHARE = 0.7
"""Of the one-way link that a ring reaches."""
HIDDEN_SHARE = {"ddp": 0.5, "fsdp": 0.7}
"""Of the compute beside it, how much communication can hide behind."""
FABRIC_GB_S = 200.0
"""Between machines of published clusters, whose every GPU has a rail of its own (400 Gbit/s)."""
MAX_LOGITS = 1 << 27
"""Beyond this many logits (tokens × vocabulary) the trainer's head runs in pieces that the
backward pass computes again, so that one piece alone is alive."""
STEP_OVERHEAD_S = 0.004
"""Clipping, logging, and the host between two steps."""
PASS_OVERHEAD_S = 0.001
"""Of the host for each pass: the next batch, and the first kernels of a graph. A prior."""


POD_KERNEL = "own" if (POD_RELEASE, POD_BUILD.cuda) >= CUDNN_FROM else "sdpa"
"""Of the torch that pods get."""
PRECISIONS: Mapping[str, str] = {"float32": "fp32", "float8": "fp8"}
"""By dtype; bf16 where it is none of these."""


SOFTWARE = "torch-compile"
"""The family of ours: PyTorch, compiled blocks, SDPA, DDP."""


class Parameters(NamedTuple):
    """The constants that the calibration fits."""

    sustained: float
    """Share of the dense peak that a matmul would reach on a board of unlimited power."""
    half_w: float
    """Watts per dense TFLOP/s at which a board sustains half of that."""
    traffic_values: float
    """Values of D moved per block application and position, forward and backward, by fused
    kernels: compiled, or written by hand."""
    attention_share: float
    """Of the matmul rate, what attention would reach at a sequence without end."""
    attention_fill: float
    """Tokens of a sequence at which it reaches half of that."""
    memory_share: float
    pcie_share: float
    """Of the one-way link that a ring reaches through PCIe, where every byte crosses the host's
    bridge."""
    software: Mapping[str, float]
    """Factors of time by family of training software; 1 for what it does not name."""

    def sustained_share(self, gpu: Gpu, watts: float = 0.0, peaks: float = 1.0) -> float:
        """Of a dense peak that is ``peaks`` × the bfloat16 one, at ``watts`` (else the board's)."""
        per_tflop = min(watts or gpu.tdp_w, gpu.tdp_w) / (gpu.bf16_tflops * peaks)
        return self.sustained * per_tflop / (per_tflop + self.half_w)


class TokenTime(NamedTuple):
    """Seconds per trained token on one GPU."""

    matmul: float
    attention: float
    traffic: float
    lost: float
    """The seconds that the software takes beyond the ideal sum; negative where it beats it."""

    @property
    def total(self) -> float:
        return sum(self)


class StepTime(NamedTuple):
    """Seconds of one optimizer step."""

    matmul: float
    attention: float
    traffic: float
    lost: float
    recompute: float
    optimizer: float
    links: float
    """Communication that nothing hides."""
    overhead: float

    @property
    def total(self) -> float:
        return sum(self)


class Recomputed(NamedTuple):
    """Shares of the blocks' forward pass that the backward pass computes again."""

    products: float
    attention: float
    traffic: float
    """Norms, rotations and activations."""


CHECKPOINTING: Mapping[str, Recomputed] = {
    "none": Recomputed(0.0, 0.0, 0.0),
    "products": Recomputed(0.0, 0.0, 1.0),  # ours, selective: what products made is kept
    "selective": Recomputed(0.5, 0.0, 1.0),  # torchtitan's: every other product is kept
    "full": Recomputed(1.0, 1.0, 1.0),
}


class Step(NamedTuple):
    """One optimizer step of one GPU: what the model of time needs to know of a training, a recipe's
    or a published one."""

    work: Work
    width: int
    vocab: int
    sequence: int
    software: str
    """Its family."""
    pass_tokens: float
    """Tokens of one forward and backward pass."""
    passes: float
    precision: str = "bf16"
    """bf16, fp8 or fp32."""
    kernel: str = "sdpa"
    """own: attention's is written for the chip; sdpa: FlashAttention 2; flash1: its predecessor."""
    checkpointing: str = "none"
    """One of ``CHECKPOINTING``."""
    is_frozen: bool = False
    """The matrices learn nothing (LoRA): their gradients are not computed."""
    head_again: bool = False
    """The head runs in pieces that the backward pass computes again."""
    is_sharded: bool = False
    """FSDP: weights, gradients and states are shared out over the GPUs."""
    exchanges_after: bool = False
    """Gradients move when backward is done, not beside it: to optimizers that are shared out."""
    optimizer: str = "adamw"
    is_muon_shared: bool = False
    """Newton–Schulz is shared out over the GPUs; else each does all of it."""
    node_gb_s: float = NODE_LINK_GB_S
    power_w: int = 0
    """A limit below the board's own; 0: none."""
    memory_gb_s: float = 0.0
    """Where it is not the SKU's."""


def step_of(settings: PhaseRecipe, gpu: Gpu, nodes: int = 1) -> Step:
    """The step of ``settings`` on ``gpu``, in ``nodes`` machines, as the trainer of this product
    does it."""
    checkpointing = "none"
    if settings.activation_checkpointing:
        checkpointing = "products" if settings.selective_checkpointing else "full"
    is_sharded = settings.sharding == "fsdp"
    tokens = settings.batch * settings.sequence
    return Step(
        work=settings.work(),
        width=settings.width,
        vocab=settings.vocab_size,
        sequence=settings.sequence,
        software=SOFTWARE,
        pass_tokens=tokens,
        passes=settings.accumulation,
        precision=PRECISIONS.get(assumed_format(settings, gpu).dtype, "bf16"),
        kernel=POD_KERNEL,
        checkpointing=checkpointing,
        head_again=settings.head_again and tokens * settings.vocab_size > MAX_LOGITS,
        is_sharded=is_sharded,
        optimizer=settings.optimizer,
        is_muon_shared=is_sharded or nodes == 1,
    )


def time_step(
    step: Step, gpu: Gpu, gpus: int, parameters: Parameters, *, nodes: int = 1
) -> StepTime:
    """One ``step`` on ``gpus`` of ``gpu`` in ``nodes`` machines: what plans are made with, and what
    ``make calibrate`` judges."""
    work, tokens, passes = step.work, step.pass_tokens, step.passes
    token = token_seconds(step, gpu, parameters)
    recompute = _again_seconds(step, token, parameters) * tokens
    # Weights that are applied again and again have their gradients only when backward is at their
    # first application: until then there is nothing to reduce.
    reuse = work.block_applications / work.layers
    kind = "fsdp" if step.is_sharded else "ddp"
    hidden = (token.total * tokens + recompute) * HIDDEN_SHARE[kind] / reuse
    links = link_seconds(step, gpu, gpus, parameters, nodes)
    if not step.exchanges_after:
        links = max(0.0, links - hidden) * (passes if step.is_sharded else 1)
    return StepTime(
        matmul=token.matmul * tokens * passes,
        attention=token.attention * tokens * passes,
        traffic=token.traffic * tokens * passes,
        lost=token.lost * tokens * passes,
        recompute=recompute * passes,
        optimizer=_optimizer_seconds(step, gpu, gpus, parameters, nodes),
        links=links,
        overhead=STEP_OVERHEAD_S + passes * PASS_OVERHEAD_S,
    )


def token_seconds(step: Step, gpu: Gpu, parameters: Parameters) -> TokenTime:
    """Seconds per trained token, forward and backward. Only block matmuls run in fp8."""
    work = step.work
    blocks, head, rate = _product_seconds(step, gpu, parameters)
    executed = work.attention_flops * work.mask_share * (1 + ATTENTION_BACKWARD)
    reached = parameters.attention_share * kernel_share(step.kernel, gpu)
    reached *= step.sequence / (step.sequence + parameters.attention_fill)
    attention = executed / (rate * reached)
    traffic = traffic_bytes(work, step.width, step.vocab, parameters) / _bandwidth(
        step, gpu, parameters
    )
    matmul = _passes(step) * (blocks + head)
    ideal = matmul + attention + traffic
    slowness = parameters.software.get(step.software, 1.0)
    return TokenTime(matmul, attention, traffic, ideal * (slowness - 1))


def _passes(step: Step) -> float:
    """Forward and backward products, in forward ones."""
    return BACKWARD_FACTOR - 1.0 if step.is_frozen else BACKWARD_FACTOR


def kernel_share(kernel: str, gpu: Gpu) -> float:
    """Of the attention rate that a kernel written for ``gpu`` has."""
    if kernel == "own":
        return 1.0
    return SDPA_KERNEL.get(gpu.name, 1.0) * (FLASH_1_SHARE if kernel == "flash1" else 1.0)


def _product_seconds(step: Step, gpu: Gpu, parameters: Parameters) -> tuple[float, float, float]:
    """(blocks' matmuls, the head's) of one token, forward, and the bfloat16 rate in FLOP/s."""
    work, peak = step.work, gpu.bf16_tflops * 1e12
    rate = peak * parameters.sustained_share(gpu, step.power_w)
    peaks = {"bf16": 1.0, "fp8": 2.0, "fp32": 0.5}[step.precision]
    block_rate = peak * peaks * parameters.sustained_share(gpu, step.power_w, peaks)
    head_rate = rate
    if step.precision == "fp32":
        head_rate = block_rate
    return work.matmul_flops / block_rate, work.head_flops / head_rate, rate


def _bandwidth(step: Step, gpu: Gpu, parameters: Parameters) -> float:
    """Bytes a second that are reached."""
    return (step.memory_gb_s or gpu.memory_gb_s) * 1e9 * parameters.memory_share


def _again_seconds(step: Step, token: TokenTime, parameters: Parameters) -> float:
    """Seconds per token of what the backward pass computes again."""
    again = CHECKPOINTING[step.checkpointing]
    blocks = step.work.matmul_flops / (step.work.matmul_flops + step.work.head_flops)
    forward = token.matmul / _passes(step)
    seconds = forward * blocks * again.products
    if step.head_again:
        seconds += forward * (1 - blocks)
    seconds += token.attention / (1 + ATTENTION_BACKWARD) * again.attention
    tables = LOGIT_BYTES * step.vocab * step.work.head_applications
    tables /= traffic_bytes(step.work, step.width, step.vocab, parameters)
    seconds += token.traffic / 3 * ((1 - tables) * again.traffic + tables * step.head_again)
    return seconds * parameters.software.get(step.software, 1.0)


def traffic_bytes(work: Work, width: int, vocab: int, parameters: Parameters) -> float:
    """Bytes moved per trained token by everything that is no matmul, two bytes a value.

    Half of a block's traffic is norms, residuals and attention's inputs; the other half grows with
    the MLP's hidden tensors (8 widths in a plain one of hidden 4·D).
    """
    block = parameters.traffic_values * width * 2 * (0.5 + 0.5 * work.mlp_values / 8)
    blocks = block * work.block_applications * work.positions
    return blocks + LOGIT_BYTES * vocab * work.head_applications


def link_seconds(step: Step, gpu: Gpu, gpus: int, parameters: Parameters, nodes: int = 1) -> float:
    """Seconds of communication: DDP's all-reduce of float32 gradients per step; of optimizers that
    are shared out, float32 gradients to them and bfloat16 weights back; of FSDP, two gathers of
    bfloat16 weights and one scatter of float32 gradients per pass.

    A ring moves (n − 1)/n of the bytes through every link, an all-reduce twice that; the slowest
    link decides, which between machines is the network.
    """
    if gpus == 1:
        return 0.0
    per_parameter = 6 if step.exchanges_after and not step.is_sharded else 8
    return step.work.parameters * per_parameter * _ring_s(step, gpu, gpus, parameters, nodes)


def _ring_s(step: Step, gpu: Gpu, gpus: int, parameters: Parameters, nodes: int) -> float:
    """Seconds for each byte that all GPUs give to one another."""
    within = gpus // nodes
    has_nvlink = gpu.nvlink_gb_s and within <= gpu.nvlink_span
    share = NVLINK_SHARE if has_nvlink else parameters.pcie_share
    bytes_per_s = gpu.link_gb_s(within) * 1e9 * share
    if nodes > 1:
        bytes_per_s = min(bytes_per_s, step.node_gb_s * 1e9)
    return (gpus - 1) / gpus / bytes_per_s


def _optimizer_seconds(
    step: Step, gpu: Gpu, gpus: int, parameters: Parameters, nodes: int
) -> float:
    work, held = step.work, step.work.parameters / (gpus if step.is_sharded else 1)
    memory_gb_s = step.memory_gb_s or gpu.memory_gb_s
    seconds = held * OPTIMIZER_BYTES[step.optimizer] / (memory_gb_s * 1e9)
    if step.optimizer == "muon":
        rate = gpu.bf16_tflops * 1e12 * NEWTON_SCHULZ_SHARE
        seconds += muon_flops(work) / (gpus if step.is_muon_shared else 1) / rate
        if step.is_muon_shared and gpus > 1 and not (step.is_sharded or step.exchanges_after):
            # Each rank's results, in bfloat16, to all others.
            seconds += 2 * work.matrix_parameters * _ring_s(step, gpu, gpus, parameters, nodes)
    return seconds


# The calibration's outcome as constants, so that a plan does not fit anything anew.
#
# Fitted on 2026-11-30 to the 155 published trainings of ``bench/throughput.csv``,
# ``throughput-2026.csv`` and ``wallclock.csv``, each with its source. ``make calibrate`` prints the
# constants and how far off they are; a test holds them to it.

FITTED = Parameters(
    sustained=0.9325,
    half_w=0.4238,
    traffic_values=49.63,
    attention_share=0.6725,
    attention_fill=477.2,
    memory_share=0.805,
    pcie_share=0.287,
    software={
        "composer": 1.1332,
        "fused-eager": 1.0742,
        "llm.c": 0.9882,
        "megatron": 0.8459,
        "paxml": 1.1213,
        "torch-compile": 1.0272,
        "torch-eager": 1.3012,
        "torchtitan-compile": 1.1163,
    },
)
FITTED_AT = 1_796_000_000.0
"""Epoch s, the end of November 2026: what a probe before it keeps as predicted is another fit's."""
P90_SIGMAS = 1.2816
FITTED_SIGMA = 0.239 / P90_SIGMAS
"""Of the logarithm of time. Four of five trainings like ours, each predicted without its source,
came within e^±0.239 of what was measured."""
FITTED_CHIPS = (
    *("A100-40GB", "A100-80GB-PCIe", "A100-80GB-SXM", "B200", "GH200", "H100-NVL", "H100-PCIe"),
    *("H100-SXM", "H200", "L4", "L40S", "RTX3090", "RTX4090"),
)
NEW_CHIP_SIGMA = 0.2
"""Beside that, on a chip that no published row names."""


class MeasuredSpeed(NamedTuple):
    """A probe of one machine, or a run on it: the median of ``steps`` measured steps, in
    seconds."""

    sku: str
    """Or the name of a local machine."""
    gpus: int
    step_s: float
    steps: int
    tokens_per_step: int
    flops_per_token: float
    predicted_s: float = 0.0
    """The model's prediction for such a step; 0: of its settings only the FLOPs are known."""
    at: float = 0.0
    """When, in epoch s; 0: a version that did not say."""
    run_id: str = ""
    """The run that it was; empty: a probe."""
    provider: str = ""
    torch: str = ""
    board: str = ""
    """The GPU's name, as its driver has it."""
    code: str = ""
    """The SHA-256 of the trainer's sources. Empty, as the three before: not known."""

    @property
    def is_possible(self) -> bool:
        """Whether it is at most the chip's highest dense peak: what a pod tells of its steps may be
        anything. Of a machine without a known GPU nothing is known."""
        flops = self.tokens_per_step * self.flops_per_token
        return self.step_s >= least_step_s(self.sku, self.gpus, flops)


def pick_measured(
    measured: Sequence[MeasuredSpeed], sku: str, *, gpus: int, provider: str
) -> MeasuredSpeed | None:
    """Return the measurement that a plan for ``gpus`` of ``sku`` at ``provider`` rests on: one with
    the torch of our pods rather than with another, then one at the same provider, then one of as
    many GPUs, then the newest."""
    known = [each for each in measured if each.sku == sku]
    if not known:
        return None
    return max(
        known,
        key=lambda each: (
            each.torch == POD_TORCH,
            each.provider == provider,
            each.gpus == gpus,
            each.at,
        ),
    )


def fitted_sigma(sku: str) -> float:
    """Return the standard deviation of the logarithm of time on a GPU that was not probed."""
    return math.hypot(FITTED_SIGMA, 0.0 if sku in FITTED_CHIPS else NEW_CHIP_SIGMA)
