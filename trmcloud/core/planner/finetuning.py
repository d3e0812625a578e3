"""A Hugging Face model that is trained further: size, memory and time from its ``config.json``.

Pure. The trainer is not ours: it is planned as the eager PyTorch of Transformers, PEFT and TRL,
with FlashAttention 2 and activation checkpointing. How far off that is on published fine-tunings is
printed by ``python -m bench finetune``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from trmcloud.core.catalog.hardware import GPUS, Gpu, hardware_name
from trmcloud.core.catalog.offers import Offer
from trmcloud.core.catalog.providers import has_spot, is_brokered
from trmcloud.core.money import Usd, cost
from trmcloud.core.planner.candidates import can_be_rented, interruptions_of
from trmcloud.core.planner.interruptions import expected_segment_s
from trmcloud.core.planner.memory import USABLE_SHARE
from trmcloud.core.planner.roofline import FITTED, P90_SIGMAS, POD_KERNEL, Step, time_step
from trmcloud.core.planner.speed import rented_machine, startup_s
from trmcloud.core.spec.hf_models import HfModel
from trmcloud.core.spec.plan import Interval

METHODS = ("full", "lora", "qlora", "dpo", "grpo")
SOFTWARE: Mapping[bool, str] = {False: "torch-eager", True: "torch-compile"}
"""By whether it is compiled."""
FACTORS: Mapping[str, float] = {
    "full": 1.045, "transformers": 1.112, "lora": 0.774, "qlora": 0.880, "grpo": 2.616,
    "vision": 0.852,
}  # fmt: skip
"""Observed ÷ modelled time of published fine-tunings, by method (``bench/finetune.py``)."""
SIGMAS: Mapping[str, float] = {
    "full": 0.4, "transformers": 0.58, "lora": 0.2, "qlora": 0.16, "grpo": 0.7, "dpo": 0.4,
    "vision": 0.2,
}  # fmt: skip
"""Of the logarithm of time, as those rows scatter, each predicted without its source: four of five
are within. A prior for full, of one row, and for DPO, of none, which is timed as LoRA with another
forward pass; GRPO's one source trains on images beside text."""

HOST_S_PER_LAYER = 0.004
"""Of the host, to start one layer's kernels, forward, again and backward, for which the GPU waits:
its kernels are short, and adapters add to them."""
DEQUANTIZED_BYTES = 36.0
"""Moved per 4-bit parameter and pass, which turns it into bfloat16 three times."""
MEMORY_SHARE = 0.6
"""Of the bandwidth that reading weights reaches while tokens are drawn."""
DRAWN_TOGETHER = 64
"""Completions that a GPU draws at a time."""
STATE_BYTES = (8.0, 18.0, 24.0)
"""Per trained parameter: bfloat16 throughout; float32 weights and states with a bfloat16 copy and
its gradient; that with float32 gradients in buckets."""
LOGIT_BYTES = 12.0
BLOCK_VALUES = 31.0
"""Values of D that one block keeps while it is computed backward."""
CONTEXT_GB = 1.5
QUANTIZED_BYTES = 0.56
"""Per parameter of 4 bits, with its scales."""
ACTIVATIONS = (0.7, 1.0, 1.5)
"""The least, the expected and the most of activations and logits."""
DRAWING_GB = (0.0, 0.1, 0.3)
"""Share of a GPU's memory that keys and values take while completions are drawn."""
GB = 1e9


class Finetuning(NamedTuple):
    """How a model is trained further."""

    method: str
    sequence: int = 2048
    """Tokens of one row, or of a prompt and its completion."""
    batch: int = 1
    """Rows of one GPU in a pass."""
    rank: int = 16
    bits: int = 16
    """4: the frozen weights are quantized (QLoRA)."""
    completion: int = 512
    """Tokens that are drawn for each row, of GRPO."""
    passes: int = 1
    """Between two steps of the optimizer."""
    is_checkpointed: bool = True
    is_compiled: bool = False
    """By torch.compile, its loss in pieces: torchtune's, for one."""

    @property
    def kind(self) -> str:
        """The method as it was fitted; all weights by Transformers are a kind of their own."""
        if self.method == "full" and not self.is_compiled:
            return "transformers"
        if self.is_frozen:
            return "qlora" if self.bits == 4 else "lora"
        return self.method

    @property
    def title(self) -> str:
        """What a person calls it."""
        bits = " on 4 bits" if self.bits == 4 else ""
        adapters = f"LoRA of rank {self.rank}{bits}"
        names = {"lora": adapters, "dpo": f"DPO with {adapters}", "grpo": "GRPO"}
        return names.get(self.method, "all weights")

    @property
    def is_frozen(self) -> bool:
        """Whether adapters alone are trained."""
        return self.method in ("lora", "dpo")

    @property
    def sigma(self) -> float:
        return SIGMAS["dpo" if self.method == "dpo" else self.kind]


class Need(NamedTuple):
    """GB of one GPU."""

    least: float
    expected: float
    most: float


def need_of(model: HfModel, how: Finetuning, gpus: int, memory_gb: float) -> Need:
    """The memory of one of ``gpus`` GPUs of ``memory_gb``: what is trained is shared out over them
    (FSDP, ZeRO-3); frozen weights are on each of them whole where one can hold them."""
    tokens = how.batch * how.sequence
    one = tokens * model.width * 2.0
    hidden = model.hidden * model.active_experts / model.width
    block = one * (BLOCK_VALUES + max(0.0, 3.0 * hidden - 12.0))
    logits = tokens * model.vocab * (LOGIT_BYTES if not how.is_compiled else 2.0)
    activations = one * model.layers + block + logits
    if how.method == "vision":  # without checkpointing; one head for all tokens of an image
        activations = (one + block) * model.layers
    found = []
    for states, share, drawing in zip(STATE_BYTES, ACTIVATIONS, DRAWING_GB, strict=True):
        if how.is_frozen:
            held = _frozen_bytes(model, how)
            if is_sharded(model, how, gpus, memory_gb):
                held /= gpus
            held += model.adapter_parameters(how.rank) * min(states, 18.0)
        else:
            held = model.parameters * states / gpus
        if how.method == "grpo":
            # The reference's weights, and those of the engine that draws.
            held += model.parameters * 2 / gpus + (model.parameters * 2 if drawing else 0.0)
            held += drawing * memory_gb * GB
        found.append((held + share * activations) / GB + CONTEXT_GB)
    return Need(*found)


def is_sharded(model: HfModel, how: Finetuning, gpus: int, memory_gb: float) -> bool:
    """Whether the weights are shared out over several GPUs: all that are trained, and frozen ones
    that one of them cannot hold."""
    is_large = not how.is_frozen or _frozen_bytes(model, how) > 0.8 * memory_gb * GB
    return gpus > 1 and is_large


def _frozen_bytes(model: HfModel, how: Finetuning) -> float:
    if how.bits == 4:
        tables = model.parameters - model.block_parameters
        return model.block_parameters * QUANTIZED_BYTES + tables * 2
    return model.parameters * 2


def seconds_per_token(model: HfModel, how: Finetuning, sku: str, gpus: int) -> float:
    """Seconds of one GPU for each token that is trained on, before the method's factor."""
    gpu, tokens = GPUS[sku], how.batch * how.sequence
    work = model.work(how.sequence)
    step = Step(
        work=work,
        width=model.width,
        vocab=model.vocab,
        sequence=how.sequence,
        software=SOFTWARE[how.is_compiled],
        pass_tokens=tokens,
        passes=how.passes,
        kernel=POD_KERNEL,
        checkpointing="full" if how.is_checkpointed else "none",
        is_frozen=how.is_frozen,
        is_sharded=gpus > 1 and not how.is_frozen,
    )
    time = time_step(step, gpu, gpus, FITTED)
    busy = time.total / how.passes
    if how.is_frozen:  # adapters alone have an optimizer, and are exchanged
        busy -= (time.optimizer + time.links) / how.passes
    if how.bits == 4:
        busy += model.block_parameters * DEQUANTIZED_BYTES / (gpu.memory_gb_s * GB)
    host = 0.0 if how.is_compiled else HOST_S_PER_LAYER * model.layers
    seconds = busy + host
    forward = time.matmul / 3 + time.attention / 3.5 + time.traffic / 3
    forward *= FITTED.software[step.software]
    if how.method == "dpo":
        seconds += forward + host / 3  # the reference: the weights without their adapters
    elif how.method == "grpo":
        seconds += 2 * forward + _drawing_s(model, how, gpu)
    return seconds / tokens


def _drawing_s(model: HfModel, how: Finetuning, gpu: Gpu) -> float:
    """Seconds to draw the completions of a pass: a step of the drawing reads all weights once for
    the completions that are drawn together, and their keys and values."""
    weights = (model.active_parameters + model.vocab * model.width) * 2
    cache = 4.0 * model.layers * model.kv_heads * model.head_dim * how.sequence
    per_step = (weights + DRAWN_TOGETHER * cache) / (gpu.memory_gb_s * GB * MEMORY_SHARE)
    return how.completion * per_step * how.batch / DRAWN_TOGETHER


def predicted(model: HfModel, how: Finetuning, sku: str, gpus: int) -> tuple[float, float, float]:
    """(P10, P50, P90) seconds of one GPU per token."""
    seconds = seconds_per_token(model, how, sku, gpus) * FACTORS[how.kind]
    wide = math.exp(P90_SIGMAS * how.sigma)
    return seconds / wide, seconds, seconds * wide


# Which machines hold it, for how long and for how much.

TOKENS = 10_000_000
"""Trained on where nothing says how many."""
BATCHES = {"vision": (256, 128, 64, 32, 16, 8), "dpo": (8, 4, 2)}
"""Of a method, rows or images of one GPU in a pass; DPO's are pairs."""
USUAL_BATCHES = (8, 4, 2, 1)
SAVES = 20
"""Of one training: what is lost when a spot machine is taken back came after the last of them."""
DOWNLOAD_BYTES_PER_S = 300e6
"""Of a model's weights, to a rented machine."""
LOAD_S = Interval(30.0, 60.0, 180.0)
"""The trainer's start, and its weights on the GPU."""


class FinetuneRow(NamedTuple):
    """A fine-tuning on one offer."""

    offer: Offer
    hardware: str
    rate: Usd
    """USD/h to plan with."""
    hours: Interval
    cost_p50: Usd
    cost_p90: Usd
    need: Need
    memory_gb: float
    batch: int
    preemptions: float = 0.0
    """That are expected of a spot machine; its hours hold the restarts and the work lost."""

    @property
    def fits(self) -> bool:
        return self.need.least <= self.memory_gb * USABLE_SHARE

    @property
    def is_sure(self) -> bool:
        """Whether the most that it may need is there."""
        return self.need.most <= self.memory_gb * USABLE_SHARE


def rows_on(
    model: HfModel,
    how: Finetuning,
    tokens: int,
    offers: Sequence[Offer],
    now: float,
    batch: int = 0,
) -> list[FinetuneRow]:
    """A row for the cheapest offer of every hardware. ``batch``: of one GPU; 0: the largest of
    ``BATCHES`` that fits at its most."""
    best: dict[tuple[str, int], tuple[int, Offer]] = {}
    for offer in offers:
        if not can_be_rented(offer) or (offer.spot and not has_spot(offer.provider)):
            continue
        micros = offer.planned_micros(now)
        kept = best.get((offer.sku, offer.gpus))
        if kept is None or micros < kept[0]:
            best[offer.sku, offer.gpus] = micros, offer
    return [_row(model, how, tokens, offer, now, batch) for _, offer in best.values()]


def _row(
    model: HfModel, how: Finetuning, tokens: int, offer: Offer, now: float, batch: int
) -> FinetuneRow:
    gpu, gpus = GPUS[offer.sku], offer.gpus
    batches = BATCHES.get(how.method, USUAL_BATCHES)
    chosen = batch or next(
        (
            each
            for each in batches
            if need_of(model, how._replace(batch=each), gpus, gpu.memory_gb).most
            <= gpu.memory_gb * USABLE_SHARE
        ),
        batches[-1],
    )
    how = how._replace(batch=chosen)
    steps = Interval(*predicted(model, how, offer.sku, gpus)).scaled(tokens / gpus)
    machine = rented_machine(offer.sku, gpus, is_cluster=is_brokered(offer.provider))
    fetched_s = model.parameters * 2 / DOWNLOAD_BYTES_PER_S
    start = startup_s(machine) + LOAD_S + Interval(0.3, 1.0, 3.0).scaled(fetched_s)
    preemptions = 0.0
    if offer.spot:
        per_s = interruptions_of(offer.provider).planned_per_hour / 3600
        expected_s = SAVES * expected_segment_s(steps.p50 / SAVES, start.p50, per_s)
        steps = steps.scaled(expected_s / steps.p50)
        preemptions = per_s * (start.p50 + steps.p50)
    seconds = start + steps
    rate = offer.planned_rate(now)
    return FinetuneRow(
        offer=offer,
        hardware=hardware_name(offer.sku, gpus),
        rate=rate,
        hours=seconds.scaled(1 / 3600),
        cost_p50=cost(rate, seconds.p50),
        cost_p90=cost(rate, seconds.p90),
        need=need_of(model, how, gpus, gpu.memory_gb),
        memory_gb=gpu.memory_gb,
        batch=chosen,
        preemptions=preemptions,
    )
