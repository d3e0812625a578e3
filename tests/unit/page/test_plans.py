"""Saved plans on the page: the command's own words before its question, and its refusals."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.cli import told_home
from tests.unit.cli.told_home import own_home, told
from trmcloud.api import Home
from trmcloud.app.planning import load_plan, save_plan, saved_plans
from trmcloud.cli.page import plans
from trmcloud.cli.page.feed import Feed
from trmcloud.cli.page.plans import Ended, Launches, foreseen_json, plans_json
from trmcloud.cli.page.watch import Jobs
from trmcloud.cli.views.launch import show_plan
from trmcloud.core.errors import (
    BudgetRefused,
    ConflictError,
    NotFoundError,
    TrmcloudError,
    UsageError,
)
from trmcloud.core.money import Usd
from trmcloud.core.spec.plan import Plan

__all__ = ["own_home", "told"]

KEY = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def home(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.delenv("RUNPOD_API_KEY", raising=False)
    return Home()


def planned(home: Home, provider: str) -> Plan:
    context = home.context
    found = saved_plans(context.home, context.wall(), 50)
    return next(plan for plan in found if plan.candidates[0].provider == provider)


# -- the list ------------------------------------------------------------------------------------


def test_those_that_have_not_expired_the_newest_first(home: Home) -> None:
    context = home.context
    local, now = planned(home, "local"), context.wall()
    save_plan(context.home, replace(local, id="p-00aa", created_at=now + 5))
    save_plan(context.home, replace(local, id="p-00bb", expires_at=now - 1))
    (context.home / "plans" / "p-00cc.json").write_text("{")
    made = plans_json(context)["plans"]
    assert [each["id"] for each in made[:1]] == ["p-00aa"]
    ids = {each["id"] for each in made}
    assert {local.id, planned(home, "runpod").id} <= ids
    assert not {"p-00bb", "p-00cc"} & ids
    assert [each["created_at"] for each in made] == sorted(
        (each["created_at"] for each in made), reverse=True
    )
    mine = next(each for each in made if each["id"] == local.id)
    assert (mine["cap"]["text"], mine["reservation"]["text"]) == ("$1.00", "$1.00")
    assert mine["expected"]["text"] == "$1.00", "its work at P50 is ended by its cap before"
    assert (mine["refused"], mine["typed"]) == ("", f"trmcloud launch {local.id}")
    assert len(saved_plans(context.home, now, 1)) <= 1


def test_a_home_without_plans(home: Home) -> None:
    shutil.rmtree(home.context.home / "plans")
    assert plans_json(home.context)["plans"] == []


def test_what_no_budget_has_room_for_says_so_in_the_list(home: Home) -> None:
    context, local = home.context, planned(home, "local")
    dear = replace(local, id="p-00dd", reservation=Usd(900), cap=Usd(900))
    save_plan(context.home, dear)
    nothing = replace(local, id="p-00ee", launchable=(), recommended_id=None)
    save_plan(context.home, nothing)
    refused = {each["id"]: each["refused"] for each in plans_json(context)["plans"]}
    assert "$900.00 does not fit the month" in refused["p-00dd"]
    assert refused["p-00ee"] == "nothing in this plan can be launched"
    assert refused[local.id] == ""


# -- the question --------------------------------------------------------------------------------


def test_the_question_shows_what_the_command_prints(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    for provider in ("local", "runpod"):
        plan = planned(home, provider)
        show_plan(home.context, plan)
        printed = capsys.readouterr().out.splitlines()
        made = foreseen_json(home.context, plan.id)
        assert made["lines"][: len(printed)] == printed
        assert len(printed) >= 7
        assert made["at_most"] == plan.reservation.plain()
        assert made["button"] == f"Launch it, {plan.reservation} at most"
        assert any("Kill layers" in line and "off" in line for line in made["also"])


def test_a_refusal_is_the_commands_own(home: Home) -> None:
    made = foreseen_json(home.context, planned(home, "runpod").id)
    with pytest.raises(TrmcloudError) as caught:
        home.launch(planned(home, "runpod").id, detach=True)
    assert (made["refused"], made["next"]) == (str(caught.value), caught.value.next_step)
    assert made["refused"] == "there is no RunPod key"
    assert made["typed"].startswith("trmcloud launch p-")


def test_what_no_level_has_money_for_is_refused_before_a_click(home: Home) -> None:
    context = home.context
    dear = replace(planned(home, "local"), id="p-00dd", reservation=Usd(900), cap=Usd(900))
    save_plan(context.home, dear)
    made = foreseen_json(context, dear.id)
    assert "does not fit the month" in made["refused"]
    assert made["next"].startswith("trmcloud budget raise month ")
    with pytest.raises(BudgetRefused) as caught:
        plans._require_money(context, dear, context.wall())
    assert str(caught.value) == made["refused"]


def test_a_plan_that_is_gone_or_expired(home: Home) -> None:
    context = home.context
    with pytest.raises(NotFoundError):
        foreseen_json(context, "p-9999")
    with pytest.raises(UsageError):
        foreseen_json(context, "../../etc/passwd")
    old = replace(planned(home, "local"), id="p-00bb", expires_at=context.wall() - 1)
    save_plan(context.home, old)
    with pytest.raises(UsageError, match="expired"):
        foreseen_json(context, old.id)
    assert load_plan(context.home, planned(home, "local").id, context.wall())


# -- the launch ----------------------------------------------------------------------------------


class Paused(Launches):
    """Its commands are counted, and end once they may; what they would print is given."""

    def __init__(self, jobs: Jobs, folder: Path, printed: str, code: int = 0) -> None:
        super().__init__(jobs, None, folder)
        self.commands: list[list[str]] = []
        self.may_end = threading.Event()
        self._printed = code, printed

    def _begin(self, command: list[str]) -> Ended:
        self.commands.append(command)

        def wait() -> tuple[int, str]:
            assert self.may_end.wait(10)
            return self._printed

        return wait


@pytest.fixture
def paused(tmp_path: Path) -> Callable[..., Paused]:
    return lambda printed, code=0: Paused(Jobs(Feed()), tmp_path, json.dumps(printed), code)


LAUNCHED = {"schema": "launch/1", "run": "r-1f3a9c", "outcome": None, "cap_usd": "1"}


def ended(launches: Launches, home: Home, key: str) -> dict[str, object]:
    for thread in threading.enumerate():
        if "_carry" in thread.name:
            thread.join(10)
    return launches.state(home, key)


def test_one_key_starts_one_command(home: Home, paused: Callable[..., Paused]) -> None:
    launches, plan = paused(LAUNCHED), planned(home, "local")
    wish = {"key": KEY, "agreed": plan.reservation.plain()}
    first = launches.start(home, plan.id, wish)
    assert launches.start(home, plan.id, wish) == first
    with pytest.raises(ConflictError, match="under way"):
        launches.start(home, plan.id, {**wish, "key": KEY[::-1]})
    with pytest.raises(UsageError, match="that of a launch"):
        launches.start(home, planned(home, "runpod").id, wish)
    assert launches.state(home, KEY) == {"run": None, "state": "working", "error": "", "next": ""}
    launches.may_end.set()
    assert ended(launches, home, KEY)["state"] == "done"
    assert launches.start(home, plan.id, wish) == first, "long after, too"
    [command] = launches.commands
    assert command[1:5] == ["-m", "trmcloud", "launch", plan.id]
    assert set(command[5:]) == {"--detach", "--yes", "--json", "--idempotency-key", KEY}


def test_the_commands_refusal_is_the_pages(home: Home, paused: Callable[..., Paused]) -> None:
    refusal = {"schema": "error/1", "message": "no room", "next": "trmcloud budget show"}
    launches, plan = paused(refusal, 9), planned(home, "local")
    launches.start(home, plan.id, {"key": KEY, "agreed": "1"})
    launches.may_end.set()
    assert ended(launches, home, KEY) == {
        "run": None, "state": "failed", "error": "no room", "next": "trmcloud budget show",
    }  # fmt: skip


def test_a_run_that_has_ended_at_once_is_no_success(
    home: Home, paused: Callable[..., Paused]
) -> None:
    launches, plan = paused({**LAUNCHED, "outcome": "not_started"}), planned(home, "local")
    launches.start(home, plan.id, {"key": KEY, "agreed": "1"})
    launches.may_end.set()
    told = ended(launches, home, KEY)
    assert (told["state"], told["error"]) == ("failed", "r-1f3a9c has ended: not_started")


@pytest.mark.parametrize("printed", ["", "{", "[]", '"x"', '{"schema": 1'])
def test_a_command_that_printed_no_document(printed: str) -> None:
    with pytest.raises(TrmcloudError, match="exit code 137"):
        plans._said(137, printed)


@pytest.mark.parametrize("key", ["", "short", "a" * 65, "spaces are no key", "x/../../etc/passwd"])
def test_what_is_no_key(key: str, home: Home, paused: Callable[..., Paused]) -> None:
    launches = paused(LAUNCHED)
    with pytest.raises(UsageError):
        launches.start(home, planned(home, "local").id, {"key": key, "agreed": "1"})
    with pytest.raises(NotFoundError):
        launches.state(home, key)
    assert launches.commands == []


def test_more_than_was_agreed_to_is_not_reserved(home: Home, paused: Callable[..., Paused]) -> None:
    launches, plan = paused(LAUNCHED), planned(home, "local")
    for agreed, kind in (("0.5", ConflictError), ("", ConflictError), ("x", UsageError)):
        with pytest.raises(kind):
            launches.start(home, plan.id, {"key": KEY, "agreed": agreed})
    assert launches.commands == []
    assert told_home.LIVE_RUN in home.context.ledger.read().runs
