"""``decide`` where two of its conditions meet: the last cent, a volume's rent, words that come late
or to the wrong pod."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from tests.reasons import sentence
from tests.unit.core.runs import (
    AT,
    FIRST,
    RESERVATION,
    SECOND,
    TRAITS,
    StubPlan,
    StubSpec,
    a_report,
    apply,
    ask,
    created,
    ending,
    failed,
    reserved,
    running,
    settling,
    stopped,
    the_pod,
)
from trmcloud.core.control import events as ev
from trmcloud.core.control.action_key import ActionKey, FailureKind
from trmcloud.core.control.actions import CREATE, LAND, TERMINATE, Decision
from trmcloud.core.control.controller import _storage
from trmcloud.core.control.observation import PodStatus
from trmcloud.core.control.renting import hard_stop_within
from trmcloud.core.control.run_state import ActionState, Generation, RunState, State
from trmcloud.core.money import ZERO, Usd, cost
from trmcloud.core.outcome import Outcome
from trmcloud.core.spec.plan import Candidate, Interval

DAY_S = 86_400.0
VOLUME = Usd("0.36")  # a hundredth of a cent per second
ALONE = StubPlan((FIRST,))


# -- money -------------------------------------------------------------------------------------


def storage(p50_hours: float, kept: Usd) -> tuple[Usd, Usd]:
    """Of a pod of 3,000 s with a volume that is kept for two days."""
    candidate = SimpleNamespace(
        storage=kept,
        volume_rate=VOLUME,
        disk_rate=ZERO,
        hours=Interval(0.1, p50_hours, 9.0),
        hard_stop_s=3000.0,
    )
    spec = SimpleNamespace(volume_days=2.0)
    plan = SimpleNamespace(candidate=lambda name: candidate, spec=spec)
    pod = Generation(1, "trmc", "test", "c1", FIRST.rate, AT + 2900, AT + 3000, AT)
    return _storage(plan, pod, TRAITS)  # type: ignore[arg-type]


@pytest.mark.parametrize(("p50_hours", "planned_s"), [(0.5, 1800.0), (2.0, 3000.0)])
def test_a_volumes_rent_is_kept_apart_from_the_pods_disks(
    p50_hours: float, planned_s: float
) -> None:
    """As long as it is likely to train, at most until its hard stop, and two days after."""
    planned = cost(VOLUME, planned_s + 2 * DAY_S)
    volume = cost(VOLUME, 3030.0 + 2 * DAY_S)
    assert storage(p50_hours, planned + Usd("0.25")) == (Usd("0.25"), volume)
    assert storage(p50_hours, planned - Usd("0.25")) == (ZERO, volume)


def test_a_pod_is_estimated_at_no_more_than_is_reserved_beside_its_volume() -> None:
    """It lived for 510 s, $0.54 with its kill; its volume is reserved for 3,030 s."""
    for volume_rate, amount in ((Usd("3.3"), "0.2525"), (Usd("0.36"), "0.54"), (Usd(9), "0")):
        with_volume = replace(FIRST, volume_rate=volume_rate)
        plan = StubPlan((with_volume,), StubSpec(volume_days=0.0))
        (event,) = ask(settling(), AT + 9999, plan=plan).events
        assert isinstance(event, ev.Settled)
        assert event.amount == Usd(amount)


@pytest.mark.parametrize(
    ("left", "kept", "tried"),
    [("0.19", "0", False), ("0.190001", "0", True),
     ("0.29", "0.1", False), ("0.2901", "0.1", True)],
)  # fmt: skip
def test_the_next_is_tried_where_more_is_left_than_its_start_landing_and_kill_cost(
    left: str, kept: str, tried: bool
) -> None:
    """60 s, 100 s and 30 s of a tenth of a cent, beside what its disks cost afterwards."""
    run = settling()
    assert run.generation is not None
    silent = replace(run.generation, agent_at=None, ended_at=AT + 100, settled=Usd("0.05"))
    run = replace(
        run,
        state=State.SETTLED,
        result=None,
        generations=(silent,),
        reservation=Usd(left) + Usd("0.05"),
    )
    second = replace(SECOND, rate=FIRST.rate, storage=Usd(kept))
    (event,) = ask(run, AT + 900, plan=StubPlan((FIRST, second))).events
    assert isinstance(event, ev.Reserved) is tried
    if isinstance(event, ev.Reserved):
        assert event.amount == Usd(left)


def stop_s(run: RunState, **changes: object) -> float:
    candidate = replace(FIRST, **changes)  # type: ignore[arg-type]
    return hard_stop_within(cast(Candidate, candidate), run, TRAITS)


def reopened(amount: Usd) -> RunState:
    return replace(reserved(amount), first_generation=2)


def test_a_reopened_run_pays_its_volume_by_the_hour_too() -> None:
    """The first one's plan has that in its own stop."""
    assert stop_s(reserved(), volume_rate=FIRST.rate) == 3000.0
    assert stop_s(reopened(RESERVATION)) == 3000.0
    assert stop_s(reopened(RESERVATION * 2)) == 6030.0
    assert stop_s(reopened(RESERVATION), volume_rate=FIRST.rate) == 1485.0


def test_a_reopened_run_on_a_free_machine_is_bound_by_the_plans_own_stop() -> None:
    assert stop_s(reopened(ZERO), rate=ZERO) == 3000.0


def test_a_reopened_run_with_less_than_a_kill_costs_has_no_time() -> None:
    assert stop_s(reopened(Usd("0.0295"))) == 0.0
    assert stop_s(reopened(Usd("0.0305"))) == pytest.approx(0.5)


# -- a pod that is waited for ------------------------------------------------------------------


def test_what_was_never_made_was_never_up() -> None:
    run = created()
    none = the_pod(run, status=PodStatus.GONE, rate=ZERO, never_made="none left")
    events = ask(run, AT + 60, pods=[none]).events
    assert [type(event) for event in events] == [ev.ActionFailed, ev.PodNotMade]


def test_where_lists_do_not_lag_absence_alone_proves_that_nothing_was_made() -> None:
    run = failed("ambiguous")
    for unbilled in (True, False):
        (event,) = ask(run, AT + 600, absent_lists=3, unbilled=unbilled).events
        assert isinstance(event, ev.PodNotMade)


# -- a pod that trains or ends -----------------------------------------------------------------


def test_a_pod_that_has_spoken_is_gone_and_not_unmade() -> None:
    run = running()
    none = the_pod(run, status=PodStatus.GONE, never_made="none left", ended_at=AT + 50)
    assert ask(run, AT + 60, pods=[none]).events == (ev.PodGone(1, AT + 50),)


def test_a_pod_that_ends_is_not_asked_to_save() -> None:
    wanted = ev.SaveRequested(1, "user")
    run = apply(running(), wanted, at=AT + 100)
    report = a_report(run)
    assert [a.verb for a in ask(run, AT + 101, pods=[the_pod(run)], report=report).actions] == [
        "save"
    ]
    run = apply(running(), wanted, ev.ResultKnown("finished", None), at=AT + 505)
    report = a_report(run, result="finished")
    assert ask(run, AT + 506, pods=[the_pod(run)], report=report) == Decision()


def test_a_pod_whose_agent_has_given_up_is_sent_no_files() -> None:
    run = ending()
    report = a_report(run, waiting="files", result="failed")
    assert ask(run, AT + 505, pods=[the_pod(run)], report=report) == Decision()
    run = running()
    report = a_report(run, waiting="files")
    (action,) = ask(run, AT + 505, pods=[the_pod(run)], report=report).actions
    assert action.verb == "stage"


def told_to_land(at: float) -> RunState:
    run = stopped(running(), at)
    key = str(ActionKey("r1", 1, LAND, 1))
    return apply(run, ev.ActionStarted(key, LAND), ev.ActionFinished(key, LAND), at=at)


def test_a_pod_that_was_told_to_land_is_ended_where_it_does_not() -> None:
    """Told at 100 s: it has 100 s to land in, and 60 s of grace."""
    run = told_to_land(AT + 100)
    report = a_report(run)
    assert ask(run, AT + 259, pods=[the_pod(run)], report=report).actions == ()
    (action,) = ask(run, AT + 260, pods=[the_pod(run)], report=report).actions
    assert (action.verb, sentence(action.reason)[:3]) == (TERMINATE, "it ")


def test_one_that_has_landed_and_uploads_is_left_to_it() -> None:
    run = told_to_land(AT + 100)
    uploading = a_report(run, uploading=True)
    assert ask(run, AT + 260, pods=[the_pod(run)], report=uploading).actions == ()


def test_one_that_has_landed_late_keeps_the_grace_of_its_result() -> None:
    run = told_to_land(AT + 100)
    report = a_report(run, result="stopped")
    run = apply(run, ev.ResultKnown("stopped", None), at=AT + 250)
    assert run.state is State.ENDING
    assert ask(run, AT + 270, pods=[the_pod(run)], report=report) == Decision()
    (action,) = ask(run, AT + 310, pods=[the_pod(run)], report=report).actions
    assert sentence(action.reason) == "its work is done"


# -- what it is closed as ----------------------------------------------------------------------


def closed_as(verb: str, state: ActionState, *, heard: bool) -> tuple[str, str]:
    """A run whose pod is settled, has told no result, and had this done to it."""
    run = ending()
    assert run.generation is not None
    generation = replace(
        run.generation,
        agent_at=AT + 20 if heard else None,
        ended_at=AT + 100,
        settled=ZERO,
        billed=ZERO,
    )
    settled = replace(
        run,
        state=State.SETTLED,
        result=None,
        actions={ActionKey("r1", 1, verb, 1): state},
        generations=(generation,),
        reserved=ZERO,
    )
    (event,) = ask(settled, AT + 900, plan=ALONE).events
    assert isinstance(event, ev.Closed)
    return event.outcome, sentence(event.reason)


SILENT = (Outcome.LOST.value, "the pod ended without a word from its agent")


def test_an_end_from_here_that_gave_no_reason_is_none() -> None:
    assert closed_as(TERMINATE, ActionState(TERMINATE, AT, AT, taken=True), heard=False) == SILENT


def test_the_providers_word_counts_where_it_had_none_and_nobody_spoke() -> None:
    none = ActionState(CREATE, AT, AT, FailureKind.NO_CAPACITY, "none left")
    other = replace(none, failed_kind=FailureKind.AMBIGUOUS)
    assert closed_as(CREATE, none, heard=False) == (Outcome.LOST.value, "none left")
    assert closed_as(CREATE, other, heard=False) == SILENT
    assert closed_as(CREATE, none, heard=True) != (Outcome.LOST.value, "none left")
