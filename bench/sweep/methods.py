"""One way to spend a number of seconds of a machine on trainings of a table: ours, and others by
their public interfaces. Each returns a path: (seconds spent, best accuracy so far) pairs.

All begin with the same default settings, are sequential, pay for each epoch that they train, and
count the best accuracy of any epoch within the budget.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from syne_tune import config_space
from syne_tune.backend.trial_status import Trial as SyneTrial
from syne_tune.optimizer.baselines import ASHA

from bench.sweep.tables import EPOCHS, Lcbench
from trmcloud.core.money import Usd
from trmcloud.core.sweep.events import rung_reached
from trmcloud.core.sweep.halving import End, next_moves
from trmcloud.core.sweep.priors import Tried
from trmcloud.core.sweep.samplers import SAMPLERS, make_sampler
from trmcloud.core.sweep.space import Kind, Parameter
from trmcloud.core.sweep.state import SweepState, apply
from trmcloud.core.sweep.terms import Goal, SweepTerms, make_terms

Path = list[tuple[float, float]]
Method = Callable[[Lcbench, int, float, float], Path]
"""Of a table, a seed, the budget in seconds, and the mean seconds of a whole training."""

optuna.logging.set_verbosity(optuna.logging.ERROR)
logging.getLogger("syne_tune").setLevel(logging.ERROR)

_SECOND = Usd(3600)
"""A rate at which a second costs a dollar."""
_WHOLE = (Kind.INT, Kind.LOGINT)


class _Meter:
    """The seconds spent and the best so far."""

    def __init__(self) -> None:
        self.path: Path = []
        self._best = -1.0

    def see(self, spent: float, accuracy: float) -> None:
        if accuracy > self._best:
            self._best = accuracy
            self.path.append((spent, accuracy))


def ours(sampler: str) -> Method:
    """Return the sweep of trmcloud with this sampler. The surrogate has no noise, so that nothing
    is repeated with another seed."""

    def play(table: Lcbench, seed: int, budget: float, whole: float) -> Path:
        return sweep(table, sampler, seed, budget, whole)[0]

    return play


def sweep(
    table: Lcbench, sampler: str, seed: int, budget: float, whole: float
) -> tuple[Path, SweepState, SweepTerms]:
    """Play the sweep of trmcloud; return its path, its end and its terms."""
    default, _ = table.space.default({})
    terms = make_terms(
        table.space, default, metric="accuracy", goal=Goal.MAX, usd=usd(budget),
        full_usd=usd(whole), slot_rate=_SECOND, seeds=1, sampler=sampler, seed=seed,
        overrun_s=whole / 27,
    )  # fmt: skip
    drawing = make_sampler(sampler, table.space, default, terms.goal, seed)
    state, meter = SweepState(), _Meter()
    trained: dict[int, int] = {}
    while not state.ended:
        (move,) = next_moves(state, terms, 1, drawing)
        state = apply(state, move.event)
        if isinstance(move, End):
            break
        ends, accuracies = table.curve(state.trials[move.trial].point)
        before = trained.get(move.trial, 0)
        begin = ends[before - 1] if before else 0.0
        until, most = float(terms.rungs[move.rung]), float(move.most_usd)
        epochs = before
        while epochs < EPOCHS and ends[epochs] <= until:
            epochs += 1
        if epochs == before and ends[epochs] - begin <= most:
            epochs += 1  # an epoch is the least that can be trained
        for epoch in range(before, epochs):
            meter.see(float(state.spent) + ends[epoch] - begin, accuracies[epoch])
        trained[move.trial] = epochs
        seconds = ends[epochs - 1] - begin if epochs > before else most
        metric = max(accuracies[:epochs]) if epochs else None
        event = rung_reached(
            move.trial, move.rung, metric, usd(seconds), seconds, epochs,
            complete=epochs >= EPOCHS,
        )  # fmt: skip
        state = apply(state, event)
    return meter.path, state, terms


def syne_tune_asha(table: Lcbench, seed: int, budget: float, whole: float) -> Path:
    """Syne Tune's ASHA as its baselines have it: random points, rungs at 1, 3, 9 and 27 epochs."""
    np.random.seed(seed)
    default, _ = table.space.default({})
    scheduler = ASHA(
        config_space={each.name: _syne_domain(each) for each in table.space.parameters},
        metric="accuracy", time_attr="epoch", max_t=EPOCHS, do_minimize=False, random_seed=seed,
        grace_period=1, reduction_factor=3, points_to_evaluate=[dict(default)],
    )  # fmt: skip
    meter, spent, number = _Meter(), 0.0, 0
    while spent < budget:
        config = scheduler.suggest().config
        trial = SyneTrial(trial_id=number, config=config, creation_time=_DAY)
        number += 1
        scheduler.on_trial_add(trial)
        point = table.space.make({name: _plain(value) for name, value in config.items()})
        ends, accuracies = table.curve(point)
        for epoch, (end, accuracy) in enumerate(zip(ends, accuracies, strict=True), 1):
            if spent + end > budget:
                return meter.path
            meter.see(spent + end, accuracy)
            decision = scheduler.on_trial_result(trial, {"accuracy": accuracy, "epoch": epoch})
            if decision != "CONTINUE":
                break
        spent += ends[epoch - 1]
    return meter.path


def optuna_hyperband(table: Lcbench, seed: int, budget: float, whole: float) -> Path:
    """Optuna's TPE with its Hyperband pruner, both at their defaults."""
    default, _ = table.space.default({})
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=seed),
        pruner=optuna.pruners.HyperbandPruner(min_resource=1, max_resource=EPOCHS),
    )
    study.enqueue_trial(dict(default))
    meter, spent = _Meter(), 0.0
    while spent < budget:
        trial = study.ask()
        point = table.space.make({p.name: _optuna_value(trial, p) for p in table.space.parameters})
        ends, accuracies = table.curve(point)
        pruned = False
        for epoch, (end, accuracy) in enumerate(zip(ends, accuracies, strict=True), 1):
            if spent + end > budget:
                return meter.path
            meter.see(spent + end, accuracy)
            trial.report(accuracy, epoch)
            pruned = epoch < EPOCHS and trial.should_prune()
            if pruned:
                break
        spent += ends[epoch - 1]
        if pruned:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            study.tell(trial, accuracies[-1])
    return meter.path


def train_all(table: Lcbench, seed: int, budget: float, whole: float) -> Path:
    """Random settings, each trained to the end."""
    default, _ = table.space.default({})
    sampler = make_sampler("uniform", table.space, default, Goal.MAX, seed)
    history = [Tried(default)]
    meter, spent = _Meter(), 0.0
    while spent < budget:
        ends, accuracies = table.curve(history[-1].point)
        for end, accuracy in zip(ends, accuracies, strict=True):
            if spent + end > budget:
                return meter.path
            meter.see(spent + end, accuracy)
        spent += ends[-1]
        history += [Tried(point) for point in sampler.suggest(history, 1)]
    return meter.path


OURS = "trmcloud"
SYNE, OPTUNA, ALL = "Syne Tune ASHA", "Optuna TPE + Hyperband", "train all to the end"
METHODS: Mapping[str, Method] = {
    OURS: ours("density"),
    SYNE: syne_tune_asha,
    OPTUNA: optuna_hyperband,
    ALL: train_all,
}
SAMPLED: Mapping[str, Method] = {
    f"{OURS}, {name}": ours(name) for name in SAMPLERS if name != "density"
}
"""Ours with the other samplers, on which the default was chosen."""

_DAY = datetime.datetime(2026, 11, 27)


def at_shares(path: Path, budget: float, shares: Sequence[float]) -> list[float | None]:
    """Return the best accuracy at each share of the budget; None: nothing was found yet."""
    made = []
    for share in shares:
        found = [accuracy for spent, accuracy in path if spent <= share * budget + 1e-9]
        made.append(found[-1] if found else None)
    return made


def usd(seconds: float) -> Usd:
    return Usd.from_micros(max(int(seconds * 1e6), 0))


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _syne_domain(parameter: Parameter) -> Any:
    make = {
        Kind.LOG: config_space.loguniform,
        Kind.UNIFORM: config_space.uniform,
        Kind.INT: config_space.randint,
        Kind.LOGINT: config_space.lograndint,
    }[parameter.kind]
    if parameter.kind in _WHOLE:
        return make(int(parameter.low), int(parameter.high))
    return make(parameter.low, parameter.high)


def _optuna_value(trial: Any, parameter: Parameter) -> Any:
    log = parameter.is_logarithmic
    if parameter.kind in _WHOLE:
        return trial.suggest_int(parameter.name, int(parameter.low), int(parameter.high), log=log)
    return trial.suggest_float(parameter.name, parameter.low, parameter.high, log=log)
