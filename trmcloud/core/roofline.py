"""One optimizer step from first principles: matmuls, attention, memory traffic, optimizer, links.

    matmul      FLOPs ÷ (dense peak × measured matmul ceiling × D ÷ (D + fill))
    attention   executed FLOPs (a causal kernel skips half, its backward is 2.5 × its forward)
                ÷ (peak × ceiling × attention share)
    traffic     bytes of norms, residuals, activations and logits ÷ memory bandwidth
    optimizer   Newton–Schulz FLOPs, and the bytes of weights, gradients and states
    links       gradient or shard bytes over the slowest link of the ring, minus what hides behind
                the backward pass

The sum of the first three is divided by the share of it that real trainings reach
(``calibration.py``). Seconds and bytes throughout.
"""

from __future__ import annotations

from typing import Mapping, NamedTuple

from trmcloud.core.flops import CAUSAL_SHARE, Matrix, Work, muon_flops, work_of
from trmcloud.core.hardware import Gpu
from trmcloud.core.recipe import PhaseRecipe

#: Best measured share of the dense peak in one large matmul.
MATMUL_CEILING: Mapping[str, float] = {
    "A100": 0.869,
    "H100": 0.803,
    "H200": 0.803,
    "B200": 0.776,
}
MATMUL_CEILING_OTHER = 0.80
FP8_SPEEDUP = 1.5
"""Of matmuls alone: twice the peak, a quarter of it lost to scaling and casting."""
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
MAX_LOGITS = 1 << 27
"""Beyond this many logits (tokens × vocabulary) the trainer's head runs in pieces that the
backward pass computes again, so that one piece alone is alive."""
STEP_OVERHEAD_S = 0.004
"""Data loading, clipping, logging, and the host between two steps."""


class Parameters(NamedTuple):
    """What the calibration fits; ``reached`` is by exact SKU."""

    reached: Mapping[str, float]
    pooled: float
    """Mean share, for GPUs without measurements."""
    fill: float
    """Depth at which a matmul's pipeline is half full, in elements."""
    traffic_values: float
    """Values of D moved per block application and position, forward and backward."""
    attention_share: float

    def share(self, sku: str) -> float:
        return self.reached.get(sku, self.pooled)


class TokenTime(NamedTuple):
    """Seconds per trained token on one GPU."""

    matmul: float
    attention: float
    traffic: float
    lost: float
    """What the ideal sum does not explain: launch gaps, clocks, stragglers."""

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
    work = work_of(settings)
    tokens = settings.batch * settings.sequence
    passes = settings.accumulation
    token = token_seconds(
        work, settings.width, settings.vocab_size, gpu, parameters, share=share,
        precision="fp32" if settings.dtype == "float32" else "bf16",
    )  # fmt: skip
    micro = token.total * tokens
    recompute = micro * _recompute_share(settings, work)
    links = link_seconds(settings, work, gpu, gpus, nodes)
    hidden = (micro + recompute) * HIDDEN_SHARE[settings.sharding]
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
        overhead=STEP_OVERHEAD_S,
    )


def token_seconds(
    work: Work,
    width: int,
    vocab: int,
    gpu: Gpu,
    parameters: Parameters,
    *,
    share: float | None = None,
    precision: str = "bf16",
    power_w: int = 0,
) -> TokenTime:
    """Seconds per trained token. A power limit lowers clocks by the cube root of the power, since
    power goes with clock × voltage² and voltage with clock."""
    flops_per_s = gpu.bf16_tflops * 1e12 * MATMUL_CEILING.get(gpu.name, MATMUL_CEILING_OTHER)
    if power_w:
        flops_per_s *= min(1.0, power_w / gpu.tdp_w) ** (1 / 3)
    matmul_rate = flops_per_s * {"bf16": 1.0, "fp8": FP8_SPEEDUP, "fp32": 0.5}[precision]
    filled = width / (width + parameters.fill)
    matmul = 3 * (work.matmul_flops + work.head_flops) / (matmul_rate * filled)
    executed = work.attention_flops * work.mask_share * (1 + ATTENTION_BACKWARD)
    attention = executed / (flops_per_s * parameters.attention_share)
    traffic = traffic_bytes(work, width, vocab, parameters) / (gpu.memory_gb_s * 1e9)
    ideal = matmul + attention + traffic
    reached = parameters.share(gpu.sku) if share is None else share
    return TokenTime(matmul, attention, traffic, ideal / reached - ideal)


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
    gathers of bfloat16 weights and one scatter of bfloat16 gradients per micro-batch.

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
    per_parameter = 2 * 4 if settings.sharding == "ddp" else 3 * 2
    return ring * work.parameters * per_parameter / bytes_per_s


def work_of_gpt(
    *, params: float, lookup_params: float, layers: int, width: int, vocab: int, sequence: int
) -> Work:
    """The Work of a published GPT, where only its totals are known."""
    in_matmuls = params - lookup_params
    head = float(vocab * width)
    blocks = max(0.0, in_matmuls - head)
    return Work(
        layers=layers,
        matrices=(Matrix(width, width, round(blocks / layers / width**2)),),
        table_parameters=int(head + lookup_params),
        block_applications=layers,
        positions=1,
        head_applications=1,
        matmul_flops=2 * blocks,
        attention_flops=4.0 * layers * width * sequence,
        head_flops=2 * head,
        mask_share=CAUSAL_SHARE,
        mlp_values=8.0,
    )


def _recompute_share(settings: PhaseRecipe, work: Work) -> float:
    """Extra forward passes, in units of forward and backward: blocks under checkpointing, and a
    head that runs in pieces."""
    blocks = work.matmul_flops + work.attention_flops * work.mask_share
    again = blocks if settings.activation_checkpointing else 0.0
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
