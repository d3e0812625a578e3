"""Optuna behind the samplers' interface; `make bench-sweep` runs it where Optuna is installed."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from trmcloud.core.errors import MissingExtra
from trmcloud.core.money import Usd
from trmcloud.core.sweep.priors import Tried
from trmcloud.core.sweep.space import Point, read_words
from trmcloud.core.sweep.terms import Goal, SweepTerms, make_terms
from trmcloud.pod.sweep.optuna_sampler import open_optuna

WORDS = (
    "lr=log:1e-4,1e-2", "width=int:64,256,step=32", "batch=logint:8,512", "optimizer=adamw|muon",
    "muon_lr=log:1e-3,1e-1@optimizer=muon", "epochs=3",
)  # fmt: skip
needs_optuna = pytest.mark.skipif(
    importlib.util.find_spec("optuna") is None, reason="Optuna is not installed"
)


def terms_of(words: tuple[str, ...] = WORDS, goal: Goal = Goal.MIN, lr: float = 1e-3) -> SweepTerms:
    space = read_words(words)
    default, _ = space.default({"lr": lr} if "lr" in words[0] else {})
    return make_terms(
        space, default, metric="loss", goal=goal, usd=Usd(100), full_usd=Usd(9),
        slot_rate=Usd("3.6"),
    )  # fmt: skip


def test_without_optuna_it_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtra, match="the sampler optuna needs the 'sweep' extra") as refused:
        open_optuna(terms_of())
    assert "--sampler density" in refused.value.next_step


@needs_optuna
@pytest.mark.parametrize("goal", Goal)
def test_the_same_history_gives_the_same_new_points_of_the_space(goal: Goal) -> None:
    # The default lies outside of the range, and one trial crashed.
    terms = terms_of(goal=goal, lr=0.5)
    space = terms.space
    history = [Tried(terms.default, ((0, 1.0),)), Tried(space.point([0.1] * 5), failed=True)]
    for number in range(25):
        (point,) = open_optuna(terms).suggest(history, 1)
        assert open_optuna(terms).suggest(history, 1) == [point]
        assert point not in [each.point for each in history]
        values = dict(point)
        assert space.make(values) == point
        assert all(
            each.contains(values[each.name]) for each in space.parameters if each.name in values
        )
        metrics = tuple((rung, float(number)) for rung in range(number % 5))
        history.append(Tried(point, metrics))


@needs_optuna
def test_it_learns_from_the_metrics() -> None:
    terms = terms_of(("x=uniform:0,1", "y=uniform:0,1"))
    history: list[Tried] = []

    def distance(point: Point) -> float:
        return sum(abs((share or 0.0) - 0.25) for share in terms.space.shares(point))

    for _ in range(60):
        (point,) = open_optuna(terms).suggest(history, 1)
        history.append(Tried(point, ((0, distance(point)), (terms.last, distance(point)))))
    found = [distance(each.point) for each in history]
    assert sum(found[40:]) < 0.6 * sum(found[:20])


@needs_optuna
def test_a_space_that_is_used_up_and_points_that_do_not_fit() -> None:
    terms = terms_of(("a=1|2", "b=3"))
    assert len(open_optuna(terms).suggest([], 5)) == 2
    assert open_optuna(terms, lambda point: False).suggest([], 2) == []
