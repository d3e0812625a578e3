"""Budgets at their edges: what a refusal says, whose money counts where, whole ledgers."""

from __future__ import annotations

from dataclasses import replace

from tests.plans import plan_json
from tests.unit.core.test_budget import OCTOBER, SEPTEMBER, ledger, run
from trmcloud.core.control import events as ev
from trmcloud.core.control.budget import (
    LedgerState,
    admit,
    extend_ledger,
    fold_ledger,
    is_owned,
    overdrawn,
)
from trmcloud.core.control.run_state import Generation, State
from trmcloud.core.money import ZERO, Usd


def test_a_refusal_names_the_budget_as_a_user_knows_it() -> None:
    asking = run("b")
    names = {
        "account": "the account budget of $1.00",
        "month": "the month 2026-09 budget of $1.00",
        "project_thesis": "the project thesis budget of $1.00",
    }
    for level, said in names.items():
        refusal = admit(ledger(**{level: "1"}), asking, Usd(2), SEPTEMBER)
        assert said in str(refusal)


def test_only_a_month_falls_back_on_the_cap_for_every_month() -> None:
    nameless = LedgerState("abcd1234", caps={("project", ""): Usd(1), ("month", ""): Usd(2)})
    assert nameless.line("project", "thesis").cap is None
    assert nameless.line("month", "2026-09").cap == Usd(2)


def test_money_that_was_never_reserved_belongs_to_no_month() -> None:
    epoch = "1970-01"
    assert ledger(run("a", settled="3", at=0.0)).line("month", epoch).settled == ZERO
    assert ledger(run("a", settled="3", at=0.5)).line("month", epoch).settled == Usd(3)


def test_a_run_that_never_reserved_answers_for_the_month_it_is_asked_in() -> None:
    idle = run("a", at=0.0)
    spender = run("b", reserved="9", at=OCTOBER)
    book = ledger(idle, spender, month_2026_10="5")
    (line,) = overdrawn(book, idle, OCTOBER)
    assert line.key == "2026-10"
    assert overdrawn(book, idle, SEPTEMBER) == ()


def record(seq: int, event: ev.Event, run_id: str = "", at: float = SEPTEMBER) -> ev.Record:
    return ev.Record(seq, run_id, 1, at, event)


def test_a_ledger_is_the_fold_of_its_runs_caps_and_verified_layers() -> None:
    records = [
        record(1, ev.CapSet("account", "", Usd(5))),
        record(2, ev.RunPlanned(plan_json(), Usd(4), "thesis"), "r1"),
        record(3, ev.LayerVerified("runpod", "agent", "smoke run"), at=SEPTEMBER + 7),
        record(4, ev.Reserved(Usd(3)), "r1"),
        record(5, ev.RunPlanned(plan_json(), Usd(1), "other"), "r2"),
    ]
    whole = fold_ledger("abcd1234", records)
    assert whole.verified == {("runpod", "agent"): SEPTEMBER + 7}
    assert whole.caps == {("account", ""): Usd(5)}
    assert {r.run_id: (r.state, r.reserved) for r in whole.runs.values()} == {
        "r1": (State.RESERVED, Usd(3)),
        "r2": (State.PLANNED, ZERO),
    }
    for cut in range(len(records) + 1):
        first = fold_ledger("abcd1234", records[:cut])
        assert extend_ledger(first, records[cut:]) == whole


def test_one_generation_of_one_run_is_enough_to_own_a_pod() -> None:
    idle = run("a")
    pods = [
        Generation(n, f"trmc-{n}", "runpod", "c1", Usd(1), 2.0, 3.0, 1.0, pod_id=pod_id)
        for n, pod_id in enumerate(("id-1", None, "id-3"), 1)
    ]
    owner = replace(run("b"), generations=tuple(pods))
    runs = {"a": idle, "b": owner}
    assert is_owned(runs, "id-1")
    assert is_owned(runs, "id-3")
    assert not is_owned(runs, "id-2")
    assert not is_owned({"a": idle}, "id-1")
