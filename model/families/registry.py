"""Finds the families by their folders; the only way from the trainer to any of them.

A folder's ``plan.py`` says what its settings are, and ``model.py`` builds it. That one is imported
when it is built, so that nothing that trains, loads or samples depends on a family.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from trmcloud.core.errors import UsageError
from trmcloud.core.spec.settings import FAMILIES, PhaseRecipe
from trmcloud.io.families import FamilyFolders

if TYPE_CHECKING:
    import torch

    from model.families.protocol import LanguageModel


def provide_families() -> None:
    """Makes the families known to this process, before any settings are read."""
    FAMILIES.provide(FamilyFolders(lambda: Path(__file__).parent))


def build(settings: PhaseRecipe, device: torch.device) -> LanguageModel:
    """The model that ``settings`` describe, on ``device``, its weights not yet drawn.

    Raises:
        UsageError: no such family, or settings that cannot go together.
    """
    if settings.family not in FAMILIES:
        raise UsageError(
            f"there is no trainer for the family {settings.family!r}",
            next_step=f"families: {', '.join(FAMILIES)}",
        )
    module = importlib.import_module(f"model.families.{settings.family}.model")
    made: LanguageModel = module.build(settings, device)
    return made
