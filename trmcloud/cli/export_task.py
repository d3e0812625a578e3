"""``trmcloud export --as sky``: one task for what was asked, or the twelve of the guides."""

from __future__ import annotations

import os
from pathlib import Path

from trmcloud.core.errors import ConflictError, DoesNotFit
from trmcloud.core.plan import Candidate, Plan

DEFAULT_DATA = "python-stdlib"
"""Text that is on every machine, so that a task launched as it stands does not rent in vain."""


def clouds() -> list[str]:
    """Our names of the providers that SkyPilot rents from without a key of theirs on the pod."""
    from trmcloud.adapters.skypilot.task import CLOUDS
    from trmcloud.core.providers import RUNPOD_BY_SKYPILOT

    return sorted(provider for provider in CLOUDS if provider != RUNPOD_BY_SKYPILOT)


def make(
    plan: Plan, chosen: Candidate, *, data: str, path: Path, script: str = "", nodes: int = 1
) -> str:
    """The task's text; ``script`` is the exported script beside it that carries the sources."""
    from trmcloud.adapters.skypilot.task import CLOUDS, LIMIT_SLACK_MINUTES, accelerator
    from trmcloud.app.export.shell import quote
    from trmcloud.app.export.task import Ground, limit_minutes, task

    ground = Ground(
        infra=CLOUDS[chosen.provider],
        accelerator=accelerator(chosen.provider, chosen.sku),
        limit_minutes=limit_minutes(chosen, LIMIT_SLACK_MINUTES, nodes),
        script=script,
        nodes=nodes,
    )
    return task(plan, chosen, ground, data=data, launch=f"sky launch {quote(str(path))}")


def write_all(folder: Path, *, force: bool) -> list[Path]:
    """A task for each hardware and phase of the guides, by the shipped prices and their newest day:
    the same text on every machine.

    Raises:
        ConflictError: one of the files exists, and ``force`` is False.
    """
    import time

    from trmcloud.adapters.prices import load_offers
    from trmcloud.adapters.recipe_files import load_recipe
    from trmcloud.app import plans
    from trmcloud.core.hardware import GUIDE_HARDWARE
    from trmcloud.core.planning import make_plan
    from trmcloud.core.recipe import PHASES
    from trmcloud.core.spec import RunSpec

    offers, recipe = load_offers(time.time()), load_recipe("trm")
    now = max(offer.priced_at for offer in offers)
    made = {}
    for hardware in GUIDE_HARDWARE:
        for phase in PHASES:
            path = folder / f"{hardware}-{phase}.yaml"
            if path.exists() and not force:
                refuse_to_replace(path)
            spec = RunSpec("trm", (phase,), hardware, providers=tuple(clouds()))
            plan = make_plan(spec, recipe, offers, now, plans.new_id(folder, spec, now))
            if plan.recommended is None:
                raise DoesNotFit(f"no cloud of SkyPilot's rents {hardware} by the shipped prices")
            shown = Path("sky", path.name)
            made[path] = make(plan, plan.recommended, data=DEFAULT_DATA, path=shown)
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in made.items():
        scratch = path.with_suffix(".part")
        scratch.write_text(text, encoding="utf-8")
        os.replace(scratch, path)
    return list(made)


def refuse_to_replace(path: Path) -> None:
    raise ConflictError("the file exists", where=str(path), next_step="--force replaces it")
