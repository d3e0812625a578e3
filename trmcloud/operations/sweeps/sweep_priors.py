"""What is known before a sweep's first trial: the sizes that fit the machine, and the trials of
earlier sweeps on the same code.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from trmcloud.core.catalog.hardware import GPUS
from trmcloud.core.contract.command import CODE_NAME
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import TrmcloudError, UsageError
from trmcloud.core.planner.memory import USABLE_SHARE, predict_memory
from trmcloud.core.spec.plan import PhasePlan, Plan
from trmcloud.core.spec.settings import RATES, PhaseRecipe
from trmcloud.core.spec.spec import RunSpec
from trmcloud.core.spec.trials import LR, trial_settings
from trmcloud.core.sweep.halving import history_of
from trmcloud.core.sweep.priors import (
    UNKNOWN,
    EarlierSweep,
    EarlierTrial,
    FirstPoint,
    MemoryTable,
    Priors,
    memory_table,
)
from trmcloud.core.sweep.space import Point, Space, Value
from trmcloud.core.sweep.state import Trial
from trmcloud.core.sweep.terms import SweepTerms
from trmcloud.core.values import replace
from trmcloud.io.hashing import file_sha256
from trmcloud.operations.commands import commands
from trmcloud.operations.context import Context, shown_runs
from trmcloud.operations.plans.planning import Planner
from trmcloud.operations.sending.working_tree import pack
from trmcloud.operations.sweeps.sweep_facts import SweepFacts, sweep_of
from trmcloud.operations.sweeps.sweep_terms import terms_of

_MOST_SWEEPS, _MOST_TRIALS = 3, 100
"""Of earlier sweeps, so many are used: the newest, and of their trials the best."""
_BY_TRIAL = (
    "steps", "seed", "accumulation", "batch", "keep_best", "log_every", "eval_every", "eval_tokens",
    "save_every", "compile", "dtype", "sharding", "activation_checkpointing",
    "selective_checkpointing",
)  # fmt: skip
"""Settings that follow from a trial's dollars or its machine: they may differ between trials that
count as the same. The whole batch is compared by itself."""


def priors_of(plan: Plan, terms: SweepTerms) -> Priors:
    """Return what travels with the terms of a planned sweep."""
    assert plan.spec.sweep is not None
    wish = plan.spec.sweep
    return Priors(wish.first, wish.earlier, memory_of(plan, terms))


# -- memory ---------------------------------------------------------------------------------------


def memory_of(plan: Plan, terms: SweepTerms) -> MemoryTable | None:
    """Return which sizes fit the smallest machine that the sweep may get, by the low end of what
    the planner predicts; None for a command, whose needs are not known, and where no setting
    changes the memory."""
    needs = _needs_of(plan, terms)
    if not needs:
        return None
    room_gb = min(room for _, _, room in needs)

    def need(point: Point) -> float:
        share = max((_share(each, point) for each in needs), key=abs)
        return share if share == UNKNOWN else round(share, 4)

    return memory_table(terms.space, terms.default, need, room_gb)


def check_default_fits(plan: Plan, terms: SweepTerms) -> None:
    """
    Raises:
        UsageError: the first trial needs more memory than the machine has.
    """
    for each in _needs_of(plan, terms):
        share = _share(each, terms.default)
        if share > 1.0:
            raise UsageError(
                f"the first trial needs {share * each[2]:.1f} GB, and a process has {each[2]:.1f}",
                next_step="a smaller --default, fewer --slots, or --set batch=…",
            )


_Need = tuple[PhaseRecipe, Callable[[PhaseRecipe], float], float]
"""A machine's settings, what settings need there in GB, and the GB that a process has."""


def _needs_of(plan: Plan, terms: SweepTerms) -> list[_Need]:
    if plan.spec.command is not None:
        return []
    found: dict[tuple[PhaseRecipe, float, int, bool], _Need] = {}
    for name in plan.launchable:
        each = plan.candidate(name)
        if each is None or not each.memory_gb:
            continue
        on_gpu = each.sku in GPUS
        processes = max(1, each.gpus // terms.slots)
        room_gb = each.memory_gb * USABLE_SHARE
        if not on_gpu:  # each process's share of one memory
            room_gb *= max(1, each.gpus) / (terms.slots * processes)
        settings = each.phases[0].settings
        key = (settings, room_gb, processes, on_gpu)
        found.setdefault(key, (settings, _predictor(processes, on_gpu=on_gpu), room_gb))
    return list(found.values())


def _predictor(processes: int, *, on_gpu: bool) -> Callable[[PhaseRecipe], float]:
    return lambda settings: predict_memory(settings, processes, on_gpu=on_gpu).least


def _share(need: _Need, point: Point) -> float:
    """Return the need at a point, as a share of what there is; below zero for settings that the
    recipe cannot have."""
    settings, predict, room_gb = need
    try:
        made = trial_settings(settings, dict(point), check=False)
        share = predict(made) / room_gb
    except (UsageError, ValueError, ArithmeticError):
        return UNKNOWN
    try:
        made.check()
    except UsageError:
        return -share
    return share


# -- earlier sweeps -------------------------------------------------------------------------------


def with_priors(context: Context, planner: Planner, spec: RunSpec, here: Path) -> RunSpec:
    """Return a sweep's wish with the trials of earlier sweeps on the same code and data.

    Args:
        here: the folder in which a command is typed.
    """
    assert spec.sweep is not None
    known = _alike(context, spec)
    if not known:
        return spec
    plan = planner.plan(spec)
    terms = terms_of(plan)
    earlier, best = _earlier_of(context, plan, terms, known, here)
    points = {each.point: each for each in best[::-1]}
    points.pop(terms.default, None)
    wish = replace(spec.sweep, earlier=earlier, first=tuple(reversed(points.values())))
    return replace(spec, sweep=wish)


def _alike(context: Context, spec: RunSpec) -> list[RunState]:
    """Return the sweeps of the same recipe or the same words, the newest first."""

    def key(one: RunSpec) -> tuple[Any, ...]:
        command = one.command
        if command is None:
            return one.recipe, one.phases, one.data, one.initial_from
        own = replace(command, source=None, checkpoint_bytes=1, keep_best=1, silent_s=0.0)
        return replace(own, grace_s=0.0), one.data

    own = key(spec)
    runs = (run for run in shown_runs(context).values() if run.recorded_plan is not None)
    alike = [run for run in runs if run.spec.sweep is not None and key(run.spec) == own]
    return sorted(alike, key=lambda run: -run.created_at)


def _earlier_of(
    context: Context, plan: Plan, terms: SweepTerms, known: Sequence[RunState], here: Path
) -> tuple[tuple[EarlierSweep, ...], list[FirstPoint]]:
    """Return the trials of ``known`` that are points of this sweep, and the best of each."""
    code = _code_of(plan.spec, here) if known else ""
    found, best = list[EarlierSweep](), list[FirstPoint]()
    left = _MOST_TRIALS
    for run in known:
        facts = sweep_of(context, run)
        command = run.spec.command
        ran = command.source.code_sha256 if command is not None and command.source else ""
        if facts is None or ran != code or len(found) == _MOST_SWEEPS:
            continue
        translate = _translator(plan, terms, run.plan)
        tried = []
        own = [trial for trial in facts.state.trials.values() if not trial.repeats]
        for trial, told in zip(own, history_of(facts.state), strict=True):
            point = translate(trial.point) if told.metrics or told.failed else None
            if point is not None:
                rung, metric = max(told.metrics, default=(-1, None))
                tried.append((trial, EarlierTrial(point, rung, metric)))
        tried.sort(key=lambda pair: _standing(pair[0], facts))
        if not tried or left <= 0:
            continue
        rows = tuple(each for _, each in tried[:left])
        left -= len(rows)
        found.append(EarlierSweep(run.run_id, rows))
        if rows[0].metric is not None:
            best.append(FirstPoint(rows[0].point, run.run_id, tried[0][0].number))
    return tuple(found), best


def _code_of(spec: RunSpec, here: Path) -> str:
    """Return the hash of the code that a command's sweep would send; empty for a recipe."""
    if spec.command is None:
        return ""
    tree = commands.tree_of(spec, here)
    with tempfile.TemporaryDirectory(prefix="trmcloud-") as folder:
        return file_sha256(pack(tree, Path(folder)) / CODE_NAME)


def _translator(plan: Plan, terms: SweepTerms, earlier: Plan) -> Callable[[Point], Point | None]:
    """Return a function from an earlier trial's point to the point of this sweep with which a trial
    has the same settings; None: there is none."""
    space = terms.space
    if plan.spec.command is not None:
        return lambda point: _inside(space, dict(point))
    mine, theirs = _phase_of(plan), _phase_of(earlier)
    if mine is None or theirs is None:
        return lambda point: None

    def translate(point: Point) -> Point | None:
        try:
            settings = trial_settings(theirs.settings, dict(point))
            made = _inside(space, _named(space, settings))
            if made is None:
                return None
            same = _comparable(trial_settings(mine.settings, dict(made)), plan)
        except (TrmcloudError, ValueError):
            return None
        return made if _close(same, _comparable(settings, earlier)) else None

    return translate


def _phase_of(plan: Plan) -> PhasePlan | None:
    chosen = plan.recommended
    return chosen.phases[0] if chosen is not None and chosen.phases else None


def _named(space: Space, settings: PhaseRecipe) -> dict[str, Value]:
    """Return a training's values for the settings that are searched."""
    found = {}
    for each in space.parameters:
        name = RATES[0] if each.name == LR else each.name
        if hasattr(settings, name):
            found[each.name] = getattr(settings, name)
    return found


def _inside(space: Space, values: Mapping[str, Value]) -> Point | None:
    """Return the point with these values, its numbers at the digits that a space keeps; None where
    one is missing or outside."""
    made: dict[str, Value] = {}
    for each in space.parameters:
        if each.parent and made.get(each.parent) not in each.when:
            continue
        value = values.get(each.name)
        if value is None or not each.contains(value):
            return None
        made[each.name] = value if isinstance(value, bool | str) else each.value(each.share(value))
    return tuple(made.items())


def _comparable(settings: PhaseRecipe, plan: Plan) -> dict[str, Any]:
    """Return the settings that make two trainings the same, with the sequences that a step learns
    from on all of the plan's GPUs."""
    processes = plan.recommended.gpus if plan.recommended is not None else 1
    whole = settings.batch * settings.accumulation * max(1, processes)
    names = (each.name for each in fields(settings) if each.name not in _BY_TRIAL)
    return {name: getattr(settings, name) for name in names} | {"whole": whole}


def _close(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two trainings have the same settings; rates may differ by their last digits."""
    if one.keys() != other.keys():
        return False
    return all(
        math.isclose(value, other[key], rel_tol=1e-4)
        if isinstance(value, float) and isinstance(other[key], float)
        else value == other[key]
        for key, value in one.items()
    )


def _standing(trial: Trial, facts: SweepFacts) -> tuple[float, float, int]:
    """Order trials: those of the highest rung first, there by their metric."""
    known = [(r.rung, r.metric) for r in trial.results if r.metric is not None]
    if not known:
        return math.inf, 0.0, trial.number
    rung, metric = max(known)
    return -rung, metric if facts.terms.goal.value == "min" else -metric, trial.number
