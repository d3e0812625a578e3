"""One optimizer step from first principles, with number formats and the calibration's
constants. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from trmcloud.core.catalog.hardware import GPUS, Gpu, HardwareRequest, LocalMachine
from trmcloud.core.errors import UsageError
from trmcloud.core.spec.settings import AUTO, FLOAT8, PhaseRecipe
from trmcloud.core.spec.spec import RunSpec
from trmcloud.core.spec.work import CAUSAL_SHARE, Work, muon_flops

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
        return AssumedFormat(FLOAT8, "as asked for")
    if settings.dtype != AUTO:
        return AssumedFormat(settings.dtype, "")
    if not on_gpu:
        return AssumedFormat("float32", "the fastest on a processor")
    if settings.sharding == "fsdp":
        return AssumedFormat(
            "bfloat16", "weights that are shared out over GPUs are not taken in float8"
        )
    if gpu is None:
        return AssumedFormat("bfloat16", "this GPU is in no table; what it has is seen on it")
    if not gpu.fp8_tflops:
        return AssumedFormat("bfloat16", f"{gpu.name} has no float8")
    trial = "20 timed steps decide, for float8 where it is more than 1.03 × as fast"
    if settings.work().parameters < PAYS_FROM:
        return AssumedFormat("bfloat16", f"float8 seldom pays below 1B parameters; {trial}")
    return AssumedFormat(FLOAT8, f"it pays from about 1B parameters on; {trial}")


def needs_float8(spec: RunSpec) -> bool:
    """Whether float8 was asked for by name, and its products by a GPU's own units."""
    chosen = dict(spec.overrides)
    return chosen.get("dtype") == FLOAT8 and chosen.get("float8") != "emulated"


def refuse_float8(
    spec: RunSpec, request: HardwareRequest | None, local: LocalMachine | None
) -> None:
    """
    Raises:
        UsageError: it was asked for, and the hardware that was asked for has none.
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
            next_step="--precision auto takes the best that there is; H100, H200, B200, L40S, "
            "RTX4090 and L4 have float8",
        )


# One optimizer step from first principles: matmuls, attention, memory traffic, optimizer, links.
#
#     matmul      FLOPs ÷ (dense peak × share that the board's power sustains × D ÷ (D + fill)
#                 × tokens of a pass ÷ (those + pass fill))
#     attention   executed FLOPs (a causal kernel skips half, its backward is 2.5 × its forward)
#                 ÷ (sustained peak × attention share × what SDPA's kernel reaches on the chip)
#     traffic     bytes of norms, residuals, activations and logits ÷ memory bandwidth
#     optimizer   Newton–Schulz FLOPs, and the bytes of weights, gradients and states
#     links       gradient or shard bytes over the slowest link of the ring, minus what hides behind
#                 the backward pass
#     host        what each step, and each pass of it, costs beside the GPU
#
# The first three are scaled by one factor of the chip and one of the software, both near 1, that
# published trainings give (``calibrated.py``). Seconds and bytes throughout.

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
NVLINK_SHARE, PCIE_SHARE = 0.7, 0.4
"""Of the one-way link that a ring reaches; through PCIe every byte crosses the host's bridge."""
HIDDEN_SHARE = {"ddp": 0.5, "fsdp": 0.7}
"""Of the compute beside it, how much communication can hide behind."""
SELECTIVE_SHARE = 0.1
"""Of a block's forward time, what selective checkpointing does again: norms, rotations and
activations, which are memory traffic alone. A prior."""
MAX_LOGITS = 1 << 27
"""Beyond this many logits (tokens × vocabulary) the trainer's head runs in pieces that the
backward pass computes again, so that one piece alone is alive."""
STEP_OVERHEAD_S = 0.004
"""Clipping, logging, and the host between two steps."""
PASS_OVERHEAD_S = 0.001
"""Of the host for each pass: the next batch, and the first kernels of a graph. A prior."""


PRECISIONS: Mapping[str, str] = {"float32": "fp32", "float8": "fp8"}
"""By dtype; bf16 where it is none of these."""


class Parameters(NamedTuple):
    """The parameters that the calibration fits. The mappings hold factors of time, 1 for what they
    do not name."""

    sustained: float
    """Share of the dense peak that a matmul would reach on a board of unlimited power."""
    half_w: float
    """Watts per dense TFLOP/s at which a board sustains half of that."""
    fill: float
    """Depth at which a matmul's pipeline is half full, in elements."""
    pass_fill: float
    """Tokens of one pass at which the GPU is half full."""
    traffic_values: float
    """Values of D moved per block application and position, forward and backward."""
    """By fused kernels: compiled, or written by hand."""
    eager_traffic: float
    """Times that, where every operation is a kernel of its own."""
    attention_share: float
    masked_cost: float
    """Time of attention under a table's mask, per FLOP, in times of a causal kernel's."""
    memory_share: float
    software: Mapping[str, float]
    """By family of training software."""
    fp8: Mapping[str, float]
    """Of fp8 matmuls alone, by how they are scaled: scaling and casting."""
    chip: Mapping[str, float]
    """By exact SKU."""

    def reached(self, sku: str, software: str) -> float:
        """The share of the ideal that ``software`` reaches on ``sku``; 1 is the table's mean."""
        return 1 / (self.chip.get(sku, 1.0) * self.software.get(software, 1.0))

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
    """The seconds that the chip and the software take beyond the ideal sum; negative where they
    beat it."""

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


def step_time(
    settings: PhaseRecipe,
    gpu: Gpu,
    gpus: int,
    parameters: Parameters,
    share: float,
    *,
    nodes: int = 1,
) -> StepTime:
    """One step of ``settings`` on ``gpus`` of ``gpu`` that reach ``share`` of the ideal; they sit
    in ``nodes`` machines."""
    work = settings.work()
    tokens = settings.batch * settings.sequence
    passes = settings.accumulation
    dtype = assumed_format(settings, gpu).dtype
    token = token_seconds(
        work, settings.width, settings.vocab_size, gpu, parameters, share=share,
        pass_tokens=tokens, precision=PRECISIONS.get(dtype, "bf16"),
        fp8_factor=parameters.fp8.get("tensor", 1.0), is_fused=settings.compile,
    )  # fmt: skip
    micro = token.total * tokens
    recompute = micro * _recompute_share(settings, work)
    links = link_seconds(settings, work, gpu, gpus, nodes)
    # Weights that are applied again and again have their gradients only when backward is at their
    # first application: until then there is nothing to reduce.
    reuse = work.block_applications / work.layers
    hidden = (micro + recompute) * HIDDEN_SHARE[settings.sharding] / reuse
    if settings.sharding == "fsdp":
        exposed = passes * max(0.0, links - hidden)
    else:
        exposed = max(0.0, links - hidden)
    return StepTime(
        matmul=token.matmul * tokens * passes,
        attention=token.attention * tokens * passes,
        traffic=token.traffic * tokens * passes,
        lost=token.lost * tokens * passes,
        recompute=recompute * passes,
        optimizer=_optimizer_seconds(settings, work, gpu, gpus),
        links=exposed,
        overhead=STEP_OVERHEAD_S + passes * PASS_OVERHEAD_S,
    )


def token_seconds(
    work: Work,
    width: int,
    vocab: int,
    gpu: Gpu,
    parameters: Parameters,
    *,
    share: float,
    pass_tokens: float,
    precision: str = "bf16",
    power_w: int = 0,
    memory_gb_s: float = 0.0,
    fp8_factor: float = 1.0,
    kernel_share: float | None = None,
    is_fused: bool = True,
) -> TokenTime:
    """Seconds per trained token on a GPU that reaches ``share`` of the ideal, where a pass has
    ``pass_tokens``.

    ``power_w`` is a limit below the board's own, ``memory_gb_s`` a bandwidth that is not the SKU's.
    Only block matmuls run in fp8. ``kernel_share``: of the attention rate that a kernel written for
    this chip has; None: what SDPA's reaches.
    """
    peak = gpu.bf16_tflops * 1e12
    rate = peak * parameters.sustained_share(gpu, power_w)
    peaks = {"bf16": 1.0, "fp8": 2.0, "fp32": 0.5}[precision]
    block_rate = peak * peaks * parameters.sustained_share(gpu, power_w, peaks)
    head_rate = rate
    if precision == "fp8":
        block_rate /= fp8_factor
    elif precision == "fp32":
        head_rate = block_rate
    filled = filled_share(width, pass_tokens * work.positions, parameters)
    matmul = 3 * (work.matmul_flops / block_rate + work.head_flops / head_rate) / filled
    masked = max(0.0, work.mask_share - CAUSAL_SHARE) / (1 - CAUSAL_SHARE)
    executed = work.attention_flops * work.mask_share * (1 + ATTENTION_BACKWARD)
    executed *= 1 + masked * (parameters.masked_cost - 1)
    kernel = SDPA_KERNEL.get(gpu.name, 1.0) if kernel_share is None else kernel_share
    attention = executed / (rate * parameters.attention_share * kernel)
    bytes_per_s = (memory_gb_s or gpu.memory_gb_s) * 1e9 * parameters.memory_share
    traffic = traffic_bytes(work, width, vocab, parameters) / bytes_per_s
    if not is_fused:
        traffic *= parameters.eager_traffic
    ideal = matmul + attention + traffic
    return TokenTime(matmul, attention, traffic, ideal / share - ideal)


def filled_share(width: int, rows: float, parameters: Parameters) -> float:
    """Return the share of the GPU that a matmul of depth ``width`` fills, where a pass has
    ``rows``."""
    return width / (width + parameters.fill) * rows / (rows + parameters.pass_fill)


def traffic_bytes(work: Work, width: int, vocab: int, parameters: Parameters) -> float:
    """Bytes moved per trained token by everything that is no matmul, two bytes a value.

    Half of a block's traffic is norms, residuals and attention's inputs; the other half grows with
    the MLP's hidden tensors (8 widths in a plain one of hidden 4·D).
    """
    block = parameters.traffic_values * width * 2 * (0.5 + 0.5 * work.mlp_values / 8)
    blocks = block * work.block_applications * work.positions
    return blocks + LOGIT_BYTES * vocab * work.head_applications


def link_seconds(settings: PhaseRecipe, work: Work, gpu: Gpu, gpus: int, nodes: int = 1) -> float:
    """Seconds of communication: DDP's all-reduce of float32 gradients per step, or FSDP's two
    gathers of bfloat16 weights and one scatter of float32 gradients per micro-batch.

    A ring moves (n − 1)/n of the bytes through every link, an all-reduce twice that; the slowest
    link decides, which between machines is the network.
    """
    if gpus == 1:
        return 0.0
    share = NVLINK_SHARE if gpu.nvlink_gb_s and gpus <= gpu.nvlink_span else PCIE_SHARE
    bytes_per_s = gpu.link_gb_s(gpus) * 1e9 * share
    if nodes > 1:
        bytes_per_s = min(bytes_per_s, NODE_LINK_GB_S * 1e9)
    ring = (gpus - 1) / gpus
    per_parameter = 2 * 4 if settings.sharding == "ddp" else 2 * 2 + 4
    return ring * work.parameters * per_parameter / bytes_per_s


def _recompute_share(settings: PhaseRecipe, work: Work) -> float:
    """Extra forward passes, in units of forward and backward: blocks under checkpointing, and a
    head that runs in pieces."""
    blocks = work.matmul_flops + work.attention_flops * work.mask_share
    again = blocks if settings.activation_checkpointing else 0.0
    if settings.selective_checkpointing:
        again *= SELECTIVE_SHARE
    if settings.batch * settings.sequence * settings.vocab_size > MAX_LOGITS:
        again += work.head_flops
    return again / (3 * (blocks + work.head_flops))


def _optimizer_seconds(settings: PhaseRecipe, work: Work, gpu: Gpu, gpus: int) -> float:
    held = work.parameters / (gpus if settings.sharding == "fsdp" else 1)
    seconds = held * OPTIMIZER_BYTES[settings.optimizer] / (gpu.memory_gb_s * 1e9)
    if settings.optimizer == "muon":
        rate = gpu.bf16_tflops * 1e12 * NEWTON_SCHULZ_SHARE
        seconds += muon_flops(work) / (gpus if settings.sharding == "fsdp" else 1) / rate
    return seconds


# The calibration's outcome as constants, so that a plan does not fit anything anew.
#
# Fitted on 2026-11-23 to the 131 published trainings of ``bench/throughput.csv``, each with its
# source. ``make calibrate`` prints the constants and how far off they are; a test holds them to
# it.

SOFTWARE = "torch-compile"
"""The family of ours: PyTorch, compiled blocks, SDPA, DDP."""
FITTED = Parameters(
    sustained=0.954,
    half_w=0.4386,
    fill=146.5567,
    pass_fill=944.3357,
    traffic_values=38.6792,
    eager_traffic=1.4969,
    attention_share=0.4875,
    masked_cost=1.5171,
    memory_share=0.8322,
    software={
        "composer": 1.0697,
        "fused-eager": 1.0624,
        "llm.c": 0.9559,
        "megatron": 0.8394,
        "paxml": 1.1813,
        "torch-compile": 0.9964,
        "torch-eager": 1.1377,
        "torchtitan-compile": 0.9816,
    },
    fp8={"block": 0.9881, "engine": 0.9525, "row": 1.086, "tensor": 1.0055},
    chip={
        "A100-40GB": 0.9485,
        "A100-80GB-PCIe": 0.9495,
        "A100-80GB-SXM": 0.9424,
        "B200": 0.9214,
        "H100-NVL": 1.1683,
        "H100-PCIe": 0.9464,
        "H100-SXM": 0.9699,
        "H200": 0.9437,
        "L4": 1.1943,
        "L40S": 1.1752,
        "RTX3090": 1.0561,
        "RTX4090": 0.8921,
    },
)
P90_SIGMAS = 1.2816
FITTED_SIGMA = 0.204 / P90_SIGMAS
"""Of the logarithm of time. Four of five trainings like ours, each predicted without its source,
came within e^±0.204 of what was measured."""
NEW_CHIP_SIGMA = 0.2
"""A chip that no published row names has a factor of its own that is not known."""
RECURSION_SIGMA = 0.10
"""No published row is a recursive model; its own doubt, added in quadrature."""


class Reach(NamedTuple):
    """The share of the ideal that a GPU is expected to reach, and how sure that is."""

    share: float
    sigma: float
    """Standard deviation of the logarithm of time."""
    basis: str


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

    @property
    def is_possible(self) -> bool:
        """Whether it is at most the chip's highest dense peak: what a pod tells of its steps may be
        anything. Of a machine without a known GPU nothing is known."""
        gpu = GPUS.get(self.sku)
        if gpu is None:
            return True
        peak = max(gpu.bf16_tflops, gpu.fp8_tflops) * 1e12 * self.gpus
        return self.tokens_per_step * self.flops_per_token <= peak * self.step_s


def reach_of(gpu: Gpu) -> Reach:
    """Return the share of its peak that ``gpu`` reaches under our software before it was probed."""
    share = FITTED.reached(gpu.sku, SOFTWARE)
    if gpu.sku in FITTED.chip:
        return Reach(share, math.hypot(FITTED_SIGMA, RECURSION_SIGMA), "published trainings on it")
    return Reach(
        share,
        math.hypot(FITTED_SIGMA, RECURSION_SIGMA, NEW_CHIP_SIGMA),
        "from its power and peak: never measured",
    )
