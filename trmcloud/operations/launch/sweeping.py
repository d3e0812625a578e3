"""``sweep``: many trainings of one recipe, or of one command, within one budget.

A sweep is one run. Its machine starts an executor in place of a trainer; what that needs to know
travels beside the code, in ``sweep.json``.
"""

# Annotations are values here: a command's parameters are made from them.
import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.errors import MissingExtra, UsageError
from trmcloud.core.nearest import nearest, suggest_name
from trmcloud.core.spec.plan import Plan
from trmcloud.core.spec.spec import RunSpec
from trmcloud.core.spec.sweep_wish import METRIC, SweepWish
from trmcloud.core.sweep import space as sp
from trmcloud.core.sweep.job import ENV_RAY_ADDRESS, RAY, SWEEP_NAME, SweepJob, dump_job, place_of
from trmcloud.core.sweep.priors import Priors
from trmcloud.core.sweep.samplers import SAMPLERS
from trmcloud.core.sweep.space import Space
from trmcloud.core.sweep.terms import SweepTerms
from trmcloud.core.values import Value, replace
from trmcloud.io.installation import install_command
from trmcloud.operations.commands import commands
from trmcloud.operations.commands.commands import CommandRequest
from trmcloud.operations.context import Context
from trmcloud.operations.plans import preparing
from trmcloud.operations.plans.planning import Planner
from trmcloud.operations.plans.preparing import DataProgress, PreparedLaunch
from trmcloud.operations.sending.packing import commands_share
from trmcloud.operations.sending.staging import code_item
from trmcloud.operations.sending.working_tree import WorkingTree
from trmcloud.operations.sweeps.sweep_priors import check_default_fits, priors_of
from trmcloud.operations.sweeps.sweep_terms import check_points, terms_of
from trmcloud.options import (
    LaunchRequest,
    Rare,
    checked,
    option,
    parse_money,
    placed,
    refuse_tokens,
    request_from,
    rows_of,
)

_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*=.*", re.DOTALL)
_PLACE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.-]*)\}")
_CHECKPOINT = "checkpoint"
_OPTUNA = "optuna"
"""Of the extra ``sweep``, which the machine that trains needs, too."""
_KEEP_BEST = 6
"""Checkpoints of trials that are kept, so that another machine can continue them."""
_RAY_TOKEN, _RAY_TOKEN_PATH = "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
_SWEEP = "Sweep"
_SWEEP_RARE = Rare(_SWEEP)
_TAKES = "sweep export"


def _sampler(flag: str, name: str) -> str:
    known = (*SAMPLERS, _OPTUNA)
    if name not in known:
        raise UsageError(
            f"{flag} must be one of {', '.join(known)}, not {name!r:.40}",
            next_step=f"{flag} {nearest(name, known) or known[0]}",
        )
    return name


# fmt: off
class SweepRequest(Value):
    """The options about the search, as they were typed: nothing is checked."""

    space: str = option(
        "--space", "", "TOML file of the settings to search, in place of NAME=VALUES words.",
        _TAKES, _SWEEP, metavar="FILE",
    )
    default: Sequence[str] = option(
        "--default", (), "Value of a setting that all trials are compared with, repeatable. "
        "Default: the recipe's own; of a command, the middle.", _TAKES, _SWEEP,
        metavar="NAME=VALUE",
    )
    slots: int = option(
        "--slots", 0, "Trials at a time (default: one per GPU; 1 without a GPU).", _TAKES,
        _SWEEP_RARE,
        parse=checked(lambda n: 0 <= n <= 64, "{flag} must be from 1 to 64, not {value}"),
    )
    on: str = option(
        "--on", "", "ray: trials run on your Ray cluster (RAY_ADDRESS; extra ray), with local.",
        "sweep", _SWEEP_RARE, metavar="PLACE",
        parse=checked(lambda place: place in ("", RAY), "{flag} must be ray, not {value!r:.40}",
                      "--on ray"),
    )
    sampler: str = option(
        "--sampler", "",
        "How points are chosen: density, halton, uniform, or optuna (extra sweep).", _TAKES,
        _SWEEP_RARE, metavar="NAME", parse=_sampler,
    )
    seed: int = option("--seed", 0, "Seed of the search.", _TAKES, _SWEEP_RARE)
    eta: int = option(
        "--eta", 3, "One of so many trials continues to the next rung.", _TAKES, _SWEEP_RARE,
        parse=checked(lambda n: 2 <= n <= 16, "{flag} must be from 2 to 16, not {value}"),
    )
    rungs: int = option(
        "--rungs", 0, "Number of rungs (default: up to 4, as the budget allows).", _TAKES,
        _SWEEP_RARE,
        parse=checked(lambda n: 0 <= n <= 8, "{flag} must be from 1 to 8, not {value}"),
    )
    no_earlier: bool = option(
        "--no-earlier", False, "Do not use trials of earlier sweeps on the same code and data.",
        "sweep", _SWEEP_RARE,
    )
    typed: tuple[str, ...] = ()
# fmt: on


def requests_of(
    space: Sequence[str], words: Sequence[str], wish: Mapping[str, Any]
) -> tuple[LaunchRequest, CommandRequest, SweepRequest]:
    """Return what ``sweep`` would get for the options of ``wish``, by their names.

    Raises:
        UsageError: one of them is no option of ``sweep``.
    """
    kinds = (LaunchRequest, CommandRequest, SweepRequest)
    taken = [rows_of(kind, "sweep") for kind in kinds]
    known = {name for rows in taken for name in rows} - {"words"}
    for name in wish:
        if name not in known:
            raise UsageError(f"there is no option {name!r}", next_step=", ".join(sorted(known)))
    of_launch, of_command, of_search = (
        {name: value for name, value in wish.items() if name in rows} for rows in taken
    )
    asked = commands.request_of((*space, *words), of_command)
    search = SweepRequest(**of_search, typed=tuple(of_search))
    return request_from(of_launch), asked, search


def divide_words(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(the leading ``NAME=VALUES`` words, the command that follows them)"""
    count = next((n for n, w in enumerate(words) if not _PARAMETER.fullmatch(w)), len(words))
    return tuple(words[:count]), tuple(words[count:])


def wish_of(
    planner: Planner,
    request: LaunchRequest,
    asked: CommandRequest,
    search: SweepRequest,
    here: Path,
    *,
    is_rented: bool = True,
) -> RunSpec:
    """Return the checked wish of a sweep that is typed in ``here``; without ``is_rented``, of one
    that is written down as a script.

    Raises:
        UsageError: naming the option, or the setting, at fault.
    """
    refuse_tokens(asked)
    named, words = divide_words(asked.words)
    for each in (search, request, replace(asked, words=words or ("command",))):
        placed(each)  # each value by itself, before what they say together
    parse_money("--accept-exposure", request.accept_exposure)
    recipes = None if words else _of_recipe(planner, request, asked, is_rented=is_rented)
    space = space_of(named, search.space, here)
    if request.budget is None and request.hours is None and request.deadline is None:
        raise UsageError(
            "a sweep needs a limit: the number of its trials follows from it",
            next_step="--budget 2, or --hours 1",
        )
    is_here = request.hardware.strip().lower() == LOCAL
    if search.sampler == _OPTUNA and is_here and importlib.util.find_spec(_OPTUNA) is None:
        raise MissingExtra("the sampler optuna", "sweep", install_command("sweep"))
    address = os.environ.get(ENV_RAY_ADDRESS, "")
    _check_place(search.on, request.hardware, address)
    spec = recipes or _of_command(planner, request, asked, words, space, here)
    if (nodes := spec.nodes) > 1:
        one = spec.hardware.partition("x")[2]
        raise UsageError(
            f"a sweep runs on one machine, and {spec.hardware} is {nodes} machines",
            next_step=f"trmcloud sweep {one} --machines {nodes}, a run on each; on a cluster of "
            "your own: --on ray",
        )
    default = sp.read_default(search.default)
    space.default(default)  # refused where it is not in the space
    wish = SweepWish(
        space=tuple(str(each) for each in space.parameters),
        default=tuple(default.items()),
        slots=search.slots,
        sampler=search.sampler,
        seed=search.seed,
        eta=search.eta,
        rungs=search.rungs,
        on=place_of(search.on, address),
    )
    return replace(spec, sweep=wish)


def _check_place(on: str, hardware: str, address: str) -> None:
    if on != RAY:
        return
    if hardware.strip().lower() != LOCAL:
        raise UsageError(
            f"--on ray uses a cluster that you have, and {hardware} is rented",
            next_step="trmcloud sweep local --on ray --rate USD, its price per hour",
        )
    if address.startswith(f"{RAY}://"):
        raise UsageError(
            f"{ENV_RAY_ADDRESS}={address:.80} is for Ray's client: a sweep is to be on a node",
            next_step=f"{ENV_RAY_ADDRESS}=auto, on a machine of the cluster",
        )
    if importlib.util.find_spec(RAY) is None:
        raise MissingExtra("--on ray", RAY, install_command(RAY))
    has_file = _RAY_TOKEN_PATH in os.environ or Path("~/.ray/auth_token").expanduser().is_file()
    if address and _RAY_TOKEN in os.environ and not has_file:
        raise UsageError(
            f"{_RAY_TOKEN} is a secret, and no sweep gets it from the environment",
            next_step=f"put it into ~/.ray/auth_token, or into the file of {_RAY_TOKEN_PATH}",
        )


def space_of(words: Sequence[str], path: str, here: Path) -> Space:
    """Return the space of ``NAME=VALUES`` words, or of the TOML file at ``path``.

    Raises:
        UsageError: it is none.
    """
    if path and words:
        raise UsageError("name the settings in --space or as words, not both")
    if not path:
        return sp.read_words(words)
    import tomllib

    try:
        tables = tomllib.loads((here / path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"--space {path}: it cannot be read: {error}", next_step="lr = {log = [1e-4, 1e-2]}"
        ) from None
    return sp.read_tables(tables)


def _of_command(
    planner: Planner,
    request: LaunchRequest,
    asked: CommandRequest,
    words: tuple[str, ...],
    space: Space,
    here: Path,
) -> RunSpec:
    names = [each.name for each in space.parameters]
    started = set(_PLACE.findall(" ".join(words)))
    placed = started.union(_PLACE.findall(asked.resume)) - {_CHECKPOINT}
    for name in names:
        if name not in started:
            raise UsageError(
                f"{{{name}}} is not in the command: all its trials would be the same",
                next_step=f"add --{name} {{{name}}} to the command, or leave {name} out",
            )
    for name in sorted(placed.difference(names)):
        raise UsageError(
            f"the command has {{{name}}}, which is not in the space",
            next_step=suggest_name(name, names),
        )
    if not asked.metric:
        raise UsageError(
            "a sweep of a command needs the metric that its trials are compared by",
            next_step="--metric val_loss",
        )
    if "recipe" in request.typed:
        raise UsageError("--recipe and a command exclude one another")
    if "keep_best" not in asked.typed:
        asked = replace(asked, keep_best=_KEEP_BEST)
    return commands.wish_of(planner, request, replace(asked, words=words), here)


def _of_recipe(
    planner: Planner, request: LaunchRequest, asked: CommandRequest, *, is_rented: bool
) -> RunSpec:
    if "recipe" not in request.typed:
        raise UsageError(
            "name what is trained: a recipe or a command",
            next_step="--recipe shakespeare, or -- python train.py {lr}",
        )
    if asked.metric not in ("", METRIC):
        raise UsageError(
            f"the trials of a recipe are compared by {METRIC}, not {asked.metric!r:.60}",
            next_step="leave --metric out",
        )
    for name in asked.typed:
        if name not in ("words", "metric"):
            raise UsageError(
                f"--{name.replace('_', '-')} is about a command, and a recipe is trained",
                next_step="leave it out",
            )
    spec = planner.spec_to_launch(request) if is_rented else planner.spec(request, ())
    recipe = planner.recipe(spec.recipe)
    phases = tuple(name for name in spec.phases if name in recipe.phases) or recipe.usual_phases
    if len(phases) > 1:
        raise UsageError(
            f"a sweep trains one phase, and {recipe.name} has {' and '.join(phases)}",
            next_step=f"--phase {phases[0]}",
        )
    if "keep_best" not in dict(spec.overrides):
        spec = replace(spec, overrides=(*spec.overrides, ("keep_best", _KEEP_BEST)))
    return replace(spec, phases=phases)


# -- from the wish to the launch ------------------------------------------------------------------


def dry_run(
    planner: Planner, spec: RunSpec, here: Path
) -> tuple[Plan, WorkingTree | None, SweepTerms, Priors]:
    """Return the plan that would be launched, saved, the files that would be sent, its terms, and
    what is known of its points.

    Raises:
        TrmcloudError: there can be no such plan.
    """
    tree = commands.tree_of(spec, here) if spec.command is not None else None
    plan = planner.plan(spec)
    terms = terms_of(plan)
    _check(plan, terms)
    return planner.save(plan), tree, terms, priors_of(plan, terms)


def _check(plan: Plan, terms: SweepTerms) -> None:
    check_points(plan, terms)
    check_default_fits(plan, terms)


def prepare(
    context: Context,
    planner: Planner,
    request: LaunchRequest,
    spec: RunSpec,
    here: Path,
    trainer: Path,
    progress: DataProgress,
) -> tuple[PreparedLaunch, WorkingTree | None, SweepTerms, Priors]:
    """Check everything before the user is asked for money; then make code and data ready.
    ``trainer`` is the trainer's package.

    Raises:
        TrmcloudError: what keeps this from being launched.
    """

    def beside_code(wish: RunSpec) -> Mapping[str, bytes]:
        plan = planner.plan(wish)
        terms = terms_of(plan)
        return {SWEEP_NAME: write_job(wish, terms, priors_of(plan, terms))}

    tree = None
    if spec.command is not None:
        ready, tree = commands.prepare(context, planner, request, spec, here, beside_code)
    else:
        plan = planner.plan(spec)
        _check(plan, terms_of(plan))  # before any data is fetched
        ready = preparing.prepare(context, planner, request, progress, spec)
    terms = terms_of(ready.plan)
    _check(ready.plan, terms)
    priors = priors_of(ready.plan, terms)
    if spec.command is None:
        files = {SWEEP_NAME: write_job(spec, terms, priors), **commands_share()}
        item = code_item(trainer, context.home, files)
        ready = replace(ready, data=replace(ready.data, code=str(item.local)))
    return ready, tree, terms, priors


def write_job(spec: RunSpec, terms: SweepTerms, priors: Priors) -> bytes:
    return dump_job(job_of(spec, terms, priors)).encode()


def job_of(spec: RunSpec, terms: SweepTerms, priors: Priors) -> SweepJob:
    """Return what the executor of a planned sweep reads."""
    assert spec.sweep is not None
    return SweepJob(terms, priors, on=spec.sweep.on)
