"""What is known of a family of models without its code: its keys, its own values, and what its
trainer can do.

A new family is a row here, one in ``planner/flops.py``, and a module of ``model/families`` that its
``registry`` names; keys of its own stand in ``settings``.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, Mapping

from trmcloud.core.contract.command import RECIPE
from trmcloud.core.spec.dense_keys import DENSE_KEYS
from trmcloud.core.values import dataclass

TRM_KEYS = (
    "supervision_steps", "loops", "control", "preset", "supervision_weight_base",
    "improvement_reward_scale",
)  # fmt: skip
DIFFUSION_KEYS = (
    "block", "hidden", "tied", "norm", "mlp", "qk_norm", "dropout", "activation_checkpointing",
)  # fmt: skip
SEGMENT_KEYS = ("question_tokens", "plan_tokens", "execution_tokens")


@dataclass(frozen=True)
class Family:
    """One row."""

    keys: tuple[str, ...]
    """Settings that it takes beside those that every family takes."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """What they are where a recipe does not say."""
    has_trainer: bool = True
    """Whether it can be trained, not only planned."""
    has_rope: bool = True
    """Whether its positions are always rotary, which turns pairs."""
    own_ids: int = 0
    """Ids at the vocabulary's end that it keeps for itself: no text has them."""
    pads: bool = False
    """Whether its loss leaves out what a row is filled up with."""
    shards: bool = False
    """Whether its weights may be shared out over GPUs: each block is applied once in a pass, and so
    gathered once."""
    in_segments: bool = False
    """Whether a row is a question, a plan and an execution, and nothing else is one."""


FAMILIES: Mapping[str, Family] = {
    "trm": Family(TRM_KEYS),
    "gpt": Family(DENSE_KEYS, {"mlp": "swiglu"}, has_rope=False, shards=True),
    "nanochat": Family(
        *(DENSE_KEYS, {"mlp": "relu2", "qk_norm": True, "logit_cap": 15.0}),
        has_rope=False,
        shards=True,
    ),
    "bd3lm": Family(DIFFUSION_KEYS, {"mlp": "gelu"}, own_ids=1, pads=True),
    "hdp": Family(
        (*(key for key in DIFFUSION_KEYS if key != "block"), *SEGMENT_KEYS),
        {"mlp": "gelu", "rows": "segments"},
        own_ids=1,
        pads=True,
        in_segments=True,
    ),
}

COMMAND = RECIPE
"""The family of a trainer of the user's own."""
COMMAND_KEYS = ("recipe", "family", "phase", "steps", "keep_best", "checkpoint_bytes")
"""All that is known of a command's settings: nothing is known of its model."""
SPECIAL_KEYS = frozenset(
    ("checkpoint_bytes", *(key for family in FAMILIES.values() for key in family.keys))
)
"""Settings that not every family takes."""


def why_not_sharded(family: str) -> str:
    """Why weights of ``family`` are on every GPU whole; empty where they may be shared out."""
    if FAMILIES[family].shards:
        return ""
    if family == "trm":
        return "its blocks are applied again and again, and would be gathered each time"
    return "its trainer keeps all weights on every GPU"


def takes(family: str, key: str) -> bool:
    """Whether a recipe of ``family`` may say ``key``."""
    if family == COMMAND:
        return key in COMMAND_KEYS
    return key not in SPECIAL_KEYS or key in FAMILIES[family].keys
