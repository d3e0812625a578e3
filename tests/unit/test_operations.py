"""The table of operations holds for every door: the same names, refusals and views."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from tests.e2e.test_judged_runs import AGENT, bound, given, launched
from tests.typist import InProcess, typist
from trmcloud.api import VERBS, Home
from trmcloud.app.operations import OPERATIONS, READS, by_command, by_tool
from trmcloud.app.views import all_documents
from trmcloud.cli.main import COMMANDS, load_command
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import (
    BudgetRefused,
    ConflictError,
    NotFoundError,
    TrmcloudError,
    UsageError,
    code_of,
)

__all__ = ["typist"]

_LEVELS = frozenset({"budgets", "approvals"})
"""Buttons of the page beside those of a run."""


# -- the table -------------------------------------------------------------------------------------


def test_each_row_names_a_function_and_documents_that_are_there() -> None:
    documents = all_documents()
    for row in OPERATIONS:
        module, _, name = row.function.partition(":")
        found = getattr(importlib.import_module(f"trmcloud.{module}"), name)
        assert callable(found), row.name
        assert set(row.views) <= documents.keys(), row.name
        assert row.command or row.tool or row.home, row.name


def test_the_table_has_every_command_method_tool_and_button_and_no_other() -> None:
    mcp_tools = pytest.importorskip("trmcloud.mcp.tools", reason="the extra `mcp`")
    assert [*by_command()] == [*COMMANDS]
    for name in COMMANDS:
        assert load_command(name).name == name
    assert by_tool().keys() == mcp_tools.tools().keys()
    assert {row.button for row in OPERATIONS if row.button} == {*VERBS, *_LEVELS}
    named = [name for row in OPERATIONS for name in row.home]
    public = {name for name, _ in inspect.getmembers(Home, callable) if name[0] != "_"}
    assert sorted(named) == sorted(public)


def test_what_only_reads_is_offered_to_agents_as_such() -> None:
    mcp_tools = pytest.importorskip("trmcloud.mcp.tools", reason="the extra `mcp`")
    reads = {row.tool for row in OPERATIONS if row.tool and row.effect == READS}
    assert {name for name, tool in mcp_tools.tools().items() if tool.reads} == reads
    assert not {"launch", "stop", "land", "plan", "try", "fetch", "save"} & reads


# -- every door ------------------------------------------------------------------------------------


@pytest.fixture
def doors(typist: InProcess, monkeypatch: pytest.MonkeyPatch) -> Doors:
    pytest.importorskip("trmcloud.mcp.tools", reason="the extra `mcp`")
    pytest.importorskip("uvicorn", reason="the extra `ui`")
    given(typist)
    for name, value in typist.env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(typist.folder)
    return Doors(typist)


class Doors:
    """One home behind each door. A run is that of an agent, whom the owner sees, too."""

    def __init__(self, user: InProcess) -> None:
        from trmcloud.cli.page.server import page_of
        from trmcloud.mcp.server import desk_of

        self.user, self.home, self.agent = user, Home(), Home(principal=AGENT)
        self._desk = desk_of(user.home, AGENT, user.folder)
        self._page = page_of(None, user.folder, live=False)

    def command(self, *words: str) -> Any:
        return self.user.json(*words, "--json")

    def typed(self, *words: str) -> tuple[int, str]:
        """Exit code and code of the failure of a command that a bound shell types."""
        with bound(self.user):
            code, out, _ = self.user.ended(*words, "--json")
        from tests.documents import document_in

        return code, str(document_in(out)["code"]) if code else ""

    def tool(self, name: str, **arguments: Any) -> dict[str, Any]:
        from trmcloud.mcp import tools

        return tools.call(self._desk, tools.tools()[name], arguments)

    def button(self, run: str, verb: str) -> Any:
        return self._page.do(run, {"verb": verb, "agreed": "1"})

    def shown(self, run: str) -> dict[str, Any]:
        return self._page.one_run(run)


@pytest.fixture
def finished(doors: Doors) -> RunState:
    with bound(doors.user):
        return launched(doors.user, "night", steps=40)


def refusal(call: Callable[[], Any]) -> TrmcloudError:
    with pytest.raises(TrmcloudError) as caught:
        call()
    return caught.value


RUN = "r-000000"
OVER: Mapping[str, tuple[type[TrmcloudError], tuple[str, ...]]] = {
    "stop": (ConflictError, ("stop", "{run}", "-y")),
    "stop --now": (ConflictError, ("stop", "--now", "{run}", "-y")),
    "save": (ConflictError, ("save", "{run}")),
    "resume": (ConflictError, ("resume", "{run}", "-y")),
}
"""Operation → how it refuses a run that has finished, and what is typed for it."""
LOOKS = ("status", "report", "logs", "fetch-best")


def through_each(doors: Doors, name: str, run: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The calls of one operation on a run, by the doors that the table names."""
    row = next(each for each in OPERATIONS if each.name == name)
    method = {"status": "run", "stop": "land", "stop --now": "stop"}.get(name, row.home[0])
    yield "home", lambda: getattr(doors.agent, method)(run)
    if row.tool:
        yield "tool", lambda: doors.tool(row.tool, run=run)
    if row.button:
        yield "button", lambda: doors.button(run, row.button)


@pytest.mark.parametrize("name", [*OVER, *LOOKS])
def test_a_run_that_is_not_there_is_refused_alike(doors: Doors, name: str) -> None:
    words = OVER[name][1] if name in OVER else (name, "{run}")
    told = doors.typed(*(word.format(run=RUN) for word in words))
    assert told == (NotFoundError.exit_code, "not_found")
    for door, call in through_each(doors, name, RUN):
        assert type(refusal(call)) is NotFoundError, door
    assert doors.user.ledger().runs == {}


def test_a_run_that_is_over_is_refused_alike(doors: Doors, finished: RunState) -> None:
    before = doors.user.ledger().runs[finished.run_id]
    for name, (kind, words) in OVER.items():
        code, word = doors.typed(*(each.format(run=finished.run_id) for each in words))
        assert (code, word) == (kind.exit_code, code_of(kind(""))), name
        for door, call in through_each(doors, name, finished.run_id):
            assert type(refusal(call)) is kind, (name, door)
    assert doors.user.ledger().runs[finished.run_id] == before


#: What is asked for, the refusal, and its words as options.
PLANS: Mapping[str, tuple[type[TrmcloudError], dict[str, Any]]] = {
    "no such recipe": (NotFoundError, {"recipe": "none"}),
    "no such hardware": (UsageError, {"hardware": "9xABACUS"}),
    "two limits": (UsageError, {"steps": -1}),
    "less than a landing costs": (BudgetRefused, {"budget": "0.000001"}),
}
USUAL: Mapping[str, Any] = {
    "hardware": "local", "recipe": "trm-tiny", "phase": "fast", "rate": "3.60", "budget": "0.20",
    "data": "python-stdlib",
}  # fmt: skip


@pytest.mark.parametrize("case", PLANS)
def test_a_plan_and_a_launch_of_it_are_refused_alike(doors: Doors, case: str) -> None:
    kind, more = PLANS[case]
    wish = {**USUAL, **more}
    options = [f"--{name}={value}" for name, value in wish.items() if name != "hardware"]
    hardware = wish.pop("hardware")
    seen = {
        "plan": doors.typed("plan", f"--hardware={hardware}", *options),
        "launch": doors.typed("launch", hardware, *options, "-y"),
    }
    assert set(seen.values()) == {(kind.exit_code, code_of(kind("")))}, seen
    for call in (
        lambda: doors.agent.plan(hardware=hardware, **wish),
        lambda: doors.agent.launch(hardware, **wish),
        lambda: doors.tool("plan", hardware=hardware, **wish),
    ):
        assert type(refusal(call)) is kind
    assert doors.user.ledger().runs == {}


def test_a_run_is_the_same_through_every_door(doors: Doors, finished: RunState) -> None:
    run_id = finished.run_id
    [typed] = doors.command("status", run_id)["runs"]
    run, told, page = doors.home.run(run_id), doors.tool("status", run=run_id), doors.shown(run_id)
    assert {typed["run"], run.id, told["run"], page["id"]} == {run_id}
    assert {typed["outcome"], run.outcome, told["outcome"], page["outcome"]} == {"finished"}
    spent = {typed["spent_usd"], run.money.proven.plain(), told["spent_usd"].plain()}
    assert spent == {str(page["money"]["proven"]["usd"])}
    assert typed["cap_usd"] == run.money.cap.plain() == told["budget_usd"].plain() == "0.2"
    assert run.training is not None
    assert typed["step"] == run.training.step == told["training"]["step"] == 40
    assert page["training"]["best_step"] == run.training.best_step == told["training"]["best_step"]
    [line] = doors.command("report", run_id)["runs"]
    account, answer = doors.home.report(run_id), doors.tool("report", run=run_id)
    assert account.best is not None
    assert {line["best"]["sha256"], account.best.sha256} == {answer["best"]["sha256"]}
    assert {line["accrued_usd"], account.accrued.plain()} == {answer["accrued_usd"].plain()}
    assert {line["planned_usd"], account.planned.plain()} == {answer["planned_usd"].plain()}


def test_an_option_reaches_each_door_by_one_row(doors: Doors) -> None:
    """Of ``plan``: the command, the calls of programs, and the tool of agents."""
    from trmcloud.api import options_of
    from trmcloud.mcp.arguments import options_for

    own = {each.name for each in options_of("plan")}
    typed = {param.name for param in load_command("plan").params}
    offered = {each.name for each in options_for("plan", "launch", "run")}
    assert own <= typed
    assert offered <= {each.name for name in ("plan", "launch", "run") for each in options_of(name)}
    assert {"budget", "hardware", "recipe", "steps", "provider"} <= own & offered
