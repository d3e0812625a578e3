"""Configuration of a run: its plan, its machine, and what differs from its recipe."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from trmcloud.core.catalog.providers import find_traits
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import TrmcloudError
from trmcloud.core.money import Usd
from trmcloud.core.spec.plan import Candidate, Plan
from trmcloud.core.spec.recipe import Recipe
from trmcloud.core.values import Value
from trmcloud.operations.runs.run_views import resumed_rows

_TITLES = ("recipe", "family", "phase")
"""Settings that name the others."""


class Difference(NamedTuple):
    """A setting that a phase is trained with, and the recipe's own value."""

    phase: str
    key: str
    value: str
    recipe: str


class Configuration(Value):
    """``plan`` is None where its record cannot be read. ``machines`` were made so far, ``rate`` is
    the USD per hour of the last; ``kill_layers`` are those of its provider. ``resumed``: (name,
    text) of the settings with which a reopened run continues."""

    plan: Plan | None
    chosen: Candidate | None
    cap: Usd
    machines: int = 0
    rate: Usd | None = None
    kill_layers: tuple[str, ...] = ()
    resumed: tuple[tuple[str, str], ...] = ()


def configuration_of(run: RunState) -> Configuration:
    """Return the configuration that ``run`` was launched with, and continues with."""
    try:
        plan, chosen = run.plan, run.chosen
    except (ValueError, KeyError, TypeError):  # a ledger of another version, or a damaged one
        return Configuration(None, None, run.cap)
    traits = find_traits(chosen.provider) if chosen is not None else None
    generation, rate = run.generation, chosen.rate if chosen is not None else None
    if generation is not None:
        rate = generation.charged_rate
    return Configuration(
        plan=plan,
        chosen=chosen,
        cap=run.cap,
        machines=sum(each.not_made is None for each in run.generations),
        rate=rate,
        kill_layers=tuple(traits.layers.standard) if traits is not None else (),
        resumed=tuple(resumed_rows(run)),
    )


def differences_of(
    found: Configuration, recipe_of: Callable[[str], Recipe]
) -> list[Difference] | None:
    """Return the settings that differ from the recipe's, as it is now; None where it cannot be
    read, or the run has none.

    Args:
        recipe_of: loads a recipe by its name.
    """
    plan, chosen = found.plan, found.chosen
    if plan is None or chosen is None or plan.spec.command is not None:
        return None
    try:
        recipe = recipe_of(plan.spec.recipe)
        own = [
            recipe.resolve(phase.name, hardware=chosen.hardware, gpus=chosen.world_size).to_json()
            for phase in chosen.phases
        ]
    except TrmcloudError:  # its file is gone, or is another one by now
        return None
    return [
        Difference(phase.name, key, str(value), str(before.get(key, "not set")))
        for phase, before in zip(chosen.phases, own, strict=True)
        for key, value in phase.settings.to_json().items()
        if key not in _TITLES and before.get(key) != value
    ]
