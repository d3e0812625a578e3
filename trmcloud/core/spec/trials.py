"""Settings of a recipe at one point of a sweep's space. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trmcloud.core.errors import UsageError
from trmcloud.core.spec.settings import RATES, PhaseRecipe, check_foreign, checked_table
from trmcloud.core.values import replace

LR = "lr"
"""No setting of a recipe: the value of ``matrix_lr``; the other rates keep their ratio to it."""
WHERE = "a sweep's space"
_PLANNED = ("tokenizer", "characters", "data", "validation_fraction", "keep_best", "steps", "rows")
"""Settings that the data was made with, or that a trial's dollars decide."""


def trial_settings(
    settings: PhaseRecipe, values: Mapping[str, Any], *, check: bool = True
) -> PhaseRecipe:
    """Return ``settings`` with a trial's ``values``; without ``check`` also where they do not go
    together.

    Raises:
        UsageError: a name is no setting of this family or cannot differ between trials, or the
            settings cannot be.
    """
    given = dict(values)
    for name in _PLANNED:
        if name in given:
            raise UsageError(
                f"{name} is the same in all trials of a sweep: their data and their dollars "
                "depend on it",
                where=WHERE,
                next_step=f"leave {name} out, or set it for all with --set",
            )
    if LR in given:
        rate = given.pop(LR)
        if isinstance(rate, bool | str) or not rate > 0:
            raise UsageError(
                f"{LR} takes a number above zero, not {rate!r:.40}",
                where=WHERE,
                next_step=f"{LR}=log:1e-3,1e-1",
            )
        factor = rate / getattr(settings, RATES[0])
        given = {key: getattr(settings, key) * factor for key in RATES} | given
    check_foreign(settings.family, given, WHERE)
    given = checked_table(given, WHERE)
    changed = replace(settings, **{**settings.implied(given), **given})
    if check:
        changed.check()
    return changed
