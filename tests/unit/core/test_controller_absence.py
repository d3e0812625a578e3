"""How long a pod must be missing before it counts as gone, and what a run is closed as then."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.plans import recorded
from tests.reasons import quoted, sentence
from tests.unit.core.runs import (
    AT,
    BOOTED_AT,
    PLAN,
    TRAITS,
    StubPlan,
    apply,
    ask,
    ending,
    failed,
)
from trmcloud.core.clock import Instant, Seen, Unknown
from trmcloud.core.control import events as ev
from trmcloud.core.control.action_key import ActionKey, FailureKind
from trmcloud.core.control.actions import TERMINATE
from trmcloud.core.control.observation import Observation
from trmcloud.core.control.pod_liveness import absence_needed_s, is_absent, proven_end
from trmcloud.core.control.reason import Reason, ReasonKind, because
from trmcloud.core.control.run_state import ActionState, RunState, State
from trmcloud.core.money import ZERO
from trmcloud.core.outcome import Outcome

LAGS = replace(TRAITS, absent_s=300.0, absent_deleted_s=30.0)
DELETED = AT + 510


def ended(at: float, *, taken: bool, verb_ended: bool = True) -> ActionState:
    return ActionState(TERMINATE, at, at if verb_ended else None, taken=taken)


def failed_try(at: float) -> ActionState:
    return ActionState(TERMINATE, at, at, FailureKind.AMBIGUOUS)


TWICE = (ended(DELETED, taken=True), ended(DELETED + 2, taken=True))


def missing(*tries: ActionState, missed_at: float | None = DELETED + 5, **changes: Any) -> RunState:
    """A run whose pod was asked to end by ``tries`` and is missing from the lists since."""
    run = ending()
    assert run.generation is not None
    actions = {ActionKey("r1", 1, TERMINATE, n): each for n, each in enumerate(tries, 1)}
    generation = replace(run.generation, missed_at=missed_at, **changes)
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
    cannot = because(ReasonKind.BOOT_FAILED, text="no such image")
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


@pytest.mark.parametrize(
    ("since_s", "absent"), [(29.0, False), (30.0, True), (299.0, True), (-1.0, False)]
)
def test_absence_must_have_lasted(since_s: float, absent: bool) -> None:
    run = missing(ended(DELETED, taken=True))
    generation = run.generation
    assert generation is not None
    assert generation.missed_at is not None
    now = generation.missed_at + since_s
    seen = Observation(Seen((), now), Unknown(now), Unknown(now))
    assert is_absent(run, seen, generation, LAGS) is absent
    proven = generation.missed_at if absent else None
    assert proven_end(run, seen, generation, LAGS) == proven


def test_a_list_that_nobody_gave_proves_nothing() -> None:
    run = missing(ended(DELETED, taken=True))
    assert run.generation is not None
    seen = Observation(Unknown(AT + 9999), Unknown(AT), Unknown(AT))
    assert not is_absent(run, seen, run.generation, LAGS)
    assert proven_end(run, seen, run.generation, LAGS) is None


# -- what it is closed as ------------------------------------------------------------------------


def closed_as(
    *, heard: bool = True, why: Reason | None = None, unfit: Reason | None = None, **spec: Any
) -> ev.Closed:
    """A run whose pod is settled and has told no result."""
    run = ending()
    assert run.generation is not None
    generation = replace(
        run.generation,
        agent_at=AT + 20 if heard else None,
        ended_at=AT + 100,
        settled=ZERO,
        billed=ZERO,
        unfit=unfit,
    )
    action = replace(ended(DELETED, taken=True), reason=why)
    settled = replace(
        run,
        state=State.SETTLED,
        result=None,
        recorded_plan=recorded(**spec),
        actions={ActionKey("r1", 1, TERMINATE, 1): action} if why else {},
        generations=(generation,),
        candidate_id=PLAN.candidates[0].id,
        reserved=ZERO,
    )
    (event,) = ask(settled, AT + 900, plan=StubPlan(PLAN.candidates[:1])).events
    assert isinstance(event, ev.Closed)
    return event


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
    made = closed_as(why=because(ReasonKind.NO_AGENT, boot_deadline_s=900.0))
    assert (made.outcome, sentence(made.reason)) == (
        Outcome.LOST.value,
        "the pod was ended: no agent within 15 min 00 s",
    )


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
    assert run.generation is not None
    boot = DELETED - BOOTED_AT + real_s
    clock = Instant(DELETED + real_s + set_s, boot, boot_id)
    seen = Observation(Seen((), clock.wall), Unknown(AT), Unknown(AT), clock=clock)
    assert is_absent(run, seen, run.generation, LAGS) is gone
    if boot_id == "here" and gone:
        older = replace(seen, pods=Seen((), clock.wall - 1.0))
        assert not is_absent(run, older, run.generation, LAGS), "a second before it was not proven"


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
    assert run.generation is not None
    clock = Instant(DELETED + 299.6, DELETED - BOOTED_AT + 299.6, "here")
    seen = Observation(Seen((), clock.wall + 0.5), Unknown(AT), Unknown(AT), clock=clock)
    assert not is_absent(run, seen, run.generation, LAGS)
