"""Control's decisions on a board that is not the planned one."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from tests.present import only, present
from tests.unit.core.runs import (
    AT,
    FIRST,
    SECOND,
    StubCandidate,
    StubPlan,
    StubSpec,
    apply,
    ask,
    follow,
    running,
    the_pod,
)
from trmcloud.core.contract.boards import BOARD_NOTE, BoardSeen
from trmcloud.core.contract.pod_contract import AgentReport, PhaseReport, PhaseState
from trmcloud.core.control import events as ev
from trmcloud.core.control.actions import TERMINATE
from trmcloud.core.control.boards import board_events, slower_boards
from trmcloud.core.control.observation import PodStatus
from trmcloud.core.control.reason import Reason, ReasonKind, make_reason
from trmcloud.core.control.run_state import Errand, RunState, State
from trmcloud.core.money import Usd
from trmcloud.core.spec.plan import Candidate, Interval, Plan
from trmcloud.core.spec.spec import RunSpec
from trmcloud.operations.pod_request import pod_check
from trmcloud.pod.machine.hardware import load_check

PCIE = BoardSeen("NVIDIA H100 PCIe", 350.0, 0, "570.133.20")
SXM = BoardSeen("NVIDIA H100 80GB HBM3", 700.0, 18, "570.133.20")


@dataclass(frozen=True)
class TimedPhase:
    name: str
    seconds: Interval


@dataclass(frozen=True)
class BoardCandidate(StubCandidate):
    sku: str = "H100-SXM"
    gpus: int = 1
    within_budget: bool = True
    phases: tuple[Any, ...] = (TimedPhase("fast", Interval(900.0, 1000.0, 1500.0)),)


@dataclass(frozen=True)
class BoardSpec(StubSpec):
    fills: bool = False


def plan_for(**changes: Any) -> StubPlan:
    spec = BoardSpec(**{key: changes.pop(key) for key in ("fills",) if key in changes})
    first = BoardCandidate(**{**vars(FIRST), "phases": BoardCandidate.phases, **changes})
    second = BoardCandidate(**{**vars(SECOND), "phases": BoardCandidate.phases})
    return StubPlan((first, second), spec)


def report_of(run: RunState, seen: BoardSeen | None, *, attempts: int = 0) -> AgentReport:
    state = PhaseState.RUNNING if attempts else PhaseState.WAITING
    return AgentReport(
        run_id="r1", pod_name=run.generations[-1].pod_name, epoch=1, pid=1, started_at=AT, at=AT,
        phases=(PhaseReport("fast", state, attempts=attempts),), soft_stop_at=AT + 1,
        hard_stop_at=AT + 2, notes={BOARD_NOTE: seen.to_text()} if seen is not None else {},
    )  # fmt: skip


def events_of(plan: StubPlan, seen: BoardSeen | None, *, attempts: int = 0) -> Any:
    run = running()
    pod = the_pod(run)
    report = report_of(run, seen, attempts=attempts)
    decision = ask(run, AT + 100, pods=[pod], report=report, plan=plan)
    return tuple(e for e in decision.events if isinstance(e, ev.BoardFound | ev.ResultKnown))


def wrong(found: str = "H100 PCIe", said: Reason | None = None) -> Reason:
    return make_reason(ReasonKind.WRONG_BOARD, said, planned="H100 SXM", found=found)


def test_the_planned_board_and_one_that_says_nothing_change_nothing() -> None:
    assert events_of(plan_for(), SXM) == ()
    assert events_of(plan_for(), None) == ()
    assert events_of(plan_for(sku="SIM"), PCIE) == (), "nothing is known of such a GPU"
    assert events_of(plan_for(sku="L40S"), BoardSeen("NVIDIA L40S", 350.0)) == ()


def test_a_slower_board_on_which_the_work_fits_is_planned_again() -> None:
    # (2,900 - 120) s are left for 1,500 s (P90), which may take 1.675 times as long.
    slower = make_reason(
        ReasonKind.SLOWER_BOARD, planned="H100 SXM", found="H100 PCIe", time_ratio=1.68
    )
    assert events_of(plan_for(), PCIE) == (ev.BoardFound(1, slower),)


@pytest.mark.parametrize(
    "changes",
    [
        {"gpus": 8},
        {"within_budget": False},
        {"fills": True},
        {"phases": (TimedPhase("fast", Interval(1500.0, 1600.0, 1700.0)),)},
        {"sku": "H200"},
    ],
    ids=[
        "links bind it",
        "cut short by the plan",
        "fills the money",
        "too long",
        "not in the table",
    ],
)
def test_a_slower_board_on_which_it_does_not_fit_is_refused(changes: dict[str, Any]) -> None:
    found = PCIE
    if changes.get("sku") == "H200":
        found = BoardSeen("NVIDIA H200 NVL", 600.0)
    event = only(ev.ResultKnown, events_of(plan_for(**changes), found))
    assert event.result == "unfit"
    assert present(event.reason).kind is ReasonKind.WRONG_BOARD


def test_one_that_trains_already_is_not_ended() -> None:
    assert only(ev.BoardFound, events_of(plan_for(gpus=8), PCIE, attempts=1))


def test_a_faster_board_and_an_unknown_one_are_noted_alone() -> None:
    plan = plan_for(sku="H100-PCIe")
    other = make_reason(ReasonKind.OTHER_BOARD, planned="H100 PCIe", found="H100 SXM")
    assert events_of(plan, SXM) == (ev.BoardFound(1, other),)
    unknown = make_reason(ReasonKind.OTHER_BOARD, planned="H100 SXM", found="H100")
    assert events_of(plan_for(), BoardSeen("NVIDIA H100")) == (ev.BoardFound(1, unknown),)


def test_it_is_put_on_record_once() -> None:
    run = running()
    pod = the_pod(run)
    seen: dict[str, Any] = {"pods": [pod], "report": report_of(run, PCIE), "plan": plan_for()}
    after, _ = follow(run, AT + 100, **seen)
    assert after.generations[-1].board is not None
    assert after.state is State.RUNNING
    assert ask(after, AT + 101, **seen).events == ()


def test_the_next_candidate_follows_under_the_same_reservation() -> None:
    run = running()
    pod = the_pod(run)
    plan = plan_for(gpus=8)
    ended, _ = follow(run, AT + 100, pods=[pod], report=report_of(run, PCIE), plan=plan)
    assert ended.generations[-1].unfit == wrong()
    assert ended.state is State.ENDING
    # At once: its agent may not know, and would train there.
    (action,) = ask(ended, AT + 100, pods=[pod], plan=plan).actions
    assert (action.verb, action.reason) == (TERMINATE, wrong())
    gone = replace(pod, status=PodStatus.GONE, ended_at=AT + 130)
    settling, _ = follow(ended, AT + 140, pods=[gone], plan=plan)
    assert settling.state is State.SETTLING
    settled = ev.Settled(1, Usd("0.13"), Usd("0.13"))
    after = apply(settling, settled, at=AT + 200)
    (again, *_) = ask(after, AT + 200, plan=plan).events
    assert again == ev.Reserved(run.reservation - Usd("0.13"))


def test_an_agent_that_refuses_the_board_itself_ends_with_that_reason() -> None:
    run = running()
    pod = the_pod(run)
    said = "H100 SXM rented, H100 PCIe found (by its name)"
    report = replace(report_of(run, PCIE), result="unfit", message=said)
    decision = ask(run, AT + 100, pods=[pod], report=report, plan=plan_for(gpus=8))
    quoted = make_reason(ReasonKind.AGENT_SAID, text=said)
    assert decision.events == (ev.ResultKnown("unfit", wrong(said=quoted)),)
    busy = replace(report_of(run, SXM), result="unfit", message="somebody uses it")
    decision = ask(run, AT + 100, pods=[pod], report=busy, plan=plan_for())
    assert decision.events == (
        ev.ResultKnown("unfit", make_reason(ReasonKind.AGENT_SAID, text="somebody uses it")),
    )


def test_which_slower_boards_the_agent_may_take() -> None:
    plan = plan_for()
    candidate = cast(Candidate, plan.candidates[0])
    spec = cast(RunSpec, plan.spec)
    phases = candidate.phases
    assert dict(slower_boards(candidate, spec, phases, 2900.0)) == {
        "PCIe": pytest.approx(1.675),
        "NVL": pytest.approx(989 / 835),
    }
    assert set(slower_boards(candidate, spec, phases, 2000.0)) == {"NVL"}
    assert not slower_boards(candidate, spec, phases, 1620.0)
    # 120 s to start, and 1,500 s at 1.675 times as long.
    assert set(slower_boards(candidate, spec, phases, 2632.5)) == {"PCIe", "NVL"}
    assert set(slower_boards(candidate, spec, phases, 2632.4)) == {"NVL"}
    for sku in ("H100-PCIe", "SIM"):
        other = cast(Candidate, plan_for(sku=sku).candidates[0])
        assert not slower_boards(other, spec, phases, 99_999.0), "none is slower, or none known"


def test_nothing_is_compared_for_a_machine_that_trains_nothing_or_has_ended() -> None:
    run, plan = running(), cast(Plan, plan_for(gpus=8))
    known = (plan, run.generations[-1])
    phases, report = plan.candidates[0].phases, report_of(run, PCIE)
    assert board_events(run, *known, phases, report)
    assert board_events(run, *known, (), report) == (), "all is trained, or it is an errand"
    assert board_events(replace(run, errand=Errand("fetch1")), *known, phases, report) == ()
    assert board_events(replace(run, result="stopped"), *known, phases, report) == ()


def test_one_phase_that_has_begun_is_a_training_that_is_not_thrown_away() -> None:
    run, plan = running(), plan_for(gpus=8)
    report = report_of(run, PCIE, attempts=1)
    second = PhaseReport("extreme", PhaseState.WAITING)
    report = replace(report, phases=(*report.phases, second))
    decision = ask(run, AT + 100, pods=[the_pod(run)], report=report, plan=plan)
    assert [type(event) for event in decision.events] == [ev.BoardFound]


def test_what_the_agent_is_asked_to_check() -> None:
    plan = plan_for()
    candidate, spec = cast(Candidate, plan.candidates[0]), cast(RunSpec, plan.spec)
    check = pod_check(spec, candidate, 2900.0, candidate.phases)
    assert (check["board"], check["slower_boards"]) == ("SXM", ["PCIe", "NVL"])
    assert "keeps_torch" not in check
    assert "slower_boards" not in pod_check(spec, candidate, 1600.0, candidate.phases)
    errand = pod_check(spec, candidate, 2900.0, ())
    assert "board" not in errand, "what trains nothing may be on any board"
    assert load_check(json.dumps(check)).slower_boards == ("PCIe", "NVL")
    command = cast(RunSpec, replace(cast(Any, spec), command=object(), is_open_ended=True))
    own = pod_check(command, candidate, 2900.0, candidate.phases)
    assert own["keeps_torch"] is True
    assert "slower_boards" not in own, "the length of a command is not known"
