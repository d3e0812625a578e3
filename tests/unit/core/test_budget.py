"""At every level that has a cap: settled + reserved ≤ cap, always."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plans import plan_json
from tests.reasons import quoted
from trmcloud.core.control import bookkeeping
from trmcloud.core.control import events as ev
from trmcloud.core.control.budget import (
    LedgerState,
    Line,
    admit,
    extend_ledger,
    fold_ledger,
    month_of,
    overdrawn,
)
from trmcloud.core.control.run_state import IllegalTransition, RunState, State
from trmcloud.core.errors import BudgetRefused, UsageError
from trmcloud.core.money import ZERO, Usd

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


def test_a_line_without_a_cap_has_no_end() -> None:
    assert ledger().line("account", "").remaining is None
    assert not ledger().has_cap("thesis", SEPTEMBER)
    assert ledger(project_thesis="1").has_cap("thesis", SEPTEMBER)
    assert not ledger(project_thesis="1").has_cap("other", SEPTEMBER)


# -- admit -------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["account", "month", "month_2026_09", "project_thesis"])
def test_what_is_left_fits_and_a_micro_dollar_more_does_not(level: str) -> None:
    book = ledger(run("a", settled="3", reserved="2"), **{level: "10"})
    asking = run("b")
    assert admit(book, asking, Usd(5), SEPTEMBER) is None
    refusal = admit(book, asking, Usd("5.000001"), SEPTEMBER)
    assert refusal is not None
    assert refusal.line.level == level.partition("_")[0]
    if level == "account":
        assert "the account budget of " in str(refusal)
    for figure in ("$10.00", "$3.00 spent", "$2.00 reserved", "$5.00 left"):
        assert figure in str(refusal)


def test_the_runs_own_cap_binds_what_it_spent_before_too() -> None:
    asking = run("a", cap="10", settled="6")
    assert admit(ledger(asking), asking, Usd(4), SEPTEMBER) is None
    refusal = admit(ledger(asking), asking, Usd("4.01"), SEPTEMBER)
    assert refusal is not None
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

LEVELS = [("account", ""), ("month", ""), ("month", "2026-09"), ("project", "p"), ("project", "q")]
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
    book = LedgerState("abcd1234", caps=caps)
    for seq, step in enumerate(script):
        at = OCTOBER if step.october else SEPTEMBER
        before = {line: over(line) for line in all_lines(book)}
        try:
            if step.what == "cap":
                event = ev.CapSet(*step.level, step.amount)
                book, _ = bookkeeping.add_cap(book, seq * 10, event, at)
            else:
                events = events_of(step, book, at)
                book, _ = bookkeeping.add_events(book, seq * 10, step.run_id, 1, events, at)
        except (BudgetRefused, IllegalTransition):
            assert {line: over(line) for line in all_lines(book)} == before
            continue
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
    return [book.line(*key) for key in keys]


def over(line: Line) -> int:
    return max(0, -line.remaining.micros) if line.remaining is not None else 0


def binds(line: Line, step: Step, at: float, book: LedgerState) -> bool:
    """Whether the level is one that a reservation of this step had to fit."""
    mine = book.runs[step.run_id]
    bound = [*book.lines_for(mine.project, at), book.line("run", step.run_id)]
    return any((b.level, b.key) == (line.level, line.key) for b in bound)


@given(cents, cents)
def test_a_refused_reservation_changes_nothing_and_an_admitted_one_is_held(
    cap: Usd, amount: Usd
) -> None:
    book = LedgerState("abcd1234", caps={("account", ""): cap})
    opened = (ev.RunPlanned(plan_json(), Usd(1000), "p"), ev.Reserved(amount))
    if amount > cap:
        with pytest.raises(BudgetRefused):
            bookkeeping.add_events(book, 0, "r1", 1, opened, SEPTEMBER)
    else:
        after, records = bookkeeping.add_events(book, 0, "r1", 1, opened, SEPTEMBER)
        assert after.runs["r1"].reserved == amount
        assert [record.seq for record in records] == [1, 2]
    assert book.runs == {}


def test_a_reservation_below_zero_would_make_room_for_others() -> None:
    opened = (ev.RunPlanned(plan_json(), Usd(1000), "p"), ev.Reserved(Usd(-5)))
    with pytest.raises(UsageError):
        bookkeeping.add_events(LedgerState("abcd1234"), 0, "r1", 1, opened, SEPTEMBER)


@pytest.mark.parametrize(("cap", "over"), [(None, 0), (12, 0), (10, 0), (7, 3)])
def test_a_line_is_over_by_what_its_cap_does_not_hold(cap: int | None, over: int) -> None:
    line = Line("account", "", None if cap is None else Usd(cap), Usd(4), Usd(6))
    assert line.over == Usd(over)
