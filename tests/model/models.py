"""Models with weights that say something everywhere."""

from __future__ import annotations

from typing import Any, TypeVar

import torch

Model = TypeVar("Model", bound=Any)


def shaken(model: Model, std: float = 0.1, *, initial: int = 3, seed: int = 0) -> Model:
    """The model, initialised by one seed, with noise of ``std`` from another on each weight."""
    model.initialise(initial)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn(parameter.shape, generator=generator) * std)
    return model
