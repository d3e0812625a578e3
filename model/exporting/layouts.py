"""Architectures of transformers that compute what a checkpoint computes, and their tensors.

A dense transformer here normalises the embedding before its first block, has norms without
parameters and a rotation of the other direction. All three are rewritten without loss:

- Norms get weights of one and the same epsilon.
- The norm of the embedding is applied to its table once. A tied head keeps the table as it was, so
  that it is tied no more.
- Here a pair (a, b) turns to (a·cos + b·sin, b·cos − a·sin); in Llama it is (b, a) that does. The
  two halves of every query's and key's head are swapped, which no product of the two notices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from model.families import layers
from model.families.dense import Shape
from model.families.layers import BASE, NORM_EPS
from trmcloud.core.errors import NotSupported
from trmcloud.core.spec.settings import PLAIN, PhaseRecipe

Tensors = Mapping[str, Tensor]
_DENSE = ("gpt", "nanochat")
_ACTIVATIONS = {"relu2": "relu2", "gelu": "gelu", "gelu-tanh": "gelu_new"}


@dataclass(frozen=True)
class Layout:
    """An architecture of transformers: its configuration, and its tensors from a checkpoint's."""

    architecture: str
    config: Mapping[str, Any]
    convert: Callable[[Tensors], dict[str, Tensor]]
    since: str
    """The first release of transformers that has it."""

    @property
    def model_type(self) -> str:
        return str(self.config["model_type"])


def layout_of(settings: PhaseRecipe) -> Layout:
    """Return the architecture that computes what a model of ``settings`` computes.

    Raises:
        NotSupported: transformers has none.
    """
    if settings.family not in _DENSE:
        raise _refused(f"no architecture of transformers computes what {settings.family} does")
    architecture = getattr(settings, "architecture", PLAIN)
    if architecture != PLAIN:
        raise _refused(f"no architecture of transformers computes what {architecture} does")
    shape = Shape.of(settings)
    if shape.value_embeddings:
        raise _refused("no architecture of transformers has these value embeddings")
    if any(0 < shape.window(layer) < shape.sequence for layer in range(shape.depth)):
        raise _refused("windows of attention are not exported")
    if shape.norm == "rms" and shape.positions == "rope":
        return _with_rotary_positions(shape)
    if shape.norm == "layer" and shape.positions == "learned":
        return _gpt2(shape)
    raise _refused(
        f"no exported architecture has norm={shape.norm} and positions={shape.positions}"
    )


def _refused(why: str) -> NotSupported:
    return NotSupported(
        f"it needs code of its own: {why}",
        next_step="--custom-code writes that code beside the weights",
    )


def _with_rotary_positions(shape: Shape) -> Layout:
    if shape.mlp != "swiglu" and shape.qk_norm and shape.norm_embedding:
        return _nanochat(shape)
    if shape.logit_cap:
        raise _refused(f"no exported architecture has logit_cap={shape.logit_cap:g} beside these")
    if shape.mlp == "swiglu":
        return _qwen3(shape) if shape.qk_norm else _llama(shape)
    if shape.qk_norm:
        raise _refused(f"no exported architecture has qk_norm and {shape.mlp} beside these")
    return _arcee(shape)


def _sizes(shape: Shape) -> dict[str, Any]:
    return {
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.width,
        "intermediate_size": shape.hidden,
        "num_hidden_layers": shape.depth,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.sequence,
        "rms_norm_eps": NORM_EPS,
        "rope_theta": BASE,
        "rope_parameters": {"rope_type": "default", "rope_theta": BASE},
        "attention_bias": False,
        "attention_dropout": shape.dropout,
        "tie_word_embeddings": shape.tied and not shape.norm_embedding,
    }


def _llama(shape: Shape) -> Layout:
    config = {"model_type": "llama", **_sizes(shape), "hidden_act": "silu", "mlp_bias": False}
    return Layout("LlamaForCausalLM", config, _Rotary(shape), "4.46")


def _qwen3(shape: Shape) -> Layout:
    config = {"model_type": "qwen3", **_sizes(shape), "hidden_act": "silu"}
    return Layout("Qwen3ForCausalLM", config, _Rotary(shape), "4.51")


def _arcee(shape: Shape) -> Layout:
    activation = {"hidden_act": _ACTIVATIONS[shape.mlp], "mlp_bias": False}
    return Layout(
        "ArceeForCausalLM", {"model_type": "arcee", **_sizes(shape), **activation},
        _Rotary(shape), "4.54",
    )  # fmt: skip


def _nanochat(shape: Shape) -> Layout:
    config = {
        "model_type": "nanochat",
        **_sizes(shape),
        "hidden_act": _ACTIVATIONS[shape.mlp],
        "final_logit_softcapping": shape.logit_cap or None,
        "tie_word_embeddings": shape.tied,
    }
    return Layout("NanoChatForCausalLM", config, _Nanochat(shape), "4.58")


def _gpt2(shape: Shape) -> Layout:
    if shape.norm_embedding:
        raise _refused(
            "GPT-2 does not normalise the sum of embedding and position, and this was trained with "
            "it (norm_embedding=false trains without)"
        )
    if shape.mlp == "swiglu" or shape.qk_norm or shape.logit_cap or shape.kv_heads < shape.heads:
        raise _refused(
            "GPT-2 has neither SwiGLU nor qk_norm, kv_heads or logit_cap beside learned positions"
        )
    config = {
        "model_type": "gpt2",
        "vocab_size": shape.vocab_size,
        "n_positions": shape.sequence,
        "n_embd": shape.width,
        "n_layer": shape.depth,
        "n_head": shape.heads,
        "n_inner": shape.hidden,
        "activation_function": _ACTIVATIONS[shape.mlp],
        "layer_norm_epsilon": NORM_EPS,
        "resid_pdrop": shape.dropout,
        "attn_pdrop": shape.dropout,
        "embd_pdrop": 0.0,
        "tie_word_embeddings": shape.tied,
    }
    return Layout("GPT2LMHeadModel", config, _Gpt2(shape), "4.46")


# -- tensors --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rotary:
    """Llama, and what differs from it in a block's norms or MLP alone."""

    shape: Shape

    def __call__(self, held: Tensors) -> dict[str, Tensor]:
        shape, table = self.shape, held["embedding.weight"]
        ones = torch.ones(shape.width)
        made = {
            "model.embed_tokens.weight": layers.rms(table) if shape.norm_embedding else table,
            "model.norm.weight": ones.clone(),
        }
        if not shape.tied:
            made["lm_head.weight"] = held["head.weight"]
        elif shape.norm_embedding:
            made["lm_head.weight"] = table
        for layer in range(shape.depth):
            here, there = f"blocks.{layer}.", f"model.layers.{layer}."
            for name in ("input_layernorm", "post_attention_layernorm"):
                made[f"{there}{name}.weight"] = ones.clone()
            if shape.qk_norm:
                for name in ("q_norm", "k_norm"):
                    made[f"{there}self_attn.{name}.weight"] = torch.ones(shape.head_dim)
            q, k, v = _parts(shape, held[f"{here}qkv.weight"])
            made[f"{there}self_attn.q_proj.weight"] = _swapped(q, shape.head_dim)
            made[f"{there}self_attn.k_proj.weight"] = _swapped(k, shape.head_dim)
            made[f"{there}self_attn.v_proj.weight"] = v
            made[f"{there}self_attn.o_proj.weight"] = held[f"{here}mix.weight"]
            up = held[f"{here}up.weight"]
            if shape.mlp == "swiglu":
                made[f"{there}mlp.gate_proj.weight"], up = up.chunk(2)
            made[f"{there}mlp.up_proj.weight"] = up
            made[f"{there}mlp.down_proj.weight"] = held[f"{here}down.weight"]
        return made


@dataclass(frozen=True)
class _Nanochat:
    """Norms without parameters, the embedding's among them, and the same rotation as here."""

    shape: Shape

    def __call__(self, held: Tensors) -> dict[str, Tensor]:
        shape = self.shape
        made = {"model.embed_tokens.weight": held["embedding.weight"]}
        if not shape.tied:
            made["lm_head.weight"] = held["head.weight"]
        for layer in range(shape.depth):
            here, there = f"blocks.{layer}.", f"model.layers.{layer}."
            parts = _parts(shape, held[f"{here}qkv.weight"])
            for name, part in zip("qkv", parts, strict=True):
                made[f"{there}self_attn.{name}_proj.weight"] = part
            made[f"{there}self_attn.o_proj.weight"] = held[f"{here}mix.weight"]
            made[f"{there}mlp.fc1.weight"] = held[f"{here}up.weight"]
            made[f"{there}mlp.fc2.weight"] = held[f"{here}down.weight"]
        return made


@dataclass(frozen=True)
class _Gpt2:
    """Matrices lie the other way round, and everything has a bias, which is zero."""

    shape: Shape

    def __call__(self, held: Tensors) -> dict[str, Tensor]:
        shape = self.shape
        made = {
            "transformer.wte.weight": held["embedding.weight"],
            "transformer.wpe.weight": held["positions.weight"],
            **self._norm("transformer.ln_f"),
        }
        if not shape.tied:
            made["lm_head.weight"] = held["head.weight"]
        for layer in range(shape.depth):
            there = f"transformer.h.{layer}."
            names = {
                "qkv": "attn.c_attn", "mix": "attn.c_proj", "up": "mlp.c_fc", "down": "mlp.c_proj",
            }  # fmt: skip
            for ours, theirs in names.items():
                weight = held[f"blocks.{layer}.{ours}.weight"]
                made[f"{there}{theirs}.weight"] = weight.T
                made[f"{there}{theirs}.bias"] = torch.zeros(len(weight))
            made |= self._norm(f"{there}ln_1") | self._norm(f"{there}ln_2")
        return made

    def _norm(self, name: str) -> dict[str, Tensor]:
        width = self.shape.width
        return {f"{name}.weight": torch.ones(width), f"{name}.bias": torch.zeros(width)}


def _parts(shape: Shape, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    served = shape.kv_heads * shape.head_dim
    q, k, v = qkv.split((shape.width, served, served))
    return q, k, v


def _swapped(rows: Tensor, head_dim: int) -> Tensor:
    """The rows of a matrix of queries or keys with the halves of every head exchanged."""
    return rows.view(-1, 2, head_dim // 2, rows.shape[1]).flip(1).reshape(rows.shape)
