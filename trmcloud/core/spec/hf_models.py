"""The sizes of Hugging Face models, as a ``config.json`` or a table of its keys has them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from trmcloud.core.errors import UsageError
from trmcloud.core.spec.work import Work, block_matrices, work_of_blocks

ANY_CONTEXT = 1_000_000
"""Where the file does not say."""
LEAST_SIZE, MOST_SIZE = 1, 1_000_000_000

_NAMES: Mapping[str, tuple[str, ...]] = {
    "width": ("hidden_size", "n_embd", "d_model", "dim"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "n_kv_heads", "multi_query_group_num"),
    "hidden": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "hidden_dim"),
    "vocab": ("vocab_size", "padded_vocab_size", "num_labels"),
    "head_dim": ("head_dim",),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "active_experts": ("num_experts_per_tok",),
    "expert_hidden": ("moe_intermediate_size",),
    "image": ("image_size",),
    "patch": ("patch_size",),
    "other": ("other_parameters",),
    "context": ("max_position_embeddings", "n_positions", "n_ctx"),
}
_ENCODERS = ("bert", "roberta", "xlm-roberta", "distilbert", "electra", "mpnet", "vit", "deit",
             "dinov2")  # fmt: skip
_PLAIN = ("gpt2", "gpt_neox", "gptj", "opt", "bloom", "falcon", "phi", "gpt_bigcode", "starcoder2",
          *_ENCODERS)  # fmt: skip
"""Model types whose MLP has two matrices; the others' has three."""
_TIED = ("gpt2", "opt", "gemma", "gemma2", "gemma3", "gemma3_text", *_ENCODERS)
"""Model types whose head is the embedding, where their ``config.json`` does not say."""
TWO_PARTS = ("t5", "mt5", "umt5", "bart", "mbart", "marian", "pegasus", "m2m_100", "whisper",
              "clip", "siglip", "blip")  # fmt: skip
"""Model types of two stacks of blocks, each with a length of its own."""
_CLASSES = 1000
"""Of images, where the file does not say (ImageNet-1k)."""


class HfModel(NamedTuple):
    """The sizes of equal blocks, as a ``config.json`` has them."""

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
    image: int = 0
    """Pixels of a side of an image; 0: it reads text."""
    patch: int = 1
    context: int = ANY_CONTEXT
    """The longest sequence that it was made for."""
    other: int = 0
    """Parameters beside the blocks and the embedding, such as those of a vision tower."""

    @property
    def is_encoder(self) -> bool:
        """Whether it reads a text or an image as a whole, and writes none."""
        return self.kind in _ENCODERS

    @property
    def image_tokens(self) -> int:
        """Of one image: its patches and the token that is classified."""
        return (self.image // self.patch) ** 2 + 1

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
        return self.block_parameters + self.vocab * self.width * (2 - self.tied) + self.other

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
    kind = str(data.get("model_type", "decoder"))[:40]
    if kind in TWO_PARTS:
        raise UsageError(
            f"{kind} has two stacks of blocks, each with a length of its own: not planned by --hf",
            where=where,
            next_step="trmcloud plan 1xA100 --budget 20 -- python train.py",
        )
    inner = data.get("text_config")
    if isinstance(inner, Mapping):
        data = {**data, **inner}
    image = _size(data, "image", where, 0)
    width, layers = _size(data, "width", where), _size(data, "layers", where)
    heads, vocab = (
        _size(data, "heads", where),
        _size(data, "vocab", where, _CLASSES if image else None),
    )
    kv_heads = _size(data, "kv_heads", where, heads)
    head_dim = _size(data, "head_dim", where, max(1, width // heads))
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
        tied=data.get("tie_word_embeddings", kind in _TIED) is True,
        experts=experts,
        active_experts=active,
        image=image,
        patch=_size(data, "patch", where, 1),
        context=_size(data, "context", where, ANY_CONTEXT),
        other=_size(data, "other", where, 0),
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
