"""What comes before a launch: the plan, made or loaded, and the data made ready for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trmcloud.adapters.data_set_files import source_of
from trmcloud.app.checkpoints import check_same_shape, sound_file
from trmcloud.app.data import (
    growing_folder,
    need_data_extra,
    need_training_extra,
    prepare,
    resolve_source,
)
from trmcloud.app.jobs import LaunchData
from trmcloud.app.plans import load
from trmcloud.app.world import World, find_run
from trmcloud.cli.launch_whom import RUNPOD
from trmcloud.cli.streams import draw
from trmcloud.core.data_source import DataSource
from trmcloud.core.datasets import ENV_HOSTS
from trmcloud.core.errors import NotFoundError, UsageError
from trmcloud.core.hardware import LOCAL
from trmcloud.core.plain_text import one_line
from trmcloud.core.plan import Candidate, Plan
from trmcloud.core.recipe import PhaseRecipe
from trmcloud.core.spec import RunSpec

if TYPE_CHECKING:
    import typer

Check = Callable[[Plan], None]
"""Raises for a plan that cannot be launched."""


def new_plan(world: World, spec: RunSpec, check: Check | None = None) -> tuple[Plan, LaunchData]:
    """Plan ``spec`` and see to its data, which is made ready here where it is to go from here.

    The plan is made once before the data is touched, so that a wish that cannot be met is
    refused at once, and once after, when the number of tokens is known. Without a ``check`` it
    is a dry run.
    """
    from trmcloud.cli.plan_making import plan_for as make

    first = make(spec, save=False, home=world.home)
    if check:
        resolve_source(spec.data, _settings(first))  # before anybody is asked over the network
        check(first)
    elif spec.hardware != LOCAL and not spec.data:
        return make(spec, home=world.home), LaunchData()
    data, tokens = _ready(world, first, spec.data, dry_run=check is None)
    return make(spec, home=world.home, tokens_available=tokens), data


def saved_plan(
    world: World, plan_id: str, data: str, check: Check | None = None
) -> tuple[Plan, LaunchData]:
    """A plan made earlier, and its data; without a ``check`` it is a dry run."""
    plan = load(world.home, plan_id, world.wall())
    if check:
        require_trainer(plan.spec.recipe)
        resolve_source(data or plan.spec.data, _settings(plan))
        check(plan)
    elif _first(plan).provider != LOCAL and not (data or plan.spec.data):
        return plan, LaunchData()
    return plan, _ready(world, plan, data or plan.spec.data, dry_run=check is None)[0]


def refuse_changes(context: typer.Context, plan_id: str, *, kept: Collection[str]) -> None:
    """A plan is carried out as it is: options that would make another one are not ignored.

    Raises:
        UsageError: naming one that was typed and is not among ``kept``.
    """
    names = {
        "initial_from": "--from", "setting": "--set", "strict_guide": "--strict-guide",
    }  # fmt: skip
    for name in context.params:
        source = context.get_parameter_source(name)
        if name in ("hardware", "data", *kept) or getattr(source, "name", "") != "COMMANDLINE":
            continue
        option = names.get(name, f"--{name}")
        raise UsageError(
            f"{option} would change plan {plan_id}, which is launched as it was made",
            next_step=f"leave {option} out, or make another plan with it",
        )


def require_trainer(recipe: str) -> None:
    """
    Raises:
        NotSupported: the recipe can be planned alone.
    """
    from trmcloud.adapters.recipe_files import load_recipe
    from trmcloud.app.launch import check_trainer

    check_trainer(load_recipe(recipe))


def next_best(world: World, plan: Plan) -> str:
    """What to try where nothing of the plan's hardware could be rented: another plan, saved."""
    from trmcloud.cli.plan_making import plan_for as make

    refused = {candidate.sku for candidate in plan.candidates}
    providers = plan.spec.providers or (RUNPOD,)
    anything = replace(plan.spec, hardware="", gpus=0, providers=providers)
    wide = make(anything, save=False, home=world.home)
    for offer in wide.candidates:
        fits = offer.fits_memory and offer.within_budget and offer.provider in providers
        if fits and offer.sku not in refused:
            made = make(replace(anything, hardware=offer.hardware), home=world.home)
            about = f"{offer.hardware}, {offer.rate}/h, about {offer.cost_p50}"
            return f"trmcloud launch {made.id} ({about})"
    return "trmcloud plan, with more budget or in other regions, or the same again later"


def initial_weights(world: World, named: str) -> str:
    """The checkpoint folder that ``--from`` means: a folder, or a run's best checkpoint here.

    Raises:
        NotFoundError: neither.
    """
    if not named:
        return ""
    from trmcloud.app import checkpoints

    folder = Path(named).expanduser().absolute()
    if folder.is_dir():
        checkpoints.read_manifest(folder)
        return str(folder)
    try:
        run = find_run(world, named)
    except NotFoundError:
        raise NotFoundError(
            f"--from {named}: no such run, and no such checkpoint folder",
            next_step="trmcloud status lists runs; fetch-best makes folders",
        ) from None
    manifest = checkpoints.choose(world, run)
    return world.files.folder_of(manifest)


def _first(plan: Plan) -> Candidate:
    return plan.recommended or plan.candidates[0]


def _settings(plan: Plan) -> PhaseRecipe:
    return _first(plan).phases[0].settings


def _ready(world: World, plan: Plan, data: str, *, dry_run: bool) -> tuple[LaunchData, int | None]:
    """The plan's data, and how many training tokens it has where that is known by now."""
    settings = _settings(plan)
    weights = initial_weights(world, plan.spec.initial_from)
    if weights:
        check_same_shape(Path(weights), settings)
        sound_file(Path(weights), "weights")
    if dry_run:
        resolve_source(data, settings)
        return LaunchData(), None
    local = _first(plan).provider == LOCAL
    source = source_of(resolve_source(data, settings))
    tokenizer = sound_file(Path(weights), "tokenizer") if weights else None
    if local:
        need_training_extra()
    elif not source.made_there:
        need_data_extra()
    if source.made_there:
        grows = growing_folder(world.home, source, settings, tokenizer) if local else ""
        return LaunchData(str(grows), source, os.environ.get(ENV_HOSTS, "")), None
    tokens = max(phase.tokens for phase in _first(plan).phases)
    folder, meta = ready_data(world, source, settings, tokenizer, tokens)
    return LaunchData(str(folder)), int(meta["train_tokens"])


def upload_data(world: World, plan: Plan, data: LaunchData, weights: str) -> None:
    """Bring to the bucket what its pod is to fetch from there, before anything is rented."""
    from trmcloud.app.launch import first_candidate
    from trmcloud.app.staging import data_items
    from trmcloud.app.world import bucket_at
    from trmcloud.cli.fetch_best import Progress

    alone = plan.spec.nodes == 1  # several machines are sent it one by one
    if alone and plan.spec.pod_uploads and first_candidate(plan).provider != LOCAL:
        bucket = bucket_at(world, plan.spec.bucket)
        for item in data_items(data.folder, weights):
            bucket.send(item, Progress(f"to {plan.spec.bucket}"))


def ready_data(
    world: World,
    source: DataSource,
    settings: PhaseRecipe,
    tokenizer: Path | None = None,
    tokens: int = 0,
) -> tuple[Path, dict[str, Any]]:
    """Prepared data for ``source``, with its progress shown on stderr."""
    from trmcloud.wiring import python_path

    said: list[str] = []

    def progress(stage: str, done: int, total: int) -> None:
        if not sys.stderr.isatty():
            if stage not in said and stage not in ("ready", "done"):
                said.append(stage)
                print(f"data: {stage}", file=sys.stderr)
            return
        share = f" {100 * done / total:3.0f} %" if total else ""
        draw(f"\r\x1b[K  data: {one_line(stage)}{share}")
        if stage == "done":
            draw("\r\x1b[K")

    return prepare(
        world.home, source, settings, python_path(), progress, tokenizer=tokenizer, tokens=tokens
    )
