"""Changes of a phase's settings: by recovery, and by a user who resumes a run. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from trmcloud.core.contract.phase_account import CLIMBS
from trmcloud.core.contract.recovery import NEEDED, PRESET, RATE
from trmcloud.core.errors import UsageError
from trmcloud.core.spec.settings import RATES, CommandSettings, PhaseRecipe, check_foreign
from trmcloud.core.values import Value, replace

# Settings that decide what is trained: a resume with other values of these needs the user's
# consent. Trainer and launch judge by the same list. Pure.

_DECISIVE = (
    "family", "depth", "width", "head_dim", "vocab_size", "sequence", "seed", "rows",
    "optimizer", "normuon", "ema",
)  # fmt: skip
"""Another value of these makes another training, though the weights may still fit; and of those
that a family calls ``decisive``."""
_PLANNED_KEYS = ("tokenizer", "characters", "data", "validation_fraction", "keep_best")
"""The settings that a run's data was made with, and its storage reserved for."""
SEQUENCES = "sequences a step"


class Change(Value):
    """A setting that differs between a checkpoint and the training that resumes it."""

    name: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.name} {self.before} → {self.after}"


def decisive_changes(
    before: PhaseRecipe, after: PhaseRecipe, *, world_before: int, world_after: int
) -> tuple[Change, ...]:
    """Return the changed settings that decide what is trained; the worlds are numbers of GPUs, or
    processes."""
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
    """Return a phase's settings where it is resumed with ``overrides``.

    Raises:
        UsageError: naming a key that cannot change within a run, or settings that cannot be.
    """
    check_foreign(settings.family, overrides, "--set")
    fixed = {*settings.fixed_keys(), *_PLANNED_KEYS}
    for key, value in overrides.items():
        if key in fixed and value != getattr(settings, key):
            raise UsageError(
                f"{key} is {getattr(settings, key)} in this run and cannot become {value}: its "
                "weights, data or storage depend on it",
                where="--set",
                next_step=f"start another run: trmcloud launch … --set {key}={value}",
            )
    changed = replace(settings, **{**settings.implied(overrides), **overrides})
    changed.check()
    return changed


# A phase's settings as recovery may change them, and as it has changed them. Pure.


def recoverable(settings: PhaseRecipe, set_by_hand: Collection[str] = ()) -> dict[str, Any]:
    """Return a lease's copy of a phase's settings for recovery: see ``recovery.NEEDED``.

    Args:
        set_by_hand: keys that the user has set: a micro-batch among them does not climb.
    """
    if isinstance(settings, CommandSettings):
        return {}
    named = {key: getattr(settings, key) for key in NEEDED}
    if PRESET in settings.names():
        named[PRESET] = getattr(settings, PRESET)
    if not {"batch", "accumulation"} & set(set_by_hand):
        named[CLIMBS] = True
    return named


def apply_overrides(settings: PhaseRecipe, overrides: Mapping[str, Any]) -> PhaseRecipe:
    """``settings`` with what ``supervise`` has changed of them: a step learns from as many
    sequences as before.

    Raises:
        UsageError: settings that cannot be.
    """
    values = dict(overrides)
    rate = values.pop(RATE, 1.0)
    values |= settings.implied(values)
    if rate != 1.0:
        values |= {key: getattr(settings, key) * rate for key in RATES}
    changed = replace(settings, **values)
    changed.check()
    return changed
