"""Passes before the first step that change nothing but how fast, and how exactly alike, it is."""

from __future__ import annotations

import math

import torch
from torch import nn

from model.data.batch import Batch, Draws
from model.distributed import World
from model.families.protocol import LanguageModel, Objective
from model.precision import autocast
from model.sharding import dropped
from trmcloud.core.errors import UsageError
from trmcloud.core.spec.recipe import PhaseRecipe


def needs_warm_up(settings: PhaseRecipe, world: World) -> bool:
    return settings.compile or world.size > 2


def compiled_graphs() -> int:
    """How many graphs torch.compile has made here; 0 where it was told to do nothing."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def made_up(settings: PhaseRecipe, device: torch.device) -> Batch:
    """A micro-batch of no text: the data may still be on its way."""
    shape = (settings.batch, settings.sequence + 1)
    rows = torch.arange(math.prod(shape), device=device).view(shape) % settings.text_ids
    ids, targets = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
    return Batch(ids, targets, Draws.alone(settings.batch))


def warm_up(
    model: LanguageModel,
    parallel_model: nn.Module,
    settings: PhaseRecipe,
    world: World,
) -> None:
    """Runs forward and backward passes; the gradients they leave are to be dropped.

    They compile what is to be compiled, and let DDP settle its buckets: it orders them anew after
    the first backward pass, and with three ranks or more the order of a sum matters, so a resumed
    run would otherwise differ from an uninterrupted one by its first step.

    Raises:
        UsageError: the model cannot be compiled.
    """
    cast, batch = autocast(settings.dtype, world.device), made_up(settings, world.device)
    for _ in range(2):
        try:
            with cast():
                made: Objective = parallel_model(*batch)
            made.loss.backward()
            with torch.no_grad(), cast():
                model.evaluate(*batch)
            dropped(model)
        except Exception as error:
            if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
                raise UsageError(
                    f"torch.compile failed: {error}", next_step="--set compile=false"
                ) from None
            raise
