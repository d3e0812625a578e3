"""A balance as users meet it: in plans, at a launch, and while their run trains."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.agents import verify_layers
from tests.e2e.runpod_user import ACCEPT, LAUNCH, RentedUser
from tests.e2e.user import until
from trmcloud.core.control.run_state import State
from trmcloud.core.errors import Outcome
from trmcloud.core.money import Usd

PLAN = ("plan", "--hardware", "1xRTX4090", "--recipe", "trm-tiny", "--phase", "fast")
AT_RUNPOD = ("--provider", "runpod")
BIG = ("--steps", "60", "--budget", "5")


def balance_line(out: str) -> str:
    lines = [line.strip() for line in out.splitlines() if line.strip().startswith("balance")]
    assert len(lines) == 1, out
    return " ".join(lines[0].split())


def test_a_plan_shows_balance_held_free_and_worst_case(renter: RentedUser) -> None:
    out = renter.run(*PLAN, *AT_RUNPOD, *BIG, *renter.data)
    assert balance_line(out).startswith(
        "balance: $100.00 at runpod · $0.00 held by 0 other runs · $100.00 free · worst case $"
    )
    assert balance_line(out).endswith("· not checked while this machine is off")
    told = renter.json(*PLAN, *AT_RUNPOD, *BIG, *renter.data, "--json")["balance"]
    assert (told["balance_usd"], told["free_usd"], told["missing_usd"]) == ("100", "100", "0")


def test_a_plan_that_ignores_the_balance_does_not_read_it(renter: RentedUser) -> None:
    renter.standin.requests.clear()
    out = renter.run(*PLAN, *AT_RUNPOD, *BIG, *renter.data, "--balance", "ignore")
    assert "balance: $" not in out
    assert "low balance: the provider's balance is not read" in out
    asked = [each.path for each in renter.standin.requests]
    assert not [path for path in asked if "balance" in path or path.startswith("/graphql")]


def test_too_little_is_refused_with_the_sum_and_fits_when_asked(renter: RentedUser) -> None:
    """More than an hour's rent, which was enough before, and less than the worst case."""
    renter.standin.control.set_balance(2.0)
    launch = (*LAUNCH, "--hours", "5", "--budget", "5", *renter.data, *ACCEPT)
    err = renter.refused(*launch, code=14)
    assert "$2.00 of the runpod balance of $2.00 are free: the worst case is $" in err
    assert "try: add $" in err
    assert "--fit-balance shortens it; --balance ignore" in err
    assert renter.creates() == 0
    plan = renter.json(*launch, "--fit-balance", "--dry-run", "--json")
    assert plan["budget_usd"] == "1.96"
    assert float(plan["reservation_usd"]) <= 1.96
    assert limits_of(plan)["fit_balance"].startswith(
        "$1.96, the free part of the provider's balance"
    )
    ignored = renter.json(*launch, "--balance", "ignore", "--dry-run", "--json")
    assert ignored["balance"] is None
    assert limits_of(ignored)["low_balance"].startswith("the provider's balance is not read")


def limits_of(plan: Any) -> dict[str, str]:
    return {each["code"]: each["message"] for each in plan["limits"]}


@pytest.mark.parametrize(
    "knobs",
    [
        {"money_absent": True, "graphql_gone": True},
        {"money_denied": True, "graphql_throttled": True},
        {"money_absent": True, "graphql_errors": 99},
    ],
    ids=["gone", "throttled", "errors"],
)
def test_a_balance_that_cannot_be_read_is_a_line_and_no_refusal(
    renter: RentedUser, knobs: dict[str, object]
) -> None:
    renter.standin.control.set(**knobs)
    out = renter.run(*PLAN, *AT_RUNPOD, *BIG, *renter.data)
    assert balance_line(out).startswith("balance: not read: RunPod")
    renter.standin.control.set(no_capacity=["*"])
    code = Outcome.NO_MACHINE.exit_code
    out = renter.run(*LAUNCH, *BIG, *renter.data, *ACCEPT, code=code)
    assert "balance" in out
    assert renter.creates() >= 1


def test_an_invoiced_account_has_no_balance_to_fit_and_needs_a_guard_elsewhere(
    renter: RentedUser,
) -> None:
    """The mission's launch stays possible there, by a guard on another machine."""
    verify_layers(renter)
    renter.standin.control.set(no_capacity=["*"])
    launch = (*LAUNCH, *BIG, *renter.data)
    renter.run(*launch, code=Outcome.NO_MACHINE.exit_code)
    before = renter.creates()
    renter.standin.control.set(billing_mode="POSTPAID")
    renter.standin.control.set_balance(0.0)
    err = renter.refused(*launch, code=4)
    assert "prepaid does not count: the account is invoiced (POSTPAID)" in err
    assert "try: trmcloud admin guard install on another machine" in err
    err = renter.refused(*launch, *ACCEPT, "--fit-balance", code=14)
    assert "--fit-balance is not possible: the account is invoiced (POSTPAID)" in err
    assert renter.creates() == before
    renter.run(*launch, *ACCEPT, code=Outcome.NO_MACHINE.exit_code)
    assert renter.creates() > before, "its empty balance refuses nothing"


def test_a_negative_balance_says_what_to_pay_in(renter: RentedUser) -> None:
    renter.standin.control.set_balance(-3.0)
    err = renter.refused(*LAUNCH, *BIG, *renter.data, *ACCEPT, "--fit-balance", code=14)
    assert "-$3.00" in err
    assert "--fit-balance" not in err


def test_other_words_are_refused(renter: RentedUser) -> None:
    err = renter.refused(*LAUNCH, *BIG, *renter.data, "--balance", "land", code=2)
    assert "--balance must be one of stop, warn, ignore, not 'land'" in err
    both = ("--fit-balance", "--balance", "ignore")
    err = renter.refused(*LAUNCH, *BIG, *renter.data, *both, code=2)
    assert "--fit-balance needs the balance, and --balance ignore does not read it" in err


def found(user: RentedUser, plan: str) -> dict[str, bool | None]:
    rows = user.json("doctor", plan, "--json", code=(0, 1))["checks"]
    return {row["code"]: row["passed"] for row in rows}


def test_the_doctor_holds_a_plan_against_what_is_free(renter: RentedUser) -> None:
    launch = (*LAUNCH, "--hours", "5", "--budget", "5", *renter.data, *ACCEPT)
    plan = renter.json(*launch, "--dry-run", "--json")["id"]
    findings = found(renter, plan)
    assert findings["funds"] is True
    renter.standin.control.set_balance(2.0)
    findings = found(renter, plan)
    assert findings["funds"] is False
    assert findings["balance"] is True, "it covers an hour"


def test_the_guard_lands_a_run_whose_balance_ends(renter_in: RentedUser) -> None:
    """Money that other machines of the account use up in the middle of a run."""
    user = renter_in
    long = ("--steps", "4000", "--budget", "2", *user.data, *ACCEPT, "--balance", "stop")
    launch = user.start(*LAUNCH, *long)
    user.run_in(State.RUNNING)
    until(lambda: user.only_run().trains, what="it trains")
    user.standin.control.set_balance(0.10)
    user.run("admin", "reap", "--yes")
    out, _ = user.see_out(launch, code=Outcome.STOPPED.exit_code)
    low = user.ledger().low_balances["runpod"]
    assert (low.hours, low.balance) == (6, Usd("0.1"))
    assert "the runpod balance was $0.10" in out
    assert "why: the runpod balance of $0.10 lasts" in out
    assert user.only_run().pulled, "it landed, and what it saved is here"

    user.close_books()
    run_id = user.only_run().run_id
    user.standin.control.set_balance(1.0)
    err = user.refused("resume", "-y", run_id, "-d", code=14)
    assert "--fit-balance reserves only the free balance" in err
    user.run("resume", "-y", run_id, "-d", "--fit-balance", "--balance", "warn")
    again = user.only_run()
    assert again.reserved <= Usd("0.98")
    assert again.balance_policy == "warn"
    user.run("stop", "-y", run_id)
    user.close_books()
