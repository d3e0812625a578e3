"""Which settings decide what a training is: it is not gone on with under others of these, unless
somebody accepts that. Trainer and launch judge by the same list. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trmcloud.core.errors import UsageError
from trmcloud.core.spec.dense_keys import DENSE_KEYS
from trmcloud.core.spec.settings import PRESETS, PhaseRecipe, check_foreign, check_settings
from trmcloud.core.values import replace

_DECISIVE = (
    "family", "depth", "width", "head_dim", "vocab_size", "sequence", "block", "seed", "rows",
    "supervision_steps", "loops", "control", "optimizer", "normuon", "ema",
    *(key for key in DENSE_KEYS if not key.endswith("_checkpointing")),
)  # fmt: skip
"""Another value of these makes another training, though the weights may still fit."""
SHAPE_KEYS = (
    "depth", "width", "head_dim", "vocab_size", "control", "hidden", "tied", "positions", "mlp",
    "kv_heads", "value_embeddings",
)  # fmt: skip
"""Weights trained with one value of these may not fit a model with another."""
_PLANNED_KEYS = ("tokenizer", "characters", "data", "validation_fraction", "keep_best")
"""What a run's data was made with, and its storage reserved for."""
SEQUENCES = "sequences a step"


@dataclass(frozen=True)
class Change:
    """One thing that a checkpoint was trained with, and what it is to go on with."""

    name: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.name} {self.before} → {self.after}"


def decisive_changes(
    before: PhaseRecipe, after: PhaseRecipe, *, world_before: int, world_after: int
) -> tuple[Change, ...]:
    """What differs that decides what is trained; the worlds are numbers of GPUs, or processes."""
    changed = [
        Change(name, getattr(before, name), getattr(after, name))
        for name in _DECISIVE
        if getattr(before, name) != getattr(after, name)
    ]
    rows = [each.global_batch(1) for each in (before, after)]
    whole = rows[0] * world_before, rows[1] * world_after
    # Another number of GPUs is the machine's doing, and told of; a plan that keeps the whole batch
    # on them may miss it by less than a row each.
    if rows[0] != rows[1] and abs(whole[0] - whole[1]) >= world_after:
        changed.append(Change(SEQUENCES, *whole))
    return tuple(changed)


def with_overrides(settings: PhaseRecipe, overrides: Mapping[str, Any]) -> PhaseRecipe:
    """What a phase goes on with where it is resumed with ``overrides``.

    Raises:
        UsageError: naming a key that cannot change within a run, or settings that cannot be.
    """
    check_foreign(settings.family, overrides, "--set")
    fixed = set(_fixed_keys(settings))
    for key, value in overrides.items():
        if key in fixed and value != getattr(settings, key):
            raise UsageError(
                f"{key} is {getattr(settings, key)} in this run, and cannot become {value}: "
                "its weights, data or storage were made for that",
                where="--set",
                next_step=f"trmcloud launch … --set {key}={value} starts another run",
            )
    values = dict(overrides)
    if "preset" in values and values["preset"] in PRESETS:
        base, scale = PRESETS[values["preset"]]
        values = {"supervision_weight_base": base, "improvement_reward_scale": scale, **values}
    changed = replace(settings, **values)
    check_settings(changed)
    return changed


def _fixed_keys(settings: PhaseRecipe) -> Iterable[str]:
    yield from SHAPE_KEYS
    yield from _PLANNED_KEYS
    if settings.positions == "learned":
        yield "sequence"  # one row of weights a position
