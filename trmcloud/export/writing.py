"""A launch, written down: the script or task for what was asked, or the twelve of the guides."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from trmcloud.core.catalog.datasets import is_address
from trmcloud.core.catalog.hardware import GUIDE_HARDWARE, LOCAL
from trmcloud.core.catalog.offers import Offer
from trmcloud.core.errors import ConflictError, DataError, DoesNotFit, NotSupported, UsageError
from trmcloud.core.planner.planning import make_plan
from trmcloud.core.spec.plan import Candidate, Plan, at_limit
from trmcloud.core.spec.recipe import Recipe
from trmcloud.core.spec.settings import CHAT, PHASES
from trmcloud.core.spec.spec import RunSpec
from trmcloud.core.text import one_line
from trmcloud.core.values import Value
from trmcloud.export.script import (
    BASH,
    FORMS,
    SBATCH,
    PinnedData,
    SkyNames,
    make_payload,
    make_task,
    script,
)
from trmcloud.io.files import write_atomic
from trmcloud.operations.commands.commands import CommandRequest
from trmcloud.operations.launch import sweeping
from trmcloud.operations.launch.sweeping import SweepRequest
from trmcloud.operations.plans import planning
from trmcloud.operations.plans.planning import Planner
from trmcloud.operations.sending.data import data_set_names
from trmcloud.operations.sweeps.sweep_priors import priors_of
from trmcloud.operations.sweeps.sweep_terms import check_points, terms_of
from trmcloud.options import LaunchRequest
from trmcloud.ports.machine import PlanInputs

DEFAULT_DATA = "python-stdlib"
"""Text that is on every machine, so that a task launched as it stands does not rent in vain."""
SKY = "sky"


class ExportRequest(Value):
    """``launch`` is what to write down, in which ``form`` (bash, sbatch or sky), for how many
    ``nodes``; ``output`` is the file, or empty for ``train_HARDWARE_PHASE``. With words of settings
    in ``asked``, or a file of them in ``search``, it is a sweep."""

    launch: LaunchRequest
    form: str = BASH
    nodes: int = 1
    output: str = ""
    force: bool = False
    """Replace files that exist."""
    asked: CommandRequest = dataclasses.field(default_factory=CommandRequest)
    search: SweepRequest = dataclasses.field(default_factory=SweepRequest)

    @property
    def is_sweep(self) -> bool:
        return bool(self.asked.words or self.search.space)


class ExportResult(Value):
    """``path`` is what to start; ``carrier`` the script with the sources, ``path`` itself where
    there is no task."""

    path: Path
    carrier: Path
    chosen: Candidate
    data_words: str = ""
    """At which revision it fetches its data set; empty where it fetches none."""


def write(
    request: ExportRequest, planner: Planner, trainer: Path, sky_names: SkyNames
) -> ExportResult:
    """The script, or the task and its script. ``trainer`` is the trainer's package.

    Raises:
        UsageError: a form there is none of, or options that do not go with it.
        ConflictError: the file exists, and is not to be replaced.
        DoesNotFit, NotSupported: nothing of it can be launched. DataError: it has no data.
    """
    wished, sky = request.launch, request.form == SKY
    if request.form not in FORMS and not sky:
        raise UsageError(f"--as must be one of {', '.join(FORMS)}, sky, not {request.form!r}")
    if wished.hardware == "all":
        raise UsageError("all works only with --as sky", next_step="give the hardware: 8xA100")
    if request.nodes > 1 and not sky:
        raise UsageError(
            "--nodes works only with --as sky", next_step="a script reads NODES, NODE_RANK and HEAD"
        )
    if sky and wished.hardware == LOCAL:
        raise UsageError(
            "SkyPilot rents machines; this machine does not need it", next_step="--as bash"
        )
    if request.is_sweep:
        spec = _wish_of_sweep(request, planner)
    else:
        spec = planner.spec(wished, sorted(sky_names.clouds) if sky else ())
    if spec.nodes > 1:
        raise UsageError(
            f"an exported script is for one machine: {spec.hardware}",
            next_step=f"{spec.hardware.partition('x')[2]} --as sky --nodes {spec.nodes}",
        )
    suffix = {BASH: ".sh", SBATCH: ".sbatch"}.get(request.form, ".yaml")
    kind = "sweep" if request.is_sweep else "train"
    path = Path(request.output or f"{kind}_{spec.hardware}_{wished.phase}{suffix}")
    carrier = path.with_suffix(".sh") if sky else path
    for each in {path, carrier}:
        _refuse_to_replace(each, force=request.force)
    plan = planner.save(at_limit(planner.plan(spec)))
    chosen = _launchable(plan)
    if any(phase.name == CHAT for phase in chosen.phases):
        raise NotSupported(
            "an exported script has one text, and no conversations for the chat phase",
            next_step="--phase train",
        )
    data = wished.data or chosen.phases[0].settings.data or (DEFAULT_DATA if sky else "")
    if not data:
        raise DataError(f"recipe {spec.recipe} has no data set of its own", next_step="--data PATH")
    sweep = None
    if request.is_sweep:
        terms = terms_of(plan)
        check_points(plan, terms)
        sweep = sweeping.job_of(spec, terms, priors_of(plan, terms))
    payload = make_payload(trainer, is_sweep=request.is_sweep)
    pinned = _pinned(planner.inputs, data)
    form = BASH if sky else request.form
    text = script(plan, chosen, payload, form=form, data=data, pinned=pinned, sweep=sweep)
    carrier.write_text(text, encoding="utf-8")
    os.chmod(carrier, 0o755)
    if sky:
        beside = f"./{carrier.name}"
        made = make_task(
            plan, chosen, sky_names,
            data=data, path=Path(path.name), carrier=beside, nodes=request.nodes, pinned=pinned,
        )  # fmt: skip
        path.write_text(made, encoding="utf-8")
    return ExportResult(path, carrier, chosen, pinned.words if pinned is not None else "")


def _wish_of_sweep(request: ExportRequest, planner: Planner) -> RunSpec:
    if request.form == SKY:
        raise UsageError(
            "a task of SkyPilot trains once", next_step="trmcloud sweep, which rents by it"
        )
    if words := sweeping.divide_words(request.asked.words)[1]:
        raise UsageError(
            f"{words[0]!r:.40} is no setting with its values, and a script searches those of a "
            "recipe",
            next_step="lr=log:1e-3,1e-1; or a job whose last line is trmcloud sweep local …",
        )
    return sweeping.wish_of(
        planner, request.launch, request.asked, request.search, Path.cwd(), is_rented=False
    )


def write_guides(
    folder: Path,
    recipe: Recipe,
    shipped: Callable[[float], Sequence[Offer]],
    sky_names: SkyNames,
    now: float,
    *,
    force: bool,
) -> list[Path]:
    """A task for each hardware and phase of the guides, by the ``shipped`` prices (those of a
    version, at ``now``) and their newest day: the same text on every machine.

    Raises:
        ConflictError: one of the files exists, and ``force`` is False.
    """
    offers = shipped(now)
    now = max(offer.priced_at for offer in offers)
    made = {}
    for hardware in GUIDE_HARDWARE:
        for phase in PHASES:
            path = folder / f"{hardware}-{phase}.yaml"
            _refuse_to_replace(path, force=force)
            spec = RunSpec(
                recipe.name, (phase,), hardware, providers=tuple(sorted(sky_names.clouds))
            )
            plan = make_plan(spec, recipe, offers, now, planning.new_plan_id(folder, spec, now))
            if plan.recommended is None:
                raise DoesNotFit(f"in the shipped prices no cloud of SkyPilot offers {hardware}")
            shown = Path("sky", path.name)
            made[path] = make_task(plan, plan.recommended, sky_names, data=DEFAULT_DATA, path=shown)
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in made.items():
        write_atomic(path, text)
    return list(made)


def _pinned(inputs: PlanInputs, data: str) -> PinnedData | None:
    """The data set at the revision that its host has now; None where nothing is downloaded."""
    if not is_address(data) and data not in data_set_names():
        return None  # a path of the machine that runs the script
    source = inputs.data_source(data)
    if source.data_set is None or not source.data_set.is_remote:
        return None
    try:
        pinned, found = inputs.pinned_source(source)
    except DataError as error:
        why = one_line(error.what)
        return PinnedData(
            f"NOT pinned: it fetches the newest commit of the branch at run time ({why})"
        )
    if found is None:
        known = len(source.data_set.sha256)
        held = f"hashes known for {known} of its files" if known else "no hashes are known"
        return PinnedData(f"its host publishes no revisions; {held}")
    hashes = (
        "its files are checked against the published hashes"
        if found.hashes
        else "no hashes published"
    )
    words = f"pinned to commit {found.revision} of {found.repository} ({found.branch}), {hashes}"
    return PinnedData(words, pinned.data_set)


def _launchable(plan: Plan) -> Candidate:
    chosen = plan.recommended
    if chosen is None:
        raise DoesNotFit(
            "no candidate of this plan can be run",
            next_step="trmcloud plan, with a larger budget or other hardware",
        )
    if not plan.launchable:
        raise NotSupported(
            f"{plan.spec.recipe} can be planned, not trained: its trainer does not exist yet",
            next_step="--recipe trm or trm-tiny",
        )
    return chosen


def _refuse_to_replace(path: Path, *, force: bool) -> None:
    if path.exists() and not force:
        raise ConflictError("the file exists", where=str(path), next_step="--force replaces it")
