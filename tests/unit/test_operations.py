"""The table of operations holds for every door: the same names, refusals and views."""

from __future__ import annotations

import importlib
import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_judged_runs import AGENT, bound, given, launched
from tests.plans import a_candidate, plan_json
from tests.typist import InProcess, typist
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.api import VERBS, Home
from trmcloud.cli.main import COMMANDS, load_command
from trmcloud.core.control import events as ev
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import (
    AuthError,
    BudgetRefused,
    ConflictError,
    MissingExtra,
    NoCapacity,
    NotFoundError,
    TrmcloudError,
    UsageError,
    code_of,
)
from trmcloud.core.money import Usd
from trmcloud.operations.table import OPERATIONS, READS, by_command, by_tool
from trmcloud.operations.views import all_documents
from trmcloud.ports.ledger import ControllerId

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


def test_a_resume_without_the_extra_that_trains_is_refused_alike(
    doors: Doors, finished: RunState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trmcloud.operations.sending.data.FOR_TRAINING", ("no_such_module",))
    told = doors.typed("resume", finished.run_id, "-y")
    assert told == (MissingExtra.exit_code, code_of(MissingExtra("", "", "")))
    assert type(refusal(lambda: doors.agent.resume(finished.run_id))) is MissingExtra


def rented(doors: Doors, *events: ev.RunEvent, volume: bool = False) -> str:
    """A run of the agent's on a rented machine that cannot be reached, since there is no key."""
    ledger = SqliteLedger(doors.user.home / "ledger.db")
    at, run_id = time.time(), "r-0a0b0c"
    plan = plan_json(a_candidate(provider="runpod"), volume=volume)
    planned = ev.RunPlanned(plan, Usd(1), "thesis", principal=AGENT)
    epoch = ledger.open_run(run_id, planned, Usd(1), ControllerId("here", 1, "1"), at)
    name = f"trmc-{ledger.ledger_id}-{run_id}-g1-{int(at + 3600)}"
    made = ev.PodIntended(1, name, "runpod", "c1", Usd(1), at + 3000, at + 3600)
    begun = (made, ev.PodUp(1, "id-1", Usd(1)), ev.AgentUp(1))
    ledger.append(run_id, epoch, (*begun, *events), at)
    ledger.release(run_id, epoch)
    return run_id


def test_a_save_on_a_machine_without_a_key_is_refused_alike(doors: Doors) -> None:
    run_id = rented(doors)
    told = doors.typed("save", run_id, "--wait", "1")
    assert told == (AuthError.exit_code, code_of(AuthError("")))
    assert type(refusal(lambda: doors.agent.save(run_id, timeout_s=0.0))) is AuthError


def test_a_fetch_for_which_nothing_can_be_rented_is_refused_alike(
    doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = (ev.PodGone(1, time.time()), ev.Settled(1, Usd(0), Usd(0)), ev.Closed("lost"))
    run_id = rented(doors, *gone, volume=True)
    for module in ("trmcloud.api", "trmcloud.cli.commands.checkpoints"):
        monkeypatch.setattr(f"{module}.offers_for_errand", lambda now: ((), Usd(0)))
    told = doors.typed("fetch-best", run_id, "-y")
    assert told == (NoCapacity.exit_code, code_of(NoCapacity("")))
    assert type(refusal(lambda: doors.agent.fetch_best(run_id, rent=True))) is NoCapacity


def test_a_fetched_checkpoint_has_its_scripts_names_at_each_door(doors: Doors) -> None:
    script = "import os; os.mkdir('out'); open('out/model-1.bin', 'wb').write(b'x' * 99)"
    (doors.user.folder / "train.py").write_text(script)
    limits = ("--rate", "3.60", "--budget", "0.20", "--checkpoint-gb", "0.001")
    words = ("--checkpoints", "out", "-y", "--", "python3", "train.py")
    doors.user.run("run", "local", *limits, *words)
    run_id = doors.user.only_run().run_id
    typed = doors.command("fetch-best", run_id, "--into", "typed")
    copied = doors.home.fetch_best(run_id, into=doors.user.folder / "called")
    for folder in (Path(typed["folder"]), Path(copied.folder)):
        assert [path.name for path in (folder / "own").iterdir()] == ["model-1.bin"], folder


def test_the_best_is_never_pruned(doors: Doors, finished: RunState) -> None:
    told = doors.typed("prune", finished.run_id, "--keep-best", "0", "-y")
    assert told == (UsageError.exit_code, code_of(UsageError("")))
    assert doors.command("prune", finished.run_id, "-y")["deleted"]
    assert doors.home.fetch_best(finished.run_id, into=doors.user.folder / "kept").sha256
