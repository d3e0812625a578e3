"""Settings of a phase, where a test names what it is about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trmcloud.core.spec.settings import FAMILIES, PhaseRecipe


def settings_of(family: str, phase: str = "fast", **values: Any) -> Any:
    """Settings of ``family``, whatever it takes."""
    return FAMILIES[family](**{"recipe": "test", "family": family, "phase": phase, **values})


def changed(settings: PhaseRecipe, **changes: Any) -> Any:
    """``settings`` with ``changes``: of another family, what that one does not take is left out."""
    if changes.get("family", settings.family) == settings.family:
        return replace(settings, **changes)
    return PhaseRecipe.from_json({**settings.to_json(), **changes})
