"""A phase's settings as recovery may change them, and as it has changed them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trmcloud.core.contract.recovery import NEEDED, RATE
from trmcloud.core.spec.families import takes
from trmcloud.core.spec.settings import PRESETS, PhaseRecipe, check_settings
from trmcloud.core.values import replace

_RATES = ("matrix_lr", "embedding_lr", "head_lr")


def recoverable(settings: PhaseRecipe) -> dict[str, Any]:
    """What a lease says of a phase's settings: see ``recovery.NEEDED``."""
    named = {key: getattr(settings, key) for key in NEEDED}
    return {**named, "preset": settings.preset} if takes(settings.family, "preset") else named


def overridden(settings: PhaseRecipe, overrides: Mapping[str, Any]) -> PhaseRecipe:
    """``settings`` with what ``supervise`` has changed of them: a step learns from as many
    sequences as before.

    Raises:
        UsageError: settings that cannot be.
    """
    values = dict(overrides)
    rate = values.pop(RATE, 1.0)
    if "preset" in values:
        base, scale = PRESETS[values["preset"]]
        values |= {"supervision_weight_base": base, "improvement_reward_scale": scale}
    if rate != 1.0:
        values |= {key: getattr(settings, key) * rate for key in _RATES}
    changed = replace(settings, **values)
    check_settings(changed)
    return changed
