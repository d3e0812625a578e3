"""A run that moves while its machine works: when that pays, what is held for it, and each step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.plans import a_candidate, a_phase, a_plan
from trmcloud.core.catalog.providers import TRAITS
from trmcloud.core.clock import DatedFact, Instant, UnknownSince
from trmcloud.core.contract.boards import BOARD_NOTE, BoardSeen
from trmcloud.core.contract.pod_contract import AgentReport, CheckpointRef, PhaseReport
from trmcloud.core.control import events as ev
from trmcloud.core.control.actions import CREATE, LAND, TERMINATE, Decision
from trmcloud.core.control.bookkeeping import add_events, govern
from trmcloud.core.control.budget import LedgerState, extend_ledger
from trmcloud.core.control.continuing import continues, lost_machines
from trmcloud.core.control.controller import decide, decide_standby, foreseen_end
from trmcloud.core.control.events import FailureKind
from trmcloud.core.control.moving import move_events, stands_by_s
from trmcloud.core.control.notices import _of_event
from trmcloud.core.control.observation import Bill, Observation, PodSeen, PodStatus
from trmcloud.core.control.pod_facts import finished_on, moving_reason, orders_for, result_of
from trmcloud.core.control.reason import Reason, ReasonKind, make_reason
from trmcloud.core.control.report import move_accounts, spending_of, spent_so_far
from trmcloud.core.control.run_state import (
    GRANT,
    STAGE,
    IllegalTransition,
    RunState,
    State,
    apply_event,
)
from trmcloud.core.errors import BudgetRefused, Outcome
from trmcloud.core.money import ZERO, Usd, cost
from trmcloud.core.spec.plan import Candidate, Interval, Plan, plan_to_json

AT = 1_790_000_000.0
HOUR_S = 3600.0
DEAR, CHEAP, MUCH = Usd(4), Usd(2), Usd(200)
SHA = "ab" * 32
PCIE = BoardSeen("NVIDIA H100 PCIe", 350.0, 0).to_text()
SXM = BoardSeen("NVIDIA H100 80GB HBM3", 700.0, 18).to_text()
UNKNOWN_BOARD = BoardSeen("NVIDIA H100").to_text()


def candidate(name: str, rate: Usd, provider: str = "runpod") -> Candidate:
    phase = replace(a_phase(), name="fast", seconds=Interval(9 * HOUR_S, 10 * HOUR_S, 12 * HOUR_S))
    phase = replace(phase, settings=replace(phase.settings, steps=1000, save_every=50))
    phase = replace(phase, step_s=Interval(32.0, 36.0, 43.0))
    return replace(
        a_candidate(), id=name, provider=provider, rate=rate, planned_rate=rate, most_rate=rate,
        startup_s=Interval(60.0, 300.0, 600.0), phases=(phase,), hours=Interval(9.0, 10.1, 12.2),
        soft_stop_s=14 * HOUR_S - 300.0, hard_stop_s=14 * HOUR_S, landing_s=300.0,
        storage=ZERO, disk_rate=ZERO, volume_rate=ZERO, nodes=1, spot=False,
    )  # fmt: skip


def plan(share: float = 0.25, *candidates: Candidate) -> Plan:
    made = candidates or (candidate("dear", DEAR), candidate("cheap", CHEAP, "vast"))
    whole = a_plan()
    spec = replace(whole.spec, bucket="s3://bucket/x", move_if=share, phases=("fast",), budget=None)
    spec = replace(spec, hours=None, deadline_at=None, command=None)
    names = tuple(c.id for c in made)
    return replace(
        whole, spec=spec, candidates=made, launchable=names, recommended_id=names[0], cap=Usd(200)
    )


PLAN = plan()


def apply(run: RunState, *events: ev.RunEvent, at: float) -> RunState:
    for event in ev.stamp_events(events, Instant(at, at - AT, "here")):
        run = apply_event(run, ev.Record(1, run.run_id, 1, at, event))
    return run


def up(number: int, provider: str, candidate_id: str, rate: Usd) -> tuple[ev.RunEvent, ...]:
    """A machine is asked for, is up, and its agent is heard."""
    name = f"r1/g{number}/create/1"
    hard = AT + 14 * HOUR_S + number
    return (
        ev.PodIntended(number, f"pod-{number}", provider, candidate_id, rate, hard - 300.0, hard),
        ev.ActionStarted(name, CREATE),
        ev.ActionFinished(name, CREATE, f"id-{number}"),
        ev.PodUp(number, f"id-{number}", rate),
        ev.AgentUp(number),
    )


def working(cap: Usd = MUCH) -> RunState:
    planned = ev.RunPlanned(plan_to_json(PLAN), cap, "thesis")
    run = apply(RunState("r1"), planned, ev.Reserved(Usd(60)), at=AT)
    return apply(run, *up(1, "runpod", "dear", DEAR), at=AT)


STARTED = ev.MoveStarted("cheap", CHEAP, Usd(40), Usd(30), Usd(12))


def standing(run: RunState | None = None) -> RunState:
    """Another machine stands by, its agent heard."""
    run = run or working()
    return apply(run, STARTED, *up(2, "vast", "cheap", CHEAP), at=AT + HOUR_S)


def kept(step: int, phase: str = "fast") -> CheckpointRef:
    return CheckpointRef(phase, step, SHA, 1_000_000)


def report(number: int, *uploaded: CheckpointRef, **more: object) -> AgentReport:
    made = AgentReport(
        run_id="r1", pod_name=f"pod-{number}", epoch=1, pid=1, started_at=AT, at=AT,
        phases=(PhaseReport("fast", attempts=1),), soft_stop_at=AT, hard_stop_at=AT,
        uploaded=uploaded, granted_until=AT + 1e6,
    )  # fmt: skip
    return replace(made, **more)  # type: ignore[arg-type]


READY = report(2, waiting="data", kept=(kept(100),), phases=(PhaseReport("fast"),))


def pod(number: int, status: PodStatus = PodStatus.RUNNING, rate: Usd = CHEAP) -> PodSeen:
    return PodSeen(f"id-{number}", f"pod-{number}", status, rate, None)


def look(
    run: RunState,
    now: float,
    *,
    mine: AgentReport | None = None,
    theirs: AgentReport | None = None,
    pods: tuple[PodSeen, ...] = (pod(1, rate=DEAR), pod(2)),
    attended: bool = True,
) -> Decision:
    unknown = UnknownSince(now)
    seen = Observation(
        pods=DatedFact(pods, now),
        report=DatedFact(theirs, now) if theirs is not None else unknown,
        bill=unknown,
        unbilled=True,
        clock=Instant(now, now - AT, "here"),
    )
    return decide_standby(run, PLAN, TRAITS["vast"], seen, mine, now, attended=attended)


# -- whether it pays -----------------------------------------------------------------------------


def asked(
    now: float = AT + HOUR_S, run: RunState | None = None, of: Plan = PLAN, step: int = 100
) -> tuple[ev.RunEvent, ...]:
    return move_events(run or working(), of, "abcd1234", report(1, kept(step)), now)


def test_the_price_that_is_asked_for_is_the_most_at_which_the_move_saves_enough() -> None:
    started, intent = asked()
    assert isinstance(started, ev.MoveStarted)
    assert isinstance(intent, ev.PodIntended)
    assert (started.candidate_id, intent.provider, intent.generation) == ("cheap", "vast", 2)
    assert intent.rate == started.rate == CHEAP, "never more than what the plan reserves"
    assert started.saves >= Usd.from_micros(int(started.stays.micros * 0.25))
    # Nine of ten hours are left where it is; half an hour of both, and the landing, are not free.
    assert Usd("30") < started.stays <= cost(DEAR, 9 * HOUR_S)
    assert started.saves < cost(DEAR - CHEAP, 9 * HOUR_S)


def test_all_that_it_can_cost_is_held_for_it() -> None:
    started, intent = asked()
    assert isinstance(started, ev.MoveStarted)
    assert isinstance(intent, ev.PodIntended)
    lasts_s = intent.hard_stop_at - (AT + HOUR_S) + TRAITS["vast"].kill_latency_s
    assert started.amount >= cost(CHEAP, lasts_s)
    least_s = 600.0 + stands_by_s(PLAN) + 0.9 * 12 * HOUR_S + 300.0
    assert intent.hard_stop_at - (AT + HOUR_S) >= least_s
    assert intent.soft_stop_at == intent.hard_stop_at - 300.0


@pytest.mark.parametrize(
    ("share", "cheap", "is_dearer"),
    [(0.25, "2", False), (0.45, "2", True), (0.25, "3.5", True), (0.9, "0.3", True)],
)
def test_what_is_dearer_than_the_price_that_pays_is_asked_for_at_that(
    share: float, cheap: str, is_dearer: bool
) -> None:
    of = plan(share, candidate("dear", DEAR), candidate("cheap", Usd(cheap), "vast"))
    started, _ = asked(of=of)
    assert isinstance(started, ev.MoveStarted)
    assert started.saves.micros >= started.stays.micros * share
    assert started.candidate_id == "cheap"
    assert (started.rate < Usd(cheap)) is is_dearer
    assert started.rate <= Usd(cheap)


def test_a_machine_that_would_have_to_cost_half_its_quote_is_not_asked_for() -> None:
    of = plan(0.7, candidate("dear", DEAR), candidate("cheap", Usd("3.5"), "vast"))
    assert asked(of=of) == ()


def test_there_is_no_move_at_the_end_of_the_work_nor_before_the_first_upload() -> None:
    assert asked(AT + 9.9 * HOUR_S, step=990) == ()
    assert move_events(working(), PLAN, "abcd1234", report(1), AT + HOUR_S) == ()
    landing = report(1, kept(100), landing=True)
    assert move_events(working(), PLAN, "abcd1234", landing, AT + HOUR_S) == ()


def test_a_budget_that_leaves_too_little_is_no_move() -> None:
    assert asked(run=working(Usd(100)))
    assert asked(run=working(Usd(75))) == (), "P90 of the rest would not fit"


def test_a_provider_that_refused_is_asked_again_a_quarter_of_an_hour_later() -> None:
    run = apply(working(), STARTED, up(2, "vast", "cheap", CHEAP)[0], at=AT + HOUR_S)
    name = "r1/g2/create/1"
    failed = ev.ActionFailed(name, CREATE, FailureKind.NO_CAPACITY, "none left")
    run = apply(run, ev.ActionStarted(name, CREATE), failed, at=AT + HOUR_S)
    run = apply(run, ev.PodNotMade(2, make_reason(ReasonKind.NEVER_APPEARED)), at=AT + HOUR_S)
    assert (run.move, run.reserved, run.state) == (None, Usd(60), State.RUNNING)
    assert run.generation is not None
    assert run.generation.number == 1
    vast_alone = plan(0.25, candidate("dear", Usd("9")), candidate("cheap", CHEAP, "vast"))
    assert asked(AT + HOUR_S + 700.0, run, vast_alone) == ()
    (_, intent) = asked(AT + HOUR_S + 1100.0, run, vast_alone)
    assert isinstance(intent, ev.PodIntended)
    assert intent.generation == 3


# -- what the ledger knows -----------------------------------------------------------------------


def test_two_machines_are_open_and_one_of_them_works() -> None:
    run = standing()
    assert run.generation is not None
    assert (run.generation.number, run.state) == (1, State.RUNNING)
    assert [g.number for g in run.open_generations] == [1, 2]
    assert (run.reserved, run.held_for_move) == (Usd(100), Usd(40))
    standby = run.standby
    assert standby is not None
    assert (standby.state, standby.reserved) == (State.RUNNING, Usd(40))
    assert spent_so_far(run, AT + 2 * HOUR_S) == cost(DEAR, 2 * HOUR_S) + cost(CHEAP, HOUR_S)
    spent = spending_of(run, AT + 2 * HOUR_S)
    assert spent.at_most == cost(DEAR, 2 * HOUR_S) + cost(CHEAP, HOUR_S)


def test_what_is_held_for_it_is_asked_of_every_budget() -> None:
    ledger = LedgerState("abcd1234", runs={"r1": working(Usd(90))})
    with pytest.raises(BudgetRefused, match="does not fit the run r1 budget"):
        add_events(ledger, 1, "r1", 1, [STARTED, up(2, "vast", "cheap", CHEAP)[0]], AT)
    capped = replace(ledger, runs={"r1": working()}, caps={("account", ""): Usd(99)})
    with pytest.raises(BudgetRefused, match="account budget"):
        add_events(capped, 1, "r1", 1, [STARTED], AT)


def test_neither_of_its_machines_is_an_orphan() -> None:
    ledger = LedgerState("abcd1234", runs={"r1": standing()})
    names = [f"trmc-abcd1234-r1-g{n}-1790050400" for n in (1, 2, 3)]
    run = ledger.runs["r1"]
    named = tuple(replace(g, pod_name=names[g.number - 1]) for g in run.generations)
    ledger = replace(ledger, runs={"r1": replace(run, generations=named)})
    pods = tuple(replace(pod(n), name=names[n - 1]) for n in (1, 2, 3))
    orphans = govern(ledger, DatedFact(pods, AT), AT).orphans
    assert [each.pod.pod_id for each in orphans] == ["id-3"]


def test_a_stray_that_proves_to_stand_by_for_a_run_is_that_runs() -> None:
    """One that is listed before its create was answered is charged until it is known."""
    ledger = LedgerState("abcd1234", runs={"r1": standing_by(*CREATED)})
    charged = ev.StrayCharged("vast", "id-2", "pod-2", "r1", AT, Usd(1))
    ledger = extend_ledger(ledger, [ev.Record(9, "", 0, AT + HOUR_S, charged)])
    assert set(ledger.strays) == {("vast", "id-2")}
    known = ev.Record(10, "r1", 1, AT + HOUR_S, ev.PodUp(2, "id-2", CHEAP))
    assert extend_ledger(ledger, [known]).strays == {}


@pytest.mark.parametrize(
    "event",
    [
        ev.Closed("finished"),
        STARTED,
        ev.Moved(2),
        ev.PodIntended(3, "p", "vast", "cheap", CHEAP, AT, AT),
    ],
)
def test_what_cannot_be_while_one_stands_by(event: ev.RunEvent) -> None:
    with pytest.raises(IllegalTransition):
        apply(standing(), event, at=AT + HOUR_S)


def test_a_machine_that_came_to_nothing_costs_what_it_cost_and_no_more_is_held() -> None:
    run = apply(standing(), ev.PodGone(2, AT + 2 * HOUR_S), at=AT + 2 * HOUR_S)
    assert run.reserved == Usd(100)
    run = apply(run, ev.Settled(2, Usd("2.1"), None), at=AT + 2 * HOUR_S)
    assert (run.move, run.reserved, run.settled) == (None, Usd(60), Usd("2.1"))
    assert run.generation is not None
    assert (run.generation.number, run.state) == (1, State.RUNNING)
    assert lost_machines(run, PLAN) == ()
    assert asked(AT + 5 * HOUR_S, run) == (), "it is not tried a second time"


# -- one step after the other --------------------------------------------------------------------


def granted(run: RunState) -> RunState:
    name = "r1/g2/grant/1"
    started, done = ev.ActionStarted(name, GRANT), ev.ActionFinished(name, GRANT)
    return apply(run, started, done, at=AT + HOUR_S)


MINE = report(1, kept(100))


def test_the_one_that_works_lands_only_once_the_other_holds_a_checkpoint() -> None:
    run, now = granted(standing()), AT + HOUR_S + 60.0
    assert look(run, now, mine=MINE, theirs=replace(READY, waiting="files")).events == ()
    assert look(run, now, mine=MINE, theirs=replace(READY, kept=())).events == ()
    assert look(run, now, mine=None, theirs=READY).events == (), "it is not heard"
    assert look(standing(), now, mine=MINE, theirs=READY).events == (), "nothing was granted"
    assert look(run, now, mine=MINE, theirs=READY).events == (ev.HandedOver(1),)


def test_files_and_grants_are_sent_to_it_as_to_any_machine() -> None:
    now = AT + HOUR_S + 60.0
    waits = replace(READY, waiting="files", kept=(), granted_until=None)
    (action,) = look(standing(), now, mine=MINE, theirs=waits).actions
    assert (action.verb, action.generation) == (STAGE, 2)
    (action,) = look(standing(), now, mine=MINE, theirs=replace(waits, waiting="grants")).actions
    assert (action.verb, action.generation) == (GRANT, 2)


def handed_over() -> RunState:
    return apply(granted(standing()), ev.HandedOver(1), at=AT + HOUR_S + 60.0)


def seen(run: RunState, now: float, mine: AgentReport | None, *pods: PodSeen) -> Decision:
    observed = Observation(
        pods=DatedFact(pods, now),
        report=DatedFact(mine, now) if mine is not None else UnknownSince(now),
        bill=UnknownSince(now),
        unbilled=True,
        clock=Instant(now, now - AT, "here"),
    )
    return decide(run, PLAN, "abcd1234", TRAITS["runpod"], observed, now)


def test_it_is_told_to_land_and_nothing_else() -> None:
    run, now = handed_over(), AT + HOUR_S + 61.0
    (action,) = seen(run, now, MINE, pod(1, rate=DEAR), pod(2)).actions
    assert (action.verb, action.generation) == (LAND, 1)
    assert action.reason is not None
    assert action.reason.kind is ReasonKind.MOVING
    assert run.generation is not None
    assert orders_for(run, run.generation, 1).land
    assert not orders_for(run, run.generations[1], 1).land


def test_what_its_agent_says_then_is_that_the_run_moves_whatever_else_it_adds() -> None:
    says = replace(MINE, result="stopped", message="landed at step 100")
    told = make_reason(ReasonKind.AGENT_SAID, text="landed at step 100")
    moves = make_reason(ReasonKind.MOVING, told, provider="vast")
    decision = seen(handed_over(), AT + HOUR_S + 70.0, says, pod(1, rate=DEAR), pod(2))
    assert decision.events == (ev.ResultKnown("stopped", moves),)
    stop = ev.StopRequested("user", make_reason(ReasonKind.STOP_COMMAND))
    stopped = apply(handed_over(), stop, at=AT + HOUR_S + 61.0)
    for run, name, reason in (
        (handed_over(), "finished", told),
        (stopped, "stopped", replace(stop.reason, more=told)),
        (standing(), "stopped", told),
        (replace(handed_over(), generations=()), "stopped", told),
    ):
        assert result_of(run, name, "landed at step 100") == ev.ResultKnown(name, reason)


def test_it_moves_to_the_provider_of_the_machine_that_stands_by_now() -> None:
    """One at another provider stood by in vain before."""
    run = apply(working(), STARTED, *up(2, "lambda", "cheap", CHEAP), at=AT + HOUR_S)
    run = apply(run, ev.PodGone(2, AT + HOUR_S), ev.Settled(2, Usd(1), None), at=AT + HOUR_S)
    run = apply(run, STARTED, *up(3, "vast", "cheap", CHEAP), at=AT + HOUR_S)
    assert moving_reason(run) == make_reason(ReasonKind.MOVING, provider="vast")


def landed() -> RunState:
    known = ev.ResultKnown(Outcome.STOPPED.value, Reason(ReasonKind.MOVING, {"provider": "vast"}))
    return apply(handed_over(), known, at=AT + HOUR_S + 200.0)


def test_once_it_has_landed_it_is_ended_at_once_and_once() -> None:
    run, now = landed(), AT + HOUR_S + 201.0
    (action,) = seen(run, now, MINE, pod(1, rate=DEAR), pod(2)).actions
    assert (action.verb, action.generation) == (TERMINATE, 1)
    started = ev.ActionStarted(action.id, TERMINATE)
    taken = ev.ActionFinished(action.id, TERMINATE, taken=True, reason=action.reason)
    run = apply(run, started, taken, at=now)
    assert seen(run, now + 20.0, MINE, pod(1, rate=DEAR), pod(2)).actions == ()
    assert seen(run, now + 31.0, MINE, pod(1, rate=DEAR), pod(2)).actions != ()


def left() -> RunState:
    """The machine before is gone and settled."""
    at = AT + HOUR_S + 300.0
    return apply(landed(), ev.PodGone(1, at), ev.Settled(1, Usd("4.4"), None), at=at)


def test_the_run_moves_once_that_is_gone_and_settled_and_not_before() -> None:
    now = AT + HOUR_S + 301.0
    assert look(landed(), now, mine=MINE, theirs=READY).events == ()
    gone = apply(landed(), ev.PodGone(1, now), at=now)
    assert look(gone, now, mine=MINE, theirs=READY).events == ()
    assert seen(left(), now, None, pod(2)) == Decision(), "nothing else is rented or closed"
    assert look(left(), now, theirs=READY).events == (ev.Moved(2),)
    assert look(left(), now, theirs=None).events == (), "its agent is not heard"


def test_it_is_the_runs_machine_then_and_may_train_once_it_has_the_last_upload() -> None:
    now = AT + HOUR_S + 302.0
    run = apply(left(), ev.Moved(2), at=now)
    assert run.generation is not None
    assert (run.state, run.generation.number, run.move) == (State.RUNNING, 2, None)
    assert (run.reserved, run.settled, run.result, run.candidate_id) == (
        Usd(40), Usd("4.4"), None, "cheap",
    )  # fmt: skip
    assert run.reservation == Usd(60) - Usd("4.4") + Usd(40)
    assert not run.trains, "what it was granted was for standing by"
    (action,) = seen(run, now, READY, pod(2)).actions
    assert (action.verb, action.generation, action.key.attempt) == (GRANT, 2, 2)
    name = action.id
    run = apply(run, ev.ActionStarted(name, GRANT), ev.ActionFinished(name, GRANT), at=now + 1)
    run = apply(run, ev.ActionStarted("r1/g2/stage/1", STAGE), at=now + 1)
    run = apply(run, ev.ActionFinished("r1/g2/stage/1", STAGE), at=now + 1)
    assert run.trains
    assert [each.generation for each in move_accounts(run, now)] == [2]


def test_what_was_finished_meanwhile_is_not_trained_again() -> None:
    ended = ev.PhaseEnded(1, "fast", "finished", 1000, 1.0, {})
    run = apply(apply(standing(), ended, at=AT + HOUR_S), at=AT + HOUR_S)
    assert finished_on(run, run.generations[1]) == ()
    adopted = replace(run.generations[1], adopted_at=AT + 2 * HOUR_S)
    assert finished_on(run, adopted) == ("fast",)


# -- what goes otherwise -------------------------------------------------------------------------


def end_reason(decision: Decision) -> ReasonKind | None:
    found = [a.reason.kind for a in decision.actions if a.verb == TERMINATE and a.reason]
    return found[0] if found else None


def test_a_stop_ends_it_and_so_does_a_process_that_does_not_stay() -> None:
    now = AT + HOUR_S + 60.0
    stop = ev.StopRequested("user", make_reason(ReasonKind.STOP_COMMAND))
    stopped = apply(standing(), stop, at=now)
    assert end_reason(look(stopped, now, mine=MINE, theirs=READY)) is ReasonKind.MOVE_CALLED_OFF
    look_alone = look(granted(standing()), now, mine=MINE, theirs=READY, attended=False)
    assert end_reason(look_alone) is ReasonKind.MOVE_CALLED_OFF
    assert look_alone.events == ()


def test_one_that_is_not_up_in_time_is_ended_and_the_other_works_on() -> None:
    run = apply(working(), STARTED, *up(2, "vast", "cheap", CHEAP)[:-1], at=AT + HOUR_S)
    late = AT + HOUR_S + TRAITS["vast"].boot_deadline_s
    assert end_reason(look(run, late - 1.0, mine=MINE)) is None
    assert end_reason(look(run, late, mine=MINE)) is ReasonKind.NO_AGENT
    assert seen(run, late, MINE, pod(1, rate=DEAR), pod(2)).actions == ()


def test_one_that_its_agent_refuses_is_ended() -> None:
    refused = replace(READY, result=Outcome.UNFIT.value, message="4 GPUs where 8 were rented")
    decision = look(granted(standing()), AT + HOUR_S + 60.0, mine=MINE, theirs=refused)
    assert end_reason(decision) is ReasonKind.AGENT_SAID


def test_one_that_would_save_too_little_by_now_is_ended() -> None:
    late = report(1, kept(970))
    decision = look(granted(standing()), AT + 9.7 * HOUR_S, mine=late, theirs=READY)
    assert end_reason(decision) in (
        ReasonKind.MOVE_SAVES_TOO_LITTLE, ReasonKind.NOT_READY_IN_TIME,
    )  # fmt: skip
    soon = apply(working(), STARTED, *up(2, "vast", "cheap", CHEAP), at=AT + 9.6 * HOUR_S)
    decision = look(granted(soon), AT + 9.7 * HOUR_S, mine=late, theirs=READY)
    assert end_reason(decision) is ReasonKind.MOVE_SAVES_TOO_LITTLE


def test_where_the_working_machine_is_lost_the_other_takes_its_place() -> None:
    at = AT + 2 * HOUR_S
    run = apply(standing(), ev.PodGone(1, at), at=at)
    (settled,) = seen(run, at, None, pod(2)).events
    assert isinstance(settled, ev.Settled), "its bill is not waited for: the other is paid for"
    run = apply(run, settled, at=at)
    assert continues(run, PLAN)
    assert look(run, at, theirs=READY).events == (ev.Moved(2),)
    booting = apply(working(), STARTED, *up(2, "vast", "cheap", CHEAP)[:-1], at=AT + HOUR_S)
    booting = apply(booting, ev.PodGone(1, at), ev.Settled(1, Usd(8), None), at=at)
    assert look(booting, at).events == ()
    assert look(booting, at, theirs=READY).events == (ev.AgentUp(2),)


def test_where_the_other_is_lost_after_the_landing_the_run_continues_elsewhere() -> None:
    at = AT + 2 * HOUR_S
    run = apply(left(), ev.PodGone(2, at), ev.Settled(2, Usd(2), None), at=at)
    assert run.move is None
    assert continues(run, PLAN)
    again = seen(run, at, None).events
    assert isinstance(again[0], ev.Reserved)
    assert again[0].amount == Usd(60) - Usd("4.4")


def test_a_run_whose_work_is_done_does_not_move_any_more() -> None:
    done = ev.ResultKnown(Outcome.FINISHED.value, None)
    run = apply(handed_over(), done, at=AT + 2 * HOUR_S)
    decision = look(run, AT + 2 * HOUR_S, mine=MINE, theirs=READY)
    assert end_reason(decision) is ReasonKind.MOVE_CALLED_OFF


def test_who_is_told_of_runs_is_not_told_that_one_ended_which_moves() -> None:
    ledger = LedgerState("abcd1234", runs={"r1": landed()})
    before = handed_over()
    known = ev.ResultKnown(Outcome.STOPPED.value, Reason(ReasonKind.MOVING, {"provider": "vast"}))
    record = ev.Record(9, "r1", 1, AT + HOUR_S + 200.0, known)
    assert list(_of_event(ledger, before, landed(), record)) == []
    alone = replace(before, move=None)
    assert list(_of_event(ledger, alone, apply_event(alone, record), record)) != []


# -- the machine that stands by is watched as any other --------------------------------------------


def standing_by(*events: ev.RunEvent, at: float = AT + HOUR_S) -> RunState:
    """A run that works, and whose second machine has come as far as ``events``."""
    return apply(working(), STARTED, *events, at=at)


REQUESTED, *_, BOOTS, HEARD = up(2, "vast", "cheap", CHEAP)
CREATED = (REQUESTED, *up(2, "vast", "cheap", CHEAP)[1:3])
LISTED_GONE = replace(pod(2, PodStatus.GONE), ended_at=AT + HOUR_S + 50.0)


def test_a_run_beside_which_none_stands_by_needs_nothing() -> None:
    assert look(working(), AT + HOUR_S, mine=MINE) == Decision()


def test_it_is_asked_for_once_and_not_at_all_where_the_run_stops_first() -> None:
    now = AT + HOUR_S + 1.0
    (action,) = look(standing_by(REQUESTED), now, mine=MINE, pods=(pod(1),)).actions
    assert (action.verb, action.id) == (CREATE, "r1/g2/create/1")
    asked_for = standing_by(*CREATED)
    assert look(asked_for, now, mine=MINE, pods=(pod(1),)) == Decision()
    assert look(asked_for, now, mine=MINE).events == (ev.PodUp(2, "id-2", CHEAP),)
    stop = ev.StopRequested("user", make_reason(ReasonKind.STOP_COMMAND))
    stopped = apply(standing_by(REQUESTED), stop, at=now)
    never = (ev.PodNotMade(2, make_reason(ReasonKind.NOT_ASKED_FOR)),)
    assert look(stopped, now, mine=MINE, pods=(pod(1),)).events == never
    alone = look(standing_by(REQUESTED), now, mine=MINE, pods=(pod(1),), attended=False)
    assert alone.events == never


def test_one_that_its_provider_could_not_make_after_all_was_never_made() -> None:
    """Whether it boots by then or is heard already: of the latter it was made indeed."""
    gone = replace(LISTED_GONE, never_made="no machine was found", rate=ZERO)
    why = make_reason(ReasonKind.PROVIDER_SAID, text="no machine was found")
    failed = ev.ActionFailed(
        "r1/g2/create/1", CREATE, FailureKind.NO_CAPACITY, "no machine was found"
    )
    decision = look(standing_by(*CREATED, BOOTS), AT + HOUR_S + 60.0, mine=MINE, pods=(gone,))
    assert decision.events == (failed, ev.PodNotMade(2, why))
    decision = look(standing(), AT + HOUR_S + 60.0, mine=MINE, pods=(gone,))
    assert decision.events == (ev.PodGone(2, AT + HOUR_S + 50.0),)


def test_its_end_is_proven_as_that_of_any_machine() -> None:
    run, now = standing(), AT + HOUR_S + 60.0
    assert look(run, now, mine=MINE, pods=(LISTED_GONE,)).events == (
        ev.PodGone(2, AT + HOUR_S + 50.0),
    )
    assert look(run, now, mine=MINE, pods=(pod(1),)).events == (ev.PodMissed(2),)
    missed = apply(run, ev.PodMissed(2), at=now)
    absent_s = TRAITS["vast"].absent_s
    assert look(missed, now + absent_s - 1.0, mine=MINE, pods=(pod(1),)).events == ()
    gone = look(missed, now + absent_s, mine=MINE, pods=(pod(1),))
    assert gone.events == (ev.PodGone(2, now),)
    lives = replace(READY, at=now + 11.0)
    soon = look(missed, now + absent_s / 2 - 1.0, mine=MINE, theirs=lives, pods=(pod(1),))
    assert soon.events == (), "before half of that there is nothing to doubt"
    for after_s in (absent_s / 2, absent_s):
        found = look(missed, now + after_s, mine=MINE, theirs=lives, pods=(pod(1),))
        assert found.events == (ev.PodFound(2),), "it reports: a list that lacks it is wrong"
    listed = look(missed, now + absent_s, mine=MINE, theirs=lives, pods=(LISTED_GONE,))
    assert listed.events == (ev.PodGone(2, AT + HOUR_S + 50.0),), "a list that has it is not"


def settle_standby(now: float, bill: Bill | None = None, *pods: PodSeen) -> Decision:
    """What follows ``now`` for one that was gone a minute after it was asked for, of a clock that
    saw all of that."""
    at = AT + HOUR_S + 60.0
    run = apply(standing(), ev.PodGone(2, at), at=at)
    observed = Observation(
        pods=DatedFact(pods, now),
        report=UnknownSince(now),
        bill=DatedFact(bill, now) if bill is not None else UnknownSince(now),
        clock=Instant(now, now - AT, "here"),
    )
    return decide_standby(run, PLAN, TRAITS["vast"], observed, MINE, now)


def test_what_it_cost_is_its_bill_or_the_most_that_it_can_have_been() -> None:
    gone_at = AT + HOUR_S + 60.0
    final = Bill("id-2", Usd("0.1"), final=True)
    settled = (ev.Settled(2, Usd("0.1"), Usd("0.1")),)
    assert settle_standby(gone_at + 1.0, final).events == settled
    assert settle_standby(gone_at + 1.0, final, pod(2)).events == settled, "listed or not"
    assert settle_standby(gone_at + 59.0) == Decision(), "its bill may come"
    most = cost(CHEAP, 60.0 + TRAITS["vast"].kill_latency_s)
    assert settle_standby(gone_at + 60.0).events == (ev.Settled(2, most, None),)
    assert settle_standby(gone_at + 60.0, None, pod(2)) == Decision(), "it is not gone after all"


def test_no_more_is_estimated_than_was_held_for_each_of_the_two() -> None:
    """The working machine and the one that stands by have reservations of their own."""
    late = AT + 40 * HOUR_S
    both = apply(standing(), ev.PodGone(1, late), ev.PodGone(2, late), at=late)
    assert both.reserved == Usd(100)
    (settled,) = seen(both, late + 90.0, None).events
    assert settled == ev.Settled(1, Usd(60), None)
    (settled,) = look(both, late + 90.0, pods=()).events
    assert settled == ev.Settled(2, Usd(40), None)


def test_a_final_bill_of_the_working_machine_is_taken_before_an_estimate() -> None:
    at = AT + 2 * HOUR_S
    run = apply(standing(), ev.PodGone(1, at), at=at)
    observed = Observation(
        pods=DatedFact((pod(2),), at),
        report=UnknownSince(at),
        bill=DatedFact(Bill("id-1", Usd("8.1"), final=True), at),
        clock=Instant(at, at - AT, "here"),
    )
    decision = decide(run, PLAN, "abcd1234", TRAITS["runpod"], observed, at)
    assert decision.events == (ev.Settled(1, Usd("8.1"), Usd("8.1")),)


def test_what_is_ended_is_asked_to_again_until_it_is_gone() -> None:
    """Though the reason has passed: a provider that was asked once may still be about to do it."""
    run, now = standing(), AT + HOUR_S + 60.0
    dear = look(run, now, mine=MINE, pods=(pod(1), pod(2, rate=Usd(9))))
    assert end_reason(dear) is ReasonKind.BILLED_ABOVE_RATE
    (action,) = dear.actions
    assert (action.id, action.pod_id) == ("r1/g2/terminate/1", "id-2")
    begun = apply(run, ev.ActionStarted(action.id, TERMINATE), at=now)
    assert look(begun, now + 1.0, mine=MINE, pods=(pod(2),)) == Decision(), "it is under way"
    again = look(begun, now + 2.0, mine=MINE, pods=(pod(2),))
    assert [(a.id, a.verb) for a in again.actions] == [("r1/g2/terminate/2", TERMINATE)]
    assert end_reason(again) is ReasonKind.MOVE_CALLED_OFF
    still = look(begun, now + 2.0, mine=MINE, pods=(pod(2, rate=Usd(9)),))
    assert end_reason(still) is ReasonKind.BILLED_ABOVE_RATE
    ready = look(granted(begun), now + 2.0, mine=MINE, theirs=READY, pods=(pod(2),))
    assert ready.events == (), "the run does not move to a machine that is being ended"


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"result": "unfit", "message": "4 GPUs"}, ReasonKind.AGENT_SAID),
        ({"result": "unfit", "message": ""}, ReasonKind.REFUSED),
        ({"result": "finished"}, ReasonKind.REFUSED),
        ({"result": "unfit", "notes": {BOARD_NOTE: PCIE}}, ReasonKind.WRONG_BOARD),
        ({"result": "unfit", "notes": {BOARD_NOTE: SXM}}, ReasonKind.REFUSED),
        ({"notes": {BOARD_NOTE: PCIE}}, ReasonKind.WRONG_BOARD),
        ({"notes": {BOARD_NOTE: UNKNOWN_BOARD}}, None),
        ({"notes": {BOARD_NOTE: SXM}}, None),
        ({}, None),
    ],
)
def test_one_with_a_slower_board_or_whose_agent_ends_is_not_kept(
    changes: dict[str, object], kind: ReasonKind | None
) -> None:
    decision = look_on_board(replace(READY, **changes))  # type: ignore[arg-type]
    assert end_reason(decision) is kind


def test_a_slower_board_on_which_the_work_would_fit_is_not_what_was_compared_either() -> None:
    slow = replace(READY, notes={BOARD_NOTE: PCIE})
    assert end_reason(look_on_board(slow, hours=4.0)) is ReasonKind.SLOWER_BOARD


def look_on_board(theirs: AgentReport, hours: float = 12.0) -> Decision:
    """What follows from a report of a machine for which H100s of the SXM form were planned, and
    ``hours`` of work at P90."""
    cheap = replace(candidate("cheap", CHEAP, "vast"), sku="H100-SXM", hardware="1xH100-SXM")
    (phase,) = cheap.phases
    phase = replace(phase, seconds=replace(phase.seconds, p90=hours * HOUR_S))
    of = plan(0.25, candidate("dear", DEAR), replace(cheap, phases=(phase,)))
    now = AT + HOUR_S + 60.0
    observed = Observation(
        pods=DatedFact((pod(2),), now), report=DatedFact(theirs, now), bill=UnknownSince(now)
    )
    return decide_standby(standing(), of, TRAITS["vast"], observed, MINE, now)


# -- the working machine once it is to land --------------------------------------------------------


def told_to_land(at: float = AT + HOUR_S + 60.0) -> RunState:
    started, done = ev.ActionStarted("r1/g1/land/1", LAND), ev.ActionFinished("r1/g1/land/1", LAND)
    return apply(handed_over(), started, done, at=at)


def test_one_that_does_not_land_for_another_is_ended_as_after_a_stop() -> None:
    run, told_at = told_to_land(), AT + HOUR_S + 60.0
    patience_s = 300.0 + TRAITS["runpod"].end_grace_s
    waits = seen(run, told_at + patience_s - 1.0, MINE, pod(1, rate=DEAR), pod(2))
    assert waits == Decision()
    late = seen(run, told_at + patience_s, MINE, pod(1, rate=DEAR), pod(2))
    assert end_reason(late) is ReasonKind.DID_NOT_LAND


def test_a_stop_is_the_reason_to_land_of_one_that_was_to_hand_over() -> None:
    stop = ev.StopRequested("user", make_reason(ReasonKind.STOP_COMMAND))
    run = apply(handed_over(), stop, at=AT + HOUR_S + 61.0)
    (action,) = seen(run, AT + HOUR_S + 61.0, MINE, pod(1, rate=DEAR), pod(2)).actions
    assert action.verb == LAND
    assert action.reason == stop.reason


def ends(run: RunState, now: float) -> ReasonKind | None:
    return end_reason(seen(run, now, MINE, pod(1, rate=DEAR), pod(2)))


def test_a_landed_machine_is_ended_at_once_only_for_one_that_waits_for_it() -> None:
    landed_at, grace_s = AT + HOUR_S + 200.0, TRAITS["runpod"].end_grace_s
    assert ends(landed(), landed_at) is ReasonKind.MOVING
    gone = ev.PodGone(2, landed_at), ev.Settled(2, Usd(1), None)
    alone = apply(landed(), *gone, at=landed_at)
    finished = apply(handed_over(), ev.ResultKnown(Outcome.FINISHED.value, None), at=landed_at)
    for run in (alone, finished):
        assert ends(run, landed_at + grace_s - 1.0) is None
        assert ends(run, landed_at + grace_s) is ReasonKind.WORK_DONE


@pytest.mark.parametrize(
    ("taken", "later_s", "again"),
    [(True, 2.5, False), (True, 29.5, False), (True, 30.0, True), (True, -10.0, True),
     (False, 1.5, False), (False, 2.5, True)],
)  # fmt: skip
def test_an_end_that_was_taken_is_not_asked_for_again_within_half_a_minute(
    taken: bool, later_s: float, again: bool
) -> None:
    """A second one that is taken, too, would prove that the first did nothing: see
    ``absence_needed_s``."""
    at, name = AT + HOUR_S + 201.0, "r1/g1/terminate/1"
    run = apply(landed(), ev.ActionStarted(name, TERMINATE), at=at)
    run = apply(run, ev.ActionFinished(name, TERMINATE, taken=taken), at=at)
    assert ends(run, at + later_s) is (ReasonKind.MOVING if again else None)


def test_no_end_is_foreseen_of_a_run_that_another_machine_may_take_over() -> None:
    done = ev.ResultKnown(Outcome.FINISHED.value, None)
    at = AT + 2 * HOUR_S
    run = apply(handed_over(), done, ev.PodGone(1, at), at=at)
    assert foreseen_end(run, PLAN, TRAITS["runpod"]) is None
    alone = apply(run, ev.PodGone(2, at), ev.Settled(2, Usd(1), None), at=at)
    assert foreseen_end(alone, PLAN, TRAITS["runpod"]) == ev.Closed(Outcome.FINISHED.value, None)
