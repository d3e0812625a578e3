"""Launches that an account or its provider refuses: the message, and nothing is spent."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.documents import document_in
from tests.e2e.agents import verify_layers
from tests.e2e.runpod_user import ACCEPT, LAUNCH, RentedUser
from tests.e2e.user import User, leave_only
from tests.standins.runpod.fixture import judged
from tests.standins.runpod.standin import StandIn
from tests.typist import InProcess, RenterInProcess, quick_renter, typist
from trmcloud.core.control.run_state import State
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO

__all__ = ["quick_renter", "typist"]


@pytest.fixture
def renter(quick_renter: RenterInProcess) -> RenterInProcess:
    return quick_renter


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


def not_started(user: RentedUser, *more: str, code: int = Outcome.NOT_STARTED.exit_code) -> str:
    out = user.run(*launch_of(user, *more), code=code)
    run = user.only_run()
    assert (run.state, run.outcome) == (State.CLOSED, Outcome.NOT_STARTED)
    assert run.settled == run.reserved == ZERO
    assert user.truth() == []
    return out


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


# -- smoke runs -----------------------------------------------------------------------------------


@pytest.fixture
def on_paper(tmp_path: Path, typist: InProcess) -> Iterator[tuple[StandIn, User]]:
    with judged(tmp_path / "runpod", real_pods=False) as standin:
        typist.environment |= standin.environment
        yield standin, typist


def test_too_little_money_says_how_much_is_needed(on_paper: tuple[StandIn, User]) -> None:
    paper, user = on_paper
    err = user.refused("smoke", "--max-usd", "0.01", "-y", code=4)
    assert "1xRTX3090" in err
    assert "--max-usd 0.0" in err or "--max-usd 0.1" in err
    assert paper.control.world.all_pods() == []


def test_a_cap_of_the_ledger_holds_for_a_smoke_run_too(on_paper: tuple[StandIn, User]) -> None:
    paper, user = on_paper
    user.run("budget", "set", "month", "0.01")
    err = user.fails("smoke", "--max-usd", "1", "-y", code=4)
    assert "month" in err
    assert paper.control.world.all_pods() == []
    assert list(user.ledger().runs) == []


def test_what_cannot_be_rented_is_told_before_anything_is_reserved(
    on_paper: tuple[StandIn, User],
) -> None:
    paper, user = on_paper
    smoke_run = ("smoke", "--max-usd", "1")
    user.refused(*smoke_run, code=2)  # there is no terminal to ask on
    paper.control.set(no_capacity=["*"])
    assert "has no GPU in stock" in user.fails(*smoke_run, "-y", code=75)
    paper.control.reset()
    paper.control.set_balance(0.0)
    user.fails(*smoke_run, "-y", code=14)
    for key in ("rpa_SOMEBODY0ELSE", ""):
        user.environment["RUNPOD_API_KEY"] = key
        user.refused(*smoke_run, "-y", code=15)
    assert list(user.ledger().runs) == []
    assert paper.control.world.all_pods() == []


def test_what_cannot_be_meant_is_refused(typist: InProcess) -> None:
    for words in (
        "--provider local --max-usd 1",
        "--provider nowhere --max-usd 1",
        "--max-usd much",
        "--max-usd -1",
        "--max-usd 1 --minutes 0.01",
        "--max-usd 1 --minutes nan",
        "--max-usd 1 --minutes 600",
        "",
    ):
        typist.refused("smoke", *words.split(), code=2)


# -- balances -------------------------------------------------------------------------------------

BIG = ("--steps", "60", "--budget", "5")
PLAN = ("plan", "--hardware", "1xRTX4090", "--recipe", "trm-tiny", "--phase", "fast")


AT_RUNPOD = ("--provider", "runpod")


def balance_line(out: str) -> str:
    lines = [line.strip() for line in out.splitlines() if line.strip().startswith("balance")]
    assert len(lines) == 1, out
    return " ".join(lines[0].split())


def test_a_plan_shows_balance_held_free_and_worst_case(quick_renter: RenterInProcess) -> None:
    out = quick_renter.run(*PLAN, *AT_RUNPOD, *BIG, *quick_renter.data)
    assert balance_line(out).startswith(
        "balance: $100.00 at runpod · $0.00 held by 0 other runs · $100.00 free · worst case $"
    )
    assert balance_line(out).endswith("· not checked while this machine is off")
    told = quick_renter.json(*PLAN, *AT_RUNPOD, *BIG, *quick_renter.data, "--json")["balance"]
    assert (told["balance_usd"], told["free_usd"], told["missing_usd"]) == ("100", "100", "0")


def test_too_little_is_refused_with_the_sum_and_fits_when_asked(
    quick_renter: RenterInProcess,
) -> None:
    """More than an hour's rent, which was enough before, and less than the worst case."""
    quick_renter.standin.control.set_balance(2.0)
    launch = (*LAUNCH, "--hours", "5", "--budget", "5", *quick_renter.data, *ACCEPT)
    err = quick_renter.refused(*launch, code=14)
    assert "$2.00 of the runpod balance of $2.00 are free: the worst case is $" in err
    assert "try: add $" in err
    assert "--fit-balance shortens it; --balance ignore" in err
    assert quick_renter.creates() == 0
    plan = quick_renter.json(*launch, "--fit-balance", "--dry-run", "--json")
    assert plan["budget_usd"] == "1.96"
    assert float(plan["reservation_usd"]) <= 1.96
    assert limits_of(plan)["fit_balance"].startswith(
        "$1.96, the free part of the provider's balance"
    )
    ignored = quick_renter.json(*launch, "--balance", "ignore", "--dry-run", "--json")
    assert ignored["balance"] is None
    assert limits_of(ignored)["low_balance"].startswith("the provider's balance is not read")


def limits_of(plan: Any) -> dict[str, str]:
    return {each["code"]: each["message"] for each in plan["limits"]}


def test_a_balance_that_cannot_be_read_is_a_line_and_no_refusal(
    quick_renter: RenterInProcess,
) -> None:
    quick_renter.standin.control.set(money_absent=True, graphql_gone=True)
    out = quick_renter.run(*PLAN, *AT_RUNPOD, *BIG, *quick_renter.data)
    assert balance_line(out).startswith("balance: not read: RunPod")
    quick_renter.standin.control.set(no_capacity=["*"])
    code = Outcome.NO_MACHINE.exit_code
    out = quick_renter.run(*LAUNCH, *BIG, *quick_renter.data, *ACCEPT, code=code)
    assert "balance" in out
    assert quick_renter.creates() >= 1


def test_an_invoiced_account_has_no_balance_to_fit_and_needs_a_guard_elsewhere(
    quick_renter: RenterInProcess,
) -> None:
    """The mission's launch stays possible there, by a guard on another machine."""
    verify_layers(quick_renter)
    quick_renter.standin.control.set(no_capacity=["*"])
    launch = (*LAUNCH, *BIG, *quick_renter.data)
    quick_renter.run(*launch, code=Outcome.NO_MACHINE.exit_code)
    before = quick_renter.creates()
    quick_renter.standin.control.set(billing_mode="POSTPAID")
    quick_renter.standin.control.set_balance(0.0)
    err = quick_renter.refused(*launch, code=4)
    assert "prepaid does not count: the account is invoiced (POSTPAID)" in err
    assert "try: trmcloud admin guard install on another machine" in err
    err = quick_renter.refused(*launch, *ACCEPT, "--fit-balance", code=14)
    assert "--fit-balance is not possible: the account is invoiced (POSTPAID)" in err
    assert quick_renter.creates() == before
    quick_renter.run(*launch, *ACCEPT, code=Outcome.NO_MACHINE.exit_code)
    assert quick_renter.creates() > before, "its empty balance refuses nothing"


def test_other_words_are_refused(quick_renter: RenterInProcess) -> None:
    err = quick_renter.refused(*LAUNCH, *BIG, *quick_renter.data, "--balance", "land", code=2)
    assert "--balance must be one of stop, warn, ignore, not 'land'" in err
    both = ("--fit-balance", "--balance", "ignore")
    err = quick_renter.refused(*LAUNCH, *BIG, *quick_renter.data, *both, code=2)
    assert "--fit-balance needs the balance, and --balance ignore does not read it" in err


def found(user: RentedUser, plan: str) -> dict[str, bool | None]:
    rows = user.json("doctor", plan, "--json", code=(0, 1))["checks"]
    return {row["code"]: row["passed"] for row in rows}


def test_the_doctor_holds_a_plan_against_what_is_free(quick_renter: RenterInProcess) -> None:
    launch = (*LAUNCH, "--hours", "5", "--budget", "5", *quick_renter.data, *ACCEPT)
    plan = quick_renter.json(*launch, "--dry-run", "--json")["id"]
    findings = found(quick_renter, plan)
    assert findings["funds"] is True
    quick_renter.standin.control.set_balance(2.0)
    findings = found(quick_renter, plan)
    assert findings["funds"] is False
    assert findings["balance"] is True, "it covers an hour"


# -- this machine and its network ----------------------------------------------------------------


def findings(user: User) -> dict[str, dict[str, Any]]:
    code, out, _ = user.ended("doctor", "--json")
    assert code == 1
    return {finding["code"]: finding for finding in document_in(out)["checks"]}


@pytest.mark.parametrize(
    ("there", "lacks"),
    [(("ssh-keygen",), "ssh"), (("ssh",), "ssh-keygen")],
    ids=["no-ssh", "no-ssh-keygen"],
)
def test_without_ssh_nothing_is_rented(
    renter: RenterInProcess, there: tuple[str, ...], lacks: str
) -> None:
    leave_only(renter, "sh", "env", *there)
    for command in (
        launch_of(renter),
        ("smoke", "--provider", "runpod", "--max-usd", "0.25", "-y"),
    ):
        err = renter.refused(*command, code=6)
        assert f"{lacks}: it is not installed" in err
        assert "openssh-client" in err
    assert renter.creates() == 0
    assert renter.ledger().runs == {}
    found = findings(renter)[lacks]
    assert (found["passed"], found["message"][:19]) == (False, "it is not installed")
    assert "openssh-client" in found["next"]


def test_an_ssh_that_takes_no_configuration_rents_nothing(renter: RenterInProcess) -> None:
    """A user's own mistake, or an OpenSSH older than our options: ssh ends before it connects."""
    config = renter.folder / ".ssh" / "config"
    config.parent.mkdir(mode=0o700)
    config.write_text("Host *\n  Frobnicate yes\n")
    config.chmod(0o600)
    # OpenSSH looks where the account's home is, whatever $HOME says.
    real = shutil.which("ssh")
    folder = renter.folder / "wrapped"
    folder.mkdir()
    (folder / "ssh").write_text(f'#!/bin/sh\nexec {real} -F {config} "$@"\n')
    (folder / "ssh").chmod(0o755)
    renter.environment["PATH"] = f"{folder}:{renter.env()['PATH']}"
    err = renter.refused(*launch_of(renter), code=6)
    assert "Bad configuration option: frobnicate" in err
    assert "correct ~/.ssh/config, or install OpenSSH 8.5 or newer" in err
    assert renter.creates() == 0
    assert findings(renter)["ssh"]["passed"] is False


def test_a_machine_that_rents_nothing_needs_no_ssh(typist: InProcess) -> None:
    leave_only(typist, "sh", "env")
    _, out, _ = typist.ended("doctor", "--json")
    passed = {finding["code"]: finding["passed"] for finding in document_in(out)["checks"]}
    assert passed["ssh"] is passed["ssh-keygen"] is None


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("ALL_PROXY", "socks5://me:hidden@127.0.0.1:1", "ALL_PROXY names a SOCKS proxy"),
        ("HTTPS_PROXY", "socks5h://127.0.0.1:1", "HTTPS_PROXY names a SOCKS proxy"),
        ("https_proxy", "socks4://127.0.0.1:1", "https_proxy names a SOCKS proxy"),
        ("SSL_CERT_FILE", "/no/such/ca.pem", "SSL_CERT_FILE names a file that does not exist"),
    ],
)
def test_a_setting_that_cannot_be_used_is_one_line(
    renter: RenterInProcess, name: str, value: str, says: str
) -> None:
    renter.environment |= {name: value}
    shown = renter.run("doctor", code=(0, 1))
    row = next(line for line in shown.splitlines() if "runpod key" in line)
    assert f"RunPod cannot be reached: {says}" in row
    assert "report" not in row
    renter.run(*PLAN, *SHORT, *renter.data)
    told = renter.fails(*launch_of(renter), code=11)
    assert says in told
    assert f"  try: unset {name}, or " in told
    assert "hidden" not in told + shown
    assert "report" not in told
    assert renter.creates() == 0


def test_parts_of_a_sweep_are_runs_of_their_own_within_one_budget(renter: RentedUser) -> None:
    """Their commands find no machine; the command that is repeated finds their runs."""
    renter.standin.control.set(no_capacity=["*"])
    words = (
        *("sweep", "1xRTX4090", "--machines", "2", "--recipe", "trm-tiny", "--phase", "fast"),
        *("--budget", "1.01", "--name", "wide", "--idempotency-key", "both", "-y"),
        *(*renter.data, *ACCEPT, "lr=log:1e-4,1", "depth=1,2"),
    )
    out = renter.run(*words, code=Outcome.NO_MACHINE.exit_code)
    assert "2 such runs, each within $0.505:" in out
    assert re.search(r"1 +lr=log:0.0001,0.01 depth=1\|2\n +2 +lr=log:0.01,1 depth=1\|2", out)
    assert {"1: ", "2: "} <= {line[:3] for line in out.splitlines()}
    assert out.endswith("no trial has a result\n")
    runs = renter.ledger().runs
    assert sorted(run.name for run in runs.values()) == ["wide-1", "wide-2"]
    assert {key for run in runs.values() for key in run.keys} == {"both.1", "both.2"}
    assert sum(run.cap.micros for run in runs.values()) == 1_010_000
    spaces = [run.spec.sweep.space for run in runs.values() if run.spec.sweep is not None]
    assert {space[0] for space in spaces} == {"lr=log:0.0001,0.01", "lr=log:0.01,1"}
    again = renter.run(*words)
    for run_id in runs:
        assert f"{run_id}: launched with this key before" in again
    assert renter.ledger().runs.keys() == runs.keys()
    assert "which was launched with other arguments" in renter.run(*words, "--seed", "1", code=2)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("local", "--rate", "1", "--budget", "1"), "--machines rents machines"),
        (("1xH100", "--hours", "1"), "2 machines share one budget, which was not given"),
        (("1xH100", "--budget", "1", "--json"), "--json is about one run"),
        (("1xH100", "--budget", "1", "depth=2"), "no setting has 2 values"),
    ],
)
def test_what_several_machines_cannot_share(
    typist: InProcess, typed: tuple[str, ...], said: str
) -> None:
    space = () if typed[-1] == "depth=2" else ("lr=log:1e-4,1",)
    words = ("--recipe", "trm-tiny", "--phase", "fast", "--machines", "2", "-y")
    err = typist.refused("sweep", typed[0], *words, *typed[1:], *space, code=2)
    assert said in err
