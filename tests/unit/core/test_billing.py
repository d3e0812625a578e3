"""A run that was settled at an estimate is corrected by its bill, whatever it does by then."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.core.test_run_state import AT, CLOSED, RESERVED, SETTLED, SETTLING, run_of, sample
from trmcloud.core import events as ev
from trmcloud.core.billing import awaiting_bill, estimate, late_bills, settle
from trmcloud.core.clock import Seen, Unknown
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.observation import Bill
from trmcloud.core.run_state import IllegalTransition, RunState, apply_event

NO_BILL = Unknown(AT)


def told(run: RunState, *events: ev.RunEvent) -> RunState:
    for event in events:
        run = apply_event(run, ev.Record(99, "r1", 2, AT + 99, event))
    return run


def estimated() -> RunState:
    return told(run_of(*SETTLING), ev.Settled(1, Usd("0.7"), None))


def later_states() -> list[RunState]:
    """Where a run can be while it awaits the bill of its first machine."""
    closed = told(estimated(), ev.Closed("lost", ""))
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
    generation = replace(generation, ended_at=generation.intended_at + life_s)
    unknown = estimate(generation, reserved, NO_BILL, 60.0)
    assert ZERO <= unknown <= reserved
    known = estimate(generation, reserved, Seen(Bill("id-1", billed, final=False), AT), 60.0)
    assert known == max(unknown, billed)
    event = settle(generation, reserved, NO_BILL, 60.0, AT + life_s + 1e4)
    assert event == ev.Settled(1, unknown, None)
