"""A Hugging Face model that is trained further: size, memory and time from its ``config.json``.

Pure. The trainer is not ours: it is planned as the eager PyTorch of Transformers, PEFT and TRL,
with FlashAttention 2 and activation checkpointing. How far off that is on published fine-tunings is
printed by ``python -m bench finetune``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from trmcloud.core.catalog.hardware import GPUS, Gpu, hardware_name
from trmcloud.core.catalog.offers import Offer
from trmcloud.core.catalog.providers import is_brokered
from trmcloud.core.errors import UsageError
from trmcloud.core.money import Usd, cost
from trmcloud.core.planner.candidates import can_be_rented
from trmcloud.core.planner.memory import USABLE_SHARE
from trmcloud.core.planner.roofline import FITTED, P90_SIGMAS, POD_KERNEL, Step, time_step
from trmcloud.core.planner.speed import rented_machine, startup_s
from trmcloud.core.spec.plan import Interval
from trmcloud.core.spec.work import Work, block_matrices, work_of_blocks

METHODS = ("full", "lora", "grpo")
SOFTWARE: Mapping[bool, str] = {False: "torch-eager", True: "torch-compile"}
"""By whether it is compiled."""
FACTORS: Mapping[str, float] = {
    "full": 1.045, "transformers": 1.112, "lora": 0.774, "qlora": 0.880, "grpo": 2.616,
}  # fmt: skip
"""Observed ÷ modelled time of published fine-tunings, by method (``bench/finetune.py``)."""
SIGMAS: Mapping[str, float] = {
    "full": 0.4, "transformers": 0.58, "lora": 0.2, "qlora": 0.16, "grpo": 0.7,
}  # fmt: skip
"""Of the logarithm of time, as those rows scatter, each predicted without its source: four of five
are within. A prior for full, of one row; GRPO's one source trains on images beside text."""

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
LEAST_SIZE, MOST_SIZE = 1, 10_000_000

_NAMES: Mapping[str, tuple[str, ...]] = {
    "width": ("hidden_size", "n_embd", "d_model", "dim"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "n_kv_heads", "multi_query_group_num"),
    "hidden": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "head_dim": ("head_dim",),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "active_experts": ("num_experts_per_tok",),
    "expert_hidden": ("moe_intermediate_size",),
}
_PLAIN = ("gpt2", "gpt_neox", "gptj", "opt", "bloom", "falcon", "phi", "gpt_bigcode", "starcoder2")
"""Model types whose MLP has two matrices; the others' has three."""


class HfModel(NamedTuple):
    """A decoder's sizes, as its ``config.json`` has them."""

    kind: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    """Of one expert, where there are several."""
    mlp_matrices: int
    vocab: int
    tied: bool
    experts: int
    active_experts: int

    @property
    def block_parameters(self) -> float:
        """Of all blocks, every expert counted."""
        return self.layers * (self._attention() + self.experts * self._mlp())

    @property
    def active_parameters(self) -> float:
        """Of all blocks, what one token passes through."""
        return self.layers * (self._attention() + self.active_experts * self._mlp())

    @property
    def parameters(self) -> float:
        return self.block_parameters + self.vocab * self.width * (1 if self.tied else 2)

    def adapter_parameters(self, rank: int) -> float:
        """LoRA's, on every matrix of the blocks."""
        out = (self.heads + 2 * self.kv_heads) * self.head_dim
        attention = 4 * self.width + out + self.heads * self.head_dim
        mlp = self.mlp_matrices * (self.width + self.hidden) * self.experts
        return float(self.layers * rank * (attention + mlp))

    def work(self, sequence: int) -> Work:
        kv_width = self.kv_heads * self.head_dim
        return work_of_blocks(
            depth=self.layers,
            width=self.width,
            vocab_size=self.vocab,
            sequence=sequence,
            matrices=block_matrices(
                self.width,
                self.hidden * self.active_experts,
                self.mlp_matrices,
                kv_width if kv_width < self.width else 0,
            ),
            mlp_values=self.mlp_matrices * self.hidden * self.active_experts / self.width,
            tied=self.tied,
            kv_share=self.kv_heads / self.heads,
        )

    def _attention(self) -> float:
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return float(self.width * (2 * queries + 2 * keys))

    def _mlp(self) -> float:
        return float(self.mlp_matrices * self.width * self.hidden)


def read_config(data: object, where: str) -> HfModel:
    """The model that a ``config.json`` describes.

    Raises:
        UsageError: it is no such file, lacks a size, or has one that cannot be.
    """
    if not isinstance(data, Mapping):
        raise UsageError("the config.json of a model must be an object", where=where)
    inner = data.get("text_config")
    if isinstance(inner, Mapping):
        data = {**data, **inner}
    width, layers = _size(data, "width", where), _size(data, "layers", where)
    heads, vocab = _size(data, "heads", where), _size(data, "vocab", where)
    kv_heads = _size(data, "kv_heads", where, heads)
    head_dim = _size(data, "head_dim", where, max(1, width // heads))
    kind = str(data.get("model_type", "decoder"))[:40]
    hidden = _size(data, "hidden", where, 4 * width)
    experts = _size(data, "experts", where, 1)
    active = min(experts, _size(data, "active_experts", where, 1))
    if experts > 1:
        hidden = _size(data, "expert_hidden", where, hidden)
    if kv_heads > heads:
        raise UsageError(f"{kv_heads} heads of keys for {heads} of queries", where=where)
    return HfModel(
        kind=kind,
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        hidden=hidden,
        mlp_matrices=2 if kind in _PLAIN else 3,
        vocab=vocab,
        tied=data.get("tie_word_embeddings", kind == "gpt2") is True,
        experts=experts,
        active_experts=active,
    )


def _size(data: Mapping[Any, Any], name: str, where: str, default: int | None = None) -> int:
    key = next((each for each in _NAMES[name] if data.get(each) is not None), None)
    if key is None:
        if default is not None:
            return default
        raise UsageError(
            f"it has no {_NAMES[name][0]}, which is needed for the size of the model",
            where=where,
            next_step="--hf takes the config.json of a causal language model",
        )
    value = data[key]
    if type(value) is not int or not LEAST_SIZE <= value <= MOST_SIZE:
        raise UsageError(f"{key} is {value!r:.40}: not a valid size", where=where)
    return value


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
        return "qlora" if self.method == "lora" and self.bits == 4 else self.method


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
    found = []
    for states, share, drawing in zip(STATE_BYTES, ACTIVATIONS, DRAWING_GB, strict=True):
        if how.method == "lora":
            held = _frozen_bytes(model, how)
            if held > 0.8 * memory_gb * GB and gpus > 1:
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


def _frozen_bytes(model: HfModel, how: Finetuning) -> float:
    if how.bits == 4:
        tables = model.parameters - model.block_parameters
        return model.block_parameters * QUANTIZED_BYTES + tables * 2
    return model.parameters * 2


def seconds_per_token(model: HfModel, how: Finetuning, sku: str, gpus: int) -> float:
    """Seconds of one GPU for each token that is trained on, before the method's factor."""
    gpu, tokens = GPUS[sku], how.batch * how.sequence
    work = model.work(how.sequence)
    is_frozen = how.method == "lora"
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
        is_frozen=is_frozen,
        is_sharded=gpus > 1 and not is_frozen,
    )
    time = time_step(step, gpu, gpus, FITTED)
    busy = time.total / how.passes
    if is_frozen:  # adapters alone have an optimizer, and are exchanged
        busy -= (time.optimizer + time.links) / how.passes
    if how.bits == 4:
        busy += model.block_parameters * DEQUANTIZED_BYTES / (gpu.memory_gb_s * GB)
    host = 0.0 if how.is_compiled else HOST_S_PER_LAYER * model.layers
    seconds = busy + host
    if how.method == "grpo":
        forward = time.matmul / 3 + time.attention / 3.5 + time.traffic / 3
        forward *= FITTED.software[step.software]
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
    wide = math.exp(P90_SIGMAS * SIGMAS[how.kind])
    return seconds / wide, seconds, seconds * wide


# Which machines hold it, for how long and for how much.

TOKENS = 10_000_000
"""Trained on where nothing says how many."""
BATCHES = (8, 4, 2, 1)
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
        if not can_be_rented(offer):
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
    chosen = batch or next(
        (
            each
            for each in BATCHES
            if need_of(model, how._replace(batch=each), gpus, gpu.memory_gb).most
            <= gpu.memory_gb * USABLE_SHARE
        ),
        1,
    )
    how = how._replace(batch=chosen)
    steps = Interval(*predicted(model, how, offer.sku, gpus)).scaled(tokens / gpus)
    machine = rented_machine(offer.sku, gpus, is_cluster=is_brokered(offer.provider))
    fetched_s = model.parameters * 2 / DOWNLOAD_BYTES_PER_S
    start = startup_s(machine) + LOAD_S + Interval(0.3, 1.0, 3.0).scaled(fetched_s)
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
    )
