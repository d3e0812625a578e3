"""Plans of goals: what a goal decides, what a user may, and what a budget cannot reach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.present import present
from trmcloud.core.errors import BudgetRefused, DoesNotFit, UsageError
from trmcloud.core.money import Usd
from trmcloud.core.spec.plan import GOAL, Plan, plan_from_json, plan_to_json
from trmcloud.operations.plans.launch_checks import check_goal
from trmcloud.operations.plans.planning import Planner
from trmcloud.options import request_from
from trmcloud.wiring_plans import build_planner

NOW = 1_795_000_000.0


@pytest.fixture
def planner(tmp_path: Path) -> Planner:
    return build_planner(tmp_path, lambda: NOW)


def planned(planner: Planner, **wish: Any) -> Plan:
    return planner.plan(
        planner.spec(request_from({"goal": "gpt2", "provider": ["runpod"], **wish}))
    )


def test_it_decides_recipe_phases_and_length_and_the_cheapest_way_is_planned(
    planner: Planner,
) -> None:
    plan = planned(planner)
    assert (plan.spec.recipe, plan.spec.phases) == ("speedrun", ("train",))
    assert plan.spec.objective == "cheapest"
    fit = [c for c in plan.candidates if c.fits_memory]
    assert present(plan.recommended).cost_p50 == min(c.cost_p50 for c in fit)
    assert plan.limits[GOAL] == "GPT-2 (1.6B) by DCLM's CORE: CORE ≥ 0.256525"
    assert "0.262634 on 8xH100 in 1.65 h, $52.67, 2026-03-14; https://" in plan.limits["reached by"]
    assert "no GPU has trained this recipe here" in plan.limits["not shown here"]
    assert planned(planner, objective="fastest").spec.objective == "fastest"
    again = plan_from_json(plan_to_json(plan))
    assert again.spec.goal == plan.spec.goal


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("recipe", "trm"), ("phase", "fast"), ("data", "x"), ("steps", 5), ("hours", 1.0),
        ("tokens", 5), ("fill", True), ("equal_work", True), ("initial_from", "r-1"),
    ],
)  # fmt: skip
def test_what_it_decides_cannot_be_typed_beside_it(planner: Planner, name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=r"does not work with --goal: gpt2 decides it"):
        planned(planner, **{name: value})


def test_another_setting_is_told(planner: Planner) -> None:
    plan = planned(planner, setting=["depth=20"])
    assert plan.limits["not the goal's recipe"].startswith("depth = 20: ")
    assert present(plan.recommended).phases[0].settings.depth == 20


def test_a_budget_that_cannot_reach_it_is_refused_with_what_it_takes(planner: Planner) -> None:
    enough = planned(planner, hardware="8xH100", budget="500")
    check_goal(enough)
    p50 = present(enough.recommended).cost_p50
    check_goal(planned(planner, hardware="8xH100", budget=(p50 + Usd("0.10")).plain()))
    short = planned(planner, hardware="8xH100", budget=(p50 - Usd("0.10")).plain())
    with pytest.raises(
        BudgetRefused, match=r"gpt2 takes \$[\d.]+ \(p90 \$[\d.]+\) on 8xH100"
    ) as told:
        check_goal(short)
    wanted = Usd(present(told.value.next_step).split()[1].rstrip(","))
    assert Usd(0) <= wanted - present(short.recommended).cost_p90 < Usd("0.01")


def test_nor_a_deadline(planner: Planner) -> None:
    with pytest.raises(DoesNotFit, match="the deadline is in 1 h 00 min"):
        check_goal(planned(planner, hardware="8xH100", deadline="1h"))
