"""Plans of runs that may move: what is held back for that, and which runs cannot."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.planner.test_interruptions import NOW, offer
from trmcloud.adapters.files import load_recipe
from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.contract.command import Command
from trmcloud.core.errors import UsageError
from trmcloud.core.money import Usd
from trmcloud.core.planner.planning import check_move, make_plan
from trmcloud.core.spec.plan import Plan
from trmcloud.core.spec.spec import RunSpec

SPEC = RunSpec(
    recipe="trm", phases=("fast",), hardware="8xH100", bucket="s3://b/x", move_if=0.25,
    providers=("runpod", "vast"),
)  # fmt: skip
OFFERS = [offer("runpod", f"2{n}", region=f"r{n}") for n in range(5)]
OFFERS += [offer("vast", f"3{n}", region=f"v{n}") for n in range(5)]


def planned(**changes: Any) -> Plan:
    spec = replace(SPEC, **changes)
    return make_plan(spec, load_recipe("trm"), OFFERS, NOW, "p-0000")


def test_without_a_budget_the_cap_is_twice_the_worst_case() -> None:
    moves, stays = planned(), planned(move_if=0.0)
    assert stays.cap == stays.reservation
    assert moves.cap == moves.reservation + moves.reservation
    assert stays.limits["moves"] == "off"
    assert "if this saves 25% of the remaining cost" in moves.limits["moves"]
    assert str(moves.reservation) in moves.limits["moves"]


def test_of_a_budget_the_first_machine_takes_what_its_p90_needs() -> None:
    moves, stays = planned(budget=Usd(400)), planned(budget=Usd(400), move_if=0.0)
    assert stays.recommended is not None
    assert moves.recommended is not None
    assert moves.cap == stays.cap == Usd(400)
    assert moves.recommended.hard_stop_s < stays.recommended.hard_stop_s
    needed_s = 3600 * moves.recommended.hours.p90 + moves.recommended.landing_s
    assert moves.recommended.hard_stop_s >= needed_s
    assert f"up to {Usd(400) - moves.reservation} reserved" in moves.limits["moves"]


def test_a_budget_that_leaves_nothing_to_move_with_is_refused() -> None:
    with pytest.raises(UsageError, match="which leaves too little for a second one") as caught:
        planned(budget=planned(move_if=0.0).reservation)
    assert "leave out --move-if" in caught.value.next_step


def test_each_provider_that_may_be_moved_to_keeps_several_candidates() -> None:
    plan = planned()
    tried = [plan.candidate(name).provider for name in plan.launchable]
    assert (tried.count("runpod"), tried.count("vast")) == (3, 3)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"bucket": ""}, "a move needs a bucket: the next machine continues from its checkpoints"),
        ({"bucket_relayed": True}, "could not read it"),
        ({"hardware": LOCAL}, "--move-if needs one rented machine"),
        ({"hardware": "2x8xH100"}, "--move-if needs one rented machine"),
        (
            {"hours": 2.0},
            "--move-if compares the cost of the remaining steps: their number must be known",
        ),
        (
            {"fill": True, "budget": Usd(400)},
            "--move-if compares the cost of the remaining steps: their number must be known",
        ),
        (
            {"objective": "most-training"},
            "--move-if compares the cost of the remaining steps: their number must be known",
        ),
        (
            {"command": Command(("python", "train.py"))},
            "--move-if compares the cost of the remaining steps: their number must be known",
        ),
    ],
)
def test_a_run_that_cannot_move_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        check_move(replace(SPEC, **changes))
    check_move(replace(SPEC, move_if=0.0, **changes))
