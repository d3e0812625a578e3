"""``decide`` at its edges: lists that lag, boundaries of time and money, a run's second pod."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from tests.reasons import sentence
from tests.unit.core.phases import PASSED
from tests.unit.core.runs import (
    AT,
    ENDED,
    FIRST,
    RESERVATION,
    TRAITS,
    StubCandidate,
    StubPlan,
    a_report,
    apply,
    ask,
    booting,
    created,
    ending,
    failed,
    follow,
    renting,
    reserved,
    running,
    settling,
    stopped,
    the_pod,
)
from trmcloud.core.clock import Unknown
from trmcloud.core.contract.pod_contract import PhaseReport, PhaseState
from trmcloud.core.control import events as ev
from trmcloud.core.control.action_key import FailureKind
from trmcloud.core.control.actions import CREATE, TERMINATE, Decision
from trmcloud.core.control.observation import Bill, PodStatus
from trmcloud.core.control.renting import hard_stop_within
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.outcome import Outcome
from trmcloud.core.spec.plan import Candidate

LAGGING = replace(TRAITS, absent_s=300.0)
ALONE = StubPlan((FIRST,))


def as_candidate(**changes: object) -> Candidate:
    return cast(Candidate, replace(FIRST, **changes))  # type: ignore[arg-type]


def second_running() -> RunState:
    """A run whose first pod has been settled, and whose second one trains."""
    run = apply(settling(), ev.GateJudged(1, "fast", False, {"passed": False}), at=AT + 590)
    run, _ = follow(run, AT + 600, bill=Bill("id-1", Usd("0.5"), final=True))
    run = apply(run, ev.Reopened(Usd(10)), ev.Reserved(Usd("9.5")), at=AT + 700)
    run, _ = follow(run, AT + 700)
    run = created(run, AT + 701)
    run, _ = follow(run, AT + 710, pods=[the_pod(run)])
    run, _ = follow(run, AT + 720, pods=[the_pod(run)], report=a_report(run))
    assert run.state is State.RUNNING
    return run


# -- what may be rented ------------------------------------------------------------------------


def test_where_the_only_candidate_refuses_its_own_words_are_kept() -> None:
    run, _ = follow(failed("refused"), AT + 1, plan=ALONE)
    assert (run.outcome, sentence(run.reason)) == (Outcome.NOT_STARTED, "it said refused")


def test_a_reopened_run_with_nothing_to_rent_closes_without_a_reason() -> None:
    run, _ = follow(settling(), AT + 600, bill=Bill("id-1", Usd("0.5"), final=True))
    run = apply(run, ev.Reopened(Usd(10)), ev.Reserved(Usd(9)), at=AT + 700)
    assert ask(run, AT + 700, plan=StubPlan(())).events == (ev.Closed("not_started", None),)


def test_storage_is_paid_from_the_reservation_before_any_time_is_bought() -> None:
    stop_s = hard_stop_within(as_candidate(storage=Usd("0.3")), reserved(), TRAITS)
    assert stop_s == pytest.approx(2700.0)


def test_a_free_machine_that_was_paid_for_before_is_bound_by_the_plans_own_stop() -> None:
    spent = replace(reserved(ZERO), settled=Usd(1))
    assert hard_stop_within(as_candidate(rate=ZERO), spent, TRAITS) == 3000.0


@pytest.mark.parametrize("settled", [ZERO, Usd(1)])
def test_less_money_than_a_kill_costs_buys_no_time_at_all(settled: Usd) -> None:
    poor = replace(reserved(Usd("0.01")), settled=settled)
    assert hard_stop_within(as_candidate(), poor, TRAITS) == 0.0


@pytest.mark.parametrize(("landing_s", "soft_stop_s"), [(999.0, 2001.0), (998.5, 2000.0)])
def test_more_than_a_second_between_the_stops_is_a_limit(
    landing_s: float, soft_stop_s: float
) -> None:
    candidate = replace(FIRST, soft_stop_s=2000.0, landing_s=landing_s)
    (intent,) = ask(reserved(), AT, plan=StubPlan((candidate,))).events
    assert isinstance(intent, ev.PodIntended)
    assert intent.soft_stop_at - AT == soft_stop_s


def test_a_run_that_was_reopened_and_reserved_nothing_closes_again() -> None:
    """Whatever became of its last generation: this one was never made."""
    run, _ = follow(failed("refused"), AT + 1, plan=ALONE)
    run = apply(run, ev.Reopened(Usd(10)), at=AT + 700)
    assert run.state is State.SETTLED
    run, actions = follow(run, AT + 700)
    assert (run.state, actions) == (State.CLOSED, ())


# -- waiting for a pod -------------------------------------------------------------------------


def test_the_wait_counts_from_the_answer_and_not_from_the_question() -> None:
    run = apply(renting(), ev.ActionStarted("r1/g1/create/1", CREATE), at=AT)
    run = apply(
        run, ev.ActionFailed("r1/g1/create/1", CREATE, FailureKind.AMBIGUOUS, "?"), at=AT + 100
    )
    assert ask(run, AT + 699, absent_lists=9) == Decision()
    assert ask(run, AT + 700, absent_lists=9) != Decision()


def test_an_ambiguous_answer_is_the_reason_why_nothing_was_made() -> None:
    run, _ = follow(failed("ambiguous"), AT + 600, absent_lists=3)
    assert sentence(run.generations[0].not_made) == "it said ambiguous"


def test_a_bill_for_a_pod_that_nobody_saw_is_a_pod() -> None:
    run = failed("ambiguous")
    never = ask(run, AT + 600, absent_lists=3, bill=Bill("id-9", ZERO, final=False))
    assert [type(event) for event in never.events] == [ev.PodNotMade]
    billed = ask(run, AT + 600, absent_lists=3, bill=Bill("id-9", Usd("0.1"), final=False))
    assert billed.events == (ev.PodUp(1, "id-9", FIRST.rate),)
    assert run.reserved == RESERVATION


def test_of_two_pods_that_are_gone_the_first_is_taken() -> None:
    run = failed("ambiguous")
    both = [the_pod(run, pod_id=name, status=PodStatus.GONE) for name in ("id-1", "id-2")]
    (event,) = ask(run, AT + 5, pods=both).events
    assert isinstance(event, ev.PodUp)
    assert event.pod_id == "id-1"


# -- lists that lag: absence must last ---------------------------------------------------------


def test_where_lists_lag_a_pod_is_given_up_only_when_it_has_been_missing_for_long() -> None:
    run = created()
    for now in (AT + 5, AT + 599):
        assert ask(run, now, absent_lists=99, traits=LAGGING) == Decision(), "it may still appear"
    asking = frozenset({"r1/g1/create/1"})
    assert ask(run, AT + 600, traits=LAGGING, in_flight=asking) == Decision()
    assert ask(run, AT + 600, pods=Unknown(AT), traits=LAGGING) == Decision()
    decision = ask(run, AT + 600, absent_lists=99, traits=LAGGING)
    assert decision == Decision(events=(ev.PodMissed(1),))
    run = apply(run, *decision.events, at=AT + 600)
    assert ask(run, AT + 899, absent_lists=99, traits=LAGGING) == Decision()
    unknown = ask(run, AT + 900, absent_lists=99, unbilled=False, traits=LAGGING)
    assert unknown == Decision(), "a bill that cannot be asked for is not one of nothing"
    run, actions = follow(run, AT + 900, absent_lists=1, traits=LAGGING)
    assert sentence(run.generations[0].not_made) == "it never appeared"
    assert [a.id for a in actions] == ["r1/g2/create/1"]


def test_a_deletion_that_was_taken_needs_less_of_an_absence() -> None:
    traits = replace(LAGGING, absent_deleted_s=30.0)
    for taken, wait_s in ((True, 30.0), (False, 300.0)):
        run = apply(running(), ev.ActionStarted("r1/g1/terminate/1", TERMINATE), at=AT + 90)
        done = ev.ActionFinished("r1/g1/terminate/1", TERMINATE, taken=taken)
        run = apply(run, done, ev.PodMissed(1), at=AT + 100)
        early = ask(run, AT + 99 + wait_s, absent_lists=9, traits=traits)
        assert all(not isinstance(event, ev.PodGone) for event in early.events)
        late = ask(run, AT + 100 + wait_s, absent_lists=9, traits=traits)
        assert late.events == (ev.PodGone(1, AT + 100),)


def test_where_lists_lag_a_pod_is_gone_since_it_was_first_missed() -> None:
    run = running()
    assert ask(run, AT + 90, pods=[the_pod(run)], traits=LAGGING) == Decision()
    assert ask(run, AT + 99, pods=Unknown(AT + 99), traits=LAGGING) == Decision()
    decision = ask(run, AT + 100, absent_lists=99, traits=LAGGING)
    assert decision == Decision(events=(ev.PodMissed(1),))
    run = apply(run, *decision.events, at=AT + 100)
    for now in (AT + 100, AT + 399):
        assert ask(run, now, absent_lists=99, traits=LAGGING) == Decision()
    assert ask(run, AT + 900, pods=Unknown(AT), traits=LAGGING) == Decision(), "no list, no proof"
    decision = ask(run, AT + 400, absent_lists=1, traits=LAGGING)
    assert decision.events == (ev.PodGone(1, AT + 100),)


def test_a_list_that_flickers_proves_nothing() -> None:
    run = apply(running(), ev.PodMissed(1), at=AT + 100)
    decision = ask(run, AT + 399, pods=[the_pod(run)], traits=LAGGING)
    assert decision == Decision(events=(ev.PodFound(1),))
    run = apply(run, *decision.events, at=AT + 399)
    assert ask(run, AT + 399, pods=[the_pod(run)], traits=LAGGING) == Decision()
    run, actions = follow(run, AT + 500, traits=LAGGING)
    assert run.generation is not None
    assert (run.generation.missed_at, run.state) == (AT + 500, State.RUNNING)
    assert actions == ()


def test_where_lists_do_not_lag_nothing_is_noted() -> None:
    assert ask(running(), AT + 100, absent_lists=1) == Decision()


def test_a_missed_pod_is_still_ended_at_its_hard_stop() -> None:
    """It may be there all the same, and its rent runs."""
    run = apply(running(), ev.PodMissed(1), at=AT + 2999)
    (action,) = ask(run, AT + 3000, traits=LAGGING).actions
    assert (action.verb, sentence(action.reason)) == (TERMINATE, "hard stop")


# -- accounts of phases ------------------------------------------------------------------------


def test_a_phase_that_ended_cleanly_is_accounted_for_while_the_next_one_runs() -> None:
    run = running()
    report = a_report(run, phases=(ENDED, PhaseReport("extreme", state=PhaseState.RUNNING)))
    run, _ = follow(run, AT + 400, pods=[the_pod(run)], report=report)
    assert run.state is State.RUNNING
    assert list(run.phases) == ["fast"]


@pytest.mark.parametrize("state", [PhaseState.WAITING, PhaseState.RUNNING])
def test_a_phase_that_never_ended_has_no_account(state: PhaseState) -> None:
    run = running()
    phases = (PhaseReport("fast", state=state, outcome="finished"),)
    run, _ = follow(run, AT + 400, pods=[the_pod(run)], report=a_report(run, phases=phases))
    report = a_report(run, phases=phases, result="stopped")
    run, _ = follow(run, AT + 401, pods=[the_pod(run)], report=report)
    assert (run.state, run.phase_accounts) == (State.ENDING, ())


def test_a_phase_that_ended_without_a_word_was_lost() -> None:
    run = running()
    report = a_report(run, phases=(replace(ENDED, outcome=None),), result="failed")
    run, _ = follow(run, AT + 400, pods=[the_pod(run)], report=report)
    assert run.phases["fast"].outcome == "lost"


def test_the_second_pods_gate_is_judged_anew() -> None:
    run = second_running()
    assert run.gates["fast"].passed is False
    report = a_report(run, phases=(replace(ENDED, gate=PASSED),))
    run, _ = follow(run, AT + 800, pods=[the_pod(run)], report=report)
    assert (run.gates["fast"].generation, run.gates["fast"].passed) == (2, True)
    assert [account.generation for account in run.phase_accounts] == [1, 2]
    assert ask(run, AT + 801, pods=[the_pod(run)], report=report) == Decision(), "and once"


# -- ending ------------------------------------------------------------------------------------


def test_a_pod_that_ends_is_not_told_to_land() -> None:
    run = stopped(ending(), AT + 505)
    assert ask(run, AT + 510, pods=[the_pod(run)]) == Decision()


def test_a_pod_that_has_landed_late_keeps_its_grace() -> None:
    """Told at 100 s, its patience ends at 260 s; what it said at 250 s counts from then."""
    run = stopped(running(), AT + 100)
    report = a_report(run, phases=(ENDED,), result="stopped")
    run, _ = follow(run, AT + 250, pods=[the_pod(run)], report=report)
    assert ask(run, AT + 270, pods=[the_pod(run)], report=report) == Decision()
    (action,) = ask(run, AT + 310, pods=[the_pod(run)], report=report).actions
    assert sentence(action.reason) == "its work is done"


def test_a_strange_result_is_quoted_up_to_eighty_characters() -> None:
    run = running()
    report = a_report(run, result="x" * 100, message="why")
    run, _ = follow(run, AT + 100, pods=[the_pod(run)], report=report)
    assert sentence(run.reason) == f"its agent ended with '{'x' * 80}': why"


def test_a_run_without_a_generation_in_the_middle_of_its_life_is_an_error() -> None:
    with pytest.raises(ValueError, match="r1 has no generation in state running"):
        ask(RunState("r1", state=State.RUNNING), AT)


@pytest.mark.parametrize(
    ("asked", "stands", "ended"),
    [
        ("EU-RO-1", "US-KS-2", True),
        ("EU-RO-1", "EU-RO-1", False),
        ("eu-ro-1", "EU-RO-1", False),
        ("EU-RO-1", "", False),
        ("any", "US-KS-2", False),
        ("", "US-KS-2", False),
    ],
)
def test_a_pod_that_stands_elsewhere_than_asked_is_ended(
    asked: str, stands: str, ended: bool
) -> None:
    run = booting()
    plan = StubPlan((cast(StubCandidate, as_candidate(region=asked)),))
    decision = ask(run, AT + 60, plan=plan, pods=[the_pod(run, region=stands)])
    assert [a.verb for a in decision.actions] == ([TERMINATE] if ended else [])
    if ended:
        assert (
            sentence(decision.actions[0].reason)
            == "it stands in US-KS-2, and EU-RO-1 was asked for"
        )


def test_what_is_billed_is_what_the_list_says_now() -> None:
    run = booting()
    (action,) = ask(run, AT + 60, pods=[the_pod(run, rate=Usd(9))]).actions
    assert (action.verb, "billed $9.00/h" in sentence(action.reason)) == (TERMINATE, True)
    dear = replace(run.generations[0], billed_rate=Usd(9))
    unseen = replace(run, generations=(dear,))
    assert ask(unseen, AT + 60, pods=[the_pod(run)]) == Decision(), "it has come down since"
    (action,) = ask(unseen, AT + 60, pods=Unknown(AT)).actions
    assert action.verb == TERMINATE, "while there is no list, what was seen last counts"
