"""Optuna 5's sampler behind the interface of ``core.sweep.samplers``, by its ask and tell. It is
the extra ``sweep``, and is imported where a sweep asks for it alone.

Each suggestion is of a study made anew from the history, so that a sweep that is resumed gets the
same points. A trial that has not reached the last rung is told as pruned at its rung, which TPE
ranks below those that were trained longer.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from trmcloud.core.errors import MissingExtra
from trmcloud.core.sweep.priors import Tried
from trmcloud.core.sweep.samplers import Fits, Sampler, make_sampler, suggest_each
from trmcloud.core.sweep.space import Kind, Parameter, Point, Space
from trmcloud.core.sweep.terms import Goal, SweepTerms
from trmcloud.io.installation import install_command

NAME = "optuna"
_TRIES = 20
"""Draws for a point that is new and fits; after so many it is Halton's."""


def open_optuna(terms: SweepTerms, fits: Fits | None = None) -> Sampler:
    """Return Optuna's TPE for a sweep's terms.

    Raises:
        MissingExtra: Optuna is not installed on this machine.
    """
    try:
        optuna: Any = importlib.import_module("optuna")
    except ImportError:
        raise MissingExtra(
            "the sampler optuna",
            "sweep",
            f"{install_command('sweep')} on the machine that trains, or --sampler density",
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    rest = make_sampler("halton", terms.space, terms.default, terms.goal, terms.seed, fits=fits)
    return _Optuna(optuna, terms, fits, rest)


class _Optuna:
    def __init__(self, optuna: Any, terms: SweepTerms, fits: Fits | None, rest: Sampler) -> None:
        self._optuna, self._terms, self._fits, self._rest = optuna, terms, fits, rest

    def suggest(self, history: Sequence[Tried], count: int) -> list[Point]:
        return suggest_each(self._suggest_one, history, count)

    def _suggest_one(self, history: Sequence[Tried]) -> Point | None:
        space, tried = self._terms.space, {each.point for each in history}
        study = self._study(history)
        for _ in range(_TRIES):
            point = _ask(study.ask(), space)
            if point not in tried and (self._fits is None or self._fits(point)):
                return point
        return next(iter(self._rest.suggest(history, 1)), None)

    def _study(self, history: Sequence[Tried]) -> Any:
        is_least = self._terms.goal is Goal.MIN
        study = self._optuna.create_study(
            direction="minimize" if is_least else "maximize",
            sampler=self._optuna.samplers.TPESampler(seed=self._terms.seed + len(history)),
        )
        for each in history:
            if each.prior:  # its metrics are of other dollars: TPE would compare them with ours
                continue
            study.add_trial(self._told(each))
        return study

    def _told(self, tried: Tried) -> Any:
        """Return the trial as Optuna keeps one."""
        states = self._optuna.trial.TrialState
        values = dict(tried.point)
        # A default outside of the space has no place in it.
        inside = [
            each
            for each in self._terms.space.parameters
            if each.name in values and each.contains(values[each.name])
        ]
        metrics = dict(tried.metrics)
        last = metrics.get(self._terms.last)
        state = states.RUNNING
        if tried.failed:
            state = states.FAIL
        elif last is not None:
            state = states.COMPLETE
        elif metrics:
            state = states.PRUNED
        return self._optuna.trial.create_trial(
            state=state,
            value=last if state == states.COMPLETE else None,
            params={each.name: values[each.name] for each in inside},
            distributions={each.name: self._distribution(each) for each in inside},
            intermediate_values=metrics,
        )

    def _distribution(self, parameter: Parameter) -> Any:
        kinds = self._optuna.distributions
        if parameter.kind in (Kind.CONSTANT, Kind.CHOICE):
            return kinds.CategoricalDistribution(parameter.values)
        log = parameter.is_logarithmic
        if parameter.kind in (Kind.INT, Kind.LOGINT):
            step = 1 if log else parameter.step
            return kinds.IntDistribution(int(parameter.low), int(parameter.high), log, step)
        return kinds.FloatDistribution(parameter.low, parameter.high, log)


def _ask(trial: Any, space: Space) -> Point:
    """Return the point of an asked trial, its numbers at the digits that a space keeps."""
    values: dict[str, Any] = {}
    for each in space.parameters:
        if each.parent and values.get(each.parent) not in each.when:
            continue
        if each.kind in (Kind.CONSTANT, Kind.CHOICE):
            drawn = trial.suggest_categorical(each.name, each.values)
        elif each.kind in (Kind.INT, Kind.LOGINT):
            step = 1 if each.is_logarithmic else each.step
            drawn = trial.suggest_int(
                each.name, int(each.low), int(each.high), step=step, log=each.is_logarithmic
            )
        else:
            drawn = trial.suggest_float(each.name, each.low, each.high, log=each.is_logarithmic)
        values[each.name] = each.value(each.share(drawn))
    return space.make(values)
