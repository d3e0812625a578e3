"""Goals: the table, its faults, and whether a run's checkpoints reach one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.core.manifests import manifest
from trmcloud.adapters.files import load_goal, load_goals, load_recipe
from trmcloud.core import codec
from trmcloud.core.catalog.goals import CORE, Goal, judge_goal, parse_goals
from trmcloud.core.control.receipt import points_of, scores_of
from trmcloud.core.errors import NotFoundError, UsageError

ROW: dict[str, Any] = {
    "title": "A result",
    "metric": "val_bpb",
    "at_most": 1.2,
    "recipe": "speedrun",
    "settings": {"depth": 4},
    "evidence": [
        {"value": 1.1, "hardware": "8xH100", "hours": 2, "by": "them", "source": "https://a.example",
         "usd": "12.50", "day": "2026-03-14"},
    ],
}  # fmt: skip
[GOAL] = parse_goals({"a": ROW}, "goals.toml").values()


def test_every_shipped_goal_has_evidence_and_a_recipe_with_its_phases() -> None:
    for name, goal in load_goals().items():
        recipe = load_recipe(goal.recipe)
        assert set(goal.phases) <= set(recipe.phases), name
        assert goal.evidence, name
        for each in goal.evidence:
            assert goal.is_met_by(each.value), name
            assert each.day.count("-") == 2
            assert each.source
        recipe.resolve(
            (goal.phases or tuple(recipe.phases))[0],
            hardware="8xH100", gpus=8, overrides=dict(goal.settings),
        )  # fmt: skip


def test_gpt2s_threshold_is_the_published_one() -> None:
    goal = load_goal("gpt2")
    assert (goal.metric, goal.threshold, goal.higher, goal.suite) == (CORE, 0.256525, True, CORE)
    assert goal.is_met_by(0.2566)
    assert not goal.is_met_by(0.2565)


def test_it_is_kept_and_read_as_a_record() -> None:
    for goal in (GOAL, *load_goals().values()):
        assert codec.from_json(Goal, codec.to_json(goal)) == goal


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"metric": "bpb"}, "no metric 'bpb'"),
        ({"at_least": 1.0}, "either at_least or at_most"),
        ({"at_most": None}, "at_most takes a number"),
        ({"at_most": True}, "at_most takes a number"),
        ({"at_most": math.nan}, "at_most takes a number"),
        ({"recipe": ""}, "recipe takes text"),
        ({"title": 3}, "title takes text"),
        ({"phases": "train"}, "phases takes a list"),
        ({"settings": "depth=4"}, "settings is a table"),
        ({"recipie": "trm"}, "unknown key 'recipie'"),
        ({"evidence": ["them"]}, "evidence is a table"),
        ({"evidence": [{"value": 1.1}]}, "hardware takes text"),
        ({"evidence": [{**ROW["evidence"][0], "cost": 1}]}, "unknown key 'cost'"),
    ],
)
def test_a_row_at_fault_is_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        parse_goals({"a": {**ROW, **change}}, "goals.toml")
    assert "goals.toml [a]" in str(caught.value.where)


def test_a_goal_that_is_no_table_is_refused() -> None:
    with pytest.raises(UsageError, match="a goal is a table"):
        parse_goals({"title": "A result"}, "goals.toml")


def test_a_file_of_ones_own_has_one_goal(tmp_path: Any) -> None:
    one = '[a]\ntitle = "A result"\nmetric = "core"\nat_least = 0.1\nrecipe = "speedrun"\n'
    path = tmp_path / "mine.toml"
    path.write_text(one)
    assert load_goal(str(path)).threshold == 0.1
    path.write_text(one + one.replace("[a]", "[b]"))
    with pytest.raises(UsageError, match="2 goals, not one"):
        load_goal(str(path))
    path.write_text("[a")
    with pytest.raises(UsageError, match="the goal is not TOML"):
        load_goal(str(path))
    with pytest.raises(NotFoundError, match="no goal file"):
        load_goal(str(tmp_path / "other.toml"))
    with pytest.raises(NotFoundError, match="no goal named 'gtp2'"):
        load_goal("gtp2")


def test_a_run_is_judged_by_its_best_checkpoint_in_the_goals_metric() -> None:
    most = judge_goal(GOAL, [manifest(100, 1.5), manifest(200, 1.15), manifest(300, None)])
    assert (most.value, most.label, most.is_reached) == (1.15, "fast/step-00000200", True)
    losses = judge_goal(replace(GOAL, metric="val_loss", threshold=3.0), [manifest(100)])
    assert (losses.value, losses.is_reached) == (4.0, False)
    goal = replace(GOAL, metric=CORE, higher=True, threshold=0.2)
    scores = {("fast", 100): 0.21, ("fast", 200): 0.25, ("fast", 250): 0.3, ("fast", 300): 0.2}
    best = judge_goal(goal, [manifest(100), manifest(200), manifest(300)], scores)
    assert (best.value, best.label, best.is_reached) == (0.25, "fast/step-00000200", True)
    assert best.words == "goal a: reached: CORE 0.25 at fast/step-00000200, ≥ 0.2 asked"


@pytest.mark.parametrize("value", [None, "0.3", True, math.nan, math.inf, [0.3]])
def test_what_is_logged_and_is_no_number_is_no_score(value: Any) -> None:
    goal = replace(GOAL, metric=CORE, higher=True, threshold=0.2)
    lines = [{"kind": "score", "step": 120, "at": 1_790_000_000.0, CORE: value}]
    result = judge_goal(goal, [manifest(120)], scores_of(points_of("fast", lines, CORE)))
    assert result.value is None
    assert not result.is_reached
    assert result.words == "goal a: not judged: no checkpoint has its CORE"


def test_scores_are_read_from_evaluations_and_scores_alone() -> None:
    def line(kind: str, step: int, **more: Any) -> dict[str, Any]:
        return {"kind": kind, "step": step, "at": 1_790_000_000.0 + step, **more}

    lines = [
        line("eval", 10, val_bpb=2.0, exact_accuracy=0.5),
        line("train", 11, loss=1.0, exact_accuracy=0.9),
        line("score", 20, exact_accuracy=0.6),
        line("score", 20, exact_accuracy=0.7),
    ]
    points = points_of("train", lines, "exact_accuracy")
    assert scores_of(points) == {("train", 10): 0.5, ("train", 20): 0.7}
    assert [p.kind for p in points] == ["eval", "score", "train", "score"]
    assert scores_of(points_of("train", lines)) == {}
