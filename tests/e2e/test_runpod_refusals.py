"""What is told, and what is not spent, where an account or its provider will not have a launch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from tests.e2e.runpod_user import ACCEPT, LAUNCH, RentedUser
from trmcloud.core.control.run_state import State
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO

SHORT = ("--steps", "60", "--budget", "0.30")


def launch_of(user: RentedUser, *more: str) -> tuple[str, ...]:
    return (*LAUNCH, *SHORT, *user.data, *ACCEPT, *more)


@pytest.mark.parametrize(
    ("environment", "knobs", "balance", "code", "says", "next_step"),
    [
        ({"RUNPOD_API_KEY": ""}, {}, None, 15, "there is no RunPod key", "RUNPOD_API_KEY"),
        ({"RUNPOD_API_KEY": "rpa_WRONG"}, {}, None, 15, "does not know this key", "API Keys"),
        (
            {"RUNPOD_API_KEY": "rpa_ключ"},
            {},
            None,
            15,
            "the RunPod key has invalid characters",
            "copy it",
        ),
        ({}, {}, 0.0, 14, "balance is $0.00", "add credit"),
        ({}, {"down": True}, None, 11, "RunPod answers 503", "wait a minute"),
    ],
    ids=["no-key", "wrong-key", "odd-key", "empty", "down"],
)
def test_an_account_that_cannot_rent_is_told_before_anything_is_reserved(
    renter: RentedUser,
    environment: Mapping[str, str],
    knobs: Mapping[str, Any],
    balance: float | None,
    code: int,
    says: str,
    next_step: str,
) -> None:
    renter.environment |= environment
    renter.standin.control.set(**knobs)
    if balance is not None:
        renter.standin.control.set_balance(balance)
    what, _, advice = renter.refused(*launch_of(renter), code=code).partition("\n  try: ")
    assert says in what
    assert next_step in advice
    assert renter.creates() == 0
    assert renter.ledger().runs == {}


def test_a_spend_limit_below_the_rate(renter: RentedUser) -> None:
    renter.standin.control.world.spend_limit = 0.5
    err = renter.refused(*launch_of(renter), code=14)
    assert "spend limit is $0.50/h" in err
    assert "$0.69/h more does not fit" in err


def not_started(user: RentedUser, *more: str, code: int = Outcome.NOT_STARTED.exit_code) -> str:
    out = user.run(*launch_of(user, *more), code=code)
    run = user.only_run()
    assert (run.state, run.outcome) == (State.CLOSED, Outcome.NOT_STARTED)
    assert run.settled == run.reserved == ZERO
    assert user.truth() == []
    return out


def test_a_key_that_may_only_read(renter: RentedUser) -> None:
    renter.standin.control.set(read_only=True)
    assert "does not permit this for this key or account" in not_started(renter)


def test_no_capacity_anywhere_offers_the_next_best_plan(renter: RentedUser) -> None:
    renter.standin.control.set(no_capacity=["*"])
    out = not_started(renter, "--budget", "2", code=Outcome.NO_MACHINE.exit_code)
    assert "why: RunPod has no free machine" in out
    offered = out.rpartition("  try: trmcloud launch ")[2].split()[0]
    plan = json.loads((renter.home / "plans" / f"{offered}.json").read_text())
    assert plan["recommended"] == "1xRTX3090", "its price is in no table here: RunPod was asked"
    assert plan["limits"]["live prices"] == "runpod's"
    assert plan["budget_usd"] == 2.0
    renter.run("launch", offered, "-y", *ACCEPT, code=Outcome.NO_MACHINE.exit_code)


def test_no_capacity_with_a_budget_for_nothing_else(renter: RentedUser) -> None:
    renter.standin.control.set(no_capacity=["*"], html=1)
    out = not_started(renter, code=Outcome.NO_MACHINE.exit_code)
    assert re.search(r"live prices +not read: JSONDecodeError", out), "what it was asked first"
    assert "older prices are used" in out
    assert "  try: trmcloud plan, with a larger budget" in out
