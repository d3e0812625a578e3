"""``decide`` while a pod lives: its boot, its price, its hard stop, a wish to stop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.reasons import quoted, sentence
from tests.unit.core.runs import (
    AT,
    FIRST,
    StubPlan,
    a_report,
    apply,
    ask,
    booting,
    created,
    follow,
    reserved,
    running,
    stopped,
    the_pod,
)
from trmcloud.core.clock import Maybe, Seen, Unknown
from trmcloud.core.control import events as ev
from trmcloud.core.control.action_key import ActionKey, FailureKind
from trmcloud.core.control.actions import CREATE, LAND, TERMINATE, Action, Decision
from trmcloud.core.control.observation import Bill, BootTrouble, PodSeen, PodStatus
from trmcloud.core.control.reason import ReasonKind, because
from trmcloud.core.control.run_state import State
from trmcloud.core.money import Usd
from trmcloud.core.outcome import Outcome

# -- booting -----------------------------------------------------------------------------------


def test_an_agent_that_reports_ends_the_boot() -> None:
    run = booting()
    run, actions = follow(run, AT + 60, pods=[the_pod(run)], report=a_report(run))
    assert (run.state, actions) == (State.RUNNING, ())


def test_another_pods_report_is_not_this_ones() -> None:
    run = booting()
    other = a_report(run, pod_name="trmc-abcd1234-r9-g1-1790000000", result="finished")
    assert ask(run, AT + 60, pods=[the_pod(run)], report=other) == Decision()


@pytest.mark.parametrize("fatal", [True, False])
def test_a_boot_that_its_log_calls_failed_is_ended_while_nothing_was_heard(fatal: bool) -> None:
    trouble = BootTrouble("layer does not exist", fatal=fatal)
    run = booting()
    _, actions = follow(run, AT + 20, pods=[the_pod(run)], boot_trouble=trouble)
    told = [sentence(action.reason) for action in actions]
    assert told == (["its boot failed, by the provider's log: layer does not exist"] * fatal)
    # A pod that has reported is no boot: its agent's word counts, not a line of a log.
    up = running()
    report = a_report(up)
    for now in (AT + 20, AT + 200):
        heard, actions = follow(up, now, pods=[the_pod(up)], report=report, boot_trouble=trouble)
        assert TERMINATE not in [action.verb for action in actions]
        unheard, actions = follow(up, now, pods=[the_pod(up)], boot_trouble=trouble)
        assert TERMINATE not in [action.verb for action in actions]
        assert heard.state is unheard.state is State.RUNNING
    _, (action,) = follow(run, AT + 310, pods=[the_pod(run)], boot_trouble=trouble)
    assert "layer does not exist" in sentence(action.reason)


def test_without_an_agent_by_the_boot_deadline_the_pod_is_ended() -> None:
    run = booting()  # up at AT + 10
    assert ask(run, AT + 309, pods=[the_pod(run)]) == Decision()
    (action,) = ask(run, AT + 310, pods=[the_pod(run)]).actions
    assert (action.verb, action.pod_id) == (TERMINATE, "id-1")
    assert "no agent within 5 min 00 s" in sentence(action.reason)
    alone = StubPlan((FIRST,))
    gone = the_pod(run, status=PodStatus.GONE, ended_at=AT + 390)
    run, _ = follow(run, AT + 400, pods=[gone], plan=alone)
    run, _ = follow(run, AT + 500, bill=Bill("id-1", Usd("0.39"), final=True), plan=alone)
    assert (run.outcome, run.settled) == (Outcome.LOST, Usd("0.39"))


def test_where_a_stranger_answers_the_boot_is_not_waited_for() -> None:
    run = booting()
    assert ask(run, AT + 90, pods=[the_pod(run)], stranger_s=59.0) == Decision()
    (action,) = ask(run, AT + 90, pods=[the_pod(run)], stranger_s=60.0).actions
    assert (action.verb, action.pod_id) == (TERMINATE, "id-1")
    assert "host key" in sentence(action.reason)
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
        assert "billed" in sentence(actions[0].reason)


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
    assert action == Action(ActionKey("r1", 1, TERMINATE, 1), "id-1", because(ReasonKind.HARD_STOP))


def test_a_clock_that_was_set_back_does_not_put_off_the_next_try_to_end_a_pod() -> None:
    run = running()
    ahead = AT + 3600 + 3600
    _, (action,) = follow(run, ahead, pods=[the_pod(run)])
    run = apply(run, ev.ActionStarted(action.id, TERMINATE), at=ahead)
    run = apply(run, ev.ActionFinished(action.id, TERMINATE), at=ahead)
    assert follow(run, ahead + 0.5, pods=[the_pod(run)])[1] == ()
    _, (again,) = follow(run, ahead - 3600, pods=[the_pod(run)])
    assert again.id == "r1/g1/terminate/2"


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
    run, _ = follow(run, now, pods=[the_pod(run, status=PodStatus.GONE, ended_at=now - 1)])
    assert run.state is State.SETTLING


@pytest.mark.parametrize("tries", [60, 1100])
def test_a_pod_that_will_not_go_is_tried_at_for_days(tries: int) -> None:
    run = running()
    done = {
        ActionKey("r1", 1, TERMINATE, n): replace(ACTION, started_at=AT + n)
        for n in range(1, tries + 1)
    }
    stuck = replace(run, actions={**run.actions, **done})
    (action,) = ask(stuck, AT + 999_999, pods=[the_pod(run)]).actions
    assert action.id == f"r1/g1/terminate/{tries + 1}"


ACTION = created().actions[ActionKey("r1", 1, CREATE, 1)]


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
    assert (
        ask(run, AT + 500, pods=[the_pod(run, status=PodStatus.UNKNOWN)], absent_lists=9)
        == Decision()
    )


def test_when_it_ended_is_what_the_provider_says_if_it_says_so() -> None:
    run = running()
    known = ask(run, AT + 500, pods=[the_pod(run, status=PodStatus.GONE, ended_at=AT + 77)])
    assert known.events == (ev.PodGone(1, AT + 77),)
    unknown = ask(run, AT + 500, pods=[the_pod(run, status=PodStatus.GONE)])
    assert unknown.events == (ev.PodGone(1, AT + 500),)


def test_of_two_pods_of_one_name_the_known_one_counts() -> None:
    run = running()
    twin = the_pod(run, pod_id="id-2")
    dead = the_pod(run, status=PodStatus.GONE, ended_at=AT + 77)
    assert ask(run, AT + 500, pods=[twin, the_pod(run)]) == Decision()
    assert ask(run, AT + 500, pods=[twin, dead]).events == (ev.PodGone(1, AT + 77),)


def test_before_an_id_is_known_a_living_pod_counts_before_a_dead_one() -> None:
    run = created()
    dead = the_pod(run, pod_id="id-0", status=PodStatus.GONE, ended_at=AT)
    (up,) = ask(run, AT + 5, pods=[dead, the_pod(run)]).events
    assert up == ev.PodUp(1, "id-1", FIRST.rate)


# -- stopping ----------------------------------------------------------------------------------


def test_a_stop_lands_the_trainer_once() -> None:
    run = stopped(running(), AT + 100)
    (action,) = ask(run, AT + 100, pods=[the_pod(run)], report=a_report(run)).actions
    assert action == Action(ActionKey("r1", 1, LAND, 1), "id-1", quoted("enough"))
    run = apply(run, ev.ActionStarted(action.id, LAND), at=AT + 100)
    assert ask(run, AT + 101, pods=[the_pod(run)]) == Decision(), "it is on its way"
    (again,) = ask(run, AT + 102, pods=[the_pod(run)]).actions
    assert again.id == "r1/g1/land/2", "nobody heard how the first one went"
    done = apply(run, ev.ActionFinished(action.id, LAND), at=AT + 100)
    assert ask(done, AT + 250, pods=[the_pod(run)], report=a_report(run)) == Decision()


def test_a_landing_order_that_failed_is_given_again() -> None:
    run = stopped(running(), AT + 100)
    run = apply(run, ev.ActionStarted("r1/g1/land/1", LAND), at=AT + 100)
    run = apply(
        run, ev.ActionFailed("r1/g1/land/1", LAND, FailureKind.ERROR, "no route"), at=AT + 100
    )
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
    assert (action.verb, sentence(action.reason)) == (TERMINATE, "it did not land when told to")


def test_a_trainer_that_nobody_told_to_land_for_long_is_told_first() -> None:
    """Its controller slept since the wish, or nobody was there."""
    run = stopped(running(), AT + 100)
    (action,) = ask(run, AT + 1000, pods=[the_pod(run)], report=a_report(run)).actions
    assert action.verb == LAND
    run = apply(run, ev.ActionStarted(action.id, LAND), at=AT + 1000)
    run = apply(run, ev.ActionFinished(action.id, LAND), at=AT + 1000)
    assert ask(run, AT + 1159, pods=[the_pod(run)], report=a_report(run)) == Decision()
    (action,) = ask(run, AT + 1160, pods=[the_pod(run)], report=a_report(run)).actions
    assert action.verb == TERMINATE


def test_a_landing_that_was_cut_short_is_not_waited_for_in_full() -> None:
    run, _ = follow(reserved(Usd("0.15")), AT)  # 120 s, of which 60 to land in
    run = created(run)
    run, _ = follow(run, AT + 5, pods=[the_pod(run)], report=a_report(run))
    run = stopped(run, AT - 10)
    run = apply(run, ev.ActionStarted("r1/g1/land/1", LAND), at=AT - 10)
    run = apply(run, ev.ActionFinished("r1/g1/land/1", LAND), at=AT - 10)
    assert ask(run, AT + 109, pods=[the_pod(run)]) == Decision()
    (action,) = ask(run, AT + 110, pods=[the_pod(run)]).actions
    assert sentence(action.reason) == "it did not land when told to"


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
    assert (run.outcome, sentence(run.reason)) == (Outcome.STOPPED, "ended before it reported")
