"""A run that makes no step is ended by what its pod says, whoever looks at it and however often."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.core.runs import AT, running
from trmcloud.core.contract.pod_contract import AgentReport, PhaseReport, PhaseState
from trmcloud.core.control import events as ev
from trmcloud.core.control.budget import LedgerState
from trmcloud.core.control.idle import SeenProgress, idle_limit_s, progress_of, why_idle
from trmcloud.core.control.ledger_facts import Grant
from trmcloud.core.control.reason import ReasonKind, make_reason
from trmcloud.core.control.run_state import RunState
from trmcloud.core.money import Usd
from trmcloud.core.values import replace as replace_value

LIMIT_S = 600.0


def a_report(at: float, **phase: Any) -> AgentReport:
    told = PhaseReport("fast", PhaseState.RUNNING, started_at=AT, step=10, attempts=1)
    return AgentReport(
        run_id="r1", pod_name="pod", epoch=1, pid=1, started_at=AT, at=at,
        phases=(replace_value(told, **phase),), soft_stop_at=AT + 9e4, hard_stop_at=AT + 1e5,
    )  # fmt: skip


def seen_since(first: AgentReport, *later: AgentReport) -> SeenProgress:
    progress = progress_of(None, first)
    for report in later:
        progress = progress_of(progress, report)
    return progress


def test_a_run_without_a_step_for_so_long_is_ended_and_not_before() -> None:
    run, first = running(), a_report(AT)
    for passed_s, ends in ((0, False), (LIMIT_S - 1, False), (LIMIT_S, True)):
        report = a_report(AT + passed_s)
        why = why_idle(run, seen_since(first, report), report, LIMIT_S)
        assert (why is not None) is ends
    assert why == make_reason(ReasonKind.IDLE, idle_s=LIMIT_S, limit_s=LIMIT_S)


@pytest.mark.parametrize(
    "new",
    [{"step": 11}, {"saved_step": 10}, {"attempts": 2}, {"val_bpb": 1.0}, {"name": "extreme"}],
)
def test_whatever_is_new_counts_as_progress(new: dict[str, Any]) -> None:
    report = a_report(AT + 590, **new)
    progress = seen_since(a_report(AT), report)
    assert progress.since == AT + 590
    late = a_report(AT + 1100, **new)
    assert why_idle(running(), progress_of(progress, late), late, LIMIT_S) is None


def test_another_machine_begins_anew() -> None:
    other = replace(a_report(AT + 5000), pod_name="pod-2")
    assert seen_since(a_report(AT), other).since == AT + 5000


def test_a_pod_that_waits_for_files_that_never_come_is_idle_too() -> None:
    waiting = {"state": PhaseState.WAITING, "step": None, "attempts": 0, "started_at": None}
    first = replace(a_report(AT, **waiting), waiting="files and grants")
    late = replace(a_report(AT + LIMIT_S, **waiting), waiting="files and grants")
    assert why_idle(running(), seen_since(first, late), late, LIMIT_S) is not None


def test_what_lands_was_told_to_or_has_no_limit_is_left_alone() -> None:
    run, late = running(), a_report(AT + LIMIT_S)
    progress = seen_since(a_report(AT), late)
    assert why_idle(run, progress, late, 0.0) is None
    assert why_idle(run, progress, replace(late, landing=True), LIMIT_S) is None
    told = ev.StopRequested("user", make_reason(ReasonKind.STOP_COMMAND))
    assert why_idle(replace_value(run, stop=told), progress, late, LIMIT_S) is None


def test_the_limit_is_that_of_the_grant_that_pays() -> None:
    grant = Grant("agent", 2, ev.GrantTerms(Usd(1), idle_s=LIMIT_S), AT)
    ledger = LedgerState("abcd1234", grants={"agent": grant})
    mine = RunState("r1", principal="agent", grant=2)
    assert idle_limit_s(ledger, mine) == LIMIT_S
    assert idle_limit_s(ledger, replace_value(mine, grant=1)) == 0.0
    assert idle_limit_s(ledger, RunState("r1")) == 0.0
