"""A run that makes no step is ended by what its pod says, whoever looks at it and however often."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.core.runs import AT, running
from trmcloud.core.contract.command import Command
from trmcloud.core.contract.pod_contract import (
    GPU_NOTE,
    AgentReport,
    GpuCounters,
    GpuWindow,
    PhaseReport,
    PhaseState,
)
from trmcloud.core.control import events as ev
from trmcloud.core.control.budget import LedgerState
from trmcloud.core.control.idle import SeenProgress, idle_limit_s, progress_of, why_idle
from trmcloud.core.control.ledger_facts import Grant
from trmcloud.core.control.reason import ReasonKind, make_reason
from trmcloud.core.control.run_state import Payer, RunState
from trmcloud.core.errors import UsageError
from trmcloud.core.money import Usd
from trmcloud.core.spec.plan import RecordedPlan, plan_to_json
from trmcloud.core.spec.spec import parse_idle
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


def a_command(idle_s: float = 0.0) -> RunState:
    """A running command."""
    run = running()
    spec = replace_value(run.spec, command=Command(("python", "train.py")), idle_s=idle_s)
    plan = replace_value(run.plan, spec=spec)
    return replace_value(run, recorded_plan=RecordedPlan(plan_to_json(plan)))


def with_gpus(at: float, idle_s: float | None, **phase: Any) -> AgentReport:
    """A simulated report of a machine whose one GPU has computed nothing for ``idle_s``."""
    window = GpuWindow(40, 585.0, (GpuCounters(0.0, 900.0, 81_559.0, 210.0),), idle_s)
    return replace(a_report(at, **phase), notes={GPU_NOTE: window.to_text()})


@pytest.mark.parametrize(
    ("idle_s", "ends"), [(LIMIT_S, True), (LIMIT_S - 1, False), (None, False), (0.0, False)]
)
def test_a_command_without_steps_is_judged_by_its_gpus(idle_s: float | None, ends: bool) -> None:
    late = with_gpus(AT + 9000, idle_s, step=None)
    why = why_idle(a_command(), seen_since(a_report(AT, step=None), late), late, LIMIT_S)
    if ends:
        assert why == make_reason(ReasonKind.GPUS_IDLE, idle_s=LIMIT_S, limit_s=LIMIT_S)
    else:
        assert why is None


def test_without_gpus_a_command_without_steps_is_left_to_its_own_rule() -> None:
    first, late = a_report(AT, step=None), a_report(AT + 9000, step=None)
    assert why_idle(a_command(), seen_since(first, late), late, LIMIT_S) is None
    odd = replace(late, notes={GPU_NOTE: '{"samples": 9, "over_s": 1, "gpus": [[0, 1, 2, 3]], '
                                         '"idle_s": "long"}'})  # fmt: skip
    assert why_idle(a_command(), seen_since(first, odd), odd, LIMIT_S) is None


def test_a_command_with_steps_is_judged_by_them_whatever_its_gpus_do() -> None:
    first, late = a_report(AT), with_gpus(AT + LIMIT_S, 0.0)
    why = why_idle(a_command(), seen_since(first, late), late, LIMIT_S)
    assert why == make_reason(ReasonKind.IDLE, idle_s=LIMIT_S, limit_s=LIMIT_S)
    steps = with_gpus(AT + LIMIT_S, 9 * LIMIT_S, step=11)
    assert why_idle(a_command(), seen_since(first, steps), steps, LIMIT_S) is None


def test_a_plan_has_a_limit_of_its_own_and_the_shorter_one_counts() -> None:
    ledger = LedgerState("abcd1234")
    assert idle_limit_s(ledger, a_command(1200.0)) == 1200.0
    grant = Grant("agent", 2, ev.GrantTerms(Usd(1), idle_s=LIMIT_S), AT)
    granted = LedgerState("abcd1234", grants={"agent": grant})
    for of_plan_s, limit_s in ((1200.0, LIMIT_S), (60.0, 60.0), (0.0, LIMIT_S)):
        mine = replace_value(a_command(of_plan_s), payer=Payer("agent", 2))
        assert idle_limit_s(granted, mine) == limit_s
    assert idle_limit_s(granted, replace_value(mine, payer=Payer("agent", 1))) == 0.0
    assert idle_limit_s(granted, RunState("r1")) == 0.0


@pytest.mark.parametrize(("text", "idle_s"), [("30m", 1800.0), ("2h", 7200.0), ("0", 0.0)])
def test_a_limit_is_typed_as_a_duration(text: str, idle_s: float) -> None:
    assert parse_idle("--idle", text) == idle_s


@pytest.mark.parametrize("text", ["", "30", "5s", "-1m", "0m", "nan h", "99999h", "infm"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--idle"):
        parse_idle("--idle", text)
