"""What may be written to a ledger: each rule with what it refuses and what it says to do."""

from __future__ import annotations

import datetime as dt

import pytest

from tests.plans import plan_json
from tests.reasons import quoted
from trmcloud.core.control import events as ev
from trmcloud.core.control.bookkeeping import (
    add_cap,
    add_events,
    add_note,
    add_verified,
    require_closed,
    require_epoch,
    require_new,
    require_run,
    require_wish,
)
from trmcloud.core.control.budget import LedgerState
from trmcloud.core.control.run_state import IllegalTransition, RunState, State
from trmcloud.core.errors import (
    BudgetRefused,
    ConflictError,
    NotFoundError,
    StaleEpoch,
    UsageError,
)
from trmcloud.core.money import ZERO, Usd

AT = dt.datetime(2026, 9, 15, tzinfo=dt.timezone.utc).timestamp()
EMPTY = LedgerState("abcd1234")
PLANNED = ev.RunPlanned(plan_json(), Usd(10), "thesis")


def holding(state: State = State.RESERVED) -> LedgerState:
    return LedgerState("abcd1234", {"r1": RunState("r1", state=state, cap=Usd(10))})


# -- a run's events ----------------------------------------------------------------------------


def test_a_restored_ledger_reserves_nothing_until_it_is_reconciled() -> None:
    book, record = add_note(EMPTY, 7, ev.LedgerRestored(AT - 50), AT)
    assert (record.seq, record.run_id, record.epoch, record.at) == (8, "", 0, AT)
    with pytest.raises(BudgetRefused, match="restored from a backup") as caught:
        add_events(book, 8, "r1", 3, (PLANNED, ev.Reserved(ZERO)), AT)
    assert "reap --yes" in caught.value.next_step
    book, _ = add_note(book, 8, ev.LedgerReconciled(), AT + 5)
    _, records = add_events(book, 9, "r1", 3, (PLANNED, ev.Reserved(Usd(2))), AT + 6)
    assert len(records) == 2


def test_events_are_numbered_on_from_the_last_record_and_bear_their_writer() -> None:
    book, records = add_events(EMPTY, 7, "r1", 3, (PLANNED, ev.Reserved(Usd(2))), AT)
    assert [(r.seq, r.run_id, r.epoch, r.at) for r in records] == [
        (8, "r1", 3, AT),
        (9, "r1", 3, AT),
    ]
    assert [r.event for r in records] == [PLANNED, ev.Reserved(Usd(2))]
    assert (book.runs["r1"].state, book.runs["r1"].reserved) == (State.RESERVED, Usd(2))
    assert EMPTY.runs == {}


def test_a_known_run_goes_on_from_where_it_is() -> None:
    book, _ = add_events(EMPTY, 0, "r1", 1, (PLANNED,), AT)
    book, records = add_events(book, 1, "r1", 1, (ev.Reserved(Usd(2)),), AT)
    assert book.runs["r1"].reserved == Usd(2)
    assert [r.seq for r in records] == [2]
    with pytest.raises(IllegalTransition):
        add_events(book, 2, "r1", 1, (PLANNED,), AT)


def test_all_or_none() -> None:
    with pytest.raises(IllegalTransition):
        add_events(EMPTY, 0, "r1", 1, (PLANNED, ev.AgentUp(1)), AT)
    assert EMPTY.runs == {}


def test_no_event_is_no_record() -> None:
    assert add_events(holding(), 5, "r1", 1, (), AT) == (holding(), ())


@pytest.mark.parametrize(
    ("level", "key", "named"),
    [
        ("account", "", "trmcloud budget raise account 9"),
        ("month", "2026-09", "trmcloud budget raise month 9"),
        ("project", "thesis", "trmcloud budget raise project 9 --for thesis"),
    ],
)
def test_a_refusal_says_how_much_the_level_would_need(level: str, key: str, named: str) -> None:
    """3 settled and 2 reserved by another run, 4 asked for: 9."""
    other = RunState(
        "r0", State.RESERVED, project="thesis", settled=Usd(3), reserved=Usd(2), reserved_at=AT
    )
    book = LedgerState("abcd1234", {"r0": other}, {(level, key): Usd(8)})
    with pytest.raises(BudgetRefused) as caught:
        add_events(book, 0, "r1", 1, (PLANNED, ev.Reserved(Usd(4))), AT)
    assert caught.value.next_step == named


def test_a_run_beyond_its_own_budget_is_told_to_ask_for_more() -> None:
    with pytest.raises(BudgetRefused) as caught:
        add_events(EMPTY, 0, "r1", 1, (PLANNED, ev.Reserved(Usd("10.5"))), AT)
    assert caught.value.next_step == "give it a larger budget: --budget 10.5"


def test_nothing_may_be_reserved_and_less_than_nothing_may_not() -> None:
    book, _ = add_events(EMPTY, 0, "r1", 1, (PLANNED, ev.Reserved(ZERO)), AT)
    assert book.runs["r1"].reserved == ZERO
    with pytest.raises(UsageError, match="below zero"):
        add_events(EMPTY, 0, "r1", 1, (PLANNED, ev.Reserved(Usd("-0.000001"))), AT)


# -- caps --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "key"),
    [("account", ""), ("month", ""), ("month", "2026-09"), ("month", "2026-12"), ("project", "p")],
)
@pytest.mark.parametrize("cap", [ZERO, Usd(5), None])
def test_a_cap_is_set_numbered_and_taken_away(level: str, key: str, cap: Usd | None) -> None:
    before = LedgerState("abcd1234", caps={(level, key): Usd(1)})
    book, record = add_cap(before, 7, ev.CapSet(level, key, cap), AT)
    assert book.caps == ({} if cap is None else {(level, key): cap})
    assert (record.seq, record.run_id, record.epoch, record.at) == (8, "", 0, AT)
    assert book.cap_history == (record,)


@pytest.mark.parametrize(
    ("level", "key", "why"),
    [
        ("run", "r1", "not set by itself"),
        ("team", "x", "'team' is no budget level"),
        ("", "", "no budget level"),
        ("account", "mine", "there is one account"),
        ("month", "2026-13", "is no month"),
        ("month", "2026-9", "is no month"),
        ("month", "2026-09-01", "is no month"),
        ("project", "", "needs the project's name"),
    ],
)
def test_a_cap_for_what_is_no_budget_is_refused(level: str, key: str, why: str) -> None:
    for cap in (Usd(5), None):
        with pytest.raises(UsageError, match=why):
            add_cap(EMPTY, 0, ev.CapSet(level, key, cap), AT)


def test_a_cap_below_zero_is_refused() -> None:
    with pytest.raises(UsageError, match="below zero"):
        add_cap(EMPTY, 0, ev.CapSet("account", "", Usd("-0.000001")), AT)


# -- kill layers -------------------------------------------------------------------------------


def test_a_layer_that_was_seen_to_work_is_numbered_and_dated() -> None:
    seen = ev.LayerVerified("runpod", "agent", "smoke run")
    book, record = add_verified(EMPTY, 7, seen, AT)
    assert book.verified == {("runpod", "agent"): AT}
    assert (record.seq, record.run_id, record.epoch, record.event) == (8, "", 0, seen)


@pytest.mark.parametrize(
    ("provider", "said"),
    [("runpod", "one of: agent, prepaid, guard-elsewhere"), ("local", "one of: none")],
)
def test_a_layer_that_a_provider_does_not_have_is_refused(provider: str, said: str) -> None:
    with pytest.raises(UsageError, match="no kill layer 'hope'") as caught:
        add_verified(EMPTY, 0, ev.LayerVerified(provider, "hope", "?"), AT)
    assert caught.value.next_step == said


# -- who may write -----------------------------------------------------------------------------


def test_a_run_is_new_or_it_is_known() -> None:
    require_new(EMPTY, "r1")
    with pytest.raises(ConflictError, match="r1 exists already"):
        require_new(holding(), "r1")
    assert require_run(holding(), "r1").run_id == "r1"
    with pytest.raises(NotFoundError, match="knows no run r1"):
        require_run(EMPTY, "r1")


@pytest.mark.parametrize("state", State)
def test_only_a_closed_run_is_closed(state: State) -> None:
    if state is State.CLOSED:
        assert require_closed(holding(state), "r1").state is State.CLOSED
    else:
        with pytest.raises(ConflictError, match=f"has not ended: it is {state.value}"):
            require_closed(holding(state), "r1")


def test_only_the_newest_epoch_writes() -> None:
    require_epoch("r1", 3, 3)
    for epoch in (2, 4):
        with pytest.raises(StaleEpoch, match=f"epoch {epoch} is not 3"):
            require_epoch("r1", epoch, 3)


def test_only_a_wish_is_written_by_a_bystander() -> None:
    require_wish(ev.StopRequested("user", quoted("enough")))
    require_wish(ev.Fetched("fast", 1, "0" * 64, "/x"))
    for event in (ev.Reserved(Usd(1)), ev.Closed("finished"), ev.Settled(1, ZERO, None)):
        with pytest.raises(IllegalTransition, match=type(event).__name__):
            require_wish(event)


def test_a_pod_that_no_run_owns_is_noted_as_a_stray() -> None:
    charge = ev.StrayCharged("runpod", "id-9", "trmc-x", "r1", AT, Usd(1))
    book, record = add_note(holding(State.RUNNING), 7, charge, AT)
    assert (record.seq, record.event) == (8, charge)
    assert set(book.strays) == {("runpod", "id-9")}
