"""Runs in every state, as ``decide`` would have brought them there, and how it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from tests.plans import plan_json
from tests.present import present
from tests.reasons import quoted
from trmcloud.core.catalog.providers import AbsenceProof, PriceTraits, ProviderTraits
from trmcloud.core.clock import DatedFact, Instant, Maybe, UnknownSince
from trmcloud.core.contract.pod_contract import AgentReport, PhaseReport, PhaseState
from trmcloud.core.control import events as ev
from trmcloud.core.control.actions import CREATE, Action, Decision
from trmcloud.core.control.controller import decide
from trmcloud.core.control.events import ActionKey, FailureKind
from trmcloud.core.control.observation import Bill, BootTrouble, Observation, PodSeen, PodStatus
from trmcloud.core.control.run_state import RunState, State, apply_event
from trmcloud.core.control.waiting import NO_OTHERS, OtherWaits
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.spec.plan import Candidate, Interval, Plan

AT = 1_790_000_000.0
TRAITS = ProviderTraits(
    name="test",
    create_settle_s=600.0,
    absence=AbsenceProof(lists=3),
    kill_latency_s=30.0,
    boot_deadline_s=300.0,
    silence_s=30.0,
    end_grace_s=60.0,
    prices=PriceTraits(rate_tolerance=0.05),
)


STARTUP_S = Interval(20.0, 60.0, 120.0)
HOURS = Interval(0.2, 0.5, 0.8)


@dataclass(frozen=True)
class StubPhase:
    name: str


@dataclass(frozen=True)
class StubCandidate:
    """What ``decide`` looks at of a candidate."""

    id: str
    rate: Usd
    planned_rate: Usd | None = None
    provider: str = "test"
    region: str = "any"
    soft_stop_s: float = 2900.0
    hard_stop_s: float = 3000.0
    limit_s: float = 0.0
    landing_s: float = 100.0
    storage: Usd = ZERO
    volume_rate: Usd = ZERO
    disk_rate: Usd = ZERO
    hours: Interval = HOURS
    startup_s: Interval = STARTUP_S
    phases: tuple[StubPhase, ...] = (StubPhase("fast"), StubPhase("extreme"))

    reserved_rate = property(lambda self: self.rate)
    expected_s = Candidate.expected_s


@dataclass(frozen=True)
class StubSpec:
    """``volume``: checkpoints outlive the pod without anybody there to pull them."""

    volume: bool = True
    pod_uploads: bool = False
    volume_days: float = 7.0
    deadline_at: float | None = None
    hours: float | None = None
    command: None = None
    sweep: None = None
    is_open_ended: bool = False


@dataclass(frozen=True)
class StubPlan:
    candidates: tuple[StubCandidate, ...]
    spec: StubSpec = StubSpec()

    @property
    def launchable(self) -> tuple[str, ...]:
        return tuple(c.id for c in self.candidates)

    def candidate(self, candidate_id: str) -> StubCandidate:
        return next(c for c in self.candidates if c.id == candidate_id)


FIRST = StubCandidate("first", Usd("3.6"))  # a tenth of a cent per second
SECOND = StubCandidate("second", Usd("1.8"))
PLAN = StubPlan((FIRST, SECOND))
BOOTED_AT = 1_000_000.0
RESERVATION = Usd("3.03")  # 3000 s and the kill latency


def apply(run: RunState, *events: ev.RunEvent, at: float) -> RunState:
    for event in ev.stamp_events(events, Instant(at, at - BOOTED_AT, "here")):
        run = apply_event(run, ev.Record(1, run.run_id, 1, at, event))
    return run


def reserved(amount: Usd = RESERVATION, at: float = AT) -> RunState:
    planned = ev.RunPlanned(plan_json(), amount, "thesis")
    return apply(RunState("r1"), planned, ev.Reserved(amount), at=at)


def ask(
    run: RunState,
    now: float,
    *,
    pods: Maybe[tuple[PodSeen, ...]] | Sequence[PodSeen] = (),
    report: AgentReport | None = None,
    bill: Bill | None = None,
    absent_lists: int = 0,
    in_flight: frozenset[str] = frozenset(),
    unbilled: bool = True,
    stranger_s: float = 0.0,
    boot_trouble: BootTrouble | None = None,
    word: AgentReport | None = None,
    bucket_failed: bool = False,
    clock: Instant | None = None,
    plan: StubPlan = PLAN,
    traits: ProviderTraits = TRAITS,
    attended: bool = True,
    others: OtherWaits = NO_OTHERS,
) -> Decision:
    seen = Observation(
        pods=pods if isinstance(pods, DatedFact | UnknownSince) else DatedFact(tuple(pods), now),
        report=DatedFact(report, now) if report is not None else UnknownSince(now),
        bill=DatedFact(bill, now) if bill is not None else UnknownSince(now),
        absent_lists=absent_lists,
        in_flight=frozenset(map(ActionKey.parse, in_flight)),
        unbilled=unbilled,
        stranger_s=stranger_s,
        boot_trouble=boot_trouble,
        word=word,
        bucket_failed=bucket_failed,
        clock=clock,
    )
    planned = cast(Plan, plan)
    known = (run, planned, "abcd1234", traits, seen, now)
    return decide(*known, attended=attended, others=others)


def follow(run: RunState, now: float, **seen: Any) -> tuple[RunState, tuple[Action, ...]]:
    """As the loop does: append what follows, which must be legal, until only actions are left."""
    for _ in range(20):
        decision = ask(run, now, **seen)
        if not decision.events:
            return run, decision.actions
        run = apply(run, *decision.events, at=now)
    raise AssertionError("it never comes to rest")


def actions_at(run: RunState, now: float, *, plan: StubPlan, **seen: Any) -> list[tuple[str, str]]:
    """Verb and id of what is done about a pod that is listed and reports."""
    report = a_report(run, **seen.pop("report", {}))
    decision = ask(run, now, pods=[the_pod(run)], report=report, plan=plan, **seen)
    assert decision.events == ()
    return [(action.verb, action.id) for action in decision.actions]


def renting(at: float = AT) -> RunState:
    run, actions = follow(reserved(at=at), at)
    assert run.state is State.RENTING
    assert [a.verb for a in actions] == [CREATE]
    return run


def created(run: RunState | None = None, at: float = AT) -> RunState:
    """CREATE was carried out and said to have succeeded."""
    run = run or renting(at)
    name = f"r1/g{len(run.generations)}/create/1"
    run = apply(run, ev.ActionStarted(name, CREATE), at=at)
    return apply(run, ev.ActionFinished(name, CREATE, "id-1"), at=at)


def failed(kind: str, at: float = AT, run: RunState | None = None) -> RunState:
    run = run or renting(at)
    name = f"r1/g{len(run.generations)}/create/1"
    run = apply(run, ev.ActionStarted(name, CREATE), at=at)
    return apply(run, ev.ActionFailed(name, CREATE, FailureKind(kind), f"it said {kind}"), at=at)


def the_pod(run: RunState, **changes: Any) -> PodSeen:
    generation = present(run.generation)
    pod = PodSeen("id-1", generation.pod_name, PodStatus.RUNNING, generation.rate)
    return replace(pod, **changes)


def booting(at: float = AT) -> RunState:
    run = created(at=at)
    run, _ = follow(run, at + 10, pods=[the_pod(run)])
    assert run.state is State.BOOTING
    return run


def a_report(run: RunState, **changes: Any) -> AgentReport:
    generation = present(run.generation)
    report = AgentReport(
        run_id="r1",
        pod_name=generation.pod_name,
        epoch=1,
        pid=7,
        started_at=AT,
        at=AT,
        phases=(PhaseReport("fast", state=PhaseState.RUNNING),),
        soft_stop_at=generation.soft_stop_at,
        hard_stop_at=generation.hard_stop_at,
    )
    return replace(report, **changes)


def running(at: float = AT) -> RunState:
    run = booting(at)
    run, _ = follow(run, at + 20, pods=[the_pod(run)], report=a_report(run))
    assert run.state is State.RUNNING
    return run


def stopped(run: RunState, at: float) -> RunState:
    return apply(run, ev.StopRequested("user", quoted("enough")), at=at)


ENDED = PhaseReport(
    "fast", state=PhaseState.ENDED, outcome="finished", step=90, val_bpb=1.5, attempts=2
)


def ending(at: float = AT) -> RunState:
    run = running(at)
    report = a_report(run, phases=(ENDED,), result="finished", message="done")
    run, actions = follow(run, at + 500, pods=[the_pod(run)], report=report)
    assert (run.state, actions) == (State.ENDING, ())
    return run


def settling() -> RunState:
    run = ending()
    run, _ = follow(run, AT + 520, pods=[the_pod(run, status=PodStatus.GONE, ended_at=AT + 510)])
    assert run.state is State.SETTLING
    return run
