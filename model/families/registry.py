"""Finds a family by its name; the only way from the trainer to any of them.

A family is imported when it is built and named here as text, so that nothing that trains, loads or
samples depends on one.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from trmcloud.core.errors import UsageError
from trmcloud.core.spec.recipe import PhaseRecipe

if TYPE_CHECKING:
    import torch

    from model.families.protocol import LanguageModel

_MODULES = {
    "trm": "model.families.trm",
    "gpt": "model.families.dense",
    "nanochat": "model.families.dense",
    "bd3lm": "model.families.block_diffusion",
    "hdp": "model.families.plan_diffusion",
}


def build(settings: PhaseRecipe, device: torch.device) -> LanguageModel:
    """The model that ``settings`` describe, on ``device``, its weights not yet drawn.

    Raises:
        UsageError: no such family, or settings that cannot go together.
    """
    module = _MODULES.get(settings.family)
    if module is None:
        raise UsageError(
            f"no trainer of family {settings.family!r}",
            next_step=f"families: {', '.join(_MODULES)}",
        )
    made: LanguageModel = importlib.import_module(module).build(settings, device)
    return made
