"""``decide``: one run, whatever its provider, its agent and its user do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from trmcloud.core import events as ev
from trmcloud.core.actions import CREATE, LAND, TERMINATE, Action, Decision
from trmcloud.core.clock import Maybe, Seen, Unknown
from trmcloud.core.controller import decide, hard_stop_within, worst_case
from trmcloud.core.money import ZERO, Usd, cost
from trmcloud.core.observation import Bill, Observation, PodSeen
from trmcloud.core.outcome import Outcome
from trmcloud.core.plan import Candidate, Interval, Plan
from trmcloud.core.pod_contract import AgentReport, PhaseReport, parse_pod_name
from trmcloud.core.providers import ProviderTraits
from trmcloud.core.run_state import RunState, State, apply_event, fold

AT = 1_790_000_000.0
TRAITS = ProviderTraits(
    name="test",
    create_settle_s=600.0,
    absent_lists=3,
    kill_latency_s=30.0,
    boot_deadline_s=300.0,
    silence_s=30.0,
    end_grace_s=60.0,
    rate_tolerance=0.05,
    kill_layers=(),
)


STARTUP_S = Interval(20.0, 60.0, 120.0)


@dataclass(frozen=True)
class StubPhase:
    name: str


@dataclass(frozen=True)
class StubCandidate:
    """What ``decide`` looks at of a candidate."""

    id: str
    rate: Usd
    provider: str = "test"
    soft_stop_s: float = 2900.0
    hard_stop_s: float = 3000.0
    landing_s: float = 100.0
    storage: Usd = ZERO
    startup_s: Interval = STARTUP_S
    phases: tuple[StubPhase, ...] = (StubPhase("fast"), StubPhase("extreme"))


@dataclass(frozen=True)
class StubSpec:
    """``volume``: checkpoints outlive the pod without anybody there to pull them."""

    volume: bool = True
    pod_uploads: bool = False


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
RESERVATION = Usd("3.03")  # 3000 s and the kill latency


def apply(run: RunState, *events: ev.RunEvent, at: float) -> RunState:
    for event in events:
        run = apply_event(run, ev.Record(1, run.run_id, 1, at, event))
    return run


def reserved(amount: Usd = RESERVATION, at: float = AT) -> RunState:
    planned = ev.RunPlanned({"id": "p"}, amount, "thesis")
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
    plan: StubPlan = PLAN,
    traits: ProviderTraits = TRAITS,
) -> Decision:
    seen = Observation(
        pods=pods if isinstance(pods, Seen | Unknown) else Seen(tuple(pods), now),
        report=Seen(report, now) if report is not None else Unknown(now),
        bill=Seen(bill, now) if bill is not None else Unknown(now),
        absent_lists=absent_lists,
        in_flight=in_flight,
        unbilled=unbilled,
        stranger_s=stranger_s,
    )
    return decide(run, cast(Plan, plan), "abcd1234", traits, seen, now)


def follow(run: RunState, now: float, **seen: Any) -> tuple[RunState, tuple[Action, ...]]:
    """As the loop does: append what follows, which must be legal, until only actions are left."""
    for _ in range(20):
        decision = ask(run, now, **seen)
        if not decision.events:
            return run, decision.actions
        run = apply(run, *decision.events, at=now)
    raise AssertionError("it never comes to rest")


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
    return apply(run, ev.ActionFailed(name, CREATE, kind, f"it said {kind}"), at=at)


def the_pod(run: RunState, **changes: Any) -> PodSeen:
    assert run.generation is not None
    pod = PodSeen("id-1", run.generation.pod_name, "running", run.generation.rate)
    return replace(pod, **changes)


def booting(at: float = AT) -> RunState:
    run = created(at=at)
    run, _ = follow(run, at + 10, pods=[the_pod(run)])
    assert run.state is State.BOOTING
    return run


def a_report(run: RunState, **changes: Any) -> AgentReport:
    assert run.generation is not None
    report = AgentReport(
        run_id="r1",
        pod_name=run.generation.pod_name,
        epoch=1,
        pid=7,
        started_at=AT,
        at=AT,
        phases=(PhaseReport("fast", state="running"),),
        soft_stop_at=run.generation.soft_stop_at,
        hard_stop_at=run.generation.hard_stop_at,
    )
    return replace(report, **changes)


def running(at: float = AT) -> RunState:
    run = booting(at)
    run, _ = follow(run, at + 20, pods=[the_pod(run)], report=a_report(run))
    assert run.state is State.RUNNING
    return run


def stopped(run: RunState, at: float) -> RunState:
    return apply(run, ev.StopRequested("user", "enough"), at=at)


# -- renting -----------------------------------------------------------------------------------


def test_the_intent_is_written_before_anything_is_asked_for() -> None:
    decision = ask(reserved(), AT)
    (intent,) = decision.events
    assert decision.actions == ()
    assert isinstance(intent, ev.PodIntended)
    assert (intent.generation, intent.candidate_id, intent.rate) == (1, "first", FIRST.rate)
    assert (intent.soft_stop_at, intent.hard_stop_at) == (AT + 2900, AT + 3000)
    name = parse_pod_name(intent.pod_name)
    assert name is not None
    assert (name.ledger, name.run_id, name.generation) == ("abcd1234", "r1", 1)
    assert name.hard_stop_at <= intent.hard_stop_at


def test_the_reservation_pays_for_the_hard_stop_and_the_kill() -> None:
    for micros in (1, 31_000, 1_000_000, 3_029_999, 3_030_000, 99_000_000):
        run = reserved(Usd.from_micros(micros))
        for candidate in PLAN.candidates:
            stop_s = hard_stop_within(cast(Candidate, candidate), run, TRAITS)
            assert 0 <= stop_s <= candidate.hard_stop_s
            if stop_s > 0:
                assert worst_case(candidate.rate, stop_s, TRAITS) <= run.reserved


def test_the_worst_case_is_paid_until_the_kill_has_worked() -> None:
    assert worst_case(FIRST.rate, 3000.0, TRAITS) == RESERVATION


def test_money_for_less_time_than_a_kill_takes_rents_nothing() -> None:
    run, actions = follow(reserved(Usd("0.015")), AT)
    assert (run.state, run.outcome, actions) == (State.CLOSED, Outcome.NOT_STARTED, ())
    assert [g.candidate_id for g in run.generations] == ["first", "second"]


def test_a_free_machine_is_bound_by_the_plans_own_stop() -> None:
    free = StubPlan((replace(FIRST, rate=ZERO),))
    run, _ = follow(reserved(ZERO), AT, plan=free)
    assert run.generation is not None
    assert run.generation.hard_stop_at == AT + 3000


def test_a_limit_on_hours_lands_the_trainer_long_before_the_hard_stop() -> None:
    limited = StubPlan((replace(FIRST, soft_stop_s=600.0),))
    (intent,) = ask(reserved(), AT, plan=limited).events
    assert isinstance(intent, ev.PodIntended)
    assert (intent.soft_stop_at, intent.hard_stop_at) == (AT + 600, AT + 3000)


@pytest.mark.parametrize(
    ("landing_s", "soft_stop_at"), [(1000.0, 2000), (999.5, 2000.5), (900.0, 2000)]
)
def test_a_second_between_the_stops_is_rounding_and_more_is_a_limit(
    landing_s: float, soft_stop_at: float
) -> None:
    candidate = replace(FIRST, soft_stop_s=2000.0, landing_s=landing_s)
    (intent,) = ask(reserved(), AT, plan=StubPlan((candidate,))).events
    assert isinstance(intent, ev.PodIntended)
    assert intent.soft_stop_at - AT == soft_stop_at


def test_a_landing_longer_than_half_the_time_is_cut_to_half() -> None:
    (intent,) = ask(reserved(Usd("0.15")), AT).events  # 120 s
    assert isinstance(intent, ev.PodIntended)
    assert intent.hard_stop_at - intent.soft_stop_at == pytest.approx(60.0)


def test_stopped_before_anything_is_rented_it_closes_at_once() -> None:
    run, actions = follow(stopped(reserved(), AT), AT)
    assert (run.state, run.outcome, run.reserved) == (State.CLOSED, Outcome.STOPPED, ZERO)
    assert actions == ()


def test_stopped_after_the_intent_nothing_is_asked_for() -> None:
    run, actions = follow(stopped(renting(), AT + 1), AT + 1)
    assert (run.state, run.outcome, actions) == (State.CLOSED, Outcome.STOPPED, ())


def test_an_intent_whose_time_has_passed_is_not_carried_out() -> None:
    """A controller that slept from the intent on asks for nothing late; it begins anew."""
    run, actions = follow(renting(), AT + 2900)
    assert len(run.generations) == 2
    assert run.generations[0].not_made is not None
    assert [a.id for a in actions] == ["r1/g2/create/1"]


# -- creating ----------------------------------------------------------------------------------


def test_what_is_asked_for_is_the_same_however_often_it_is_decided() -> None:
    run = renting()
    assert (
        ask(run, AT).actions
        == ask(run, AT + 5).actions
        == ask(run, AT + 5, pods=Unknown(AT)).actions
    )
    assert ask(run, AT).actions == (Action("r1/g1/create/1", CREATE, 1),)


@pytest.mark.parametrize("kind", ["refused", "no_capacity"])
def test_a_refusal_leads_to_the_next_candidate(kind: str) -> None:
    run, actions = follow(failed(kind), AT + 1)
    assert [g.candidate_id for g in run.generations] == ["first", "second"]
    assert run.generations[0].not_made == f"it said {kind}"
    assert [a.id for a in actions] == ["r1/g2/create/1"]
    assert run.reserved == RESERVATION, "the money is still held"


def test_after_the_last_candidate_the_run_closes_with_nothing_spent() -> None:
    run, _ = follow(failed("refused"), AT + 1)
    run, actions = follow(failed("no_capacity", AT + 2, run), AT + 3)
    assert (run.state, run.outcome, actions) == (State.CLOSED, Outcome.NOT_STARTED, ())
    assert (run.settled, run.reserved, run.message) == (ZERO, ZERO, "it said no_capacity")


def test_a_reopened_run_asks_again_for_what_was_out_of_stock() -> None:
    run, _ = follow(failed("no_capacity"), AT + 1)
    run, _ = follow(failed("no_capacity", AT + 2, run), AT + 3)
    run = apply(run, ev.Reopened(RESERVATION), ev.Reserved(RESERVATION), at=AT - 9999)
    run, actions = follow(run, AT + 4)
    assert run.generation is not None
    assert (run.generation.number, run.generation.candidate_id) == (3, "first")
    assert [a.id for a in actions] == ["r1/g3/create/1"]


@pytest.mark.parametrize("kind", ["ambiguous", "error"])
def test_an_ambiguous_answer_is_waited_out_and_never_asked_again(kind: str) -> None:
    run = failed(kind)
    for now, absent in ((AT, 0), (AT + 599, 50), (AT + 9999, 2)):
        assert ask(run, now, absent_lists=absent) == Decision(), "not yet proven"
    assert ask(run, AT + 9999, pods=Unknown(AT), absent_lists=50) == Decision(), "no list, no proof"
    old: Seen[tuple[PodSeen, ...]] = Seen((), AT + 599)
    assert ask(run, AT + 9999, pods=old, absent_lists=50) == Decision(), "an old list is no proof"
    run, actions = follow(run, AT + 600, absent_lists=3)
    assert [g.candidate_id for g in run.generations] == ["first", "second"]
    assert [a.id for a in actions] == ["r1/g2/create/1"]


@pytest.mark.parametrize("kind", ["ambiguous", "error", "refused", "no_capacity"])
@pytest.mark.parametrize("status", ["creating", "running", "unknown"])
def test_a_pod_that_appears_is_adopted_whatever_was_answered(kind: str, status: str) -> None:
    run = failed(kind)
    run, actions = follow(run, AT + 300, pods=[the_pod(run, status=status)])
    assert (run.state, actions) == (State.BOOTING, ())
    assert run.generation is not None
    assert run.generation.pod_id == "id-1"


@pytest.mark.parametrize("kind", ["ambiguous", "refused"])
def test_a_pod_that_came_and_went_has_a_bill(kind: str) -> None:
    run = failed(kind)
    gone = the_pod(run, status="gone", ended_at=AT + 280)
    run, _ = follow(run, AT + 300, pods=[gone])
    assert run.state is State.SETTLING
    assert run.reserved == RESERVATION


def test_a_controller_killed_while_it_asked_asks_no_second_time() -> None:
    run = apply(renting(), ev.ActionStarted("r1/g1/create/1", CREATE), at=AT)
    assert ask(run, AT + 1) == Decision()
    assert ask(run, AT + 1, absent_lists=9) == Decision()
    in_flight = frozenset({"r1/g1/create/1"})
    assert ask(run, AT + 9999, absent_lists=9, in_flight=in_flight) == Decision()
    after, _ = follow(run, AT + 600, absent_lists=3)
    assert after.generations[0].not_made == "it never appeared"
    adopted, _ = follow(run, AT + 5, pods=[the_pod(run)])
    assert adopted.state is State.BOOTING


def test_a_created_pod_that_no_list_shows_is_given_up_only_after_the_wait() -> None:
    run = created()
    assert ask(run, AT + 599, absent_lists=99) == Decision()
    after, _ = follow(run, AT + 601, absent_lists=3)
    assert after.generations[0].not_made == "it never appeared"


def test_stopped_while_a_pod_may_be_coming_it_waits_to_see() -> None:
    run = stopped(failed("ambiguous"), AT + 1)
    assert ask(run, AT + 2) == Decision()
    late, actions = follow(run, AT + 3, pods=[the_pod(run)])
    assert late.state is State.BOOTING
    assert [a.verb for a in actions] == [LAND]
    never, _ = follow(run, AT + 600, absent_lists=3)
    assert (never.state, never.outcome) == (State.CLOSED, Outcome.STOPPED)


def test_a_pod_that_appears_after_its_hard_stop_is_ended_at_once() -> None:
    run = failed("ambiguous")
    run, actions = follow(run, AT + 3000, pods=[the_pod(run)])
    assert [(a.verb, a.reason) for a in actions] == [(TERMINATE, "hard stop")]


def test_somebody_elses_pod_is_not_taken_for_ours() -> None:
    run = created()
    assert run.generation is not None
    others = [PodSeen("id-9", f"{run.generation.pod_name}x", "running", Usd(1))]
    assert ask(run, AT + 5, pods=others) == Decision()


# -- booting -----------------------------------------------------------------------------------


def test_an_agent_that_reports_ends_the_boot() -> None:
    run = booting()
    run, actions = follow(run, AT + 60, pods=[the_pod(run)], report=a_report(run))
    assert (run.state, actions) == (State.RUNNING, ())


def test_another_pods_report_is_not_this_ones() -> None:
    run = booting()
    other = a_report(run, pod_name="trmc-abcd1234-r9-g1-1790000000", result="finished")
    assert ask(run, AT + 60, pods=[the_pod(run)], report=other) == Decision()


def test_without_an_agent_by_the_boot_deadline_the_pod_is_ended() -> None:
    run = booting()  # up at AT + 10
    assert ask(run, AT + 309, pods=[the_pod(run)]) == Decision()
    (action,) = ask(run, AT + 310, pods=[the_pod(run)]).actions
    assert (action.verb, action.pod_id) == (TERMINATE, "id-1")
    assert "no agent within 300 s" in action.reason
    alone = StubPlan((FIRST,))
    gone = the_pod(run, status="gone", ended_at=AT + 390)
    run, _ = follow(run, AT + 400, pods=[gone], plan=alone)
    run, _ = follow(run, AT + 500, bill=Bill("id-1", Usd("0.39"), final=True), plan=alone)
    assert (run.outcome, run.settled) == (Outcome.LOST, Usd("0.39"))


def test_where_a_stranger_answers_the_boot_is_not_waited_for() -> None:
    run = booting()
    assert ask(run, AT + 90, pods=[the_pod(run)], stranger_s=59.0) == Decision()
    (action,) = ask(run, AT + 90, pods=[the_pod(run)], stranger_s=60.0).actions
    assert (action.verb, action.pod_id) == (TERMINATE, "id-1")
    assert "host key" in action.reason
    heard = a_report(run)
    run, actions = follow(run, AT + 90, pods=[the_pod(run)], report=heard, stranger_s=99.0)
    assert (run.state, actions) == (State.RUNNING, ())


def test_a_pod_that_dies_while_it_boots_is_settled() -> None:
    run = booting()
    run, _ = follow(run, AT + 60, absent_lists=3)
    assert run.state is State.SETTLING


@pytest.mark.parametrize(
    ("billed", "ended"),
    [("3.6", False), ("3.78", False), ("3.780001", True), ("9", True), ("1", False)],
)
def test_a_pod_billed_above_its_planned_rate_is_ended(billed: str, ended: bool) -> None:
    run = created()
    run, actions = follow(run, AT + 10, pods=[the_pod(run, rate=Usd(billed))])
    assert [a.verb for a in actions] == ([TERMINATE] if ended else [])
    if ended:
        assert "billed" in actions[0].reason


# -- running -----------------------------------------------------------------------------------


def test_a_healthy_run_is_left_alone() -> None:
    run = running()
    for now in (AT + 100, AT + 2000, AT + 2999):
        assert ask(run, now, pods=[the_pod(run)], report=a_report(run)) == Decision()


def test_a_silent_agent_proves_nothing() -> None:
    """Partitioned is not dead: the pod is left to its own guard, until the hard stop."""
    run = running()
    assert ask(run, AT + 2999, pods=[the_pod(run)]) == Decision()
    assert ask(run, AT + 2999, pods=Unknown(AT)) == Decision()


@pytest.mark.parametrize("pods", [Unknown(AT), None])
def test_at_the_hard_stop_it_is_ended_with_or_without_a_list(pods: Unknown | None) -> None:
    run = running()
    listed: Maybe[tuple[PodSeen, ...]] = pods or Seen((the_pod(run),), AT + 3000)
    (action,) = ask(run, AT + 3000, pods=listed, report=a_report(run)).actions
    assert action == Action("r1/g1/terminate/1", TERMINATE, 1, "id-1", "hard stop")


def test_termination_is_tried_again_until_the_pod_is_gone() -> None:
    run = running()
    now, tries = AT + 3000, []
    while now < AT + 3000 + 200:
        for action in ask(run, now, pods=[the_pod(run)]).actions:
            tries.append((now - AT - 3000, action.id))
            run = apply(run, ev.ActionStarted(action.id, TERMINATE), at=now)
            run = apply(run, ev.ActionFinished(action.id, TERMINATE), at=now)
        now += 1
    assert [at_s for at_s, _ in tries] == [0, 2, 6, 14, 30, 60, 90, 120, 150, 180]
    assert [name for _, name in tries] == [f"r1/g1/terminate/{n}" for n in range(1, 11)]
    run, _ = follow(run, now, pods=[the_pod(run, status="gone", ended_at=now - 1)])
    assert run.state is State.SETTLING


@pytest.mark.parametrize("tries", [60, 1100])
def test_a_pod_that_will_not_go_is_tried_at_for_days(tries: int) -> None:
    run = running()
    done = {f"r1/g1/terminate/{n}": replace(ACTION, started_at=AT + n) for n in range(1, tries + 1)}
    stuck = replace(run, actions={**run.actions, **done})
    (action,) = ask(stuck, AT + 999_999, pods=[the_pod(run)]).actions
    assert action.id == f"r1/g1/terminate/{tries + 1}"


ACTION = created().actions["r1/g1/create/1"]


def test_absence_needs_several_fresh_lists() -> None:
    run = running()
    for lists in (0, 1, 2):
        assert ask(run, AT + 500, absent_lists=lists) == Decision()
    assert ask(run, AT + 500, pods=Unknown(AT + 500), absent_lists=3) == Decision()
    (gone,) = ask(run, AT + 500, absent_lists=3).events
    assert gone == ev.PodGone(1, AT + 500)


def test_a_pod_that_vanished_is_lost_and_settled() -> None:
    run, _ = follow(running(), AT + 500, absent_lists=3)
    run, _ = follow(run, AT + 501, bill=Bill("id-1", Usd("0.5"), final=True))
    assert (run.state, run.outcome, run.settled) == (State.CLOSED, Outcome.LOST, Usd("0.5"))


def test_a_pod_in_the_list_is_not_gone_however_strange_its_status() -> None:
    run = running()
    assert ask(run, AT + 500, pods=[the_pod(run, status="unknown")], absent_lists=9) == Decision()


def test_when_it_ended_is_what_the_provider_says_if_it_says_so() -> None:
    run = running()
    known = ask(run, AT + 500, pods=[the_pod(run, status="gone", ended_at=AT + 77)])
    assert known.events == (ev.PodGone(1, AT + 77),)
    unknown = ask(run, AT + 500, pods=[the_pod(run, status="gone")])
    assert unknown.events == (ev.PodGone(1, AT + 500),)


def test_of_two_pods_of_one_name_the_known_one_counts() -> None:
    run = running()
    twin = the_pod(run, pod_id="id-2")
    dead = the_pod(run, status="gone", ended_at=AT + 77)
    assert ask(run, AT + 500, pods=[twin, the_pod(run)]) == Decision()
    assert ask(run, AT + 500, pods=[twin, dead]).events == (ev.PodGone(1, AT + 77),)


def test_before_an_id_is_known_a_living_pod_counts_before_a_dead_one() -> None:
    run = created()
    dead = the_pod(run, pod_id="id-0", status="gone", ended_at=AT)
    (up,) = ask(run, AT + 5, pods=[dead, the_pod(run)]).events
    assert up == ev.PodUp(1, "id-1", FIRST.rate)


# -- stopping ----------------------------------------------------------------------------------


def test_a_stop_lands_the_trainer_once() -> None:
    run = stopped(running(), AT + 100)
    (action,) = ask(run, AT + 100, pods=[the_pod(run)], report=a_report(run)).actions
    assert action == Action("r1/g1/land/1", LAND, 1, "id-1", "enough")
    run = apply(run, ev.ActionStarted(action.id, LAND), at=AT + 100)
    assert ask(run, AT + 101, pods=[the_pod(run)]) == Decision(), "it is on its way"
    (again,) = ask(run, AT + 102, pods=[the_pod(run)]).actions
    assert again.id == "r1/g1/land/2", "nobody heard how the first one went"
    done = apply(run, ev.ActionFinished(action.id, LAND), at=AT + 100)
    assert ask(done, AT + 250, pods=[the_pod(run)], report=a_report(run)) == Decision()


def test_a_landing_order_that_failed_is_given_again() -> None:
    run = stopped(running(), AT + 100)
    run = apply(run, ev.ActionStarted("r1/g1/land/1", LAND), at=AT + 100)
    run = apply(run, ev.ActionFailed("r1/g1/land/1", LAND, "error", "no route"), at=AT + 100)
    assert ask(run, AT + 101, pods=[the_pod(run)]) == Decision()
    (action,) = ask(run, AT + 102, pods=[the_pod(run)]).actions
    assert action.id == "r1/g1/land/2"


def test_a_trainer_that_does_not_land_is_ended() -> None:
    run = stopped(running(), AT + 100)
    run = apply(run, ev.ActionStarted("r1/g1/land/1", LAND), at=AT + 100)
    run = apply(run, ev.ActionFinished("r1/g1/land/1", LAND), at=AT + 100)
    # 100 s to land and 60 s of grace
    assert ask(run, AT + 259, pods=[the_pod(run)], report=a_report(run)) == Decision()
    (action,) = ask(run, AT + 260, pods=[the_pod(run)], report=a_report(run)).actions
    assert (action.verb, action.reason) == (TERMINATE, "it did not land when told to")


def test_a_landing_that_was_cut_short_is_not_waited_for_in_full() -> None:
    run, _ = follow(reserved(Usd("0.15")), AT)  # 120 s, of which 60 to land in
    run = created(run)
    run, _ = follow(run, AT + 5, pods=[the_pod(run)], report=a_report(run))
    run = stopped(run, AT - 10)
    run = apply(run, ev.ActionStarted("r1/g1/land/1", LAND), at=AT - 10)
    run = apply(run, ev.ActionFinished("r1/g1/land/1", LAND), at=AT - 10)
    assert ask(run, AT + 109, pods=[the_pod(run)]) == Decision()
    (action,) = ask(run, AT + 110, pods=[the_pod(run)]).actions
    assert action.reason == "it did not land when told to"


def test_a_limit_on_hours_does_not_make_a_stop_wait_for_hours() -> None:
    limited = StubPlan((replace(FIRST, soft_stop_s=600.0),))
    run, _ = follow(reserved(), AT, plan=limited)
    run = created(run)
    run, _ = follow(run, AT + 10, pods=[the_pod(run)], report=a_report(run), plan=limited)
    run = stopped(run, AT + 100)
    run = apply(run, ev.ActionStarted("r1/g1/land/1", LAND), at=AT + 100)
    run = apply(run, ev.ActionFinished("r1/g1/land/1", LAND), at=AT + 100)
    (action,) = ask(run, AT + 260, pods=[the_pod(run)], plan=limited).actions
    assert action.verb == TERMINATE


def test_a_stop_while_booting_lands_too() -> None:
    run = stopped(booting(), AT + 50)
    (action,) = ask(run, AT + 50, pods=[the_pod(run)]).actions
    assert action.verb == LAND


def test_a_run_stopped_and_gone_without_a_word_was_stopped() -> None:
    run = stopped(running(), AT + 100)
    run, _ = follow(run, AT + 200, absent_lists=3)
    run, _ = follow(run, AT + 201, bill=Bill("id-1", Usd("0.2"), final=True))
    assert (run.outcome, run.message) == (Outcome.STOPPED, "ended before it reported")


# -- ending ------------------------------------------------------------------------------------

ENDED = PhaseReport("fast", state="ended", outcome="finished", step=90, val_bpb=1.5, attempts=2)


def ending(at: float = AT) -> RunState:
    run = running(at)
    report = a_report(run, phases=(ENDED,), result="finished", message="done")
    run, actions = follow(run, at + 500, pods=[the_pod(run)], report=report)
    assert (run.state, actions) == (State.ENDING, ())
    return run


def test_the_agents_account_enters_the_ledger_once() -> None:
    run = ending()
    (account,) = run.phase_accounts
    assert (account.outcome, account.step, account.val_bpb, account.attempts) == (
        "finished",
        90,
        1.5,
        2,
    )
    assert (run.result, run.message, run.result_at) == ("finished", "done", AT + 500)


def test_a_gate_enters_the_ledger_with_its_phase() -> None:
    run = running()
    judged = replace(ENDED, gate={"passed": False, "checks": []})
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
    assert (action.verb, action.reason) == (TERMINATE, "its work is done")


def test_what_else_happens_does_not_lengthen_the_grace() -> None:
    run = apply(ending(), ev.StopRequested("user", "hurry"), at=AT + 555)
    assert ask(run, AT + 560, pods=[the_pod(run)]).actions
    run = apply(ending(), ev.ActionStarted("r1/g1/terminate/1", TERMINATE), at=AT + 560)
    run = apply(run, ev.ActionFinished("r1/g1/terminate/1", TERMINATE), at=AT + 560)
    assert [a.id for a in ask(run, AT + 562, pods=[the_pod(run)]).actions] == ["r1/g1/terminate/2"]


@pytest.mark.parametrize("word", ["victory", "", "closed", "\x1b[31m" * 999])
def test_a_result_nobody_knows_is_a_failure_and_not_a_crash_of_ours(word: str) -> None:
    run = running()
    run, _ = follow(run, AT + 100, pods=[the_pod(run)], report=a_report(run, result=word))
    assert (run.state, run.result) == (State.ENDING, "failed")
    assert len(run.message) < 1000
    assert "\x1b" not in run.message


# -- settling ----------------------------------------------------------------------------------


def settling() -> RunState:
    run = ending()
    run, _ = follow(run, AT + 520, pods=[the_pod(run, status="gone", ended_at=AT + 510)])
    assert run.state is State.SETTLING
    return run


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
    gone = the_pod(run, status="gone", ended_at=AT + 99_999)
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
    ("ended_s", "outcome"),
    [(3001, Outcome.KILLED), (2999, Outcome.KILLED), (2998, Outcome.LOST)],
)
def test_killed_at_the_hard_stop_is_said_so(ended_s: int, outcome: Outcome) -> None:
    run = running()
    run, _ = follow(run, AT + 3005, pods=[the_pod(run, status="gone", ended_at=AT + ended_s)])
    run, _ = follow(run, AT + 3006, bill=Bill("id-1", Usd(3), final=True))
    assert run.outcome is outcome


def test_a_closed_run_asks_for_nothing() -> None:
    run, _ = follow(settling(), AT + 600, bill=Bill("id-1", Usd("0.51"), final=True))
    assert ask(run, AT + 9999, pods=[the_pod(run)], report=a_report(run)) == Decision()


def test_a_reopened_run_has_the_rest_of_its_budget_for_time() -> None:
    run, _ = follow(settling(), AT + 600, bill=Bill("id-1", Usd("0.51"), final=True))
    run = apply(run, ev.Reopened(Usd(10)), ev.Reserved(Usd("9.49")), at=AT + 700)
    (intent,) = ask(run, AT + 700).events
    assert isinstance(intent, ev.PodIntended)
    assert intent.generation == 2
    assert intent.hard_stop_at - AT - 700 == pytest.approx(9490 - 30)
    assert cost(FIRST.rate, intent.hard_stop_at - AT - 700 + 30) <= Usd("9.49")


def test_a_reopened_run_without_money_for_the_kill_rents_nothing() -> None:
    run, _ = follow(settling(), AT + 600, bill=Bill("id-1", Usd("0.51"), final=True))
    run = apply(run, ev.Reopened(Usd(10)), ev.Reserved(Usd("0.01")), at=AT + 700)
    run, actions = follow(run, AT + 700)
    assert (run.outcome, run.settled, actions) == (Outcome.NOT_STARTED, Usd("0.51"), ())


def test_money_is_never_settled_twice() -> None:
    run = settling()
    bill = Bill("id-1", Usd("0.51"), final=True)
    events = ask(run, AT + 600, bill=bill).events
    settled = apply(run, *events, at=AT + 600)
    assert [type(e) for e in ask(settled, AT + 601, bill=bill).events] == [ev.Closed]


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

    write(ev.RunPlanned({"id": "p"}, RESERVATION, "thesis"), ev.Reserved(RESERVATION), at=AT)
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
        seen["pods"] = [the_pod(run, status=what["pod"], ended_at=AT + 505)]
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
    made_up = replace(ENDED, name="x" * 60, gate={"passed": True, "checks": []})
    report = a_report(run, phases=(made_up,))
    assert ask(run, AT + 90, pods=[the_pod(run)], report=report) == Decision()
