"""Each recipe's passes before its first step, which a compiled training makes on a machine that is
already paid."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from model.families.registry import provide_families
from model.machine.distributed import World
from model.training import sharding
from model.training.optim import Optimizer, Ranks, Rules
from model.training.stepping import warm_up
from tests.settings import changed
from trmcloud.adapters.files import load_recipe
from trmcloud.core.spec.settings import PhaseRecipe

RECIPES = sorted(path.stem for path in Path("model/recipes").glob("*.toml"))
FEWER = {"depth": 2, "width": 64, "head_dim": 16, "vocab_size": 96}
"""Sizes that a processor computes; a family that has other rows keeps its own."""


def _phases(name: str) -> list[PhaseRecipe]:
    provide_families()
    recipe = load_recipe(name)
    return [
        recipe.resolve(phase, hardware=recipe.reference_hardware, gpus=1, overrides={})
        for phase in recipe.phases
    ]


def _smaller(settings: PhaseRecipe) -> PhaseRecipe:
    common = {"batch": 2, "accumulation": 1, "dtype": "float32", "compile": False}
    fewer = {name: size for name, size in FEWER.items() if hasattr(settings, name)}
    if settings.dummy_row is not None:
        fewer = {name: fewer[name] for name in ("width", "head_dim")}
    if not hasattr(settings, "segments") and settings.dummy_row is None:
        fewer["sequence"] = 128
    if hasattr(settings, "kv_heads"):
        fewer["kv_heads"] = 0
    made: PhaseRecipe = changed(settings, **common, **fewer)
    return made


@pytest.mark.parametrize("name", RECIPES)
def test_passes_before_the_first_step_can_be_made(name: str, keep_generator: None) -> None:
    for settings in map(_smaller, _phases(name)):
        world = World(0, 1, torch.device("cpu"))
        model = sharding.build(settings, world)
        model.initialise(1)
        optimizer = Optimizer(model, Rules.of(settings), Ranks.of(world))
        warm_up(model, model, settings, world, optimizer)
        assert all(parameter.grad is not None for parameter in optimizer.parameters())


def test_they_draw_nothing_that_training_would_draw(keep_generator: None) -> None:
    """Dropout in them draws; a training that is resumed, or whose data is late, makes them at
    another time than one that is not."""
    [settings] = map(_smaller, _phases("bd3lm"))
    assert settings.to_json()["dropout"] > 0
    world = World(0, 1, torch.device("cpu"))
    model = sharding.build(settings, world)
    model.initialise(1)
    before = torch.get_rng_state()
    warm_up(model, model, settings, world)
    assert torch.equal(torch.get_rng_state(), before)
