"""A run that was settled at an estimate is corrected by its bill, whatever it does by then."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.core.test_run_state import AT, CLOSED, RESERVED, SETTLED, SETTLING, run_of, sample
from trmcloud.core.clock import Seen, Unknown
from trmcloud.core.control import events as ev
from trmcloud.core.control.billing import awaiting_bill, estimate, late_bills, settle
from trmcloud.core.control.observation import Bill
from trmcloud.core.control.run_fold import apply_event
from trmcloud.core.control.run_state import Generation, IllegalTransition, RunState
from trmcloud.core.money import ZERO, Usd

NO_BILL = Unknown(AT)


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
def test_an_estimate_lies_between_bill_and_reservation(
    life_s: float, reserved: Usd, billed: Usd
) -> None:
    generation = run_of(*SETTLING).generations[0]
    generation = replace(
        generation,
        ended_at=generation.intended_at + life_s,
        gone_at=generation.intended_at + life_s + 9,
        lived_s=life_s + 9,
    )
    unknown = estimate(generation, reserved, NO_BILL, 60.0, ZERO)
    assert ZERO <= unknown <= reserved
    known = estimate(generation, reserved, Seen(Bill("id-1", billed, final=False), AT), 60.0, ZERO)
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
    bill = Seen(Bill("id-1", Usd(2), final=True), AT)
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
    generation = replace(generation, intended_at=AT, missed_at=AT + 3600)
    assert estimate(generation, Usd(99), NO_BILL, 0.0, ZERO) == Usd("3.9")
