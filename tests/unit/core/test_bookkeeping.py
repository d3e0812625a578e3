"""What may be written to a ledger; accounts that a lost machine left; bills after an estimate."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plans import errand_json, plan_json, recorded
from tests.present import present
from tests.reasons import quoted
from tests.unit.core.runs import AT, PLAN, a_report, apply, booting, running
from tests.unit.core.test_controller_ending import settled
from tests.unit.core.test_run_state import CLOSED, RESERVED, SETTLED, SETTLING, run_of, sample
from trmcloud.core.clock import DatedFact, Instant, UnknownSince
from trmcloud.core.contract.pod_contract import Orders, PhaseReport, PhaseState
from trmcloud.core.control import events as ev
from trmcloud.core.control.billing import awaiting_bill, estimate, late_bills, settle
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
from trmcloud.core.control.observation import Bill
from trmcloud.core.control.pod_facts import (
    finished_on,
    late_report,
    orders_for,
    result_of,
    unreported,
)
from trmcloud.core.control.reason import ReasonKind, make_reason
from trmcloud.core.control.run_state import (
    Absence,
    Errand,
    Generation,
    IllegalTransition,
    RunState,
    State,
    apply_event,
)
from trmcloud.core.errors import (
    BudgetRefused,
    ConflictError,
    NotFoundError,
    Outcome,
    StaleEpoch,
    UsageError,
)
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.spec.plan import Plan
from trmcloud.operations.reasons import sentence

# -- What may be written to a ledger: each rule with what it refuses and what it says to do -----


THEN = dt.datetime(2026, 9, 15, tzinfo=dt.timezone.utc).timestamp()
EMPTY = LedgerState("abcd1234")
PLANNED = ev.RunPlanned(plan_json(), Usd(10), "thesis")


def holding(state: State = State.RESERVED) -> LedgerState:
    return LedgerState("abcd1234", {"r1": RunState("r1", state=state, cap=Usd(10))})


# -- a run's events ----------------------------------------------------------------------------


def test_a_restored_ledger_reserves_nothing_until_it_is_reconciled() -> None:
    book, record = add_note(EMPTY, 7, ev.LedgerRestored(THEN - 50), THEN)
    assert (record.seq, record.run_id, record.epoch, record.at) == (8, "", 0, THEN)
    with pytest.raises(BudgetRefused, match="restored from a backup") as caught:
        add_events(book, 8, "r1", 3, (PLANNED, ev.Reserved(ZERO)), THEN)
    assert "reap --yes" in caught.value.next_step
    book, _ = add_note(book, 8, ev.LedgerReconciled(), THEN + 5)
    _, records = add_events(book, 9, "r1", 3, (PLANNED, ev.Reserved(Usd(2))), THEN + 6)
    assert len(records) == 2


def test_events_are_numbered_on_from_the_last_record_and_bear_their_writer() -> None:
    book, records = add_events(EMPTY, 7, "r1", 3, (PLANNED, ev.Reserved(Usd(2))), THEN)
    assert [(r.seq, r.run_id, r.epoch, r.at) for r in records] == [
        (8, "r1", 3, THEN),
        (9, "r1", 3, THEN),
    ]
    assert [r.event for r in records] == [PLANNED, ev.Reserved(Usd(2))]
    assert (book.runs["r1"].state, book.runs["r1"].reserved) == (State.RESERVED, Usd(2))
    assert EMPTY.runs == {}


def test_a_known_run_goes_on_from_where_it_is() -> None:
    book, _ = add_events(EMPTY, 0, "r1", 1, (PLANNED,), THEN)
    book, records = add_events(book, 1, "r1", 1, (ev.Reserved(Usd(2)),), THEN)
    assert book.runs["r1"].reserved == Usd(2)
    assert [r.seq for r in records] == [2]
    with pytest.raises(IllegalTransition):
        add_events(book, 2, "r1", 1, (PLANNED,), THEN)


def test_all_or_none() -> None:
    with pytest.raises(IllegalTransition):
        add_events(EMPTY, 0, "r1", 1, (PLANNED, ev.AgentUp(1)), THEN)
    assert EMPTY.runs == {}


def test_no_event_is_no_record() -> None:
    assert add_events(holding(), 5, "r1", 1, (), THEN) == (holding(), ())


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
        "r0", State.RESERVED, project="thesis", settled=Usd(3), reserved=Usd(2), reserved_at=THEN
    )
    book = LedgerState("abcd1234", {"r0": other}, {(level, key): Usd(8)})
    with pytest.raises(BudgetRefused) as caught:
        add_events(book, 0, "r1", 1, (PLANNED, ev.Reserved(Usd(4))), THEN)
    assert caught.value.next_step == named


def test_a_run_beyond_its_own_budget_is_told_to_ask_for_more() -> None:
    with pytest.raises(BudgetRefused) as caught:
        add_events(EMPTY, 0, "r1", 1, (PLANNED, ev.Reserved(Usd("10.5"))), THEN)
    assert caught.value.next_step == "give it a larger budget: --budget 10.5"


def test_nothing_may_be_reserved_and_less_than_nothing_may_not() -> None:
    book, _ = add_events(EMPTY, 0, "r1", 1, (PLANNED, ev.Reserved(ZERO)), THEN)
    assert book.runs["r1"].reserved == ZERO
    with pytest.raises(UsageError, match="below zero"):
        add_events(EMPTY, 0, "r1", 1, (PLANNED, ev.Reserved(Usd("-0.000001"))), THEN)


# -- caps --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "key"),
    [("account", ""), ("month", ""), ("month", "2026-09"), ("month", "2026-12"), ("project", "p")],
)
@pytest.mark.parametrize("cap", [ZERO, Usd(5), None])
def test_a_cap_is_set_numbered_and_taken_away(level: str, key: str, cap: Usd | None) -> None:
    before = LedgerState("abcd1234", caps={(level, key): Usd(1)})
    book, record = add_cap(before, 7, ev.CapSet(level, key, cap), THEN)
    assert book.caps == ({} if cap is None else {(level, key): cap})
    assert (record.seq, record.run_id, record.epoch, record.at) == (8, "", 0, THEN)
    assert book.cap_history == (record,)


@pytest.mark.parametrize(
    ("level", "key", "why"),
    [
        ("run", "r1", "the cap of a run cannot be set separately"),
        ("team", "x", "'team' is not a budget level"),
        ("", "", "is not a budget level"),
        ("account", "mine", "there is only one account"),
        ("month", "2026-13", "is not a month"),
        ("month", "2026-9", "is not a month"),
        ("month", "2026-09-01", "is not a month"),
        ("project", "", "the cap of a project needs its name"),
    ],
)
def test_a_cap_for_what_is_no_budget_is_refused(level: str, key: str, why: str) -> None:
    for cap in (Usd(5), None):
        with pytest.raises(UsageError, match=why):
            add_cap(EMPTY, 0, ev.CapSet(level, key, cap), THEN)


def test_a_cap_below_zero_is_refused() -> None:
    with pytest.raises(UsageError, match="below zero"):
        add_cap(EMPTY, 0, ev.CapSet("account", "", Usd("-0.000001")), THEN)


# -- kill layers -------------------------------------------------------------------------------


def test_a_layer_that_was_seen_to_work_is_numbered_and_dated() -> None:
    seen = ev.LayerVerified("runpod", "agent", "smoke run")
    book, record = add_verified(EMPTY, 7, seen, THEN)
    assert book.verified == {("runpod", "agent"): THEN}
    assert (record.seq, record.run_id, record.epoch, record.event) == (8, "", 0, seen)


@pytest.mark.parametrize(
    ("provider", "said"),
    [("runpod", "one of: agent, prepaid, guard-elsewhere"), ("local", "one of: none")],
)
def test_a_layer_that_a_provider_does_not_have_is_refused(provider: str, said: str) -> None:
    with pytest.raises(UsageError, match="no kill layer 'hope'") as caught:
        add_verified(EMPTY, 0, ev.LayerVerified(provider, "hope", "?"), THEN)
    assert caught.value.next_step == said


# -- who may write -----------------------------------------------------------------------------


NEW_RUN = ev.RunPlanned({}, Usd(1), "thesis")


def test_a_run_is_new_or_it_is_known() -> None:
    require_new(EMPTY, "r1", NEW_RUN)
    with pytest.raises(ConflictError, match="r1 exists already"):
        require_new(holding(), "r1", NEW_RUN)
    assert require_run(holding(), "r1").run_id == "r1"
    with pytest.raises(NotFoundError, match="the ledger has no run r1"):
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


# -- accounts -----------------------------------------------------------------------------------
# What a machine had said before it went, read from what it left: it says how the run had ended.


DONE = PhaseReport("fast", state=PhaseState.ENDED, outcome="finished", step=120, val_bpb=1.9)


def on_volume() -> RunState:
    """A run whose machine ended by itself while nobody looked."""
    run = running()
    run = replace(run, recorded_plan=recorded(volume=True))
    run, _ = settled(run, AT + 500, 400.0)
    return run


def on_errand(run: RunState) -> RunState:
    run = apply(run, ev.Reopened(Usd(20), errand_json()), ev.Reserved(Usd(1)), at=AT + 600)
    intent = ev.PodIntended(2, "trmc-2", "runpod", "fetch1", Usd("0.4"), AT + 900, AT + 1000)
    return apply(run, intent, ev.PodUp(2, "id-2", Usd("0.4")), ev.AgentUp(2), at=AT + 610)


def said(run: RunState, **changes: Any) -> tuple[ev.RunEvent, ...]:
    earlier = run.generations[0]
    report = replace(a_report(running()), **{"phases": (DONE,), "result": "finished", **changes})
    return late_report(run, cast(Plan, PLAN), earlier, report)


def test_what_ended_before_it_reported_is_not_called_lost() -> None:
    run = on_volume()
    assert (run.state, run.outcome) == (State.CLOSED, Outcome.UNREPORTED)
    assert "fetch-best" in sentence(run.reason)


def test_what_never_spoke_is_lost_even_with_a_volume() -> None:
    run = booting()
    run = replace(run, recorded_plan=recorded(volume=True))
    run, _ = settled(run, AT + 3000, 2960.0)
    assert run.outcome is Outcome.LOST


def test_the_errand_hears_it() -> None:
    run = on_errand(on_volume())
    earlier = present(unreported(run))
    assert earlier.number == 1
    events = said(run, message="all steps done")
    assert [type(event) for event in events] == [ev.PhaseEnded, ev.LateReport]
    run = apply(run, *events, at=AT + 620)
    assert unreported(run) is None
    closed = apply(run, ev.ResultKnown("landed"), ev.PodGone(2, AT + 700), at=AT + 700)
    closed = apply(closed, ev.Settled(2, Usd("0.1"), Usd("0.1")), ev.Closed("landed"), at=AT + 700)
    assert (closed.outcome, sentence(closed.reason)) == (Outcome.FINISHED, "all steps done")
    assert closed.phases["fast"].step == 120


@pytest.mark.parametrize(
    "changes", [{"pod_name": "trmc-other"}, {"run_id": "r2"}, {"result": None}], ids=str
)
def test_words_of_another_or_of_nobody_are_passed_over(changes: dict[str, Any]) -> None:
    assert said(on_errand(on_volume()), **changes) == ()


def test_a_crash_that_is_heard_of_late_is_the_phases_end() -> None:
    crashed = replace(DONE, outcome="crashed")
    ended, _ = said(on_errand(on_volume()), phases=(crashed,), result="failed")
    assert isinstance(ended, ev.PhaseEnded)
    assert (ended.phase, ended.outcome) == ("fast", "crashed")


def test_of_several_machines_the_last_that_spoke_before_the_errand_is_heard() -> None:
    run = on_errand(on_volume())
    first, errand = run.generations
    silent = replace(first, number=3, agent_at=None)
    many = (first, replace(first, number=2), silent, replace(errand, number=4))
    heard = present(unreported(replace(run, generations=many, first_generation=4)))
    assert heard.number == 2


def test_nothing_is_heard_beside_an_errand() -> None:
    with pytest.raises(IllegalTransition):
        apply(running(), ev.LateReport(1, "finished"), at=AT + 60)
    assert unreported(running()) is None
    finished = replace(on_errand(on_volume()), errand=Errand("fetch1", Outcome.FINISHED))
    assert unreported(finished) is None, "how it ended is known"
    assert unreported(replace(on_errand(on_volume()), errand=None)) is None


def ended(phase: str, outcome: str = "finished", generation: int = 1) -> ev.PhaseEnded:
    return ev.PhaseEnded(generation, phase, outcome, 9, 1.5, {})


def test_what_a_pod_has_finished_is_told_to_it_once_it_has_lost_its_disk() -> None:
    run = apply(running(), ended("fast"), ended("extreme", "landed_signal"), at=AT + 90)
    (generation,) = run.generations
    assert finished_on(run, generation) == ("fast",)
    assert finished_on(run, replace(generation, number=2)) == ()
    passed = apply(run, ev.GateJudged(1, "fast", True, {}), at=AT + 91)
    assert finished_on(passed, generation) == ("fast",)
    failed = apply(run, ev.GateJudged(1, "fast", False, {}), at=AT + 91)
    assert finished_on(failed, generation) == ()
    earlier = replace(failed, gates={"fast": replace(failed.gates["fast"], generation=0)})
    assert finished_on(earlier, generation) == ("fast",)


def test_an_order_replaces_the_one_before_and_says_all_of_it() -> None:
    run = apply(running(), ended("fast"), at=AT + 90)
    (generation,) = run.generations
    assert orders_for(run, generation, 3) == Orders(epoch=3, finished=("fast",))
    run = apply(run, ev.SaveRequested(1, "user"), at=AT + 91)
    (generation,) = run.generations
    assert orders_for(run, generation, 3) == Orders(epoch=3, finished=("fast",), save=1)
    run = apply(run, ev.StopRequested("user", quoted("enough")), at=AT + 92)
    expected = Orders(epoch=3, land=True, finished=("fast",), save=1)
    assert orders_for(run, generation, 3) == expected


@pytest.mark.parametrize(
    ("message", "more"),
    [
        ("", None),
        ("trmcloud stop", None),  # told by an earlier version, it says the sentence back
        ("not everything could be uploaded", "not everything could be uploaded"),
    ],
)
def test_why_a_run_was_stopped_is_what_the_ledger_says(message: str, more: str | None) -> None:
    why = quoted("trmcloud stop")
    run = apply(running(), ev.StopRequested("user", why), at=AT + 60)
    known = result_of(run, "stopped", message)
    added = make_reason(ReasonKind.AGENT_SAID, text=more) if more is not None else None
    assert known == ev.ResultKnown("stopped", replace(why, more=added))
    done = make_reason(ReasonKind.AGENT_SAID, text="done")
    assert result_of(run, "finished", "done") == ev.ResultKnown("finished", done)


# -- billing ------------------------------------------------------------------------------------
# A run that was settled at an estimate is corrected by its bill, whatever it does by then.


NO_BILL = UnknownSince(AT)


def told(run: RunState, *events: ev.RunEvent) -> RunState:
    for event in events:
        run = apply_event(run, ev.Record(99, "r1", 2, AT + 99, event))
    return run


def estimated() -> RunState:
    return told(run_of(*SETTLING), ev.Settled(1, Usd("0.7"), None))


def later_states() -> list[RunState]:
    """Where a run can be while it awaits the bill of its first machine."""
    closed = told(estimated(), ev.Closed("lost", None))
    again = told(estimated(), ev.Reserved(Usd(2)))
    renting = told(again, sample(ev.PodIntended, 2))
    training = told(renting, ev.PodUp(2, "id-2", Usd("3.6")), ev.AgentUp(2))
    return [estimated(), closed, told(closed, ev.Reopened(Usd(20))), again, renting, training]


@pytest.mark.parametrize("run", later_states(), ids=lambda run: run.state.value)
def test_a_late_bill_takes_the_estimates_place(run: RunState) -> None:
    assert [g.number for g in awaiting_bill(run)] == [1]
    assert late_bills(run, {}) == ()
    assert late_bills(run, {1: Bill("id-1", Usd("0.5"), final=False)}) == ()
    (event,) = late_bills(run, {1: Bill("id-1", Usd("0.5"), final=True)})
    after = told(run, event)
    first = after.generations[0]
    assert (first.settled, first.billed, after.settled) == (Usd("0.5"), Usd("0.5"), Usd("0.5"))
    assert awaiting_bill(after) == ()
    assert (after.state, after.reserved) == (run.state, run.reserved)
    with pytest.raises(IllegalTransition):
        told(after, event)


def test_what_was_settled_by_a_bill_awaits_none() -> None:
    for way in (RESERVED, SETTLING, SETTLED, CLOSED):
        run = run_of(*way)
        assert awaiting_bill(run) == ()
        with pytest.raises(IllegalTransition):
            told(run, ev.Billed(1, Usd(1)))


@given(
    life_s=st.floats(0, 1e6),
    reserved=st.integers(1, 10**9).map(Usd.from_micros),
    billed=st.integers(0, 10**9).map(Usd.from_micros),
)
def test_an_estimate_is_between_bill_and_reserve(life_s: float, reserved: Usd, billed: Usd) -> None:
    generation = run_of(*SETTLING).generations[0]
    generation = replace(
        generation,
        ended_at=generation.intended_at + life_s,
        gone_at=generation.intended_at + life_s + 9,
        lived_s=life_s + 9,
    )
    unknown = estimate(generation, reserved, NO_BILL, 60.0, ZERO)
    assert ZERO <= unknown <= reserved
    known = estimate(
        generation, reserved, DatedFact(Bill("id-1", billed, final=False), AT), 60.0, ZERO
    )
    assert known == max(unknown, billed)
    event = settle(generation, reserved, NO_BILL, 60.0, ZERO, AT + life_s + 1e4)
    assert event == ev.Settled(1, unknown, None)


def lived(by_wall_s: float, by_boot_s: float | None) -> Generation:
    generation = run_of(*SETTLING).generations[0]
    at = generation.intended_at + by_wall_s
    return replace(generation, rate=Usd("3.6"), ended_at=at, gone_at=at, lived_s=by_boot_s)


def test_a_clock_that_was_set_does_not_shorten_what_a_pod_is_thought_to_have_lived() -> None:
    """An hour less by the laptop's clock, which was set back an hour while the pod lived."""
    assert estimate(lived(3600.0, 7200.0), Usd(99), NO_BILL, 0.0, ZERO) == Usd("7.2")
    assert estimate(lived(3600.0, 3603.0), Usd(99), NO_BILL, 0.0, ZERO) == Usd("3.6")


def test_disks_that_are_billed_on_belong_to_an_estimate() -> None:
    assert estimate(lived(3600.0, 3600.0), Usd(99), NO_BILL, 0.0, Usd("0.2")) == Usd("3.8")


def test_what_no_one_clock_has_seen_both_ends_of_is_left_to_the_bill() -> None:
    unknown = lived(3600.0, None)
    assert settle(unknown, Usd(99), NO_BILL, 0.0, ZERO, AT + 1e6) is None
    bill = DatedFact(Bill("id-1", Usd(2), final=True), AT)
    assert settle(unknown, Usd(99), bill, 0.0, ZERO, AT + 1e6) == ev.Settled(1, Usd(2), Usd(2))


def test_a_life_is_timed_where_one_machine_saw_both_of_its_ends() -> None:
    intended = replace(sample(ev.PodIntended), boot=50.0, boot_id="a")
    run = told(run_of(*RESERVED), intended, ev.PodUp(1, "id-1", Usd(1)))
    here = told(run, ev.PodGone(1, AT + 40, boot=130.0, boot_id="a"))
    elsewhere = told(run, ev.PodGone(1, AT + 40, boot=130.0, boot_id="b"))
    unsaid = told(run, ev.PodGone(1, AT + 40))
    assert [r.generations[0].lived_s for r in (here, elsewhere, unsaid)] == [80.0, None, None]


def test_an_end_that_lists_alone_tell_of_may_have_come_as_late_as_it_was_put_on_record() -> None:
    generation = replace(lived(3600.0, 3900.0), ended_at=AT + 3600, gone_at=AT + 3900)
    generation = replace(generation, intended_at=AT, absence=Absence(Instant(AT + 3600, 0.0)))
    assert estimate(generation, Usd(99), NO_BILL, 0.0, ZERO) == Usd("3.9")
