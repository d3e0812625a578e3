"""`decide` once the work is done: the end of a pod, its bill, what is brought home, and who is
tried next."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest

from tests.plans import plan_json
from tests.present import only, present
from tests.reasons import quoted
from tests.unit.core.phases import FAILED, PASSED
from tests.unit.core.runs import (
    AT,
    ENDED,
    FIRST,
    PLAN,
    RESERVATION,
    SECOND,
    TRAITS,
    StubPlan,
    StubSpec,
    a_report,
    actions_at,
    apply,
    ask,
    booting,
    ending,
    follow,
    running,
    settling,
    stopped,
    the_pod,
)
from trmcloud.core.clock import UnknownSince
from trmcloud.core.contract.pod_contract import CheckpointRef, PhaseReport, SaveAnswers
from trmcloud.core.control import events as ev
from trmcloud.core.control.actions import (
    LAND,
    MOST_DAMAGED,
    MOST_PULLS,
    PULL,
    SAVE,
    TERMINATE,
    Action,
    Decision,
)
from trmcloud.core.control.controller import foreseen_end
from trmcloud.core.control.events import FailureKind
from trmcloud.core.control.observation import Bill, PodStatus
from trmcloud.core.control.pod_facts import orders_for
from trmcloud.core.control.reason import ReasonKind, make_reason
from trmcloud.core.control.run_state import STAGE, RunState, State, apply_event, fold
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO, Usd, cost
from trmcloud.core.spec.plan import Plan
from trmcloud.operations.reasons import sentence

# -- ``decide`` once the work is done: the end of a pod, its bill, and a replay of it all -------


# -- ending ------------------------------------------------------------------------------------


def test_the_agents_account_enters_the_ledger_once() -> None:
    run = ending()
    (account,) = run.phase_accounts
    assert (account.outcome, account.step, account.val_bpb) == ("finished", 90, 1.5)
    assert account.attempts == 2
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
    assert (action.verb, sentence(action.reason)) == (TERMINATE, "training has finished")


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
    assert (action.id, sentence(action.reason)) == ("r1/g1/terminate/2", "training has finished")


def test_a_stop_at_once_ends_the_pod_whatever_it_does() -> None:
    wish = ev.StopRequested("user", make_reason(ReasonKind.STOP_NOW))
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
        assert (action.verb, action.reason) == (TERMINATE, make_reason(ReasonKind.STOP_NOW))
    later = apply(run, ev.StopRequested("user", quoted("land after all")), at=AT + 502)
    assert later.stop == wish, "what was asked for at once is not taken back by a wish to land"


def test_a_machine_that_never_answered_is_ended_when_it_cannot_be_told_to_land() -> None:
    run = stopped(booting(), AT + 15)
    for at in (AT + 15, AT + 20, AT + 30):
        _, [asked] = follow(run, at, pods=[the_pod(run)])
        assert asked.verb == LAND
        run = apply(run, ev.ActionStarted(asked.id, LAND), at=at)
        run = apply(run, ev.ActionFailed(asked.id, LAND, FailureKind.ERROR, "no route"), at=at)
    _, [action] = follow(run, AT + 31, pods=[the_pod(run)])
    assert action == Action(ev.ActionKey("r1", 1, TERMINATE, 1), "id-1", quoted("enough"))
    _, actions = follow(run, AT + 31, pods=[the_pod(run)], report=a_report(run))
    assert [each.verb for each in actions] != [TERMINATE], "it has answered now"


def test_a_run_stopped_at_once_says_so() -> None:
    run = apply(running(), ev.StopRequested("user", make_reason(ReasonKind.STOP_NOW)), at=AT + 90)
    run, _ = follow(run, AT + 100, absent_lists=3)
    run, _ = follow(run, AT + 5000)
    assert (run.outcome, run.reason) == (Outcome.STOPPED, make_reason(ReasonKind.STOP_NOW))


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
    assert ask(run, AT + 900, pods=UnknownSince(AT + 900)) == Decision()
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
    ("ended_s", "outcome"), [(3001, Outcome.KILLED), (2999, Outcome.KILLED), (2998, Outcome.LOST)]
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
    intent = only(ev.PodIntended, ask(run, AT + 700).events)
    assert intent.generation == 2
    assert intent.hard_stop_at - AT - 700 == pytest.approx(9490 - 30)
    assert cost(FIRST.rate, intent.hard_stop_at - AT - 700 + 30) <= Usd("9.49")


def test_a_reopened_run_without_money_for_the_kill_rents_nothing() -> None:
    run, _ = follow(settling(), AT + 600, bill=Bill("id-1", Usd("0.51"), final=True))
    run = apply(run, ev.Reopened(Usd(10)), ev.Reserved(Usd("0.01")), at=AT + 700)
    run, actions = follow(run, AT + 700)
    assert (run.outcome, run.settled, actions) == (Outcome.NOT_STARTED, Usd("0.51"), ())


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


# -- ``decide``: what is sent to a rented pod, what is brought home, and who is tried next ------


AS_PLAN = cast(Plan, PLAN)
PULLED = StubPlan((FIRST, SECOND), StubSpec(volume=False))
EARLY = CheckpointRef("fast", 40, "aa" * 32, 1000, 2.5)
BEST = CheckpointRef("fast", 80, "bb" * 32, 1000, 2.0)
LATEST = CheckpointRef("fast", 120, "cc" * 32, 1000, 2.1)


actions = partial(actions_at, plan=PULLED)


def started(run: RunState, action_id: str, verb: str, at: float) -> RunState:
    return apply(run, ev.ActionStarted(action_id, verb), at=at)


# -- sending -----------------------------------------------------------------------------------


def test_an_agent_that_waits_for_files_is_sent_them() -> None:
    run = running()
    assert actions(run, AT + 30, report={"waiting": "files"}) == [(STAGE, "r1/g1/stage/1")]
    for waiting in ("", "checking", "installing"):
        assert actions(run, AT + 30, report={"waiting": waiting}) == []


def test_what_a_worker_carries_is_not_started_twice() -> None:
    run = started(running(), "r1/g1/stage/1", STAGE, AT + 30)
    carried = frozenset({"r1/g1/stage/1"})
    assert actions(run, AT + 900, report={"waiting": "files"}, in_flight=carried) == []


def test_what_died_with_its_controller_is_begun_again() -> None:
    run = started(running(), "r1/g1/stage/1", STAGE, AT + 30)
    assert actions(run, AT + 31, report={"waiting": "files"}) == []
    assert actions(run, AT + 33, report={"waiting": "files"}) == [(STAGE, "r1/g1/stage/2")]


def test_files_that_arrived_are_sent_again_only_to_one_that_lost_them() -> None:
    run = started(running(), "r1/g1/stage/1", STAGE, AT + 30)
    run = apply(run, ev.ActionFinished("r1/g1/stage/1", STAGE, ""), at=AT + 60)
    waits = {"waiting": "files"}
    for at in (AT + 59, AT + 90):
        assert actions(run, AT + 100, report={**waits, "at": at}) == []
    assert actions(run, AT + 100, report={**waits, "at": AT + 90.5}) == [(STAGE, "r1/g1/stage/2")]
    assert actions(run, AT + 200, report={**waits, "at": AT + 190}) == [(STAGE, "r1/g1/stage/2")]
    behind = {**waits, "at": AT - 3600}
    assert actions(run, AT + 210, report=behind) == []
    assert actions(run, AT + 211, report=behind) == [(STAGE, "r1/g1/stage/2")], "a clock of its own"


def test_nothing_is_sent_to_a_run_that_shall_stop() -> None:
    run = stopped(running(), AT + 25)
    verbs = [verb for verb, _ in actions(run, AT + 30, report={"waiting": "files"})]
    assert STAGE not in verbs


# -- bringing home -----------------------------------------------------------------------------


def test_the_best_is_pulled_before_the_latest_and_the_rest_not_at_all() -> None:
    run = running()
    kept = {"kept": (EARLY, BEST, LATEST)}
    assert actions(run, AT + 30, report=kept) == [(PULL, "r1/g1/pull-fast-80-bbbbbbbb/1")]
    run = apply(run, ev.Pulled(1, "fast", 80, BEST.sha256, BEST.val_bpb), at=AT + 40)
    assert actions(run, AT + 50, report=kept) == [(PULL, "r1/g1/pull-fast-120-cccccccc/1")]
    run = apply(run, ev.Pulled(1, "fast", 120, LATEST.sha256, LATEST.val_bpb), at=AT + 60)
    assert actions(run, AT + 70, report=kept) == []


def test_what_was_pulled_before_it_was_evaluated_is_pulled_once_more() -> None:
    early = replace(LATEST, val_bpb=None)
    run = apply(running(), ev.Pulled(1, "fast", 120, LATEST.sha256), at=AT + 40)
    assert actions(run, AT + 50, report={"kept": (early,)}) == []
    pull = [(PULL, "r1/g1/pull-fast-120-cccccccc/1")]
    assert actions(run, AT + 50, report={"kept": (LATEST,)}) == pull
    run = apply(run, ev.Pulled(1, "fast", 120, LATEST.sha256, 2.1), at=AT + 60)
    for told in (LATEST, early, replace(LATEST, val_bpb=1.0)):
        assert actions(run, AT + 70, report={"kept": (told,)}) == [], "whatever a pod says then"


# -- a checkpoint that is asked for ------------------------------------------------------------


def asked(run: RunState, at: float) -> RunState:
    return apply(run, ev.SaveRequested(1, "user"), at=at)


def test_a_request_to_save_is_passed_on_once_and_tried_again_where_that_fails() -> None:
    run = asked(running(), AT + 30)
    assert actions(run, AT + 31) == [(SAVE, "r1/g1/save-1/1")]
    run = started(run, "r1/g1/save-1/1", SAVE, AT + 31)
    failed = apply(
        run, ev.ActionFailed("r1/g1/save-1/1", SAVE, FailureKind.ERROR, "no way"), at=AT + 32
    )
    assert actions(failed, AT + 32.5) == []
    assert actions(failed, AT + 40) == [(SAVE, "r1/g1/save-1/2")]
    sent = apply(run, ev.ActionFinished("r1/g1/save-1/1", SAVE), at=AT + 32)
    assert actions(sent, AT + 900) == []
    again = asked(sent, AT + 900)
    assert actions(again, AT + 901) == [(SAVE, "r1/g1/save-2/1")]
    answered = {"saves": SaveAnswers(2, "fast", 120)}
    assert actions(again, AT + 901, report=answered) == []


def test_answers_that_a_restored_ledger_has_forgotten_do_not_answer_the_next_request() -> None:
    """The agent counts, too: it ignores a request that has the number of one that it answered."""
    run = running()
    report = a_report(run, saves=SaveAnswers(2, "fast", 120))
    seen: dict[str, Any] = {"pods": [the_pod(run)], "report": report}
    assert ask(run, AT + 31, **seen).events == (ev.SaveRequested(1, "pod"),) * 2
    run, _ = follow(run, AT + 31, **seen)
    assert actions(run, AT + 32, report={"saves": report.saves}) == []
    again = asked(run, AT + 40)
    (action,) = ask(again, AT + 41, **seen).actions
    assert str(action.id) == "r1/g1/save-3/1"
    assert orders_for(again, again.generations[0], 1).save == 3


def test_a_pod_that_claims_answers_without_end_fills_no_ledger() -> None:
    run = running()
    for answered in (1_000_000, 1_000_000, 999_999):
        claims = a_report(run, saves=SaveAnswers(answered, "fast", 120))
        run, _ = follow(run, AT + 31, pods=[the_pod(run)], report=claims)
        assert run.generations[0].saves_asked == 100
    (action,) = ask(asked(run, AT + 40), AT + 41, pods=[the_pod(run)]).actions
    assert action.verb == SAVE


def test_a_run_that_lands_is_asked_for_nothing_else() -> None:
    run = stopped(asked(running(), AT + 30), AT + 31)
    assert [verb for verb, _ in actions(run, AT + 32)] == [LAND]


def test_other_bits_of_the_same_step_are_pulled_again() -> None:
    run = apply(running(), ev.Pulled(1, "fast", 80, "dd" * 32, 2.0), at=AT + 40)
    assert actions(run, AT + 50, report={"kept": (BEST,)}) == [
        (PULL, "r1/g1/pull-fast-80-bbbbbbbb/1")
    ]


def test_one_checkpoint_is_pulled_at_a_time() -> None:
    flying = frozenset({"r1/g1/pull-fast-80-bbbbbbbb/1"})
    assert actions(running(), AT + 30, report={"kept": (LATEST,)}, in_flight=flying) == []


def test_a_score_that_is_none_is_never_the_best() -> None:
    unscored = replace(EARLY, val_bpb=None)
    found = actions(running(), AT + 30, report={"kept": (unscored, LATEST)})
    assert found == [(PULL, "r1/g1/pull-fast-120-cccccccc/1")]


def test_on_a_volume_or_at_home_nothing_is_pulled() -> None:
    run = running()
    report = a_report(run, kept=(BEST, LATEST))
    assert ask(run, AT + 30, pods=[the_pod(run)], report=report, plan=PLAN).actions == ()


def ending_there(kept: tuple[CheckpointRef, ...]) -> RunState:
    run = running()
    report = a_report(run, result="finished", kept=kept)
    run, _ = follow(run, AT + 100, pods=[the_pod(run)], report=report, plan=PULLED)
    assert run.state is State.ENDING
    return run


def test_a_pod_stays_until_its_checkpoints_are_here() -> None:
    done = {"result": "finished", "kept": (BEST, LATEST)}
    run = ending_there((BEST, LATEST))
    late = AT + 2000
    assert [verb for verb, _ in actions(run, late, report=done)] == [PULL]
    run = apply(run, ev.Pulled(1, "fast", 80, BEST.sha256, BEST.val_bpb), at=AT + 110)
    assert [verb for verb, _ in actions(run, late, report=done)] == [PULL]
    run = apply(run, ev.Pulled(1, "fast", 120, LATEST.sha256, LATEST.val_bpb), at=AT + 120)
    # At once: there is nobody else to end it.
    assert [verb for verb, _ in actions(run, AT + 121, report=done)] == [TERMINATE]


def test_one_that_cannot_be_heard_stays_until_its_hard_stop() -> None:
    run = ending_there((BEST,))
    pods = [the_pod(run)]
    assert ask(run, AT + 2999, pods=pods, plan=PULLED).actions == ()
    (action,) = ask(run, AT + 3000, pods=pods, plan=PULLED).actions
    assert (action.verb, sentence(action.reason)) == (TERMINATE, "hard stop")


def test_the_hard_stop_waits_for_no_copy() -> None:
    run = ending_there((BEST,))
    done = {"result": "finished", "kept": (BEST,)}
    assert actions(run, AT + 3000, report=done)[0][0] == TERMINATE


def test_a_checkpoint_that_cannot_be_copied_is_given_up() -> None:
    run = ending_there((BEST,))
    done = {"result": "finished", "kept": (BEST,)}
    now = AT + 110.0
    for attempt in range(1, MOST_PULLS + 1):
        found = actions(run, now, report=done)
        assert found == [(PULL, f"r1/g1/pull-fast-80-bbbbbbbb/{attempt}")]
        run = started(run, found[0][1], PULL, now)
        run = apply(
            run, ev.ActionFailed(found[0][1], PULL, FailureKind.DAMAGED, "torn"), at=now + 1
        )
        now += 60
    assert [verb for verb, _ in actions(run, now, report=done)] == [TERMINATE]


def test_in_place_of_a_damaged_one_the_next_is_wanted_but_not_of_a_pod_that_has_many() -> None:
    """The latest came torn: the one before it is whole, and nowhere else."""
    made = [CheckpointRef("fast", step, f"{step:02d}" * 32, 10, 2.0 + step) for step in range(1, 9)]
    run, done = ending_there((*made,)), {"result": "finished", "kept": tuple(made)}
    now, wanted = AT + 110.0, []
    while (found := actions(run, now, report=done))[0][0] == PULL:
        run = started(run, found[0][1], PULL, now)
        run = apply(
            run, ev.ActionFailed(found[0][1], PULL, FailureKind.DAMAGED, "torn"), at=now + 1
        )
        wanted.append(found[0][1].split("-")[2])
        now += 60
    assert list(dict.fromkeys(wanted)) == ["1", "2", "3", "4", "5"], "the best of what is left"
    assert len(wanted) == MOST_PULLS * (MOST_DAMAGED + 1)
    assert [verb for verb, _ in found] == [TERMINATE]


def test_a_link_that_drops_is_tried_until_the_hard_stop() -> None:
    run = ending_there((BEST,))
    done = {"result": "finished", "kept": (BEST,)}
    now = AT + 110.0
    for _ in range(4 * MOST_PULLS):
        ((verb, action_id),) = actions(run, now, report=done)
        assert verb == PULL
        run = started(run, action_id, PULL, now)
        run = apply(run, ev.ActionFailed(action_id, PULL, FailureKind.ERROR, "dropped"), at=now + 1)
        now += 60
    assert [verb for verb, _ in actions(run, now, report=done)] == [PULL]


def test_left_alone_its_agent_ends_it_and_nobody_is_waited_for() -> None:
    run = replace(ending_there((BEST,)), detached=True)
    done = {"result": "finished", "kept": (BEST,)}
    assert [verb for verb, _ in actions(run, AT + 110, report=done)] == [PULL]
    assert actions(run, AT + 200, report=done)[0][0] == TERMINATE


# -- the next machine --------------------------------------------------------------------------


def settled(run: RunState, at: float, seconds: float) -> tuple[RunState, tuple[Action, ...]]:
    """Its pod ended ``seconds`` after it was made, and the bill has come."""
    gone = the_pod(run, status=PodStatus.GONE, ended_at=AT + seconds)
    bill = Bill("id-1", cost(FIRST.rate, seconds), final=True)
    return follow(run, at, pods=[gone], bill=bill)


def unfit() -> RunState:
    run = running()
    report = a_report(run, result="unfit", message="4 GPUs where 8 were rented")
    run, _ = follow(run, AT + 30, pods=[the_pod(run)], report=report)
    return run


@pytest.mark.parametrize("run", [booting(), unfit()], ids=["it never answered", "wrong GPUs"])
def test_where_no_machine_came_the_next_candidate_is_tried_with_what_is_left(run: RunState) -> None:
    run, _ = settled(run, AT + 500, 400.0)
    assert run.state is State.RENTING
    assert [g.candidate_id for g in run.generations] == ["first", "second"]
    assert run.reserved == RESERVATION - cost(FIRST.rate, 400.0)
    assert run.reserved + run.settled == RESERVATION
    second = run.generations[-1]
    bought_s = (RESERVATION.micros - 400_000) / 500 - 30.0
    assert second.hard_stop_at - (AT + 500) == pytest.approx(min(3000.0, bought_s), abs=0.01)


def test_one_that_its_agent_refused_is_left_to_end_itself_for_the_grace_period() -> None:
    run = unfit()  # at AT + 30
    assert ask(run, AT + 89, pods=[the_pod(run)]) == Decision()
    (action,) = ask(run, AT + 90, pods=[the_pod(run)]).actions
    assert action.verb == TERMINATE


def gone_unbilled(run: RunState, at: float, ended_s: float) -> RunState:
    gone = the_pod(run, status=PodStatus.GONE, ended_at=AT + ended_s)
    run, _ = follow(run, at, pods=[gone])
    assert run.state is State.SETTLING
    return run


@pytest.mark.parametrize(
    ("run", "ended_s"),
    [(running(), 400.0), (running(), 3001.0), (stopped(booting(), AT + 15), 400.0)],
    ids=["lost", "killed", "stopped"],
)
def test_the_end_is_foreseen_as_the_bill_then_makes_it(run: RunState, ended_s: float) -> None:
    waiting = gone_unbilled(run, AT + ended_s + 4, ended_s)
    foreseen = present(foreseen_end(waiting, AS_PLAN, TRAITS))
    closed, _ = settled(run, AT + ended_s + 4, ended_s)
    assert (present(closed.outcome).value, closed.reason) == (foreseen.outcome, foreseen.reason)


def test_no_end_is_foreseen_where_another_machine_may_be_tried() -> None:
    assert foreseen_end(gone_unbilled(booting(), AT + 440, 400.0), AS_PLAN, TRAITS) is None
    assert foreseen_end(running(), AS_PLAN, TRAITS) is None


def test_where_the_last_candidate_is_unfit_too_the_run_says_so() -> None:
    run = unfit()
    run, _ = settled(run, AT + 500, 400.0)
    run = apply(run, ev.PodUp(2, "id-2", SECOND.rate), ev.AgentUp(2), at=AT + 520)
    run = apply(run, ev.ResultKnown("unfit", quoted("no GPU at all")), at=AT + 530)
    gone = the_pod(run, pod_id="id-2", status=PodStatus.GONE, ended_at=AT + 540)
    bill = Bill("id-2", Usd("0.01"), final=True)
    run, _ = follow(run, AT + 600, pods=[gone], bill=bill)
    assert (run.outcome, sentence(run.reason)) == (Outcome.UNFIT, "no GPU at all")


def test_with_too_little_left_the_next_is_not_tried() -> None:
    run = booting()
    run, _ = settled(run, AT + 3000, 2960.0)
    assert run.outcome is Outcome.LOST


def test_nor_after_a_stop_nor_after_a_machine_that_trained() -> None:
    run, _ = settled(stopped(booting(), AT + 15), AT + 500, 400.0)
    assert run.outcome is Outcome.STOPPED
    run, _ = settled(running(), AT + 500, 400.0)
    assert run.outcome is Outcome.LOST


def test_nothing_is_rented_while_a_pod_of_the_run_still_lives() -> None:
    run, _ = settled(booting(), AT + 500, 400.0)
    run = apply(run, ev.PodNotMade(2, quoted("none left")), at=AT + 510)
    twin = the_pod(run, pod_id="id-0")
    assert run.state is State.RESERVED
    assert ask(run, AT + 520, pods=[twin]) == Decision()
    assert ask(run, AT + 520, pods=UnknownSince(AT + 520)) == Decision()
    stranger = the_pod(run, name="trmc-ffffffff-r1-g1-1790009000")
    gone = the_pod(run, status=PodStatus.GONE)
    foreign = the_pod(run, name="somebody-elses-pod")
    assert ask(run, AT + 520, pods=[foreign, stranger, gone]).events


# -- files that can never be sent ----------------------------------------------------------------


def test_what_can_never_be_sent_ends_the_run_at_once_with_its_text() -> None:
    run = running()
    waits = a_report(run, waiting="files")
    (stage,) = ask(run, AT + 30, pods=[the_pod(run)], report=waits).actions
    assert stage.verb == STAGE
    run = apply(run, ev.ActionStarted(stage.id, STAGE), at=AT + 30)
    passing = apply(run, ev.ActionFailed(stage.id, STAGE, FailureKind.ERROR, "dropped"), at=AT + 31)
    again = ask(passing, AT + 90, pods=[the_pod(run)], report=waits).actions
    assert [action.verb for action in again] == [STAGE], "what passes is tried again"
    why = "'a b.bin' cannot be sent"
    run = apply(run, ev.ActionFailed(stage.id, STAGE, FailureKind.FINAL, why), at=AT + 31)
    run, (end,) = follow(run, AT + 32, pods=[the_pod(run)], report=waits)
    assert (run.result, sentence(run.reason)) == ("failed", why), "known before its bill is"
    assert (end.verb, sentence(end.reason)) == (TERMINATE, why)
    run = apply(run, ev.ActionStarted(end.id, TERMINATE), at=AT + 32)
    run = apply(run, ev.ActionFinished(end.id, TERMINATE, reason=end.reason), at=AT + 33)
    gone = the_pod(run, status=PodStatus.GONE, ended_at=AT + 40)
    run, _ = follow(run, AT + 41, pods=[gone], bill=Bill("id-1", Usd("0.05"), final=True))
    assert run.state is State.CLOSED
    assert (run.outcome, sentence(run.reason)) == (Outcome.FAILED, why)
    assert (run.settled, run.reserved) == (Usd("0.05"), ZERO)
