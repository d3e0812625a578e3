"""What a machine had said before it went, read from what it left: it says how the run had ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from tests.plans import errand_json, recorded
from tests.reasons import quoted, sentence
from tests.unit.core.runs import AT, PLAN, a_report, apply, booting, running
from tests.unit.core.test_controller_errands import settled
from trmcloud.core.contract.pod_contract import Orders, PhaseReport, PhaseState
from trmcloud.core.control import events as ev
from trmcloud.core.control.reason import ReasonKind, because
from trmcloud.core.control.report_events import (
    finished_on,
    late_report,
    orders_for,
    result_of,
    unreported,
)
from trmcloud.core.control.run_state import IllegalTransition, RunState, State
from trmcloud.core.money import Usd
from trmcloud.core.outcome import Outcome
from trmcloud.core.spec.plan import Plan

DONE = PhaseReport("fast", state=PhaseState.ENDED, outcome="finished", step=120, val_bpb=1.9)


def on_volume() -> RunState:
    """A run whose machine ended by itself while nobody looked."""
    run = running()
    run = replace(run, recorded_plan=recorded(volume=True))
    run, _ = settled(run, AT + 500, 400.0)
    return run


def on_errand(run: RunState) -> RunState:
    run = apply(run, ev.Reopened(Usd(20), errand_json()), ev.Reserved(Usd(1)), at=AT + 600)
    intent = ev.PodIntended(2, "trmc-2", "runpod", "fetch1", Usd("0.4"), AT + 900, AT + 1000)
    return apply(run, intent, ev.PodUp(2, "id-2", Usd("0.4")), ev.AgentUp(2), at=AT + 610)


def said(run: RunState, **changes: Any) -> tuple[ev.RunEvent, ...]:
    earlier = run.generations[0]
    report = replace(a_report(running()), phases=(DONE,), result="finished", **changes)
    return late_report(run, cast(Plan, PLAN), earlier, report)


def test_what_ended_before_it_reported_is_not_called_lost() -> None:
    run = on_volume()
    assert (run.state, run.outcome) == (State.CLOSED, Outcome.UNREPORTED)
    assert "fetch-best" in sentence(run.reason)


def test_what_never_spoke_is_lost_even_with_a_volume() -> None:
    run = booting()
    run = replace(run, recorded_plan=recorded(volume=True))
    run, _ = settled(run, AT + 3000, 2960.0)
    assert run.outcome is Outcome.LOST


def test_the_errand_hears_it() -> None:
    run = on_errand(on_volume())
    earlier = unreported(run)
    assert earlier is not None
    assert earlier.number == 1
    events = said(run, message="all steps done")
    assert [type(event) for event in events] == [ev.PhaseEnded, ev.LateReport]
    run = apply(run, *events, at=AT + 620)
    assert unreported(run) is None
    closed = apply(run, ev.ResultKnown("landed"), ev.PodGone(2, AT + 700), at=AT + 700)
    closed = apply(closed, ev.Settled(2, Usd("0.1"), Usd("0.1")), ev.Closed("landed"), at=AT + 700)
    assert (closed.outcome, sentence(closed.reason)) == (Outcome.FINISHED, "all steps done")
    assert closed.phases["fast"].step == 120


@pytest.mark.parametrize(
    "changes", [{"pod_name": "trmc-other"}, {"run_id": "r2"}, {"result": None}], ids=str
)
def test_words_of_another_or_of_nobody_are_passed_over(changes: dict[str, Any]) -> None:
    run = on_errand(on_volume())
    report = replace(a_report(running()), **{"phases": (DONE,), "result": "finished", **changes})
    assert late_report(run, cast(Plan, PLAN), run.generations[0], report) == ()


def test_nothing_is_heard_beside_an_errand() -> None:
    with pytest.raises(IllegalTransition):
        apply(running(), ev.LateReport(1, "finished"), at=AT + 60)
    assert unreported(running()) is None
    finished = replace(on_errand(on_volume()), kept_outcome=Outcome.FINISHED)
    assert unreported(finished) is None, "how it ended is known"


def ended(phase: str, outcome: str = "finished", generation: int = 1) -> ev.PhaseEnded:
    return ev.PhaseEnded(generation, phase, outcome, 9, 1.5, {})


def test_what_a_pod_has_finished_is_told_to_it_once_it_has_lost_its_disk() -> None:
    run = apply(running(), ended("fast"), ended("extreme", "landed_signal"), at=AT + 90)
    (generation,) = run.generations
    assert finished_on(run, generation) == ("fast",)
    assert finished_on(run, replace(generation, number=2)) == ()
    passed = apply(run, ev.GateJudged(1, "fast", True, {}), at=AT + 91)
    assert finished_on(passed, generation) == ("fast",)
    failed = apply(run, ev.GateJudged(1, "fast", False, {}), at=AT + 91)
    assert finished_on(failed, generation) == ()
    earlier = replace(failed, gates={"fast": replace(failed.gates["fast"], generation=0)})
    assert finished_on(earlier, generation) == ("fast",)


def test_an_order_replaces_the_one_before_and_says_all_of_it() -> None:
    run = apply(running(), ended("fast"), at=AT + 90)
    (generation,) = run.generations
    assert orders_for(run, generation, 3) == Orders(epoch=3, finished=("fast",))
    run = apply(run, ev.SaveRequested(1, "user"), at=AT + 91)
    (generation,) = run.generations
    assert orders_for(run, generation, 3) == Orders(epoch=3, finished=("fast",), save=1)
    run = apply(run, ev.StopRequested("user", quoted("enough")), at=AT + 92)
    expected = Orders(epoch=3, land=True, finished=("fast",), save=1)
    assert orders_for(run, generation, 3) == expected


@pytest.mark.parametrize(
    ("message", "more"),
    [
        ("", None),
        ("trmcloud stop", None),  # told by an earlier version, it says the sentence back
        ("not everything could be uploaded", "not everything could be uploaded"),
    ],
)
def test_why_a_run_was_stopped_is_what_the_ledger_says(message: str, more: str | None) -> None:
    why = quoted("trmcloud stop")
    run = apply(running(), ev.StopRequested("user", why), at=AT + 60)
    known = result_of(run, "stopped", message)
    added = because(ReasonKind.AGENT_SAID, text=more) if more is not None else None
    assert known == ev.ResultKnown("stopped", replace(why, more=added))
