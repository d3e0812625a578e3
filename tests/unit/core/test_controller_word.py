"""``decide``: what a pod's agent left in the bucket tells of a run that nobody was with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.plans import recorded
from tests.reasons import sentence
from tests.unit.core.runs import (
    AT,
    ENDED,
    a_report,
    apply,
    ask,
    booting,
    ending,
    follow,
    running,
    settling,
    the_pod,
)
from trmcloud.core.contract.pod_contract import AgentReport, PhaseReport, PhaseState
from trmcloud.core.control import events as ev
from trmcloud.core.control.observation import Bill, PodStatus
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.money import Usd
from trmcloud.core.outcome import Outcome

CRASHED = PhaseReport("extreme", state=PhaseState.ENDED, outcome="crashed", step=7)


def left_alone() -> RunState:
    run = running()
    return replace(run, recorded_plan=recorded(bucket="s3://b/p"), detached=True)


def word(run: RunState, **changes: Any) -> AgentReport:
    said = {"phases": (ENDED,), "result": "landed", "message": "the soft stop came"}
    return replace(a_report(run), **{**said, **changes})


def closed(run: RunState, **seen: Any) -> RunState:
    gone = [the_pod(run, status=PodStatus.GONE, ended_at=AT + 400)]
    bill = Bill("id-1", Usd("0.4"), final=True)
    run, _ = follow(run, AT + 50_000, pods=gone, bill=bill, **seen)
    assert run.state is State.CLOSED
    return run


def test_a_run_that_ended_with_nobody_there_is_closed_with_what_its_agent_had_said() -> None:
    run = closed(left_alone(), word=word(left_alone()))
    assert (run.outcome, sentence(run.reason)) == (Outcome.LANDED, "the soft stop came")
    assert run.phases["fast"].step == ENDED.step
    assert closed(left_alone()).outcome is Outcome.UNREPORTED


def test_a_pod_that_lives_and_is_out_of_reach_is_ended_once_its_word_says_that_it_is_done() -> None:
    run = left_alone()
    run, actions = follow(run, AT + 500, pods=[the_pod(run)], word=word(run))
    assert (run.state, run.result, actions) == (State.ENDING, "landed", ())
    _, (end,) = follow(run, AT + 561, pods=[the_pod(run)])
    assert (end.verb, sentence(end.reason)) == ("terminate", "its work is done")


def test_of_a_word_without_a_result_only_what_had_ended_well_counts() -> None:
    """What had crashed when it was stored may have been tried again."""
    seen = word(left_alone(), phases=(ENDED, CRASHED), result=None)
    run = closed(left_alone(), word=seen)
    assert run.outcome is Outcome.UNREPORTED
    assert set(run.phases) == {"fast"}
    run = closed(left_alone(), word=replace(seen, result="failed"))
    assert run.outcome is Outcome.FAILED
    assert set(run.phases) == {"fast", "extreme"}


def test_it_is_heard_even_after_the_pods_end_was_put_on_record() -> None:
    run = apply(left_alone(), ev.PodGone(1, AT + 400), at=AT + 500)
    assert run.state is State.SETTLING
    decision = ask(run, AT + 501, word=word(run))
    assert [type(event) for event in decision.events] == [ev.PhaseEnded, ev.ResultKnown]
    run = apply(run, *decision.events, at=AT + 501)
    assert ask(run, AT + 502, word=word(run)).events == ()
    assert closed(run).outcome is Outcome.LANDED


@pytest.mark.parametrize("changes", [{"pod_name": "trmc-another"}, {"run_id": "r2"}])
def test_anothers_word_is_passed_over(changes: dict[str, str]) -> None:
    run = left_alone()
    assert closed(run, word=word(run, **changes)).outcome is Outcome.UNREPORTED


def test_a_word_no_version_of_ours_would_leave_is_a_failure() -> None:
    run = closed(left_alone(), word=word(left_alone(), result="won"))
    assert run.outcome is Outcome.FAILED


def test_the_agent_itself_is_believed_before_what_it_left() -> None:
    run = left_alone()
    report, pods = a_report(run), [the_pod(run)]
    assert ask(run, AT + 500, pods=pods, report=report, word=word(run)).events == ()


def test_a_result_that_is_known_stays() -> None:
    for run in (ending(), settling()):
        decision = ask(run, AT + 530, pods=[the_pod(run)], word=word(run))
        assert not any(isinstance(event, ev.ResultKnown) for event in decision.events)


def test_a_pod_that_never_spoke_left_nothing() -> None:
    run = booting()
    assert ask(run, AT + 30, pods=[the_pod(run)], word=word(run)).events == ()
