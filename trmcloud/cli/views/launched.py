"""Configuration of a run: its plan, hardware, cap and stops, and what differs from its recipe."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from trmcloud.app.run_views import resumed_rows
from trmcloud.cli.views.launch import frozen_rows
from trmcloud.cli.views.plan import limit_rows
from trmcloud.core.catalog.providers import find_traits
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import TrmcloudError
from trmcloud.core.spec.plan import Candidate
from trmcloud.core.spec.recipe import Recipe

_TITLES = ("recipe", "family", "phase")
"""Settings that name the others."""


class Difference(NamedTuple):
    """A setting that a phase is trained with, and the recipe's own value."""

    phase: str
    key: str
    value: str
    recipe: str


class Launched(NamedTuple):
    """``rows`` are (name, text); ``differences`` is None where the recipe cannot be read now, or
    the run has none."""

    rows: list[tuple[str, str]]
    differences: list[Difference] | None


def launched_of(run: RunState, recipe_of: Callable[[str], Recipe]) -> Launched:
    """Return the configuration that ``run`` was launched with.

    Args:
        recipe_of: loads a recipe by its name, as it is now.
    """
    try:
        plan, chosen = run.plan, run.chosen
    except (ValueError, KeyError, TypeError):  # a ledger of another version, or a damaged one
        return Launched([("plan", "its record cannot be read")], None)
    rows = frozen_rows(plan, chosen, verbose=True)
    if run.spec.command is None:
        rows.insert(1, ("recipe", f"{run.spec.recipe}, {' then '.join(run.spec.phases)}"))
    if plan.cap is not None and run.cap != plan.cap:
        rows.append(("cap now", f"{run.cap}, changed since the launch"))
    traits = find_traits(chosen.provider) if chosen is not None else None
    if traits is not None:
        rows.append(("kill layers", " · ".join(traits.kill_layers)))
    rows += limit_rows(plan, verbose=False) + resumed_rows(run)
    if chosen is None or run.spec.command is not None:
        return Launched(rows, None)
    return Launched(rows, _differences(chosen, run.spec.recipe, recipe_of))


def _differences(
    chosen: Candidate, name: str, recipe_of: Callable[[str], Recipe]
) -> list[Difference] | None:
    try:
        recipe = recipe_of(name)
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
