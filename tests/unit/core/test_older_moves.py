"""Ledgers of versions that moved a live run to another machine, or lowered its stop for another
run: they are read, what they say holds, and a machine that stood by is ended and settled.
``older_moves.json`` has the events as such a version wrote them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.present import only, present
from tests.unit.core.runs import a_report
from trmcloud.core.catalog.providers import TRAITS
from trmcloud.core.clock import DatedFact, Instant, UnknownSince
from trmcloud.core.contract.pod_contract import AgentReport
from trmcloud.core.control import events as ev
from trmcloud.core.control.actions import LAND, TERMINATE, Decision
from trmcloud.core.control.bookkeeping import govern
from trmcloud.core.control.budget import LedgerState
from trmcloud.core.control.controller import decide, end_standby
from trmcloud.core.control.ledger_records import event_from_json
from trmcloud.core.control.observation import Bill, Observation, PodSeen, PodStatus
from trmcloud.core.control.pod_facts import orders_for, result_of
from trmcloud.core.control.reason import ReasonKind, make_reason
from trmcloud.core.control.report import report_on, spent_so_far
from trmcloud.core.control.run_state import IllegalTransition, RunState, State, apply_event, fold
from trmcloud.core.money import ZERO, Usd, cost
from trmcloud.core.spec.spec import CONTINUE
from trmcloud.operations.narration import Narrator
from trmcloud.operations.reasons import sentence

AT = 1_790_000_000.0
HOUR_S = 3600.0
NOW = AT + HOUR_S + 90
WRITTEN = json.loads(Path(__file__).with_name("older_moves.json").read_text(encoding="utf-8"))


def records(*parts: str) -> list[ev.Record]:
    rows = [row for part in parts for row in WRITTEN[part]]
    return [
        ev.Record(n, "r1", 1, AT + after_s, event_from_json(kind, data))
        for n, (after_s, kind, data) in enumerate(rows, 1)
    ]


def read(*parts: str, without_last: int = 0) -> RunState:
    there = records(*parts)
    return fold("r1", there[: len(there) - without_last])


def look(run: RunState, now: float, report: AgentReport | None, *pods: PodSeen) -> Decision:
    unknown = UnknownSince(now)
    seen = Observation(
        pods=DatedFact(pods, now),
        report=DatedFact(report, now) if report is not None else unknown,
        bill=unknown,
        unbilled=True,
        clock=Instant(now, now - AT, "here"),
    )
    return decide(run, run.plan, "abcd1234", TRAITS["runpod"], seen, now)


def pod(number: int, rate: str) -> PodSeen:
    return PodSeen(f"id-{number}", f"pod-{number}", PodStatus.RUNNING, Usd(rate), None)


# -- a stop that was lowered -----------------------------------------------------------------------


def test_the_money_of_a_lowered_stop_is_free_and_the_stop_holds() -> None:
    run = read("begun", "lowered")
    assert run.generation is not None
    assert (run.reserved, run.reservation) == (Usd("32.5"), Usd("32.5"))
    assert run.generation.hard_stop_at == AT + 8 * HOUR_S
    assert run.generation.soft_stop_at == AT + 8 * HOUR_S - 300.0
    assert run.generation.granted_until == AT + 14 * HOUR_S + 1
    assert orders_for(run, run.generation, 2).hard_stop_at == AT + 8 * HOUR_S
    ended = look(run, AT + 8 * HOUR_S, None, pod(1, "4"))
    assert [action.verb for action in ended.actions] == [TERMINATE]


@pytest.mark.parametrize(("knows", "verbs"), [(True, []), (False, [LAND])])
def test_an_agent_that_does_not_report_the_lowered_stop_is_told_to_land(
    knows: bool, verbs: list[str]
) -> None:
    run = read("begun", "lowered")
    stop_at = present(run.generation).hard_stop_at + (0.0 if knows else 6 * HOUR_S)
    report = a_report(run, hard_stop_at=stop_at, granted_until=AT + 1e6)
    soft = present(run.generation).soft_stop_at

    def told(now: float) -> list[str]:
        verbs = [action.verb for action in look(run, now, report, pod(1, "4")).actions]
        return [verb for verb in verbs if verb == LAND]

    assert told(soft - 60) == []
    assert told(soft + 1) == verbs


def test_an_earlier_stop_that_no_agent_has_confirmed_changes_nothing_on_record() -> None:
    asked, begun = read("begun", "lowered", without_last=2), read("begun")
    assert asked.generation is not None
    assert asked.generation.hard_stop_at == present(begun.generation).hard_stop_at
    assert asked.reserved == begun.reserved
    assert orders_for(asked, asked.generation, 2).hard_stop_at == 0.0


# -- a machine that stood by -----------------------------------------------------------------------


def end(run: RunState, now: float, *pods: PodSeen, bill: Bill | None = None) -> Decision:
    """Return the decision about the machine that stands by."""
    seen = Observation(
        pods=DatedFact(pods, now),
        report=UnknownSince(now),
        bill=DatedFact(bill, now) if bill is not None else UnknownSince(now),
        unbilled=bill is None,
        clock=Instant(now, now - AT, "here"),
    )
    return end_standby(run, run.plan, TRAITS["vast"], seen, now)


def apply(run: RunState, *events: ev.RunEvent, at: float) -> RunState:
    for event in ev.stamp_events(events, Instant(at, at - AT, "here")):
        run = apply_event(run, ev.Record(1, run.run_id, 1, at, event))
    return run


def test_both_machines_of_a_run_that_moved_are_its_own_and_paid_for() -> None:
    run = read("begun", "handed_over")
    assert run.generation is not None
    assert run.standing_by is not None
    assert (run.state, run.generation.number, run.standing_by.number) == (State.RUNNING, 1, 2)
    assert (run.reserved, run.standby_usd) == (Usd(100), Usd(40))
    assert [run.held_for(each) for each in run.open_generations] == [Usd(60), Usd(40)]
    ledger = LedgerState("abcd1234", {"r1": run})
    pods: tuple[PodSeen, ...] = (pod(1, "4"), pod(2, "2"))
    assert govern(ledger, DatedFact(pods, NOW), NOW).orphans == ()
    # By the older of the two for an hour and a minute, by the other for a minute.
    assert spent_so_far(run, NOW) == cost(Usd(4), NOW - AT) + cost(Usd(2), NOW - AT - HOUR_S)


@pytest.mark.parametrize("events", [3, 4, 5, 6, 7, 10])
def test_a_machine_that_stands_by_is_ended_and_settled_whatever_had_become_of_it(
    events: int,
) -> None:
    """From its intent on: asked for, listed, heard; then the other one told to land."""
    run = read("begun", "handed_over", without_last=10 - events)
    assert [a.verb for a in look(run, NOW, None, pod(1, "4")).actions] in ([], [LAND])
    first = end(run, NOW)
    if events == 3:  # nothing was asked for yet
        assert [type(event) for event in first.events] == [ev.PodNotMade]
        over = apply(run, *first.events, at=NOW)
        assert (over.reserved, over.standby_usd, over.settled) == (Usd(60), None, ZERO)
        return
    if present(run.standing_by).pod_id is None:
        found = end(run, NOW, pod(2, "2"))
        assert found.events == (ev.PodUp(2, "id-2", Usd(2)),)
        run = apply(run, *found.events, at=NOW)
    [ends] = end(run, NOW, pod(2, "2")).actions
    assert (ends.verb, ends.generation, ends.pod_id) == (TERMINATE, 2, "id-2")
    assert ends.reason == make_reason(ReasonKind.MOVE_CALLED_OFF)
    # It is asked for again until a list says that it is gone, and then its bill is taken.
    again = apply(run, ev.ActionStarted(ends.id, TERMINATE), at=NOW)
    assert [a.verb for a in end(again, NOW + 60, pod(2, "2")).actions] == [TERMINATE]
    gone = end(again, NOW + 90, replace(pod(2, "2"), status=PodStatus.GONE, ended_at=NOW + 80))
    assert gone.events == (ev.PodGone(2, NOW + 80),)
    ended = apply(again, *gone.events, at=NOW + 90)
    assert not end(ended, NOW + 91).actions
    [settled] = end(ended, NOW + 99, bill=Bill("id-2", Usd("0.07"), final=True)).events
    over = apply(ended, settled, at=NOW + 99)
    assert (over.settled, over.reserved, over.standby_usd) == (Usd("0.07"), Usd(60), None)
    assert over.generation == run.generation, "the working machine has lost nothing"
    assert not end(over, NOW + 100).actions


def test_what_a_machine_that_stood_by_cost_is_never_more_than_was_held_for_it() -> None:
    run = apply(read("begun", "handed_over"), ev.PodGone(2, NOW + 30 * HOUR_S), at=NOW)
    late = NOW + 100 * HOUR_S
    settled = only(ev.Settled, end(run, late).events)
    assert (settled.amount, settled.billed) == (Usd(40), None)


def test_a_run_whose_machine_was_told_to_land_stops_and_can_be_resumed() -> None:
    run = read("begun", "handed_over")
    assert run.generation is not None
    assert orders_for(run, run.generation, 2).land
    report = a_report(run, result="stopped", message="on request", phases=())
    known = look(run, NOW, report, pod(1, "4")).events
    assert known == (result_of(run, "stopped", "on request"),)
    landed = apply(run, *known, ev.PodGone(1, NOW + 30), ev.Settled(1, Usd(4), Usd(4)), at=NOW + 60)
    assert landed.state is State.SETTLED
    assert look(landed, NOW + 61, None) == Decision(), "not closed before the other one is settled"
    with pytest.raises(IllegalTransition, match="stands by"):
        apply(landed, ev.Closed("stopped"), at=NOW + 61)
    free = apply(landed, ev.PodGone(2, NOW + 62), ev.Settled(2, Usd(1), Usd(1)), at=NOW + 70)
    closed = only(ev.Closed, look(free, NOW + 71, None).events)
    assert closed.outcome == "stopped"
    assert closed.reason is not None
    assert sentence(closed.reason).startswith("training was to move to a machine at vast")
    over = apply(free, closed, at=NOW + 72)
    assert (over.settled, over.reserved) == (Usd(5), ZERO)
    assert apply(over, ev.Reopened(Usd(200)), at=NOW + 80).state is State.SETTLED


def test_a_run_that_has_moved_is_on_its_new_machine_as_on_any() -> None:
    run = read("begun", "handed_over", "moved")
    assert run.generation is not None
    assert (run.state, run.generation.number, run.candidate_id) == (State.RUNNING, 2, "cheap")
    assert (run.reserved, run.reservation) == (Usd(40), Usd("95.8"))
    assert (run.settled, run.result, run.standby) == (Usd("4.2"), None, None)
    assert not orders_for(run, run.generation, 2).land
    stopped = apply(run, ev.StopRequested("user", make_reason(ReasonKind.STOP_COMMAND)), at=NOW)
    assert [a.verb for a in look(stopped, NOW + HOUR_S, None, pod(2, "2")).actions] == [LAND]
    assert report_on(stopped, [], NOW + HOUR_S).accrued > Usd("4.2")
    told = Narrator("abcd1234").tell(records("begun", "handed_over", "moved"))
    assert told[-1].text == "generation 2: training moved here, to vast"


def test_a_plan_that_asked_to_move_is_read_as_one_that_goes_on() -> None:
    assert WRITTEN["begun"][0][2]["plan"]["spec"]["if_slow"] == "move"
    spec = read("begun", "handed_over").plan.spec
    assert spec.if_slow == CONTINUE
