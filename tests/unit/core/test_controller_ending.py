"""``decide`` once the work is done: the end of a pod, its bill, and a replay of it all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.plans import plan_json
from tests.reasons import quoted, sentence
from tests.unit.core.phases import FAILED, PASSED
from tests.unit.core.runs import (
    AT,
    ENDED,
    FIRST,
    RESERVATION,
    TRAITS,
    a_report,
    apply,
    ask,
    ending,
    follow,
    running,
    settling,
    the_pod,
)
from trmcloud.core.clock import Unknown
from trmcloud.core.contract.pod_contract import PhaseReport
from trmcloud.core.control import events as ev
from trmcloud.core.control.actions import TERMINATE, Decision
from trmcloud.core.control.observation import Bill, PodStatus
from trmcloud.core.control.reason import ReasonKind, because
from trmcloud.core.control.run_fold import apply_event, fold
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.money import ZERO, Usd, cost
from trmcloud.core.outcome import Outcome

# -- ending ------------------------------------------------------------------------------------


def test_the_agents_account_enters_the_ledger_once() -> None:
    run = ending()
    (account,) = run.phase_accounts
    assert (account.outcome, account.step, account.val_bpb, account.attempts) == (
        "finished",
        90,
        1.5,
        2,
    )
    assert (run.result, sentence(run.reason), run.result_at) == ("finished", "done", AT + 500)


def test_a_gate_enters_the_ledger_with_its_phase() -> None:
    run = running()
    judged = replace(ENDED, gate=FAILED)
    extreme = PhaseReport("extreme")
    report = a_report(run, phases=(judged, extreme), result="gate_failed")
    run, _ = follow(run, AT + 500, pods=[the_pod(run)], report=report)
    assert run.gates["fast"].passed is False
    assert run.result == "gate_failed"


def test_a_phase_that_crashed_is_not_over_while_its_agent_may_try_again() -> None:
    run = running()
    crashed = replace(ENDED, outcome="crashed")
    assert (
        ask(run, AT + 90, pods=[the_pod(run)], report=a_report(run, phases=(crashed,)))
        == Decision()
    )
    final = a_report(run, phases=(crashed,), result="failed")
    run, _ = follow(run, AT + 91, pods=[the_pod(run)], report=final)
    assert run.phases["fast"].outcome == "crashed"


def test_a_phase_whose_pod_is_gone_is_over() -> None:
    run = running()
    crashed = a_report(run, phases=(replace(ENDED, outcome="crashed"),))
    run, _ = follow(run, AT + 91, report=crashed, absent_lists=3)
    assert run.phases["fast"].outcome == "crashed"
    assert run.state is State.SETTLING


def test_a_pod_whose_work_is_done_gets_a_grace_and_is_then_ended() -> None:
    run = ending()
    report = a_report(run, phases=(ENDED,), result="finished")
    assert ask(run, AT + 559, pods=[the_pod(run)], report=report) == Decision()
    (action,) = ask(run, AT + 560, pods=[the_pod(run)], report=report).actions
    assert (action.verb, sentence(action.reason)) == (TERMINATE, "its work is done")


def test_what_else_happens_does_not_lengthen_the_grace() -> None:
    run = apply(ending(), ev.StopRequested("user", quoted("hurry")), at=AT + 555)
    assert ask(run, AT + 560, pods=[the_pod(run)]).actions
    run = apply(ending(), ev.ActionStarted("r1/g1/terminate/1", TERMINATE), at=AT + 560)
    run = apply(run, ev.ActionFinished("r1/g1/terminate/1", TERMINATE), at=AT + 560)
    assert [a.id for a in ask(run, AT + 562, pods=[the_pod(run)]).actions] == ["r1/g1/terminate/2"]


def test_an_end_that_was_begun_for_its_price_is_gone_on_with_where_no_list_shows_it() -> None:
    run = apply(ending(), ev.ActionStarted("r1/g1/terminate/1", TERMINATE), at=AT + 501)
    run = apply(
        run,
        ev.ActionFinished("r1/g1/terminate/1", TERMINATE, reason=quoted("billed $9/h")),
        at=AT + 501,
    )
    assert ask(run, AT + 502).actions == ()
    (action,) = ask(run, AT + 503).actions
    assert (action.id, sentence(action.reason)) == ("r1/g1/terminate/2", "its work is done")


def test_a_stop_at_once_ends_the_pod_whatever_it_does() -> None:
    wish = ev.StopRequested("user", because(ReasonKind.STOP_NOW))
    for run in (
        running(),
        ending(),
        apply(running(), ev.StopRequested("user", quoted("land")), at=AT + 500),
    ):
        before = run.stop_at
        run = apply(run, wish, at=AT + 501)
        assert run.stop == wish
        assert run.stop_at == (before if before is not None else AT + 501)
        report = a_report(run, waiting="")
        (action,) = ask(run, AT + 501, pods=[the_pod(run)], report=report).actions
        assert (action.verb, action.reason) == (TERMINATE, because(ReasonKind.STOP_NOW))
    later = apply(run, ev.StopRequested("user", quoted("land after all")), at=AT + 502)
    assert later.stop == wish, "what was asked for at once is not taken back by a wish to land"


def test_a_run_stopped_at_once_says_so() -> None:
    run = apply(running(), ev.StopRequested("user", because(ReasonKind.STOP_NOW)), at=AT + 90)
    run, _ = follow(run, AT + 100, absent_lists=3)
    run, _ = follow(run, AT + 5000)
    assert (run.outcome, run.reason) == (Outcome.STOPPED, because(ReasonKind.STOP_NOW))


@pytest.mark.parametrize("word", ["victory", "", "closed", "\x1b[31m" * 999])
def test_a_result_nobody_knows_is_a_failure_and_not_a_crash_of_ours(word: str) -> None:
    run = running()
    run, _ = follow(run, AT + 100, pods=[the_pod(run)], report=a_report(run, result=word))
    assert (run.state, run.result) == (State.ENDING, "failed")
    assert len(sentence(run.reason)) < 1000
    assert "\x1b" not in sentence(run.reason)


# -- settling ----------------------------------------------------------------------------------


def test_nothing_is_estimated_before_a_list_shows_that_the_pod_is_gone() -> None:
    run = settling()
    assert ask(run, AT + 900, pods=Unknown(AT + 900)) == Decision()
    assert [type(e) for e in ask(run, AT + 900).events] == [ev.Settled]


def test_a_final_bill_settles_even_a_pod_that_is_listed_again() -> None:
    run = settling()
    bill = Bill("id-1", Usd("0.5"), final=True)
    (event,) = ask(run, AT + 530, bill=bill, pods=[the_pod(run)]).events
    assert event == ev.Settled(1, Usd("0.5"), Usd("0.5"))


@pytest.mark.parametrize("amount", [None, ZERO, Usd("0.4")], ids=["unknown", "nothing", "less"])
def test_a_late_bill_is_waited_for_and_then_estimated(amount: Usd | None) -> None:
    bill = None if amount is None else Bill("id-1", amount, final=False)
    run = settling()
    assert ask(run, AT + 579, bill=bill) == Decision()
    assert run.reserved == RESERVATION
    listed = [the_pod(run)]
    assert ask(run, AT + 580, bill=bill, pods=listed) == Decision(), "it is not gone after all"
    closed, _ = follow(run, AT + 580, bill=bill)
    assert (closed.state, closed.reserved) == (State.CLOSED, ZERO)
    assert closed.settled == cost(FIRST.rate, 510 + TRAITS.kill_latency_s), "never zero"
    assert closed.billed is None


def test_what_is_billed_already_is_the_least_that_it_cost() -> None:
    bill = Bill("id-1", Usd("0.6"), final=False)
    closed, _ = follow(settling(), AT + 580, bill=bill)
    assert (closed.settled, closed.billed) == (Usd("0.6"), None)


def test_an_estimate_is_no_more_than_was_reserved() -> None:
    run = ending()
    gone = the_pod(run, status=PodStatus.GONE, ended_at=AT + 99_999)
    run, _ = follow(run, AT + 200_000, pods=[gone])
    closed, _ = follow(run, AT + 200_060, pods=[gone])
    assert (closed.state, closed.settled) == (State.CLOSED, RESERVATION)


def test_a_final_bill_settles_and_closes() -> None:
    run, _ = follow(settling(), AT + 600, bill=Bill("id-1", Usd("0.51"), final=True))
    assert (run.state, run.outcome) == (State.CLOSED, Outcome.FINISHED)
    assert (run.settled, run.billed, run.reserved) == (Usd("0.51"), Usd("0.51"), ZERO)


def test_a_bill_above_the_reservation_is_told_as_it_is() -> None:
    run, _ = follow(settling(), AT + 600, bill=Bill("id-1", Usd(99), final=True))
    assert run.settled == Usd(99)


@pytest.mark.parametrize(
    ("ended_s", "outcome"),
    [(3001, Outcome.KILLED), (2999, Outcome.KILLED), (2998, Outcome.LOST)],
)
def test_killed_at_the_hard_stop_is_said_so(ended_s: int, outcome: Outcome) -> None:
    run = running()
    run, _ = follow(
        run, AT + 3005, pods=[the_pod(run, status=PodStatus.GONE, ended_at=AT + ended_s)]
    )
    run, _ = follow(run, AT + 3006, bill=Bill("id-1", Usd(3), final=True))
    assert run.outcome is outcome


def test_a_closed_run_asks_for_nothing() -> None:
    run, _ = follow(settling(), AT + 600, bill=Bill("id-1", Usd("0.51"), final=True))
    assert ask(run, AT + 9999, pods=[the_pod(run)], report=a_report(run)) == Decision()


def test_a_reopened_run_has_the_rest_of_its_budget_for_time() -> None:
    run, _ = follow(settling(), AT + 600, bill=Bill("id-1", Usd("0.51"), final=True))
    run = apply(run, ev.Reopened(Usd(10)), ev.Reserved(Usd("9.49")), at=AT + 700)
    (intent,) = ask(run, AT + 700).events
    assert isinstance(intent, ev.PodIntended)
    assert intent.generation == 2
    assert intent.hard_stop_at - AT - 700 == pytest.approx(9490 - 30)
    assert cost(FIRST.rate, intent.hard_stop_at - AT - 700 + 30) <= Usd("9.49")


def test_a_reopened_run_without_money_for_the_kill_rents_nothing() -> None:
    run, _ = follow(settling(), AT + 600, bill=Bill("id-1", Usd("0.51"), final=True))
    run = apply(run, ev.Reopened(Usd(10)), ev.Reserved(Usd("0.01")), at=AT + 700)
    run, actions = follow(run, AT + 700)
    assert (run.outcome, run.settled, actions) == (Outcome.NOT_STARTED, Usd("0.51"), ())


def test_money_is_never_settled_twice() -> None:
    run = settling()
    bill = Bill("id-1", Usd("0.51"), final=True)
    events = ask(run, AT + 600, bill=bill).events
    settled = apply(run, *events, at=AT + 600)
    assert [type(e) for e in ask(settled, AT + 601, bill=bill).events] == [ev.Closed]


# -- replay ------------------------------------------------------------------------------------


def test_another_controller_goes_on_from_any_record_to_the_same_end() -> None:
    """Killed after any record, whoever folds what was written comes to the same decisions."""
    log: list[ev.Record] = []
    run = RunState("r1")

    def write(*events: ev.RunEvent, at: float) -> None:
        nonlocal run
        for event in events:
            log.append(ev.Record(len(log) + 1, "r1", 1, at, event))
            run = apply_event(run, log[-1])

    write(ev.RunPlanned(plan_json(), RESERVATION, "thesis"), ev.Reserved(RESERVATION), at=AT)
    moments = [
        (AT, {}),
        (AT + 10, {"pod": "running"}),
        (AT + 20, {"pod": "running", "report": "up"}),
    ]
    moments += [(AT + 500, {"pod": "running", "report": "done"}), (AT + 510, {"pod": "gone"})]
    moments += [(AT + 600, {"bill": "final"})]
    for now, what in moments:
        for _ in range(20):
            decision = ask(run, now, **scene(run, what))
            assert ask(fold("r1", log), now, **scene(run, what)) == decision
            write(*decision.events, at=now)
            for action in decision.actions:
                write(ev.ActionStarted(action.id, action.verb), at=now)
                write(ev.ActionFinished(action.id, action.verb), at=now)
            if not decision.events:
                break
    assert (run.state, run.outcome) == (State.CLOSED, Outcome.FINISHED)


def scene(run: RunState, what: dict[str, str]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    if "pod" in what:
        seen["pods"] = [the_pod(run, status=PodStatus(what["pod"]), ended_at=AT + 505)]
    if "report" in what:
        done = what["report"] == "done"
        seen["report"] = (
            a_report(run, phases=(ENDED,), result="finished") if done else a_report(run)
        )
    if "bill" in what:
        seen["bill"] = Bill("id-1", Usd("0.5"), final=True)
    return seen


def test_phases_that_the_plan_does_not_know_are_passed_over() -> None:
    """A hostile agent's report cannot fill the ledger with phases of its own making."""
    run = running()
    made_up = replace(ENDED, name="x" * 60, gate=PASSED)
    report = a_report(run, phases=(made_up,))
    assert ask(run, AT + 90, pods=[the_pod(run)], report=report) == Decision()
