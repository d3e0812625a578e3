"""What is told, and what is not spent, where an account or its provider will not have a launch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from tests.e2e.runpod_user import ACCEPT, LAUNCH, RentedUser
from trmcloud.cli.views.reasons import sentence
from trmcloud.core.control.run_state import State
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO, Usd

SHORT = ("--steps", "60", "--budget", "0.30")


def launch_of(user: RentedUser, *more: str) -> tuple[str, ...]:
    return (*LAUNCH, *SHORT, *user.data, *ACCEPT, *more)


@pytest.mark.parametrize(
    ("environment", "knobs", "balance", "code", "says", "next_step"),
    [
        ({"RUNPOD_API_KEY": ""}, {}, None, 15, "there is no RunPod key", "RUNPOD_API_KEY"),
        ({"RUNPOD_API_KEY": "rpa_WRONG"}, {}, None, 15, "does not know this key", "API Keys"),
        ({"RUNPOD_API_KEY": "rpa_ключ"}, {}, None, 15, "characters that no key has", "copy it"),
        ({}, {}, 0.0, 14, "balance is $0.00", "add credit"),
        ({}, {}, 0.5, 14, "balance is $0.50: below an hour of $0.69", "add credit"),
        ({}, {"down": True}, None, 11, "RunPod answers 503", "wait a minute"),
        ({}, {"html": 9}, None, 11, "", ""),
        ({}, {"errors_502": 999}, None, 11, "answers 502: a web page", "wait a minute"),
        ({}, {"list_endless": True}, None, 11, "list of pods does not end", "console"),
        ({}, {"list_lacks_pods": 99}, None, 11, "pods: Field required", "API has changed"),
        ({}, {"v2_gone": True}, None, 11, "the API that this version speaks is gone", "upgrade"),
    ],
    ids=[
        "no-key",
        "wrong-key",
        "odd-key",
        "empty",
        "below-an-hour",
        "down",
        "web-page",
        "html-502",
        "endless",
        "no-pods",
        "gone",
    ],
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


def not_started(user: RentedUser, *more: str) -> str:
    out = user.run(*launch_of(user, *more), code=Outcome.NOT_STARTED.exit_code)
    run = user.only_run()
    assert (run.state, run.outcome) == (State.CLOSED, Outcome.NOT_STARTED)
    assert run.settled == run.reserved == ZERO
    assert user.truth() == []
    return out


def test_a_key_that_may_only_read(renter: RentedUser) -> None:
    renter.standin.control.set(read_only=True)
    assert "why: RunPod refuses this to this key" in not_started(renter)


def test_a_forbidden_pool(renter: RentedUser) -> None:
    renter.standin.control.set(forbidden_gpus=["NVIDIA GeForce RTX 4090"])
    assert "cannot access the requested pool" in not_started(renter)


def test_a_forbidden_pool_is_no_end_while_there_is_another(renter: RentedUser) -> None:
    renter.standin.control.set(
        forbidden_gpus=["NVIDIA A100-SXM4-80GB"], create_throttled=1, retry_after_s=2
    )
    arguments = ("launch", "1xA100", *LAUNCH[2:], "--steps", "60", "--budget", "2", *ACCEPT)
    renter.start(*arguments, *renter.data)
    run = renter.run_in(State.BOOTING)
    assert "cannot access the requested pool" in sentence(run.generations[0].not_made)
    (pod,) = renter.live()
    assert pod.gpu_id == "NVIDIA A100 80GB PCIe"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (402, "does not cover this: refused by a knob (RunPod, POST /v2/pods); add credit"),
        (410, "the API that this version speaks is gone"),
        (413, "larger than RunPod takes"),
        (422, "contract was broken"),
    ],
)
def test_what_no_other_machine_would_mend_is_told_with_what_to_do(
    renter: RentedUser, code: int, says: str
) -> None:
    renter.standin.control.set(create_refused=code)
    arguments = ("launch", "1xA100", *LAUNCH[2:], "--steps", "60", "--budget", "2", *ACCEPT)
    out = renter.run(*arguments, *renter.data, code=Outcome.NOT_STARTED.exit_code)
    (why,) = [line for line in out.splitlines() if line.strip().startswith("why: ")]
    assert says in why
    assert "spent $0.00 of $2.00" in out
    assert renter.creates() == 1, "no other candidate is tried"
    assert renter.truth() == []


def test_no_capacity_anywhere_offers_the_next_best_plan(renter: RentedUser) -> None:
    renter.standin.control.set(no_capacity=["*"])
    out = not_started(renter, "--budget", "2")
    assert "why: RunPod has none free" in out
    offered = out.rpartition("  try: trmcloud launch ")[2].split()[0]
    plan = json.loads((renter.home / "plans" / f"{offered}.json").read_text())
    assert plan["recommended"] == "1xRTX3090", "its price is in no table here: RunPod was asked"
    assert plan["limits"]["live prices"] == "runpod's"
    assert plan["budget_usd"] == 2.0
    renter.run("launch", offered, "-y", *ACCEPT, code=Outcome.NOT_STARTED.exit_code)


def test_no_capacity_with_a_budget_for_nothing_else(renter: RentedUser) -> None:
    renter.standin.control.set(no_capacity=["*"], html=1)
    out = not_started(renter)
    assert re.search(r"live prices +not read: JSONDecodeError", out), "what it was asked first"
    assert "dated ones are planned with" in out
    assert "  try: trmcloud plan, with more budget" in out


def test_no_capacity_here_falls_through_to_the_next_candidate(renter: RentedUser) -> None:
    """Within one reservation: what the first did not take is the second's."""
    renter.standin.control.set(no_capacity=["NVIDIA A100-SXM4-80GB"])
    arguments = ("launch", "1xA100", *LAUNCH[2:], "--steps", "60", "--budget", "2", *ACCEPT)
    renter.start(*arguments, *renter.data)
    run = renter.run_in(State.BOOTING)
    assert len(run.generations) > 1
    assert run.generations[0].not_made is not None
    assert run.reserved <= Usd("2")
    (pod,) = renter.live()
    assert pod.gpu_id == "NVIDIA A100 80GB PCIe"
