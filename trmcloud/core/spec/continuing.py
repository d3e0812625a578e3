"""Which settings decide what a training is: it is not gone on with under others of these, unless
somebody accepts that. Trainer and launch judge by the same list. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trmcloud.core.errors import UsageError
from trmcloud.core.spec.settings import PhaseRecipe, check_foreign
from trmcloud.core.values import replace

_DECISIVE = (
    "family", "depth", "width", "head_dim", "vocab_size", "sequence", "seed", "rows",
    "optimizer", "normuon", "ema",
)  # fmt: skip
"""Another value of these makes another training, though the weights may still fit; and of those
that a family calls ``decisive``."""
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
        for name in (*_DECISIVE, *before.decisive)
        if hasattr(after, name) and getattr(before, name) != getattr(after, name)
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
    fixed = {*settings.fixed_keys(), *_PLANNED_KEYS}
    for key, value in overrides.items():
        if key in fixed and value != getattr(settings, key):
            raise UsageError(
                f"{key} is {getattr(settings, key)} in this run, and cannot become {value}: "
                "its weights, data or storage were made for that",
                where="--set",
                next_step=f"trmcloud launch … --set {key}={value} starts another run",
            )
    changed = replace(settings, **{**settings.implied(overrides), **overrides})
    changed.check()
    return changed
