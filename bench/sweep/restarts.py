"""Restarts charged: learning curves over the size of the training set, where more data means
another training from the start.

LCDB 0.1.0 (Mohr, Viering, Loog and van Rijn 2022) has, for each of 20 learners, the seconds of a
training and its accuracies on validation and test data, at sizes of 16, 23, 32, 45, … up to 81 % of
a data set, for 25 splits of it. A sweep chooses among the learners.
"""

from __future__ import annotations

import datetime
import math
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path as File
from typing import Any

import numpy as np
import optuna
import pandas
from syne_tune import config_space
from syne_tune.backend.trial_status import Trial as SyneTrial
from syne_tune.optimizer.baselines import ASHA

from bench.sweep.methods import ALL, OURS, Path, usd
from bench.sweep.tables import require_published
from trmcloud.core.money import Usd
from trmcloud.core.sweep.events import rung_reached
from trmcloud.core.sweep.halving import End, next_moves
from trmcloud.core.sweep.samplers import draw, make_sampler
from trmcloud.core.sweep.space import Space, read_words
from trmcloud.core.sweep.state import SweepState, apply
from trmcloud.core.sweep.terms import Goal, make_terms

SHA256 = "450ea69b249866298653f718d66a825e3d19a4024dd4ff140b89f2e04d4777ae"
"""Of ``lcdb-0.1.0.tar.gz``."""
MEMBER = "lcdb-0.1.0/lcdb/database-accuracy.csv"
LEAST_SIZE, LEAST_LEARNERS = 4000, 15
"""The data sets that are taken: so many rows at most to train on, and so many learners that have
every size of every split."""
LEAST_SPREAD = 0.01
"""And where the best learner's accuracy is so much above the median's, or more."""
PART = 5
"""The budget is one of so many parts of what training every learner on all data costs."""
SPLITS = 25
GRACE = 64
"""The smallest training of the other tuners, in rows."""

_LEAST_S = 1e-4
"""Shorter times are not in the table: they are rounded to it."""
_GROWTH = 4.0
_MOST_POWER = 3.0


class Learners:
    """One data set. ``sizes`` rise; ``seconds`` and ``valid`` are by split, learner and size,
    ``test`` is the mean over the splits. What counts is ``test``: its noise is no method's luck."""

    def __init__(self, task: str, names: list[str], sizes: list[int], cube: Any) -> None:
        self.task, self.names, self.sizes = task, names, sizes
        self.seconds = np.maximum(cube[..., 0], _LEAST_S)
        self.valid = cube[..., 1]
        self.test = cube[..., 2].mean(axis=0)
        self.space: Space = read_words([f"learner={'|'.join(names)}"])
        self.best = float(self.test.max())
        self.median = float(np.median(self.test[:, -1]))

    def whole_s(self, split: int) -> float:
        """Return the mean seconds of a training on all data."""
        return float(self.seconds[split, :, -1].mean())

    def budget_s(self, split: int) -> float:
        return float(self.seconds[split, :, -1].sum()) / PART

    def ladder(self) -> list[int]:
        """Return the sizes that a tuner trains on which goes from ``GRACE`` rows in steps of 3: the
        next of the table, by place."""
        places, size = [], float(GRACE)
        while size < self.sizes[-1]:
            places.append(next(n for n, each in enumerate(self.sizes) if each >= size))
            size *= 3
        return [*dict.fromkeys([*places, len(self.sizes) - 1])]


def open_learners(archive: File) -> dict[str, Learners]:
    """
    Raises:
        ValueError: the file is not the published one.
    """
    require_published(archive, SHA256)
    with tarfile.open(archive) as packed:
        rows = pandas.read_csv(packed.extractfile(MEMBER))
    rows = rows[rows.inner_seed < 5]
    largest = rows.groupby("openmlid").size_train.transform("max")
    rows = rows[largest >= LEAST_SIZE]
    return {
        str(task): made for task, of in rows.groupby("openmlid") if (made := _learners(task, of))
    }


def _learners(task: int, rows: Any) -> Learners | None:
    sizes = sorted(rows.size_train.unique())
    split = rows.outer_seed * 5 + rows.inner_seed
    cubes = {}
    for name, of in rows.groupby("learner"):
        cube = np.full((SPLITS, len(sizes), 3), np.nan)
        places = np.searchsorted(sizes, of.size_train)
        cube[split[of.index], places] = of[["traintime", "score_valid", "score_test"]]
        if not np.isnan(cube).any():
            cubes[name.rpartition(".")[2]] = cube
    if len(cubes) < LEAST_LEARNERS:
        return None
    names = sorted(cubes)
    whole = np.stack([cubes[name] for name in names], axis=1)
    made = Learners(str(task), names, [int(size) for size in sizes], whole)
    return made if made.best - made.median >= LEAST_SPREAD else None


class _Sweep:
    """The money, and the test accuracy of the model with the best validation accuracy so far."""

    def __init__(self, table: Learners, seed: int, budget: float) -> None:
        self.table, self.budget = table, budget
        self.split = seed % SPLITS
        self.spent = 0.0
        self.path: Path = []
        self.trained: set[tuple[int, int]] = set()
        self._best = -1.0

    def train(self, learner: int, place: int) -> float | None:
        """Train on the size at ``place`` from the start; return the validation accuracy. None: the
        budget ended it. What was trained before is not paid for again."""
        if (learner, place) not in self.trained:
            self.spent += self.table.seconds[self.split, learner, place]
            if self.spent > self.budget:
                return None
            self.trained.add((learner, place))
        accuracy = float(self.table.valid[self.split, learner, place])
        if accuracy > self._best:
            self._best = accuracy
            self.path.append((self.spent, float(self.table.test[learner, place])))
        return accuracy


Method = Callable[[Learners, int], Path]
"""Of a table and a seed, which is also the split, modulo 25."""


def first_of(table: Learners, seed: int) -> int:
    """Return the learner that every method begins with."""
    return int(draw(seed, int(table.task)) * len(table.names))


def ours(table: Learners, seed: int) -> Path:
    """The sweep of trmcloud whose trials cannot resume: in each interval a trial has its rung's
    dollars from its start."""
    sweep = _Sweep(table, seed, table.budget_s(seed % SPLITS))
    default = table.space.make({"learner": table.names[first_of(table, seed)]})
    terms = make_terms(
        table.space, default, metric="accuracy", goal=Goal.MAX, usd=usd(sweep.budget),
        full_usd=usd(table.whole_s(sweep.split)), slot_rate=Usd(3600), seeds=1, can_resume=False,
        seed=seed,
    )  # fmt: skip
    drawing = make_sampler(terms.sampler, table.space, default, terms.goal, seed)
    state = SweepState()
    reached: dict[int, list[int]] = {}
    while not state.ended:
        (move,) = next_moves(state, terms, 1, drawing)
        state = apply(state, move.event)
        if isinstance(move, End):
            break
        learner = table.names.index(str(dict(state.trials[move.trial].point)["learner"]))
        places = reached.setdefault(move.trial, [])
        seconds = 0.0
        for place, cost in _interval(table, sweep.split, learner, places, float(move.train_usd)):
            seconds += cost
            if place is None:
                sweep.spent += cost  # it was ended there
            else:
                sweep.train(learner, place)
                places.append(place)
        metric = max((table.valid[sweep.split, learner, each] for each in places), default=None)
        complete = bool(places) and places[-1] == len(table.sizes) - 1
        event = rung_reached(
            move.trial, move.rung, None if metric is None else float(metric), usd(seconds), seconds,
            table.sizes[places[-1]] if places else 0, complete=complete,
        )  # fmt: skip
        state = apply(state, event)
    return sweep.path


def _interval(
    table: Learners, split: int, learner: int, places: list[int], money: float
) -> Iterator[tuple[int | None, float]]:
    """Yield the trainings of an interval of a trial that has trained at ``places``: (place, cost).
    The trainer knows only the times that it has measured. It begins with the fewest rows, grows by
    at most 4 times, and takes the largest size whose time fits by its last two; a training that
    does not fit is ended with the money, and has no place."""
    sizes = table.sizes
    done = list(places)
    while not done or done[-1] < len(sizes) - 1:
        fitting = [0]
        if done:
            last = table.seconds[split, learner, done[-1]]
            power = 1.0
            if len(done) > 1:
                before = table.seconds[split, learner, done[-2]]
                power = math.log(last / before) / math.log(sizes[done[-1]] / sizes[done[-2]])
                power = min(max(power, 1.0), _MOST_POWER)
            fitting = [
                place
                for place in range(done[-1] + 1, len(sizes))
                if sizes[place] <= _GROWTH * sizes[done[-1]]
                and last * (sizes[place] / sizes[done[-1]]) ** power <= money
            ]
            if not fitting:
                return
        cost = float(table.seconds[split, learner, fitting[-1]])
        if cost > money:
            yield None, money
            return
        money -= cost
        done.append(fitting[-1])
        yield fitting[-1], cost


def syne_tune_asha(table: Learners, seed: int) -> Path:
    """Syne Tune's ASHA, which trains a trial at each of its rungs."""
    np.random.seed(seed)
    sweep = _Sweep(table, seed, table.budget_s(seed % SPLITS))
    scheduler = ASHA(
        config_space={"learner": config_space.choice(table.names)}, metric="accuracy",
        time_attr="rows", max_t=table.sizes[-1], do_minimize=False, random_seed=seed,
        grace_period=GRACE, reduction_factor=3,
        points_to_evaluate=[{"learner": table.names[first_of(table, seed)]}],
    )  # fmt: skip
    for number in range(_MOST_TRIALS):
        config = scheduler.suggest().config
        trial = SyneTrial(trial_id=number, config=config, creation_time=_DAY)
        scheduler.on_trial_add(trial)
        learner = table.names.index(config["learner"])
        for place in table.ladder():
            accuracy = sweep.train(learner, place)
            if accuracy is None:
                return sweep.path
            result = {"accuracy": accuracy, "rows": table.sizes[place]}
            if scheduler.on_trial_result(trial, result) != "CONTINUE":
                break
    return sweep.path


def optuna_hyperband(table: Learners, seed: int) -> Path:
    """Optuna's TPE with its Hyperband pruner, at their defaults, on the same rungs."""
    sweep = _Sweep(table, seed, table.budget_s(seed % SPLITS))
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=seed),
        pruner=optuna.pruners.HyperbandPruner(min_resource=GRACE, max_resource=table.sizes[-1]),
    )
    study.enqueue_trial({"learner": table.names[first_of(table, seed)]})
    ladder = table.ladder()
    for _ in range(_MOST_TRIALS):
        trial = study.ask()
        learner = table.names.index(trial.suggest_categorical("learner", table.names))
        pruned, accuracy = False, None
        for place in ladder:
            accuracy = sweep.train(learner, place)
            if accuracy is None:
                return sweep.path
            trial.report(accuracy, table.sizes[place])
            pruned = place != ladder[-1] and trial.should_prune()
            if pruned:
                break
        if pruned:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            study.tell(trial, accuracy)
    return sweep.path


def train_all(table: Learners, seed: int) -> Path:
    """Each learner on all data, in a random order, with as many times the budget."""
    sweep = _Sweep(table, seed, table.budget_s(seed % SPLITS) * PART * (1 + 1e-9))
    first = first_of(table, seed)
    rest = sorted(set(range(len(table.names))) - {first}, key=lambda each: draw(seed, each))
    for learner in [first, *rest]:
        sweep.train(learner, len(table.sizes) - 1)
    return sweep.path


SYNE, OPTUNA = "Syne Tune ASHA", "Optuna TPE + Hyperband"
METHODS: Mapping[str, Method] = {
    OURS: ours, SYNE: syne_tune_asha, OPTUNA: optuna_hyperband, ALL: train_all,
}  # fmt: skip

_MOST_TRIALS = 300
"""Of the other tuners, which suggest a learner again that they have trained."""
_DAY = datetime.datetime(2026, 11, 27)
