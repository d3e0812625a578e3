"""Models of every shape with weights that say something everywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import torch

from model.families.dense import Dense, Shape
from model.families.nanochat.model import Nanochat
from model.families.trm.model import TRM
from model.families.trm.model import Shape as TrmShape

Model = TypeVar("Model", bound=Any)

SHAPE = Shape(
    vocab_size=61, depth=3, width=32, head_dim=8, sequence=16, hidden=48, kv_heads=4, norm="rms"
)
_NANOCHAT: dict[str, Any] = {"mlp": "relu2", "qk_norm": True, "logit_cap": 15.0}
_LEARNED: dict[str, Any] = {"norm": "layer", "positions": "learned"}
VARIANTS: dict[str, dict[str, Any]] = {
    "gpt": {},
    "gpt-tied": {"tied": True},
    "nanochat": _NANOCHAT,
    "speedrun": {**_NANOCHAT, "value_embeddings": True, "windows": "SSL"},
    "nanogpt": {"mlp": "gelu", **_LEARNED},
    "grouped": {"kv_heads": 2, "qk_norm": True, "norm": "layer"},
    "one-kv-head": {"kv_heads": 1, "value_embeddings": True},
    "gpt2": {"mlp": "gelu-tanh", "tied": True, "norm_embedding": False, **_LEARNED},
    "windows": {"windows": "SSL", "kv_heads": 1},
}
MODELS = (*VARIANTS, "trm", "trm-control", "nanochat-2026")
"""Those that predict the next token."""


def shaken(model: Model, std: float = 0.1, *, initial: int = 3, seed: int = 0) -> Model:
    """The model, initialised by one seed, with noise of ``std`` from another on each weight."""
    model.initialise(initial)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn(parameter.shape, generator=generator) * std)
    return model


def make_dense(dtype: torch.dtype = torch.float32, **changes: Any) -> Dense:
    return shaken(Dense(replace(SHAPE, **changes), dtype))


def make_model(name: str) -> Any:
    if name in VARIANTS:
        return make_dense(**VARIANTS[name])
    if name == "nanochat-2026":
        shape = replace(SHAPE, depth=4, value_embeddings=True, **_NANOCHAT)
        return shaken(Nanochat(shape), 0.05)
    control = name == "trm-control"
    return shaken(TRM(TrmShape(61, 2, 32, 8, 2, 2, sequence=16, control=control)))
