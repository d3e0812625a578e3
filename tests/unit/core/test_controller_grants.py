"""``decide``: when an agent that uploads for itself is given the right to, and again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.core.runs import (
    AT,
    FIRST,
    PLAN,
    SECOND,
    StubPlan,
    StubSpec,
    a_report,
    apply,
    ask,
    ending,
    reserved,
    running,
    stopped,
    the_pod,
)
from trmcloud.core.clock import Unknown
from trmcloud.core.contract.bucket import RENEW_BEFORE_S
from trmcloud.core.control import events as ev
from trmcloud.core.control.action_key import FailureKind
from trmcloud.core.control.actions import LAND
from trmcloud.core.control.run_state import GRANT, STAGE, RunState

UPLOADS = StubPlan((FIRST, SECOND), StubSpec(volume=False, pod_uploads=True))
FIRST_GRANT, SECOND_GRANT = (GRANT, "r1/g1/grant/1"), (GRANT, "r1/g1/grant/2")


def actions(
    run: RunState, now: float, *, plan: StubPlan = UPLOADS, **seen: Any
) -> list[tuple[str, str]]:
    report = a_report(run, **seen.pop("report", {}))
    decision = ask(run, now, pods=[the_pod(run)], report=report, plan=plan, **seen)
    assert decision.events == ()
    return [(action.verb, action.id) for action in decision.actions]


def given(run: RunState, at: float) -> RunState:
    started = ev.ActionStarted(FIRST_GRANT[1], GRANT)
    return apply(run, started, ev.ActionFinished(FIRST_GRANT[1], GRANT), at=at)


@pytest.mark.parametrize("waiting", ["", "grants"])
def test_an_agent_without_the_right_is_given_it(waiting: str) -> None:
    assert actions(running(), AT + 30, report={"waiting": waiting}) == [FIRST_GRANT]
    assert actions(running(), AT + 30, report={"waiting": waiting}, plan=PLAN) == []


def test_one_that_is_not_so_far_waits_for_other_things() -> None:
    assert actions(running(), AT + 30, report={"waiting": "checking"}) == []
    assert actions(running(), AT + 30, report={"waiting": "files"}) == [(STAGE, "r1/g1/stage/1")]


def test_what_is_being_given_is_not_given_twice() -> None:
    assert actions(running(), AT + 30, in_flight=frozenset({FIRST_GRANT[1]})) == [FIRST_GRANT]
    run = apply(running(), ev.ActionStarted(FIRST_GRANT[1], GRANT), at=AT + 25)
    assert actions(run, AT + 900, in_flight=frozenset({FIRST_GRANT[1]})) == []


def test_given_once_it_is_given_again_only_to_one_that_lost_it() -> None:
    """Its report must be half a minute younger than what it was sent; or that is minutes ago, where
    its clock is behind."""
    run = given(running(), AT + 60)
    for at in (AT + 59, AT + 90):
        assert actions(run, AT + 200, report={"at": at}) == []
    assert actions(run, AT + 200, report={"at": AT + 90.5}) == [SECOND_GRANT]
    assert actions(run, AT + 211, report={"at": AT - 3600}) == [SECOND_GRANT]


def test_what_could_not_be_given_is_tried_again() -> None:
    failed = ev.ActionFailed(FIRST_GRANT[1], GRANT, FailureKind.ERROR, "the bucket is away")
    run = apply(running(), ev.ActionStarted(FIRST_GRANT[1], GRANT), failed, at=AT + 60)
    assert actions(run, AT + 61) == []
    assert actions(run, AT + 63) == [SECOND_GRANT]


def test_it_is_renewed_before_it_ends() -> None:
    run, now = given(running(), AT + 30), AT + 1000
    far = replace(run.generations[0], hard_stop_at=AT + 20_000)
    run = replace(run, generations=(far,))
    enough = {"at": now, "granted_until": now + RENEW_BEFORE_S}
    assert actions(run, now, report=enough) == []
    assert actions(run, now + 0.5, report=enough) == [SECOND_GRANT]


def test_one_that_lasts_until_the_hard_stop_is_enough() -> None:
    run = given(running(), AT + 30)
    hard_stop_at = a_report(run).hard_stop_at
    now = hard_stop_at - 30
    assert actions(run, now, report={"at": now, "granted_until": hard_stop_at}) == []
    short = {"at": now, "granted_until": hard_stop_at - 0.5}
    assert actions(run, now, report=short) == [SECOND_GRANT]


def test_a_run_that_shall_stop_gets_no_first_one_and_keeps_what_it_has() -> None:
    run = stopped(running(), AT + 40)
    assert actions(run, AT + 41) == [(LAND, "r1/g1/land/1")]
    run = stopped(given(running(), AT + 30), AT + 40)
    soon = {"at": AT + 90, "granted_until": AT + 95}
    assert actions(run, AT + 90, report=soon) == [(LAND, "r1/g1/land/1"), SECOND_GRANT]


def test_one_whose_work_is_done_needs_none() -> None:
    assert actions(ending(), AT + 510, report={"result": "finished"}) == []


def test_a_run_that_never_rented_asks_for_no_list_first() -> None:
    (intent,) = ask(reserved(), AT, pods=Unknown(AT)).events
    assert isinstance(intent, ev.PodIntended)
