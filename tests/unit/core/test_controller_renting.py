"""`decide` until a pod is there: candidates, intents, creates whose answers say little, and how
long a pod must be missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from tests.plans import recorded
from tests.present import only, present
from tests.reasons import quoted
from tests.unit.core.runs import (
    AT,
    BOOTED_AT,
    FIRST,
    PLAN,
    RESERVATION,
    TRAITS,
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
    stopped,
    the_pod,
)
from trmcloud.core.catalog.providers import AbsenceProof
from trmcloud.core.clock import DatedFact, Instant, UnknownSince
from trmcloud.core.contract.pod_contract import AgentReport, parse_pod_name
from trmcloud.core.control import events as ev
from trmcloud.core.control.actions import CREATE, LAND, TERMINATE, Action, Decision
from trmcloud.core.control.billing import has_failed_to_boot, late_bills, settle_unbilled
from trmcloud.core.control.events import ActionKey, FailureKind
from trmcloud.core.control.observation import Bill, Observation, PodSeen, PodStatus
from trmcloud.core.control.pod_facts import (
    absence_needed_s,
    has_reported_since,
    is_absent,
    proven_end,
)
from trmcloud.core.control.reason import Reason, ReasonKind, make_reason
from trmcloud.core.control.renting import hard_stop_within, try_next
from trmcloud.core.control.run_state import Absence, ActionState, RunState, State
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO, Usd, cost
from trmcloud.core.spec.plan import Candidate, Plan
from trmcloud.operations.reasons import sentence

# -- ``decide`` until a pod is there: candidates, intents, creates whose answers say little -----


ALONE = StubPlan((FIRST,))

# -- renting -----------------------------------------------------------------------------------

FIRST_CREATE = ActionKey("r1", 1, CREATE, 1)


def test_the_intent_is_written_before_anything_is_asked_for() -> None:
    decision = ask(reserved(), AT)
    (intent,) = decision.events
    assert decision.actions == ()
    assert isinstance(intent, ev.PodIntended)
    assert (intent.generation, intent.candidate_id, intent.rate) == (1, "first", FIRST.rate)
    assert (intent.soft_stop_at, intent.hard_stop_at) == (AT + 2900, AT + 3000)
    name = present(parse_pod_name(intent.pod_name))
    assert (name.ledger, name.run_id, name.generation) == ("abcd1234", "r1", 1)
    assert name.hard_stop_at <= intent.hard_stop_at


def test_no_pod_is_asked_for_after_its_soft_stop_though_the_clock_was_set_back() -> None:
    run = renting()
    generation = run.generations[-1]
    wakes = Instant(AT - 86_400.0, generation.boot + 2900.0, generation.boot_id)
    assert ask(run, wakes.wall, clock=replace(wakes, boot=wakes.boot - 1)).actions != ()
    not_made = only(ev.PodNotMade, ask(run, wakes.wall, clock=wakes).events)
    assert sentence(not_made.reason) == "stopped before a machine was requested"


@pytest.mark.parametrize(("allowed_s", "is_asked_for"), [(0.5, True), (0.0, False)])
def test_with_one_clock_alone_a_soft_stop_has_come_as_soon_as_it_had_at_the_intent(
    allowed_s: float, is_asked_for: bool
) -> None:
    """However far that clock was set back since, and no sooner."""
    run = renting()
    [generation] = run.generations
    soft_stop_at = generation.intended_at + allowed_s
    short = replace(run, generations=(replace(generation, soft_stop_at=soft_stop_at),))
    decision = ask(short, AT - 86_400.0, clock=None)
    assert bool(decision.actions) is is_asked_for
    assert [type(event) for event in decision.events] == ([] if is_asked_for else [ev.PodNotMade])


def test_the_reservation_pays_for_the_hard_stop_and_the_kill() -> None:
    for micros in (1, 31_000, 1_000_000, 3_029_999, 3_030_000, 99_000_000):
        run = reserved(Usd.from_micros(micros))
        for candidate in PLAN.candidates:
            stop_s = hard_stop_within(cast(Candidate, candidate), run, TRAITS)
            assert 0 <= stop_s <= candidate.hard_stop_s
            if stop_s > 0:
                killed_at_s = stop_s + TRAITS.kill_latency_s
                assert cost(candidate.rate, killed_at_s) <= run.reserved


def test_money_for_less_time_than_a_kill_takes_rents_nothing() -> None:
    run, actions = follow(reserved(Usd("0.015")), AT)
    assert (run.state, run.outcome, actions) == (State.CLOSED, Outcome.NOT_STARTED, ())
    assert [g.candidate_id for g in run.generations] == ["first", "second"]


def test_a_free_machine_is_bound_by_the_plans_own_stop() -> None:
    free = StubPlan((replace(FIRST, rate=ZERO),))
    run, _ = follow(reserved(ZERO), AT, plan=free)
    assert run.generations[-1].hard_stop_at == AT + 3000


def test_a_limit_on_hours_lands_the_trainer_long_before_the_hard_stop() -> None:
    limited = StubPlan((replace(FIRST, soft_stop_s=600.0),))
    intent = only(ev.PodIntended, ask(reserved(), AT, plan=limited).events)
    assert (intent.soft_stop_at, intent.hard_stop_at) == (AT + 600, AT + 3000)


@pytest.mark.parametrize(
    ("landing_s", "soft_stop_at"),
    [(1000.0, 2000), (999.5, 2000.5), (999.0, 2001), (998.5, 2000), (900.0, 2000)],
)
def test_a_second_between_the_stops_is_rounding(landing_s: float, soft_stop_at: float) -> None:
    candidate = replace(FIRST, soft_stop_s=2000.0, landing_s=landing_s)
    intent = only(ev.PodIntended, ask(reserved(), AT, plan=StubPlan((candidate,))).events)
    assert intent.soft_stop_at - AT == soft_stop_at


def test_a_landing_longer_than_half_the_time_is_not_cut() -> None:
    """What is left of 120 s is no time to train in, and the agent says so; but nothing is killed
    while it saves."""
    intent = only(ev.PodIntended, ask(reserved(Usd("0.15")), AT).events)
    assert intent.hard_stop_at - intent.soft_stop_at == pytest.approx(FIRST.landing_s)


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
        == ask(run, AT + 5, pods=UnknownSince(AT)).actions
    )
    assert ask(run, AT).actions == (Action(FIRST_CREATE),)


@pytest.mark.parametrize("kind", ["refused", "no_capacity"])
def test_a_refusal_leads_to_the_next_candidate(kind: str) -> None:
    run, actions = follow(failed(kind), AT + 1)
    assert [g.candidate_id for g in run.generations] == ["first", "second"]
    assert sentence(run.generations[0].not_made) == f"it said {kind}"
    assert [a.id for a in actions] == ["r1/g2/create/1"]
    assert run.reserved == RESERVATION, "the money is still held"


def test_what_no_candidate_can_mend_ends_the_run_at_the_first() -> None:
    run, actions = follow(failed("final"), AT + 1)
    assert [g.candidate_id for g in run.generations] == ["first"], "the second would fare no better"
    assert (run.state, run.outcome, actions) == (State.CLOSED, Outcome.NOT_STARTED, ())
    assert (run.settled, run.reserved, sentence(run.reason)) == (ZERO, ZERO, "it said final")
    run = apply(run, ev.Reopened(RESERVATION), ev.Reserved(RESERVATION), at=AT + 9)
    run, actions = follow(run, AT + 10)
    assert [a.id for a in actions] == ["r1/g2/create/1"], "reopened, it may be mended"


def test_after_the_last_candidate_the_run_closes_with_nothing_spent() -> None:
    run, _ = follow(failed("refused"), AT + 1)
    run, actions = follow(failed("no_capacity", AT + 2, run), AT + 3)
    assert (run.state, run.outcome, actions) == (State.CLOSED, Outcome.NOT_STARTED, ())
    assert (run.settled, run.reserved, sentence(run.reason)) == (ZERO, ZERO, "it said no_capacity")


def test_a_reopened_run_asks_again_for_what_was_out_of_stock() -> None:
    run, _ = follow(failed("no_capacity"), AT + 1)
    run, _ = follow(failed("no_capacity", AT + 2, run), AT + 3)
    run = apply(run, ev.Reopened(RESERVATION), ev.Reserved(RESERVATION), at=AT - 9999)
    run, actions = follow(run, AT + 4)
    assert (run.generations[-1].number, run.generations[-1].candidate_id) == (3, "first")
    assert [a.id for a in actions] == ["r1/g3/create/1"]


@pytest.mark.parametrize("kind", ["ambiguous", "error"])
def test_an_ambiguous_answer_is_waited_out_and_never_asked_again(kind: str) -> None:
    run = failed(kind)
    for now, absent in ((AT, 0), (AT + 599, 50), (AT + 9999, 2)):
        assert ask(run, now, absent_lists=absent) == Decision(), "not yet proven"
    assert ask(run, AT + 9999, pods=UnknownSince(AT), absent_lists=50) == Decision(), (
        "no list, no proof"
    )
    old: DatedFact[tuple[PodSeen, ...]] = DatedFact((), AT + 599)
    assert ask(run, AT + 9999, pods=old, absent_lists=50) == Decision(), "an old list is no proof"
    run, actions = follow(run, AT + 600, absent_lists=3)
    assert sentence(run.generations[0].not_made) == f"it said {kind}"
    assert [g.candidate_id for g in run.generations] == ["first", "second"]
    assert [a.id for a in actions] == ["r1/g2/create/1"]


@pytest.mark.parametrize("kind", ["ambiguous", "error", "refused", "no_capacity"])
@pytest.mark.parametrize("status", [status for status in PodStatus if status is not PodStatus.GONE])
def test_a_pod_that_appears_is_adopted_whatever_was_answered(kind: str, status: str) -> None:
    run = failed(kind)
    run, actions = follow(run, AT + 300, pods=[the_pod(run, status=status)])
    ended = [TERMINATE] if status is PodStatus.STOPPED else []
    assert (run.state, [action.verb for action in actions]) == (State.BOOTING, ended)
    assert run.generations[-1].pod_id == "id-1"


@pytest.mark.parametrize("kind", ["ambiguous", "refused"])
def test_a_pod_that_came_and_went_has_a_bill(kind: str) -> None:
    run = failed(kind)
    gone = the_pod(run, status=PodStatus.GONE, ended_at=AT + 280)
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
    assert sentence(after.generations[0].not_made) == "it never appeared"
    adopted, _ = follow(run, AT + 5, pods=[the_pod(run)])
    assert adopted.state is State.BOOTING


def test_a_created_pod_that_no_list_shows_is_given_up_only_after_the_wait() -> None:
    run = created()
    assert ask(run, AT + 599, absent_lists=99) == Decision()
    after, _ = follow(run, AT + 601, absent_lists=3)
    assert sentence(after.generations[0].not_made) == "it never appeared"


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
    assert [(a.verb, sentence(a.reason)) for a in actions] == [(TERMINATE, "hard stop")]


@pytest.mark.parametrize("until", [renting, created, booting, lambda: failed("ambiguous")])
def test_a_create_taken_that_failed_later_counts_as_refused(
    until: Callable[[], RunState],
) -> None:
    run = until()
    none = the_pod(run, status=PodStatus.GONE, rate=ZERO, never_made="none left")
    run, actions = follow(run, AT + 60, pods=[none])
    assert [g.candidate_id for g in run.generations] == ["first", "second"]
    assert sentence(run.generations[0].not_made) == "none left"
    assert run.actions[FIRST_CREATE].failed_kind == "no_capacity"
    assert [a.id for a in actions] == ["r1/g2/create/1"]
    assert run.reserved == RESERVATION, "the money is still held"
    run, _ = follow(failed("no_capacity", AT + 61, run), AT + 62, pods=[none])
    assert (run.state, run.outcome, run.settled) == (State.CLOSED, Outcome.NOT_STARTED, ZERO)


@pytest.mark.parametrize("until", [created, booting])
def test_of_several_machines_some_may_have_been_there_until_the_last_was_not_found(
    until: Callable[[], RunState],
) -> None:
    run = until()
    none = the_pod(run, status=PodStatus.GONE, never_made="none left", ended_at=AT + 50)
    run, _ = follow(run, AT + 60, pods=[none])
    assert (run.state, run.reserved) == (State.SETTLING, RESERVATION)
    assert run.actions[FIRST_CREATE].failed_kind == "no_capacity"
    run, actions = follow(run, AT + 61, pods=[none], bill=Bill("id-1", Usd("0.05"), final=True))
    assert (run.settled, [a.id for a in actions]) == (Usd("0.05"), ["r1/g2/create/1"])
    alone, _ = follow(until(), AT + 60, pods=[none], plan=ALONE)
    alone, _ = follow(
        alone, AT + 61, pods=[none], bill=Bill("id-1", Usd("0.05"), final=True), plan=ALONE
    )
    assert (alone.outcome, sentence(alone.reason)) == (Outcome.LOST, "none left")


def test_a_pod_that_is_listed_was_made_whatever_is_said_of_it() -> None:
    run = booting()
    assert ask(run, AT + 60, pods=[the_pod(run, never_made="none left")]) == Decision()


def test_stopped_while_it_is_looked_for_it_ends_as_stopped() -> None:
    run = stopped(booting(), AT + 20)
    none = the_pod(run, status=PodStatus.GONE, rate=ZERO, never_made="none left")
    run, actions = follow(run, AT + 60, pods=[none])
    assert (run.state, run.outcome, actions) == (State.CLOSED, Outcome.STOPPED, ())


def test_somebody_elses_pod_is_not_taken_for_ours() -> None:
    run = created()
    others = [PodSeen("id-9", f"{run.generations[-1].pod_name}x", PodStatus.RUNNING, Usd(1))]
    assert ask(run, AT + 5, pods=others) == Decision()


# -- after a boot that failed --------------------------------------------------------------------


NO_BOOT = make_reason(ReasonKind.BOOT_FAILED, text="layer does not exist")


def boot_failed(why: Reason = NO_BOOT, *, gone_at: float = AT + 60) -> RunState:
    """A run that ended its pod since its log said that it cannot boot, and found it gone."""
    run = booting()
    run = apply(run, ev.ActionStarted("r1/g1/terminate/1", TERMINATE), at=AT + 20)
    done = ev.ActionFinished("r1/g1/terminate/1", TERMINATE, taken=True, reason=why)
    run = apply(run, done, at=AT + 21)
    gone = the_pod(run, status=PodStatus.GONE, ended_at=AT + 22)
    run = apply(run, *ask(run, gone_at, pods=[gone]).events, at=gone_at)
    assert run.state is State.SETTLING
    return run


SO_FAR = Bill("id-1", Usd("0.01"), final=False)


@pytest.mark.parametrize("bill", [None, SO_FAR, replace(SO_FAR, amount=Usd("0.4"))])
def test_after_a_failed_boot_the_next_is_asked_for_at_once(bill: Bill | None) -> None:
    run = boot_failed()
    again, actions = follow(run, AT + 60, bill=bill)
    assert [str(a.id) for a in actions] == ["r1/g2/create/1"]
    first, second = again.generations
    assert (first.billed, second.candidate_id) == (None, "second")
    # The most that the first can have cost stays reserved for it, what is billed by now at least.
    most = cost(FIRST.rate, 22 + TRAITS.kill_latency_s)
    expected = most if bill is None else max(most, bill.amount)
    assert first.settled == expected > ZERO
    assert again.reserved + again.settled == RESERVATION
    # Its bill takes the estimate's place, while the second lives.
    late = late_bills(again, {1: Bill("id-1", Usd("0.02"), final=True)})
    billed = apply(again, *late, at=AT + 900)
    assert (billed.settled, billed.reserved) == (Usd("0.02"), again.reserved)


def test_a_final_bill_that_is_there_is_taken_and_no_estimate() -> None:
    final = Bill("id-1", Usd("0.03"), final=True)
    again, _ = follow(boot_failed(), AT + 60, bill=final)
    assert (again.generations[0].settled, again.generations[0].billed) == (final.amount,) * 2
    assert again.reserved == RESERVATION - final.amount


@pytest.mark.parametrize(
    ("run", "seen"),
    [
        (
            boot_failed(make_reason(ReasonKind.STRANGER_ANSWERS)),
            {},
        ),  # no log has said why: the bill has its time
        (stopped(boot_failed(), AT + 60), {}),
        (boot_failed(), {"plan": StubPlan((FIRST,))}),
        (boot_failed(), {"plan": StubPlan((FIRST, replace(FIRST, id="dear", rate=Usd(9999))))}),
        (boot_failed(), {"pods": [the_pod(boot_failed())]}),  # listed again: not gone after all
        (boot_failed(), {"pods": UnknownSince(AT + 60)}),
    ],
    ids=["no line", "stopped", "no other", "too dear", "listed again", "no list"],
)
def test_its_bill_is_waited_for_if_none_is_sooner(run: RunState, seen: dict[str, Any]) -> None:
    assert ask(run, AT + 60, **seen) == Decision()
    assert run.reserved == RESERVATION


def test_an_agent_that_was_heard_makes_it_no_failed_boot() -> None:
    run = boot_failed()
    heard = replace(run.generations[0], agent_at=AT + 19)
    assert has_failed_to_boot(run, run.generations[0])
    assert not has_failed_to_boot(run, heard)
    assert ask(replace(run, generations=(heard,)), AT + 60) == Decision()


def test_a_life_that_no_one_clock_has_seen_is_left_to_its_bill_after_a_failed_boot_too() -> None:
    run = boot_failed()
    (generation,) = run.generations
    known = (RESERVATION, UnknownSince(AT), TRAITS.kill_latency_s, ZERO)
    for unproven in ({"lived_s": None}, {"gone_at": None}):
        assert settle_unbilled(replace(generation, **unproven), *known) is None  # type: ignore[arg-type]
    timed = settle_unbilled(generation, *known)
    assert timed == ev.Settled(1, cost(FIRST.rate, 22 + TRAITS.kill_latency_s), None)
    unseen = replace(run, generations=(replace(generation, lived_s=None),))
    assert ask(unseen, AT + 9999) == Decision()


def test_what_the_next_may_cost_is_what_the_first_would_be_settled_at_leaves() -> None:
    run = boot_failed()
    for amount in (ZERO, Usd("0.2")):
        again = try_next(run, cast(Plan, PLAN), TRAITS, amount)
        assert again == ev.Reserved(RESERVATION - amount)
    assert try_next(run, cast(Plan, PLAN), TRAITS, RESERVATION) is None


# -- controller absence -------------------------------------------------------------------------
# How long a pod must be missing before it counts as gone, and what a run is closed as then.


LAGS = replace(TRAITS, absence=AbsenceProof(lists=3, missing_s=300.0, deleted_s=30.0))
DELETED = AT + 510
MISSED = DELETED + 5


def ended(at: float, *, taken: bool, verb_ended: bool = True) -> ActionState:
    return ActionState(TERMINATE, at, at if verb_ended else None, taken=taken)


def failed_try(at: float) -> ActionState:
    return ActionState(TERMINATE, at, at, FailureKind.AMBIGUOUS)


TWICE = (ended(DELETED, taken=True), ended(DELETED + 2, taken=True))


def missing(
    *tries: ActionState,
    missed_at: float | None = DELETED + 5,
    heard_at: float = 0.0,
    **changes: Any,
) -> RunState:
    """A run whose pod was asked to end by ``tries`` and is missing from the lists since."""
    run = ending()
    actions = {ActionKey("r1", 1, TERMINATE, n): each for n, each in enumerate(tries, 1)}
    absence = Absence(Instant(missed_at, 0.0), heard_at) if missed_at is not None else None
    generation = replace(run.generations[-1], absence=absence, **changes)
    return replace(run, actions=actions, generations=(generation,))


@pytest.mark.parametrize(
    ("tries", "missed_s", "needed_s"),
    [
        ((), 5, 300.0),
        ((ended(DELETED, taken=False),), 5, 300.0),
        ((ended(DELETED, taken=True),), 0, 30.0),
        ((ended(DELETED, taken=True),), 60, 30.0),
        ((ended(DELETED, taken=True),), 60.5, 300.0),  # that was not the deletion's doing
        ((ended(DELETED, taken=True),), -0.5, 300.0),  # it was missing before
        ((ended(DELETED, taken=True, verb_ended=False),), 5, 300.0),
        # A second one that was taken: the first did nothing.
        ((ended(DELETED, taken=True), ended(DELETED + 2, taken=True)), 5, 300.0),
        # Denied while the list still held it: somebody's word is wrong.
        ((ended(DELETED, taken=True), ended(DELETED + 2, taken=False)), 5, 300.0),
        ((ended(DELETED, taken=True), ended(DELETED + 4.9, taken=False)), 5, 300.0),
        # In the instant from which it is missing, nothing tells which came first.
        ((ended(DELETED, taken=True), ended(DELETED + 5, taken=False)), 5, 300.0),
        # Denied once it was missing: that fits.
        ((ended(DELETED, taken=True), ended(DELETED + 6, taken=False)), 5, 30.0),
        ((ended(DELETED - 9, taken=False), ended(DELETED, taken=True)), 5, 300.0),
        # Nor does a denial make up for it: two that were taken may both have done nothing.
        ((*TWICE, ended(DELETED + 9, taken=False)), 5, 300.0),
    ],
)
def test_a_deletion_that_was_taken_shortens_what_proves_its_end(
    tries: tuple[ActionState, ...], missed_s: float, needed_s: float
) -> None:
    run = missing(*tries, missed_at=DELETED + missed_s)
    assert absence_needed_s(run, LAGS) == needed_s


@pytest.mark.parametrize(
    ("tries", "missed_s", "needed_s"),
    [
        ((ended(DELETED, taken=True),), 5, 30.0),
        ((ended(DELETED, taken=True),), 60, 30.0),
        ((ended(DELETED, taken=True),), 60.5, 300.0),
        ((ended(DELETED, taken=True), ended(DELETED + 4.9, taken=False)), 5, 300.0),
        ((ended(DELETED, taken=True), ended(DELETED + 5, taken=False)), 5, 30.0),
        # Taken twice: the list alone does not do, nor a try that failed or is under way,
        (TWICE, 5, 300.0),
        ((*TWICE, failed_try(DELETED + 9)), 5, 300.0),
        ((*TWICE, ended(DELETED + 9, taken=False, verb_ended=False)), 5, 300.0),
        # nor what was denied while the list still held it;
        ((*TWICE, ended(DELETED + 3, taken=False), ended(DELETED + 9, taken=False)), 5, 300.0),
        # but that there is none, by both words: of the list and of the deletion after it.
        ((*TWICE, ended(DELETED + 9, taken=False)), 5, 30.0),
        ((*TWICE, ended(DELETED + 5, taken=False)), 5, 30.0),
        ((*TWICE, ended(DELETED + 30, taken=False)), 29.5, 30.0),
        ((*TWICE, ended(DELETED + 31, taken=False)), 30, 300.0),  # the first did nothing
        ((*TWICE, ended(DELETED + 9, taken=False)), -0.5, 300.0),
        # Taken once more since it is missing: it is there, and the list is wrong.
        ((*TWICE, ended(DELETED + 9, taken=True)), 5, 300.0),
        ((*TWICE, ended(DELETED + 9, taken=False), ended(DELETED + 12, taken=True)), 5, 300.0),
    ],
)
def test_of_a_pod_that_cannot_boot_a_denial_makes_up_for_a_second_deletion(
    tries: tuple[ActionState, ...], missed_s: float, needed_s: float
) -> None:
    cannot = make_reason(ReasonKind.BOOT_FAILED, text="no such image")
    tries = tuple(replace(each, reason=cannot) for each in tries)
    run = missing(*tries, missed_at=DELETED + missed_s, agent_at=None)
    assert absence_needed_s(run, LAGS) == needed_s
    if len(tries) > len(TWICE):
        heard = missing(*tries, missed_at=DELETED + missed_s, agent_at=AT + 20)
        assert absence_needed_s(heard, LAGS) == 300.0


def test_a_pod_that_no_list_has_shown_is_missing_because_it_is_new() -> None:
    assert absence_needed_s(missing(ended(DELETED, taken=True), up_at=None), LAGS) == 300.0


def test_what_is_not_missed_yet_is_judged_as_if_it_were_from_its_deletion_on() -> None:
    assert absence_needed_s(missing(ended(DELETED, taken=True), missed_at=None), LAGS) == 30.0
    cannot = make_reason(ReasonKind.BOOT_FAILED, text="no such image")
    slow = replace(ended(DELETED + 2, taken=True), ended_at=DELETED + 4)
    tries = ended(DELETED, taken=True), slow, ended(DELETED + 9, taken=False)
    twice = missing(*(replace(t, reason=cannot) for t in tries), missed_at=None, agent_at=None)
    assert absence_needed_s(twice, LAGS) == 300.0, "from the first on"


@pytest.mark.parametrize(
    ("since_s", "absent"), [(29.0, False), (30.0, True), (299.0, True), (-1.0, False)]
)
def test_absence_must_have_lasted(since_s: float, absent: bool) -> None:
    run = missing(ended(DELETED, taken=True))
    generation = run.generations[-1]
    assert generation.absence is not None
    now = generation.absence.since + since_s
    seen = Observation(DatedFact((), now), UnknownSince(now), UnknownSince(now))
    assert is_absent(run, seen, generation, LAGS) is absent
    proven = generation.absence.since if absent else None
    assert proven_end(run, seen, generation, LAGS) == proven


@pytest.mark.parametrize(
    ("failed_at", "ended_at"),
    [(MISSED - 1.0, MISSED), (MISSED, MISSED + 900.0), (MISSED + 600.0, MISSED + 900.0)],
)
def test_one_whose_end_could_not_be_asked_for_may_have_lived_on_unseen(
    failed_at: float, ended_at: float
) -> None:
    """A provider that refuses the key gives no list either: of that time nothing is known."""
    run = missing(failed_try(failed_at))
    now = MISSED + 900.0
    seen = Observation(DatedFact((), now), UnknownSince(now), UnknownSince(now))
    assert proven_end(run, seen, run.generations[-1], LAGS) == ended_at


def test_a_list_that_nobody_gave_proves_nothing() -> None:
    run = missing(ended(DELETED, taken=True))
    seen = Observation(UnknownSince(AT + 9999), UnknownSince(AT), UnknownSince(AT))
    assert not is_absent(run, seen, run.generations[-1], LAGS)
    assert proven_end(run, seen, run.generations[-1], LAGS) is None
    assert not has_reported_since(replace(seen, report=heard(run, AT + 9999)), run.generations[-1])


def test_a_pod_that_is_listed_is_not_absent_however_long_it_was_missed() -> None:
    run = missing(ended(DELETED, taken=True))
    later = DELETED + 9999.0
    seen = Observation(DatedFact((the_pod(run),), later), UnknownSince(AT), UnknownSince(AT))
    assert not is_absent(run, seen, run.generations[-1], LAGS)


def heard(run: RunState, at: float) -> DatedFact[AgentReport]:
    """A report of its agent, of that instant by its pod's clock."""
    return DatedFact(a_report(run, at=at), at)


@pytest.mark.parametrize(
    ("heard_at", "report_at", "listed_at", "lives"),
    [
        # For ten seconds an agent may report while its pod, in no list any more, is being ended.
        (0.0, MISSED + 10.0, MISSED + 90.0, False),
        (0.0, MISSED + 10.5, MISSED + 90.0, True),
        (0.0, MISSED - 500.0, MISSED + 90.0, False),
        # By a clock of the pod that is an hour behind, or ahead.
        (MISSED - 3600.0, MISSED - 3590.0, MISSED + 90.0, False),
        (MISSED - 3600.0, MISSED - 3589.5, MISSED + 90.0, True),
        (MISSED + 3600.0, MISSED + 3600.0, MISSED + 90.0, False),
        # By a clock of the pod that was set back since it is missed.
        (MISSED, MISSED - 86_400.0, MISSED + 90.0, True),
        (MISSED, MISSED - 10.0, MISSED + 90.0, False),
        # A host that is not honest could send reports for ever.
        (0.0, AT + 2999.0, AT + 2999.0, True),
        (0.0, AT + 3000.0, AT + 3000.0, False),
    ],
)
def test_a_missed_pod_lives_while_its_agent_reports_anew(
    heard_at: float, report_at: float, listed_at: float, lives: bool
) -> None:
    run = missing(missed_at=MISSED, heard_at=heard_at)
    seen = Observation(DatedFact((), listed_at), heard(run, report_at), UnknownSince(AT))
    assert has_reported_since(seen, run.generations[-1]) is lives
    assert not has_reported_since(seen, replace(run.generations[-1], absence=None))
    other = replace(run.generations[-1], pod_name="another")
    assert not has_reported_since(seen, other)


# -- what it is closed as ------------------------------------------------------------------------


def closed_as(
    action: ActionState | None = None,
    *,
    heard: bool = True,
    unfit: Reason | None = None,
    **spec: Any,
) -> ev.Closed:
    """A run whose pod is settled, has told no result, and had this done to it."""
    run = ending()
    generation = replace(
        run.generations[-1],
        agent_at=AT + 20 if heard else None,
        ended_at=AT + 100,
        settled=ZERO,
        billed=ZERO,
        unfit=unfit,
    )
    settled = replace(
        run,
        state=State.SETTLED,
        result=None,
        recorded_plan=recorded(**spec),
        actions={ActionKey("r1", 1, action.verb, 1): action} if action is not None else {},
        generations=(generation,),
        candidate_id=PLAN.candidates[0].id,
        reserved=ZERO,
    )
    return only(ev.Closed, ask(settled, AT + 900, plan=ALONE).events)


def test_a_machine_that_ended_by_itself_was_lost_where_nothing_outlives_it() -> None:
    assert closed_as().outcome == Outcome.LOST.value
    assert closed_as(heard=False, volume=True).outcome == Outcome.LOST.value
    assert closed_as(heard=False, bucket="s3://b/p").outcome == Outcome.LOST.value


def test_what_outlives_it_is_unreported_and_not_lost() -> None:
    volume, bucket = closed_as(volume=True), closed_as(bucket="s3://b/p")
    assert (volume.outcome, bucket.outcome) == (Outcome.UNREPORTED.value, Outcome.UNREPORTED.value)
    assert "network volume" in sentence(volume.reason)
    assert "s3://b/p" in sentence(bucket.reason)
    assert closed_as(bucket="s3://b/p", bucket_relayed=True).outcome == Outcome.LOST.value


def test_one_that_was_ended_from_here_says_why() -> None:
    why = make_reason(ReasonKind.NO_AGENT, boot_deadline_s=900.0)
    told = "the pod was ended: no agent within 15 min 00 s"
    assert lost_as(replace(ended(DELETED, taken=True), reason=why)) == told


def lost_as(action: ActionState, *, heard: bool = True) -> str:
    made = closed_as(action, heard=heard)
    assert made.outcome == Outcome.LOST.value
    return sentence(made.reason)


SILENT = "the pod ended without a report from its agent"


def test_an_end_from_here_that_gave_no_reason_is_none() -> None:
    assert lost_as(ended(DELETED, taken=True), heard=False) == SILENT


def test_the_providers_word_counts_where_it_had_none_and_nobody_spoke() -> None:
    none = ActionState(CREATE, AT, AT, FailureKind.NO_CAPACITY, "none left")
    assert lost_as(none, heard=False) == "none left"
    assert lost_as(replace(none, failed_kind=FailureKind.AMBIGUOUS), heard=False) == SILENT
    assert lost_as(none) != "none left"


def test_one_that_was_not_what_was_rented_says_so() -> None:
    made = closed_as(unfit=quoted("4 GPUs, not 8"))
    assert (made.outcome, sentence(made.reason)) == (Outcome.UNFIT.value, "4 GPUs, not 8")


@pytest.mark.parametrize(
    ("set_s", "real_s", "boot_id", "gone"),
    [
        (3600.0, 100.0, "here", False),  # the clock was set forward: nothing is proven
        (3600.0, 300.0, "here", True),
        (-3600.0, 300.0, "here", True),  # set back: what has lasted has lasted
        (3600.0, 100.0, "elsewhere", True),  # another machine has only the wall clock
        (0.0, 300.0, "elsewhere", True),
        (0.0, 299.0, "elsewhere", False),
    ],
)
def test_absence_is_counted_by_the_clock_that_nobody_sets(
    set_s: float, real_s: float, boot_id: str, gone: bool
) -> None:
    run = apply(ending(), ev.PodMissed(1), at=DELETED)
    boot = DELETED - BOOTED_AT + real_s
    clock = Instant(DELETED + real_s + set_s, boot, boot_id)
    seen = Observation(DatedFact((), clock.wall), UnknownSince(AT), UnknownSince(AT), clock=clock)
    assert is_absent(run, seen, run.generations[-1], LAGS) is gone
    if boot_id == "here" and gone:
        older = replace(seen, pods=DatedFact((), clock.wall - 1.0))
        assert not is_absent(run, older, run.generations[-1], LAGS), (
            "a second before it was not proven"
        )


def test_a_create_is_waited_for_by_the_clock_that_nobody_sets() -> None:
    """An hour that a clock was set forward is not the ten minutes in which a pod may appear."""
    run = failed("ambiguous")
    boot = AT - BOOTED_AT
    for real_s, due in ((100.0, False), (600.0, True)):
        clock = Instant(AT + real_s + 3600.0, boot + real_s, "here")
        decision = ask(run, clock.wall, clock=clock, traits=LAGS)
        assert decision.events == ((ev.PodMissed(1),) if due else ())


def test_a_list_from_after_the_clock_was_read_makes_no_absence_longer() -> None:
    run = apply(ending(), ev.PodMissed(1), at=DELETED)
    clock = Instant(DELETED + 299.6, DELETED - BOOTED_AT + 299.6, "here")
    seen = Observation(
        DatedFact((), clock.wall + 0.5), UnknownSince(AT), UnknownSince(AT), clock=clock
    )
    assert not is_absent(run, seen, run.generations[-1], LAGS)
