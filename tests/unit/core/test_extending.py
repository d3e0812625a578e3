"""A tight stop that is moved: when, by how much, for which money, and what the agent takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.present import present
from tests.unit.core.runs import apply
from tests.unit.core.test_pace import AT, HOUR_S, RATE, pace, planned, report
from tests.unit.pod.leases import a_lease
from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.clock import UnknownSince
from trmcloud.core.contract.pod_contract import Orders, PhaseLease, PhaseReport, PhaseState
from trmcloud.core.control import events as ev
from trmcloud.core.control.bookkeeping import add_cap, add_events
from trmcloud.core.control.budget import LedgerState
from trmcloud.core.control.controller import decide
from trmcloud.core.control.extending import (
    LATEST_AHEAD_S,
    Progress,
    extension,
    may_extend,
    progress_from,
)
from trmcloud.core.control.ledger_facts import LostRecord
from trmcloud.core.control.ledger_records import fold_damaged
from trmcloud.core.control.observation import Observation
from trmcloud.core.control.pace import pace_events
from trmcloud.core.control.pod_facts import orders_for
from trmcloud.core.control.run_state import IllegalTransition, RunState, State
from trmcloud.core.errors import BudgetRefused
from trmcloud.core.money import Usd, cost
from trmcloud.core.spec.plan import Plan, at_limit, plan_from_json, plan_to_json

SOFT, HARD, LIMIT = AT + 14 * HOUR_S - 300, AT + 14 * HOUR_S, AT + 40 * HOUR_S
FAST = PhaseReport("fast", PhaseState.RUNNING, started_at=AT)


def events_of(plan: Plan) -> tuple[ev.RunEvent, ...]:
    return (
        ev.RunPlanned(plan_to_json(plan), Usd(200), "thesis"),
        ev.Reserved(Usd(60)),
        ev.PodIntended(1, "pod-1", "runpod", "c1", RATE, SOFT, HARD, limit_at=LIMIT),
        ev.PodUp(1, "id-1", RATE),
        ev.AgentUp(1),
    )


def timed(step_s: float, at: float = AT + HOUR_S, **told: Any) -> RunState:
    """A run of 1,000 steps, of which 36 s were planned for each, whose pace is on record."""
    plan = planned()
    run = apply(RunState("r1"), *events_of(plan), at=AT)
    phase = plan.candidates[0].phases[0]
    return apply(run, *pace_events(run, plan, phase, pace(plan, step_s, **told), at), at=at)


def asked(run: RunState, progress: Progress | None, now: float = AT + HOUR_S) -> ev.Extended | None:
    phase = may_extend(run, replace(report(FAST), at=now), now)
    return extension(run, planned(), phase, progress, now) if phase is not None else None


def test_work_that_fits_is_not_extended() -> None:
    assert asked(timed(40.0), Progress(42, 40.0)) is None


def test_a_slow_machine_gets_what_its_work_needs_and_a_quarter_more() -> None:
    run = timed(72.0)
    more = present(asked(run, Progress(42, 72.0)))
    # 958 steps at 72 s, × 1.1 for their scatter, × 1.25, and the landing.
    needs_s = 958 * 72.0 * 1.1 * 1.25 + 300.0
    assert more.hard_stop_at == pytest.approx(AT + HOUR_S + needs_s)
    assert more.amount == Usd(60) + cost(RATE, more.hard_stop_at - HARD)
    moved = apply(run, more, at=AT + HOUR_S)
    mine = present(moved.generation)
    assert (mine.hard_stop_at, mine.soft_stop_at) == (more.hard_stop_at, more.hard_stop_at - 300)
    assert (moved.reserved, moved.reservation) == (more.amount, more.amount)
    assert asked(moved, Progress(42, 72.0)) is None, "once is enough"


def test_it_never_goes_beyond_what_the_budget_buys() -> None:
    late = AT + 6 * HOUR_S
    more = present(asked(timed(500.0, late), Progress(42, 500.0), late))
    assert more.hard_stop_at == LIMIT


def test_the_first_steps_count_no_more_once_there_are_many_others() -> None:
    run = timed(85.0)
    assert asked(run, Progress(100, 36.0)) is not None, "58 steps later the pace still counts"
    assert asked(run, Progress(142, 36.0)) is None, "a tenth of all steps says it better"
    late = present(asked(timed(30.0), Progress(150, 90.0)))
    assert late.hard_stop_at > HARD, "and a machine that became slow is seen too"


def test_it_is_reserved_a_quarter_of_an_hour_before_or_not_at_all() -> None:
    run, slow = timed(72.0), Progress(500, 72.0)
    assert asked(run, slow, SOFT - LATEST_AHEAD_S) is not None
    assert asked(run, slow, SOFT - LATEST_AHEAD_S + 1) is None


@pytest.mark.parametrize(
    "run",
    [
        timed(72.0, tokens=1),  # its pace is doubted
        apply(timed(72.0), ev.StopRequested("ada", present(timed(72.0).paces[0].slow)), at=AT),
        apply(timed(72.0), ev.ResultKnown("finished"), at=AT),
    ],
)
def test_what_is_doubted_or_ends_is_not_extended(run: RunState) -> None:
    assert asked(run, Progress(42, 72.0)) is None


def test_a_machine_that_lands_or_has_ended_is_not_extended() -> None:
    run, now = timed(72.0), AT + HOUR_S
    told = replace(report(FAST), at=now)
    assert may_extend(run, told, now) is not None
    for ends in (replace(told, landing=True), replace(told, result="landed")):
        assert may_extend(run, ends, now) is None


def test_without_a_word_of_its_progress_nothing_is_reserved() -> None:
    run = timed(72.0)
    assert asked(run, None) is None
    landing = replace(report(FAST), landing=True, at=AT + HOUR_S)
    old = replace(report(FAST), at=AT - 2 * HOUR_S)
    for told in (None, landing, old, replace(report(FAST), result="finished", at=AT + HOUR_S)):
        assert may_extend(run, told, AT + HOUR_S) is None


def test_progress_is_read_from_lines_of_training_alone() -> None:
    lines = [{"kind": "train", "step": 10 * n, "at": AT + 90.0 * n} for n in range(1, 9)]
    assert progress_from(lines, AT) == Progress(80, 9.0)
    assert progress_from(lines[:3], AT) == Progress(30, 0.0), "too few to time"
    assert progress_from(lines, AT + 1000) is None
    hostile: list[dict[str, Any]] = [
        {"kind": "train", "step": "9", "at": AT}, {"kind": "train", "step": -1, "at": AT},
        {"kind": "eval", "step": 5, "at": AT}, {"kind": "train", "step": 4, "at": "now"},
    ]  # fmt: skip
    assert progress_from(hostile, AT) is None


# -- the ledger ------------------------------------------------------------------------------------


def test_it_is_judged_under_the_ledgers_lock_by_every_budget() -> None:
    ledger, _ = add_events(LedgerState("abcd1234"), 0, "r1", 1, events_of(planned()), AT)
    within = ev.Extended(1, HARD + 3600, Usd(64))
    moved, _ = add_events(ledger, 9, "r1", 1, (within,), AT + 60)
    assert moved.runs["r1"].reserved == Usd(64)
    assert moved.line("month", "2026-09").reserved == Usd(64), "in place of what was reserved"
    capped, _ = add_cap(ledger, 9, ev.CapSet("account", "", Usd(63)), AT)
    with pytest.raises(BudgetRefused, match="account"):
        add_events(capped, 10, "r1", 1, (within,), AT + 60)
    assert capped.runs["r1"].reserved == Usd(60)
    with pytest.raises(BudgetRefused, match="run r1"):
        add_events(ledger, 9, "r1", 1, (ev.Extended(1, HARD + 3600, Usd(201)),), AT + 60)


def test_a_month_later_it_counts_in_the_month_of_its_reservation() -> None:
    ledger, _ = add_events(LedgerState("abcd1234"), 0, "r1", 1, events_of(planned()), AT)
    capped, _ = add_cap(ledger, 9, ev.CapSet("month", "2026-09", Usd(62)), AT)
    later = ev.Extended(1, HARD + 3600, Usd(64))
    with pytest.raises(BudgetRefused, match="2026-09"):
        add_events(capped, 10, "r1", 1, (later,), AT + 40 * 86_400)


@pytest.mark.parametrize(
    "event",
    [
        ev.Extended(1, LIMIT + 1, Usd(190)),
        ev.Extended(1, HARD, Usd(60)),
        ev.Extended(1, HARD + 60, Usd(59)),
        ev.Extended(2, HARD + 60, Usd(61)),
    ],
)
def test_what_is_beyond_its_limit_or_below_its_reservation_is_no_extension(
    event: ev.Extended,
) -> None:
    with pytest.raises(IllegalTransition):
        apply(timed(72.0), event, at=AT)


def test_a_damaged_run_that_could_be_extended_may_have_cost_its_whole_budget() -> None:
    _, records = add_events(LedgerState("abcd1234"), 0, "r1", 1, events_of(planned()), AT)
    hurt = fold_damaged("abcd1234", records[:-1], (LostRecord(5, "AgentUp", "r1"),))
    assert hurt.quarantined["r1"].most == Usd(200)


# -- its agent -------------------------------------------------------------------------------------


def test_its_agent_is_told_until_it_reports_the_later_stop() -> None:
    run = apply(timed(72.0), ev.Extended(1, HARD + 3600, Usd(64)), at=AT + HOUR_S)
    orders = orders_for(run, present(run.generation), 2)
    assert (orders.hard_stop_at, orders.land) == (HARD + 3600, False)
    plain = timed(72.0)
    assert orders_for(plain, present(plain.generation), 2).hard_stop_at == 0.0


def test_a_lease_takes_later_stops_within_its_limit_alone() -> None:
    lease = a_lease(AT)
    hard = lease.hard_stop_at
    lease = replace(
        lease,
        limit_at=hard + 900,
        phases=(PhaseLease("fast", 50.0, 1.0, 1.0), PhaseLease("extreme", 0.0, 1.0, 1.0)),
    )
    later = present(lease.extended(Orders(epoch=2, hard_stop_at=hard + 600)))
    assert (later.hard_stop_at, later.epoch) == (hard + 600, 2)
    assert later.hard_stop_at - later.soft_stop_at == pytest.approx(hard - lease.soft_stop_at)
    assert later.granted_at == lease.granted_at
    assert [phase.allowed_s for phase in later.phases] == [650.0, 0.0]
    assert lease.limit_at == later.limit_at == hard + 900
    for refused in (
        Orders(epoch=1, hard_stop_at=hard + 600),
        Orders(epoch=2, hard_stop_at=hard + 901),
        Orders(epoch=2, hard_stop_at=hard - 600),
        Orders(epoch=2),
    ):
        assert lease.extended(refused) is None
    assert a_lease(AT).extended(Orders(epoch=2, hard_stop_at=hard + 1)) is None


# -- its plan --------------------------------------------------------------------------------------


def test_where_nobody_stays_the_stop_is_where_the_budget_ends() -> None:
    plan = planned()
    tight = replace(plan.candidates[0], limit_s=40 * HOUR_S, limit=Usd(161), worst_case=Usd(57))
    plan = replace(plan, candidates=(tight,), reservation=Usd(57))
    assert plan_from_json(plan_to_json(plan)).candidates == plan.candidates
    alone = at_limit(plan)
    [found] = alone.candidates
    assert (found.hard_stop_s, found.soft_stop_s) == (40 * HOUR_S, 40 * HOUR_S - 300)
    assert (found.worst_case, found.limit_s, alone.reservation) == (Usd(161), 0.0, Usd(161))
    assert at_limit(alone) == alone


def test_its_pods_name_tells_the_latest_stop() -> None:
    plan = planned()
    tight = replace(plan.candidates[0], limit_s=40 * HOUR_S, limit=Usd(161))
    run = apply(
        RunState("r1"),
        ev.RunPlanned(plan_to_json(replace(plan, candidates=(tight,))), Usd(200), "thesis"),
        ev.Reserved(Usd(60)),
        at=AT,
    )
    assert run.state is State.RESERVED
    seen = Observation(pods=UnknownSince(AT), report=UnknownSince(AT), bill=UnknownSince(AT))
    told = decide(run, run.plan, "abcd1234", traits_of("runpod"), seen, AT)
    [intent] = told.events
    assert isinstance(intent, ev.PodIntended)
    assert intent.hard_stop_at == pytest.approx(AT + 14 * HOUR_S)
    assert intent.limit_at == pytest.approx(AT + 40 * HOUR_S)
    assert intent.pod_name.endswith(f"-{int(intent.limit_at)}")
