"""Budgets: settled plus reserved stays within the cap at every level; what is spent, and what an
instant cost."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plans import a_candidate, a_phase, plan_json, recorded
from tests.present import present
from tests.reasons import quoted
from tests.unit.core.runs import AT, RESERVATION, apply, booting, ending, renting, running, settling
from trmcloud.core.control import bookkeeping
from trmcloud.core.control import events as ev
from trmcloud.core.control.billing import hours_at, paid_by, spent_at
from trmcloud.core.control.budget import (
    PROJECT_MONTH,
    LedgerState,
    Line,
    admit,
    extend_ledger,
    fold_ledger,
    is_owned,
    overdrawn,
)
from trmcloud.core.control.grants import month_of
from trmcloud.core.control.ledger_facts import StrayPod
from trmcloud.core.control.report import Spending, report_on, spending_of
from trmcloud.core.control.run_state import Generation, IllegalTransition, RunState, State
from trmcloud.core.errors import BudgetRefused
from trmcloud.core.money import ZERO, Usd, cost
from trmcloud.core.spec.plan import Interval
from trmcloud.core.values import replace as replace_value

# -- At every level that has a cap: settled + reserved ≤ cap, always ----------------------------


SEPTEMBER = dt.datetime(2026, 9, 15, tzinfo=dt.timezone.utc).timestamp()
OCTOBER = dt.datetime(2026, 10, 15, tzinfo=dt.timezone.utc).timestamp()


def run(
    run_id: str,
    *,
    project: str = "thesis",
    cap: str = "100",
    settled: str = "0",
    reserved: str = "0",
    at: float = SEPTEMBER,
) -> RunState:
    return RunState(
        run_id,
        state=State.RESERVED,
        cap=Usd(cap),
        project=project,
        settled=Usd(settled),
        reserved=Usd(reserved),
        reserved_at=at,
    )


def ledger(*runs: RunState, **caps: str) -> LedgerState:
    """``caps`` by level; ``month_2026_09`` and ``project_thesis`` name a key."""
    made: dict[tuple[str, str], Usd] = {}
    for name, cap in caps.items():
        level, _, key = name.partition("_")
        made[(level, key.replace("_", "-"))] = Usd(cap)
    return LedgerState("abcd1234", {r.run_id: r for r in runs}, made)


# -- lines -------------------------------------------------------------------------------------


def test_a_month_is_utcs() -> None:
    assert (
        month_of(dt.datetime(2026, 9, 30, 23, 59, tzinfo=dt.timezone.utc).timestamp()) == "2026-09"
    )
    assert month_of(dt.datetime(2026, 10, 1, tzinfo=dt.timezone.utc).timestamp()) == "2026-10"


def test_each_level_counts_its_own() -> None:
    book = ledger(
        run("a", settled="1", reserved="2"),
        run("b", project="other", settled="4", reserved="8"),
        run("c", settled="16", reserved="32", at=OCTOBER),
        replace(run("d", settled="64"), state=State.NEW),
    )
    assert book.line("account", "") == Line("account", "", None, Usd(21), Usd(42))
    assert book.line("project", "thesis") == Line("project", "thesis", None, Usd(17), Usd(34))
    assert book.line("month", "2026-09") == Line("month", "2026-09", None, Usd(5), Usd(10))
    assert book.line("month", "2026-10") == Line("month", "2026-10", None, Usd(16), Usd(32))
    assert book.line("run", "a") == Line("run", "a", Usd(100), Usd(1), Usd(2))
    assert book.line("run", "nobody") == Line("run", "nobody", None, ZERO, ZERO)


def test_a_months_own_cap_outranks_the_one_for_every_month() -> None:
    book = ledger(month="5", month_2026_09="7")
    assert book.line("month", "2026-09").cap == Usd(7)
    assert book.line("month", "2026-10").cap == Usd(5)
    assert LedgerState("abcd1234", caps={("project", ""): Usd(1)}).line("project", "x").cap is None


def test_a_line_without_a_cap_has_no_end() -> None:
    assert ledger().line("account", "").remaining is None
    assert not ledger().has_cap("thesis", SEPTEMBER)
    assert ledger(project_thesis="1").has_cap("thesis", SEPTEMBER)
    assert not ledger(project_thesis="1").has_cap("other", SEPTEMBER)


# -- admit -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "named"),
    [
        ("account", "the account budget of $10.00"),
        ("month", "the month 2026-09 budget of $10.00"),
        ("month_2026_09", "the month 2026-09 budget of $10.00"),
        ("project_thesis", "the project thesis budget of $10.00"),
    ],
)
def test_what_is_left_fits_and_a_micro_dollar_more_does_not(level: str, named: str) -> None:
    book = ledger(run("a", settled="3", reserved="2"), **{level: "10"})
    asking = run("b")
    assert admit(book, asking, Usd(5), SEPTEMBER) is None
    refusal = present(admit(book, asking, Usd("5.000001"), SEPTEMBER))
    assert refusal.line.level == level.partition("_")[0]
    for figure in (named, "$3.00 spent", "$2.00 reserved", "$5.00 left"):
        assert figure in str(refusal)


def test_the_runs_own_cap_binds_what_it_spent_before_too() -> None:
    asking = run("a", cap="10", settled="6")
    assert admit(ledger(asking), asking, Usd(4), SEPTEMBER) is None
    refusal = present(admit(ledger(asking), asking, Usd("4.01"), SEPTEMBER))
    assert refusal.line.level == "run"


def test_a_runs_open_reservation_is_replaced_and_not_added() -> None:
    asking = run("a", reserved="8")
    assert admit(ledger(asking, account="10"), asking, Usd(10), SEPTEMBER) is None


def test_a_cap_of_zero_lets_nothing_through() -> None:
    assert admit(ledger(account="0"), run("a"), Usd("0.000001"), SEPTEMBER) is not None


def test_what_a_run_spent_moves_to_the_month_of_its_new_reservation() -> None:
    asking = run("a", settled="6", at=SEPTEMBER)
    book = ledger(asking, month="10")
    assert admit(book, asking, Usd("4.01"), OCTOBER) is not None
    assert admit(book, asking, Usd(4), OCTOBER) is None


# -- overdrawn ---------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["account", "month", "project_thesis"])
def test_a_cap_cut_below_what_is_held_is_noticed(level: str) -> None:
    mine = run("a", settled="3", reserved="2")
    assert overdrawn(ledger(mine, **{level: "5"}), mine, SEPTEMBER) == ()
    (line,) = overdrawn(ledger(mine, **{level: "4.99"}), mine, SEPTEMBER)
    assert line.level == level.partition("_")[0]


def test_a_run_answers_for_the_month_of_its_reservation_alone() -> None:
    mine = run("a", reserved="2", at=SEPTEMBER)
    other = run("b", reserved="9", at=OCTOBER)
    assert overdrawn(ledger(mine, other, month_2026_10="5"), mine, OCTOBER) == ()
    assert overdrawn(ledger(mine, other, month_2026_09="1"), mine, OCTOBER)
    assert overdrawn(ledger(mine, other, month_2026_10="5"), other, OCTOBER)


def test_a_bill_above_its_reservation_overdraws() -> None:
    mine = run("a", cap="5", settled="5.01")
    (line,) = overdrawn(ledger(mine), mine, SEPTEMBER)
    assert line.level == "run"


# -- folding -----------------------------------------------------------------------------------


def test_extending_leaves_what_was_known_alone() -> None:
    first = ev.Record(1, "", 0, SEPTEMBER, ev.CapSet("account", "", Usd(5)))
    second = ev.Record(2, "", 0, SEPTEMBER, ev.CapSet("account", "", None))
    before = fold_ledger("abcd1234", [first])
    after = extend_ledger(before, [second])
    assert before.caps == {("account", ""): Usd(5)}
    assert after.caps == {}
    assert after == fold_ledger("abcd1234", [first, second])
    assert after.cap_history == (first, second)


# -- the property ------------------------------------------------------------------------------

LEVELS = [
    *(("account", ""), ("month", ""), ("month", "2026-09"), ("project", "p"), ("project", "q")),
    *((PROJECT_MONTH, "p"), (PROJECT_MONTH, "q"), (PROJECT_MONTH, "q 2026-10")),
]
cents = st.integers(0, 2000).map(lambda n: Usd.from_micros(n * 10_000))


@dataclass(frozen=True)
class Step:
    what: str
    run_id: str
    amount: Usd
    other: Usd
    october: bool
    level: tuple[str, str]


steps = st.lists(
    st.builds(
        Step,
        st.sampled_from(["open", "open", "settle", "refuse", "close", "reopen", "reserve", "cap"]),
        st.sampled_from(["r1", "r2", "r3"]),
        cents,
        cents,
        st.booleans(),
        st.sampled_from(LEVELS),
    ),
    max_size=30,
)


def events_of(step: Step, book: LedgerState, at: float) -> tuple[ev.RunEvent, ...]:
    known = book.runs.get(step.run_id)
    g = len(known.generations) + 1 if known else 1
    intended = ev.PodIntended(g, f"pod-{g}", "local", "c", Usd(1), at + 5, at + 9)
    held = known.reserved if known else ZERO
    project = "p" if step.run_id == "r1" else "q"
    return {
        "open": (ev.RunPlanned(plan_json(), step.other, project), ev.Reserved(step.amount)),
        "settle": (
            intended,
            ev.PodUp(g, "id", Usd(1)),
            ev.PodGone(g, at),
            # A bill within its reservation: what holds then is what the promise is about.
            ev.Settled(g, min(step.amount, held), None),
        ),
        "refuse": (intended, ev.PodNotMade(g, quoted("none left"))),
        "close": (ev.Closed("stopped"),),
        "reopen": (ev.Reopened(step.other), ev.Reserved(step.amount)),
        "reserve": (ev.Reserved(step.amount),),
    }[step.what]


@settings(max_examples=150)
@given(st.dictionaries(st.sampled_from(LEVELS), cents), steps)
def test_no_sequence_of_writes_holds_more_than_a_cap(
    caps: dict[tuple[str, str], Usd], script: list[Step]
) -> None:
    book = read = LedgerState("abcd1234", caps=caps)
    for seq, step in enumerate(script):
        at = OCTOBER if step.october else SEPTEMBER
        before = {line: over(line) for line in all_lines(book)}
        try:
            if step.what == "cap":
                event = ev.CapSet(*step.level, step.amount)
                book, record = bookkeeping.add_cap(book, seq * 10, event, at)
                read = extend_ledger(read, (record,))
            else:
                events = events_of(step, book, at)
                book, new = bookkeeping.add_events(book, seq * 10, step.run_id, 1, events, at)
                read = extend_ledger(read, new)
        except (BudgetRefused, IllegalTransition):
            assert {line: over(line) for line in all_lines(book)} == before
            continue
        counted_anew = all_lines(replace_value(book))
        assert all_lines(book) == all_lines(read) == counted_anew, "sums moved on, and from nothing"
        for line in all_lines(book):
            # A cut, or a reopened run's lower cap, may leave a level overdrawn; nothing else may,
            # and then nothing but settling and closing goes on.
            if over(line) > 0:
                known = {(b.level, b.key): over(b) for b in before}
                grown = over(line) > known.get((line.level, line.key), 0)
                assert step.what == "cap" or not grown, (step, line)
                assert step.what not in ("open", "reopen", "reserve") or not binds(
                    line, step, at, book
                )


def all_lines(book: LedgerState) -> list[Line]:
    keys = [("account", ""), ("month", "2026-09"), ("month", "2026-10")]
    keys += [("project", "p"), ("project", "q"), *(("run", run_id) for run_id in book.runs)]
    keys += [
        (PROJECT_MONTH, f"{name} {month}") for name in "pq" for month in ("2026-09", "2026-10")
    ]
    return [book.line(*key) for key in keys]


def over(line: Line) -> int:
    return max(0, -line.remaining.micros) if line.remaining is not None else 0


def binds(line: Line, step: Step, at: float, book: LedgerState) -> bool:
    """Whether the level is one that a reservation of this step had to fit."""
    mine = book.runs[step.run_id]
    bound = [*book.lines_for(mine.project, at), book.line("run", step.run_id)]
    return any((b.level, b.key) == (line.level, line.key) for b in bound)


@pytest.mark.parametrize(("cap", "over"), [(None, 0), (12, 0), (10, 0), (7, 3)])
def test_a_line_is_over_by_what_its_cap_does_not_hold(cap: int | None, over: int) -> None:
    line = Line("account", "", None if cap is None else Usd(cap), Usd(4), Usd(6))
    assert line.over == Usd(over)


# -- Budgets at their edges: what a refusal says, whose money counts where, whole ledgers -------


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
    assert overdrawn(book, idle, OCTOBER), "it answers for each month anew"


def test_what_is_known_of_a_run_says_nothing_of_its_other_states() -> None:
    mine = run("a", settled="3")
    elsewhere = replace(mine, project="other")
    book = ledger(mine, run("b", project="other", settled="2"), project_other="1")
    assert overdrawn(book, mine, SEPTEMBER) == ()
    assert overdrawn(book, elsewhere, SEPTEMBER)
    book = ledger(mine, project_thesis="1")
    assert overdrawn(book, elsewhere, SEPTEMBER) == ()
    for other in (mine, replace(mine, reserved=Usd(1))):
        assert overdrawn(book, other, SEPTEMBER)


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


# -- What a run has cost: what is proven, and what it is at most --------------------------------


RATE = Usd("3.6")


def a_stray(amount: str, billed: str | None = None) -> StrayPod:
    bill = Usd(billed) if billed is not None else None
    return StrayPod("test", "id-9", "name", "r1", AT, AT, Usd(amount), bill)


def estimated() -> RunState:
    return apply(settling(), ev.Settled(1, Usd("0.61"), None), at=AT + 600)


def test_what_was_never_listed_is_not_proven() -> None:
    assert spending_of(renting(), AT + 100) == Spending(ZERO, cost(RATE, 100))


def test_a_pod_is_proven_to_cost_from_its_first_list_until_it_was_seen_last() -> None:
    run = booting()
    assert spending_of(run, AT + 100) == Spending(cost(RATE, 90), cost(RATE, 100))
    silent = spending_of(run, AT + 100, shown_at=AT + 40)
    assert silent == Spending(cost(RATE, 30), cost(RATE, 100))
    assert spending_of(run, AT + 100, shown_at=AT).proven == ZERO


def test_of_one_that_is_missed_only_what_was_done_there_proves_that_it_lived() -> None:
    missed = apply(ending(), ev.PodMissed(1), at=AT + 510)
    assert spending_of(missed, AT + 900) == Spending(cost(RATE, 10), cost(RATE, 900))
    pull = "r1/g1/pull-fast-9-abc/1"
    pulled = apply(missed, ev.ActionStarted(pull, "pull"), at=AT + 420)
    assert spending_of(pulled, AT + 900).proven == cost(RATE, 10)
    pulled = apply(pulled, ev.ActionFinished(pull, "pull"), at=AT + 480)
    assert spending_of(pulled, AT + 900).proven == cost(RATE, 470)
    for verb, number in (("terminate", 1), ("pull", 2)):
        other = f"r1/g{number}/{verb}/1"
        later = apply(pulled, ev.ActionFinished(other, verb), at=AT + 500)
        assert spending_of(later, AT + 900).proven == cost(RATE, 470)


def test_one_that_is_missed_costs_no_more_after_its_hard_stop() -> None:
    hard_stop_at = booting().generations[-1].hard_stop_at
    early = apply(ending(), ev.PodMissed(1), at=hard_stop_at - 60)
    late = apply(ending(), ev.PodMissed(1), at=hard_stop_at + 25)
    assert spending_of(early, hard_stop_at - 10).at_most == cost(RATE, hard_stop_at - 10 - AT)
    assert spending_of(early, hard_stop_at + 900).at_most == cost(RATE, hard_stop_at - AT)
    assert spending_of(late, hard_stop_at + 900).at_most == cost(RATE, hard_stop_at + 25 - AT)


def test_one_that_was_found_dearer_than_planned_may_cost_that_since_its_order() -> None:
    run = renting()
    run = apply(run, ev.PodUp(1, "id-1", Usd("7.2")), at=AT + 10)
    assert spending_of(run, AT + 100) == Spending(cost(RATE, 90), cost(Usd("7.2"), 100))


def test_without_a_final_bill_an_estimate_is_what_it_is_at_most() -> None:
    assert spending_of(settling(), AT + 900) == Spending(cost(RATE, 10), RESERVATION)
    assert spending_of(estimated(), AT + 900) == Spending(cost(RATE, 10), Usd("0.61"))
    small = apply(settling(), ev.Settled(1, Usd("0.002"), None), at=AT + 600)
    assert spending_of(small, AT + 900) == Spending(Usd("0.002"), Usd("0.002"))
    billed = apply(estimated(), ev.Billed(1, Usd("0.55")), at=AT + 700)
    assert spending_of(billed, AT + 900) == Spending(Usd("0.55"), Usd("0.55"))


def test_a_pod_that_nobody_asked_for_is_proven_by_its_bill_alone() -> None:
    run = apply(settling(), ev.Settled(1, Usd("0.5"), Usd("0.5")), at=AT + 600)
    held = spending_of(run, AT + 900, strays=[a_stray("1345")])
    assert (held, held.unproven) == (Spending(Usd("0.5"), Usd("1345.5")), Usd(1345))
    billed = spending_of(run, AT + 900, strays=[a_stray("1345", "0.13")])
    assert billed == Spending(Usd("0.63"), Usd("0.63"))


def test_a_report_tells_them_apart_too() -> None:
    run = apply(settling(), ev.Settled(1, Usd("0.5"), Usd("0.5")), at=AT + 600)
    strays = [a_stray("1345"), replace(a_stray("9", "0.13"), pod_id="id-8")]
    report = report_on(run, (), AT + 900, strays=strays)
    assert report.accrued == cost(RATE, 510) + Usd("0.13")
    assert report.at_most == report.accrued + Usd(1345)
    assert report.billed is None


def test_a_budget_says_what_it_holds_at_most() -> None:
    run = estimated()
    book = LedgerState("ab", {"r1": run}, strays={("test", "id-9"): a_stray("3")})
    assert book.line("account", "").unproven == Usd("3.61")
    assert book.line("run", "r1").unproven == Usd("3.61")
    billed = apply(run, ev.Billed(1, Usd("0.55")), at=AT + 700)
    known = LedgerState("ab", {"r1": billed}, strays={("test", "id-9"): a_stray("3", "1")})
    assert known.line("account", "").unproven == ZERO


def test_what_the_wait_for_data_came_to_stands_beside_what_was_planned() -> None:
    run = estimated()
    phases = a_phase("fast", data=30.0), a_phase("extreme")
    chosen = a_candidate(str(run.candidate_id), phases=phases)
    run = replace(run, recorded_plan=recorded(chosen))
    seconds = {"training": 300.0, "data": 50.0}
    report = report_on(run, (), AT + 900, live_seconds=seconds, data_told="done · 3 of 3 shards")
    assert report.seconds["data"] == 50.0
    assert sum(report.seconds.values()) == report.paid_s, "none of it is counted twice"
    assert report.data_usd == cost(RATE, 50.0)
    assert report.planned_data_usd == cost(RATE, 30.0)
    assert report.data_told == "done · 3 of 3 shards"


@pytest.mark.parametrize(("p50_hours", "planned_hours"), [(0.5, 0.5), (40.0, 5.0)])
def test_what_was_planned_ends_at_the_hard_stop(p50_hours: float, planned_hours: float) -> None:
    """A budget that buys a part of a recipe plans no more time than it pays for."""
    run, hours = estimated(), Interval(p50_hours, p50_hours, p50_hours)
    chosen = a_candidate(str(run.candidate_id))
    chosen = replace_value(chosen, hours=hours, hard_stop_s=5 * 3600.0)
    run = replace_value(run, recorded_plan=recorded(chosen))
    assert report_on(run, (), AT + 900).planned_hours == planned_hours


# -- paid time ----------------------------------------------------------------------------------
# What an instant of a run's life has cost: exact for receipts, quick for axes, and the same.


def machine(number: int, began: float, ended: float | None, rate: str, **more: Any) -> Generation:
    made = present(running().generation)
    about = {"number": number, "intended_at": began, "ended_at": ended, "rate": Usd(rate)}
    return replace_value(made, **{**about, "billed_rate": None, **more})


def a_run(*machines: Generation) -> RunState:
    return replace_value(running(), generations=machines)


def test_each_machine_costs_its_rate_from_its_order_to_its_end() -> None:
    run = a_run(machine(1, AT, AT + 3600, "2"), machine(2, AT + 7200, None, "3"))
    assert spent_at(run, AT - 5) == ZERO
    assert spent_at(run, AT + 1800) == Usd("1")
    assert spent_at(run, AT + 7200) == Usd("2"), "days between two machines cost nothing"
    assert spent_at(run, AT + 9000) == Usd("3.5")
    assert hours_at(run, AT + 9000) == 1.5


def test_what_is_billed_counts_and_what_was_never_made_does_not() -> None:
    billed = machine(1, AT, None, "2", billed_rate=Usd("2.4"))
    unmade = machine(2, AT, None, "9", not_made=quoted("no capacity"))
    run = a_run(billed, unmade)
    assert spent_at(run, AT + 3600) == Usd("2.4")
    (hours,), (dollars,) = paid_by(run, [AT + 3600])
    assert hours == 1.0
    assert dollars == pytest.approx(2.4)


def test_the_axes_are_the_exact_dollars_to_a_micro_dollar_a_machine() -> None:
    machines = [
        machine(n, AT + 977 * n, AT + 977 * n + 555.5, f"{1 + n / 7:.6f}") for n in range(1, 6)
    ]
    run = a_run(*machines, machine(6, AT + 9_000, None, "3.333333"))
    instants = [AT + 13.37 * n for n in range(1000)]
    hours, dollars = paid_by(run, instants)
    for at, paid_h, paid_usd in zip(instants, hours, dollars, strict=True):
        assert paid_h == pytest.approx(hours_at(run, at))
        assert paid_usd <= float(spent_at(run, at)) + 1e-9
        # Each machine's milliseconds, and then its micro-dollars, are rounded up.
        assert paid_usd == pytest.approx(float(spent_at(run, at)), abs=6 * 2e-6)


def test_at_its_end_a_run_has_cost_what_its_report_accrues() -> None:
    run = a_run(machine(1, AT, AT + 1234.567, "2.79"), machine(2, AT + 5000, AT + 6001, "1.99"))
    assert spent_at(run, AT + 9999) == report_on(run, [], AT + 9999).accrued
