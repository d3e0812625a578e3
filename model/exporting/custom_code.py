"""The configuration of a model whose code, ``custom/modeling_trmcloud.py``, goes beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model.exporting.layouts import Layout
from model.families.dense import Dense
from model.families.nanochat.model import Nanochat
from model.families.protocol import LanguageModel
from model.families.trm.model import LOGIT_CAP, TRM
from trmcloud.core.errors import NotSupported
from trmcloud.core.spec.settings import PhaseRecipe

CODE = Path(__file__).with_name("custom") / "modeling_trmcloud.py"
_CLASSES = {"AutoConfig": "TrmcloudConfig", "AutoModelForCausalLM": "TrmcloudForCausalLM"}


def custom_layout(model: LanguageModel, settings: PhaseRecipe) -> Layout:
    """Return the layout of a model that transformers imports code for.

    Raises:
        NotSupported: it does not draw its text token by token.
    """
    if isinstance(model, TRM):
        config = _trm(model)
    elif isinstance(model, Dense):
        config = _dense(model)
    else:
        raise NotSupported(
            f"{settings.family} does not draw its text token by token, which is what transformers "
            "asks of a language model",
            next_step="leave out --to; this package draws from the checkpoint as it is",
        )
    auto = {name: f"{CODE.stem}.{each}" for name, each in _CLASSES.items()}
    whole = {"model_type": "trmcloud", "auto_map": auto, **config}
    return Layout(_CLASSES["AutoModelForCausalLM"], whole, dict, "4.46")


def _trm(model: TRM) -> dict[str, Any]:
    shape = model.shape
    return {
        "kind": "trm",
        "vocab_size": shape.vocab_size,
        "depth": shape.depth,
        "width": shape.width,
        "heads": shape.width // shape.head_dim,
        "head_dim": shape.head_dim,
        "sequence": shape.sequence,
        "supervision_steps": shape.supervision_steps,
        "loops": shape.loops,
        "control": shape.control,
        "blocks": shape.blocks,
        "norm": "rms",
        "positions": "rope",
        "logit_cap": LOGIT_CAP,
        "smear_inputs": 0,
        "tied": False,
    }


def _dense(model: Dense) -> dict[str, Any]:
    shape, block = model.shape, model.block_class
    return {
        "kind": "dense",
        "vocab_size": shape.vocab_size,
        "depth": shape.depth,
        "width": shape.width,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden": shape.hidden,
        "sequence": shape.sequence,
        "norm": shape.norm,
        "mlp": shape.mlp,
        "positions": shape.positions,
        "rope_base": model.rope_base,
        "qk_norm": shape.qk_norm,
        "qk_scale": block.qk_scale,
        "logit_cap": shape.logit_cap,
        "windows": [shape.window(layer) for layer in range(shape.depth)],
        "value_layers": [layer for layer in range(shape.depth) if shape.has_value_embedding(layer)],
        "gate_inputs": min(block.gate_inputs, shape.width),
        "gate_most": block.gate_most,
        "norm_embedding": shape.norm_embedding,
        "smear_inputs": model.smear_gate.in_features if isinstance(model, Nanochat) else 0,
        "tied": shape.tied,
    }
