"""`decide` while a pod lives: its boot, its price, its hard stop, a stop that was asked for,
repeated actions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plans import recorded
from tests.present import only, present
from tests.reasons import quoted
from tests.unit.core.phases import PASSED
from tests.unit.core.runs import (
    AT,
    ENDED,
    FIRST,
    RESERVATION,
    TRAITS,
    StubCandidate,
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
    running,
    settling,
    stopped,
    the_pod,
)
from trmcloud.core.catalog.providers import AbsenceProof
from trmcloud.core.clock import DatedFact, Maybe, UnknownSince
from trmcloud.core.contract.pod_contract import AgentReport, PhaseReport, PhaseState
from trmcloud.core.control import events as ev
from trmcloud.core.control.actions import (
    CREATE,
    LAND,
    TERMINATE,
    Action,
    Decision,
    action_key,
    next_attempt,
    next_long,
)
from trmcloud.core.control.events import ActionKey, FailureKind
from trmcloud.core.control.observation import Bill, BootTrouble, Observation, PodSeen, PodStatus
from trmcloud.core.control.reason import ReasonKind, make_reason
from trmcloud.core.control.renting import hard_stop_within
from trmcloud.core.control.run_state import STAGE, Generation, RunState, State
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.spec.plan import Candidate
from trmcloud.operations.reasons import sentence

# -- ``decide`` while a pod lives: its boot, its price, its hard stop, a wish to stop -----------


# -- booting -----------------------------------------------------------------------------------


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
    assert told == (
        ["its boot failed, according to the provider's log: layer does not exist"] * fatal
    )
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
    assert ask(run, AT + 2999, pods=UnknownSince(AT)) == Decision()


@pytest.mark.parametrize("pods", [UnknownSince(AT), None])
def test_at_the_hard_stop_it_is_ended_with_or_without_a_list(pods: UnknownSince | None) -> None:
    run = running()
    listed: Maybe[tuple[PodSeen, ...]] = pods or DatedFact((the_pod(run),), AT + 3000)
    (action,) = ask(run, AT + 3000, pods=listed, report=a_report(run)).actions
    assert action == Action(
        ActionKey("r1", 1, TERMINATE, 1), "id-1", make_reason(ReasonKind.HARD_STOP)
    )


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
    assert ask(run, AT + 500, pods=UnknownSince(AT + 500), absent_lists=3) == Decision()
    (gone,) = ask(run, AT + 500, absent_lists=3).events
    assert gone == ev.PodGone(1, AT + 500)


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
    assert (action.verb, sentence(action.reason)) == (TERMINATE, "it did not stop when asked to")


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
    run, _ = follow(reserved(), AT)
    run = created(run)
    longer = StubPlan((replace(FIRST, landing_s=2 * FIRST.landing_s),))
    run, _ = follow(run, AT + 5, pods=[the_pod(run)], report=a_report(run))
    run = stopped(run, AT - 10)
    run = apply(run, ev.ActionStarted("r1/g1/land/1", LAND), at=AT - 10)
    run = apply(run, ev.ActionFinished("r1/g1/land/1", LAND), at=AT - 10)
    assert ask(run, AT + 149, pods=[the_pod(run)], plan=longer) == Decision()
    (action,) = ask(run, AT + 150, pods=[the_pod(run)], plan=longer).actions
    assert sentence(action.reason) == "it did not stop when asked to"


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


# -- When an action is tried again, by the functions that ``decide`` asks -----------------------


NOBODY = Observation(UnknownSince(AT), UnknownSince(AT), UnknownSince(AT))


def of(run: RunState) -> Generation:
    return run.generations[-1]


def staged(run: RunState, *, at: float, failed: bool = False) -> RunState:
    key = str(action_key(run, STAGE, 1))
    run = apply(run, ev.ActionStarted(key, STAGE), at=at)
    end: ev.RunEvent = ev.ActionFinished(key, STAGE)
    if failed:
        end = ev.ActionFailed(key, STAGE, FailureKind.ERROR, "lost")
    return apply(run, end, at=at)


def test_an_action_says_what_its_key_says() -> None:
    action = Action(ActionKey("r1", 3, "land", 2))
    assert (action.generation, action.verb, action.id) == (3, "land", "r1/g3/land/2")


@pytest.mark.parametrize(
    ("later_s", "tried"), [(0.0, False), (1.9, False), (2.0, True), (-1.9, False), (-2.0, True)]
)
def test_a_pause_ends_at_its_end_or_with_a_clock_set_back(later_s: float, tried: bool) -> None:
    """The first try is followed by a pause of two seconds."""
    run = staged(running(), at=AT, failed=True)
    action = next_attempt(run, STAGE, of(run), "id-1", None, AT + later_s)
    assert (action is not None) is tried


def test_what_a_worker_has_finished_may_be_wanted_again_at_once() -> None:
    run = staged(running(), at=AT)
    action = present(next_long(run, STAGE, of(run), NOBODY, AT))
    assert action.key.attempt == 2
    assert next_long(staged(running(), at=AT, failed=True), STAGE, of(run), NOBODY, AT) is None


def test_what_a_worker_carries_names_its_pod_where_there_is_one() -> None:
    run = running()
    first = present(next_long(run, STAGE, of(run), NOBODY, AT))
    assert first.pod_id == "id-1"
    unmade = present(next_long(run, STAGE, replace(of(run), pod_id=None), NOBODY, AT))
    assert unmade.pod_id == ""


# -- What an action is called: its text is in every ledger, and is read as it was written -------


words = st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=8)
items = st.just("") | st.from_regex(r"[A-Za-z0-9._-]{1,40}", fullmatch=True)


@given(st.builds(ActionKey, words, st.integers(0, 9999), words, st.integers(0, 999), items))
def test_a_key_is_read_as_it_was_written(key: ActionKey) -> None:
    assert ActionKey.parse(str(key)) == key


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("r-b56243/g1/create/1", ActionKey("r-b56243", 1, "create", 1)),
        ("r1/g12/save-2/3", ActionKey("r1", 12, "save", 3, "2")),
        ("r1/g1/pull-fast-80-bbbbbbbb/1", ActionKey("r1", 1, "pull", 1, "fast-80-bbbbbbbb")),
    ],
)
def test_the_text_is_that_of_ledgers_before(text: str, key: ActionKey) -> None:
    assert (str(key), ActionKey.parse(text)) == (text, key)


@pytest.mark.parametrize(
    "text",
    ["", "a", "r1/create/1", "r1/g1/create", "r1/gx/create/1", "r1/g1//1", "r/1/g1/create/1"],
)
def test_anything_else_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="names no action"):
        ActionKey.parse(text)


# -- ``decide``: what a pod's agent left in the bucket tells of a run that nobody was with ------


CRASHED = PhaseReport("extreme", state=PhaseState.ENDED, outcome="crashed", step=7)


def left_alone() -> RunState:
    run = running()
    return replace(run, recorded_plan=recorded(bucket="s3://b/p"), detached=True)


def word(run: RunState, **changes: Any) -> AgentReport:
    said = {"phases": (ENDED,), "result": "landed", "message": "the soft stop came"}
    return replace(a_report(run), **{**said, **changes})


def closed(run: RunState, **seen: Any) -> RunState:
    gone = [the_pod(run, status=PodStatus.GONE, ended_at=AT + 400)]
    bill = Bill("id-1", Usd("0.4"), final=True)
    run, _ = follow(run, AT + 50_000, pods=gone, bill=bill, **seen)
    assert run.state is State.CLOSED
    return run


def test_a_run_that_ended_with_nobody_there_is_closed_with_what_its_agent_had_said() -> None:
    run = closed(left_alone(), word=word(left_alone()))
    assert (run.outcome, sentence(run.reason)) == (Outcome.LANDED, "the soft stop came")
    assert run.phases["fast"].step == ENDED.step
    assert closed(left_alone()).outcome is Outcome.UNREPORTED


def test_a_pod_that_lives_and_is_out_of_reach_is_ended_once_its_word_says_that_it_is_done() -> None:
    run = left_alone()
    run, actions = follow(run, AT + 500, pods=[the_pod(run)], word=word(run))
    assert (run.state, run.result, actions) == (State.ENDING, "landed", ())
    _, (end,) = follow(run, AT + 561, pods=[the_pod(run)])
    assert (end.verb, sentence(end.reason)) == ("terminate", "training has finished")


def test_of_a_word_without_a_result_only_what_had_ended_well_counts() -> None:
    """What had crashed when it was stored may have been tried again."""
    seen = word(left_alone(), phases=(ENDED, CRASHED), result=None)
    run = closed(left_alone(), word=seen)
    assert run.outcome is Outcome.UNREPORTED
    assert set(run.phases) == {"fast"}
    run = closed(left_alone(), word=replace(seen, result="failed"))
    assert run.outcome is Outcome.FAILED
    assert set(run.phases) == {"fast", "extreme"}


def test_it_is_heard_even_after_the_pods_end_was_put_on_record() -> None:
    run = apply(left_alone(), ev.PodGone(1, AT + 400), at=AT + 500)
    assert run.state is State.SETTLING
    decision = ask(run, AT + 501, word=word(run))
    assert [type(event) for event in decision.events] == [ev.PhaseEnded, ev.ResultKnown]
    run = apply(run, *decision.events, at=AT + 501)
    assert ask(run, AT + 502, word=word(run)).events == ()
    assert closed(run).outcome is Outcome.LANDED


@pytest.mark.parametrize("changes", [{"pod_name": "trmc-another"}, {"run_id": "r2"}])
def test_anothers_word_is_passed_over(changes: dict[str, str]) -> None:
    run = left_alone()
    assert closed(run, word=word(run, **changes)).outcome is Outcome.UNREPORTED


def test_a_word_no_version_of_ours_would_leave_is_a_failure() -> None:
    run = closed(left_alone(), word=word(left_alone(), result="won"))
    assert run.outcome is Outcome.FAILED


def test_the_agent_itself_is_believed_before_what_it_left() -> None:
    run = left_alone()
    report, pods = a_report(run), [the_pod(run)]
    assert ask(run, AT + 500, pods=pods, report=report, word=word(run)).events == ()


def test_a_result_that_is_known_stays() -> None:
    for run in (ending(), settling()):
        decision = ask(run, AT + 530, pods=[the_pod(run)], word=word(run))
        assert not any(isinstance(event, ev.ResultKnown) for event in decision.events)


def test_a_pod_that_never_spoke_left_nothing() -> None:
    run = booting()
    assert ask(run, AT + 30, pods=[the_pod(run)], word=word(run)).events == ()


# -- controller edges ---------------------------------------------------------------------------
# ``decide`` at its edges: lists that lag, boundaries of time and money, a run's second pod.


LAGGING = replace(TRAITS, absence=AbsenceProof(lists=3, missing_s=300.0))
ALONE = StubPlan((FIRST,))


def as_candidate(**changes: object) -> Candidate:
    return cast(Candidate, replace(FIRST, **changes))  # type: ignore[arg-type]


def second_running() -> RunState:
    """A run whose first pod has been settled, and whose second one trains."""
    run = apply(settling(), ev.GateJudged(1, "fast", False, {"passed": False}), at=AT + 590)
    run, _ = follow(run, AT + 600, bill=Bill("id-1", Usd("0.5"), final=True))
    run = apply(run, ev.Reopened(Usd(10)), ev.Reserved(Usd("9.5")), at=AT + 700)
    run, _ = follow(run, AT + 700)
    run = created(run, AT + 701)
    run, _ = follow(run, AT + 710, pods=[the_pod(run)])
    run, _ = follow(run, AT + 720, pods=[the_pod(run)], report=a_report(run))
    assert run.state is State.RUNNING
    return run


# -- what may be rented ------------------------------------------------------------------------


def test_a_reopened_run_with_nothing_to_rent_closes_without_a_reason() -> None:
    run, _ = follow(settling(), AT + 600, bill=Bill("id-1", Usd("0.5"), final=True))
    run = apply(run, ev.Reopened(Usd(10)), ev.Reserved(Usd(9)), at=AT + 700)
    assert ask(run, AT + 700, plan=StubPlan(())).events == (ev.Closed("not_started", None),)


def test_storage_is_paid_from_the_reservation_before_any_time_is_bought() -> None:
    stop_s = hard_stop_within(as_candidate(storage=Usd("0.3")), reserved(), TRAITS)
    assert stop_s == pytest.approx(2700.0)


def test_a_free_machine_that_was_paid_for_before_is_bound_by_the_plans_own_stop() -> None:
    spent = replace(reserved(ZERO), settled=Usd(1))
    assert hard_stop_within(as_candidate(rate=ZERO), spent, TRAITS) == 3000.0


@pytest.mark.parametrize("settled", [ZERO, Usd(1)])
def test_less_money_than_a_kill_costs_buys_no_time_at_all(settled: Usd) -> None:
    poor = replace(reserved(Usd("0.01")), settled=settled)
    assert hard_stop_within(as_candidate(), poor, TRAITS) == 0.0


def test_a_run_that_was_reopened_and_reserved_nothing_closes_again() -> None:
    """Whatever became of its last generation: this one was never made."""
    run, _ = follow(failed("refused"), AT + 1, plan=ALONE)
    run = apply(run, ev.Reopened(Usd(10)), at=AT + 700)
    assert run.state is State.SETTLED
    run, actions = follow(run, AT + 700)
    assert (run.state, actions) == (State.CLOSED, ())


# -- waiting for a pod -------------------------------------------------------------------------


def test_the_wait_counts_from_the_answer_and_not_from_the_question() -> None:
    run = apply(renting(), ev.ActionStarted("r1/g1/create/1", CREATE), at=AT)
    run = apply(
        run, ev.ActionFailed("r1/g1/create/1", CREATE, FailureKind.AMBIGUOUS, "?"), at=AT + 100
    )
    assert ask(run, AT + 699, absent_lists=9) == Decision()
    assert ask(run, AT + 700, absent_lists=9) != Decision()


def test_a_bill_for_a_pod_that_nobody_saw_is_a_pod() -> None:
    run = failed("ambiguous")
    never = ask(run, AT + 600, absent_lists=3, bill=Bill("id-9", ZERO, final=False))
    assert [type(event) for event in never.events] == [ev.PodNotMade]
    billed = ask(run, AT + 600, absent_lists=3, bill=Bill("id-9", Usd("0.1"), final=False))
    assert billed.events == (ev.PodUp(1, "id-9", FIRST.rate),)
    assert run.reserved == RESERVATION


def test_of_two_pods_that_are_gone_the_first_is_taken() -> None:
    run = failed("ambiguous")
    both = [the_pod(run, pod_id=name, status=PodStatus.GONE) for name in ("id-1", "id-2")]
    event = only(ev.PodUp, ask(run, AT + 5, pods=both).events)
    assert event.pod_id == "id-1"


# -- lists that lag: absence must last ---------------------------------------------------------


def test_where_lists_lag_a_pod_is_given_up_only_when_it_has_been_missing_for_long() -> None:
    run = created()
    for now in (AT + 5, AT + 599):
        assert ask(run, now, absent_lists=99, traits=LAGGING) == Decision(), "it may still appear"
    asking = frozenset({"r1/g1/create/1"})
    assert ask(run, AT + 600, traits=LAGGING, in_flight=asking) == Decision()
    assert ask(run, AT + 600, pods=UnknownSince(AT), traits=LAGGING) == Decision()
    decision = ask(run, AT + 600, absent_lists=99, traits=LAGGING)
    assert decision == Decision(events=(ev.PodMissed(1),))
    run = apply(run, *decision.events, at=AT + 600)
    assert ask(run, AT + 899, absent_lists=99, traits=LAGGING) == Decision()
    unknown = ask(run, AT + 900, absent_lists=99, unbilled=False, traits=LAGGING)
    assert unknown == Decision(), "a bill that cannot be asked for is not one of nothing"
    run, actions = follow(run, AT + 900, absent_lists=1, traits=LAGGING)
    assert sentence(run.generations[0].not_made) == "it never appeared"
    assert [a.id for a in actions] == ["r1/g2/create/1"]


def test_a_deletion_that_was_taken_needs_less_of_an_absence() -> None:
    traits = replace(LAGGING, absence=replace(LAGGING.absence, deleted_s=30.0))
    for taken, wait_s in ((True, 30.0), (False, 300.0)):
        run = apply(running(), ev.ActionStarted("r1/g1/terminate/1", TERMINATE), at=AT + 90)
        done = ev.ActionFinished("r1/g1/terminate/1", TERMINATE, taken=taken)
        run = apply(run, done, ev.PodMissed(1), at=AT + 100)
        early = ask(run, AT + 99 + wait_s, absent_lists=9, traits=traits)
        assert all(not isinstance(event, ev.PodGone) for event in early.events)
        late = ask(run, AT + 100 + wait_s, absent_lists=9, traits=traits)
        assert late.events == (ev.PodGone(1, AT + 100),)


def test_where_lists_lag_a_pod_is_gone_since_it_was_first_missed() -> None:
    run = running()
    assert ask(run, AT + 90, pods=[the_pod(run)], traits=LAGGING) == Decision()
    assert ask(run, AT + 99, pods=UnknownSince(AT + 99), traits=LAGGING) == Decision()
    decision = ask(run, AT + 100, absent_lists=99, traits=LAGGING)
    assert decision == Decision(events=(ev.PodMissed(1),))
    run = apply(run, *decision.events, at=AT + 100)
    for now in (AT + 100, AT + 399):
        assert ask(run, now, absent_lists=99, traits=LAGGING) == Decision()
    assert ask(run, AT + 900, pods=UnknownSince(AT), traits=LAGGING) == Decision(), (
        "no list, no proof"
    )
    decision = ask(run, AT + 400, absent_lists=1, traits=LAGGING)
    assert decision.events == (ev.PodGone(1, AT + 100),)


def test_a_list_that_flickers_proves_nothing() -> None:
    run = apply(running(), ev.PodMissed(1), at=AT + 100)
    decision = ask(run, AT + 399, pods=[the_pod(run)], traits=LAGGING)
    assert decision == Decision(events=(ev.PodFound(1),))
    run = apply(run, *decision.events, at=AT + 399)
    assert ask(run, AT + 399, pods=[the_pod(run)], traits=LAGGING) == Decision()
    run, actions = follow(run, AT + 500, traits=LAGGING)
    absence = run.generations[-1].absence
    assert absence is not None
    assert (absence.since, run.state) == (AT + 500, State.RUNNING)
    assert actions == ()


@pytest.mark.parametrize("skew_s", [0.0, -5000.0, 5000.0])
def test_an_agent_that_reports_after_its_pod_was_missed_shows_that_the_pod_lives(
    skew_s: float,
) -> None:
    run, heard_at = running(), AT + 95 + skew_s
    decision = ask(run, AT + 100, absent_lists=1, traits=LAGGING, report=a_report(run, at=heard_at))
    assert decision == Decision(events=(ev.PodMissed(1, heard_at=heard_at),))
    run = apply(run, *decision.events, at=AT + 100)
    lives = a_report(run, at=heard_at + 140)
    early = ask(run, AT + 249, absent_lists=9, traits=LAGGING, report=lives)
    assert early == Decision(), "what does not yet matter is not written down"
    decision = ask(run, AT + 250, absent_lists=9, traits=LAGGING, report=lives)
    assert decision == Decision(events=(ev.PodFound(1),))
    late = ask(run, AT + 400, absent_lists=9, traits=LAGGING, report=lives)
    assert late == decision
    run = apply(run, *decision.events, at=AT + 250)
    again = ask(run, AT + 251, absent_lists=9, traits=LAGGING, report=lives)
    assert again == Decision(events=(ev.PodMissed(1, heard_at=heard_at + 140),))
    run = apply(run, *again.events, at=AT + 251)
    unread = ask(run, AT + 400, absent_lists=9, traits=LAGGING)
    assert unread == Decision(), "one report that cannot be read now does not give it up"
    run = apply(run, *again.events, at=AT + 401)
    gone = ask(run, AT + 701, absent_lists=9, traits=LAGGING, report=lives)
    assert gone.events == (ev.PodGone(1, AT + 401),), "its last report stays where it was"


def test_what_an_agent_reports_while_it_is_ended_keeps_no_pod_alive() -> None:
    run = apply(running(), ev.PodMissed(1, heard_at=AT + 95), at=AT + 100)
    last = a_report(run, at=AT + 104)
    gone = ask(run, AT + 400, absent_lists=9, traits=LAGGING, report=last)
    assert gone.events == (ev.PodGone(1, AT + 100),)
    other = replace(a_report(run, at=AT + 390), pod_name="another")
    gone = ask(run, AT + 400, absent_lists=9, traits=LAGGING, report=other)
    assert gone.events == (ev.PodGone(1, AT + 100),)


def test_beyond_the_hard_stop_a_report_does_not_keep_a_missed_pod() -> None:
    run = apply(running(), ev.PodMissed(1, heard_at=AT + 95), at=AT + 100)
    late = run.generations[-1].hard_stop_at + 1
    lives = a_report(run, at=late)
    owed = ask(run, late, absent_lists=9, traits=LAGGING, report=lives)
    assert owed.events == ()
    (action,) = owed.actions
    assert (action.verb, sentence(action.reason)) == (TERMINATE, "hard stop")
    run = apply(run, ev.ActionStarted(action.id, TERMINATE), at=late)
    failed = ev.ActionFailed(action.id, TERMINATE, FailureKind.ERROR, "busy")
    refused = apply(run, failed, at=late)
    (again,) = ask(refused, late + 120, absent_lists=9, traits=LAGGING, report=lives).actions
    assert again.verb == TERMINATE, "no answer is no reason to give it up"
    run = apply(run, ev.ActionFinished(action.id, TERMINATE), at=late)
    gone = ask(run, late + 5, absent_lists=9, traits=LAGGING, report=lives)
    assert gone.events == (ev.PodGone(1, late + 5),), "it was billed until then at the most"


def test_one_that_was_silent_beyond_its_hard_stop_is_owed_nothing() -> None:
    run = apply(running(), ev.PodMissed(1, heard_at=AT + 95), at=AT + 100)
    late = run.generations[-1].hard_stop_at + 1
    last = a_report(run, at=AT + 95)
    gone = ask(run, late, absent_lists=9, traits=LAGGING, report=last)
    assert gone.events == (ev.PodGone(1, AT + 100),)


def test_a_pod_that_its_provider_stopped_is_ended_at_once() -> None:
    """Nothing runs on it any more, and its disk is billed on."""
    run = running()
    stopped = the_pod(run, status=PodStatus.STOPPED)
    (action,) = ask(run, AT + 100, pods=[stopped]).actions
    assert action.verb == TERMINATE
    assert sentence(action.reason) == "its provider has stopped it, but still bills its disk"
    assert ask(run, AT + 100, pods=[stopped], report=a_report(run)).actions == ()
    unknown = the_pod(run, status=PodStatus.UNKNOWN)
    assert ask(run, AT + 100, pods=[unknown]).actions == ()


def test_where_lists_do_not_lag_nothing_is_noted() -> None:
    assert ask(running(), AT + 100, absent_lists=1) == Decision()


def test_a_missed_pod_is_still_ended_at_its_hard_stop() -> None:
    """It may be there all the same, and its rent runs."""
    run = apply(running(), ev.PodMissed(1), at=AT + 2999)
    (action,) = ask(run, AT + 3000, traits=LAGGING).actions
    assert (action.verb, sentence(action.reason)) == (TERMINATE, "hard stop")


# -- accounts of phases ------------------------------------------------------------------------


def test_a_phase_that_ended_cleanly_is_accounted_for_while_the_next_one_runs() -> None:
    run = running()
    report = a_report(run, phases=(ENDED, PhaseReport("extreme", state=PhaseState.RUNNING)))
    run, _ = follow(run, AT + 400, pods=[the_pod(run)], report=report)
    assert run.state is State.RUNNING
    assert list(run.phases) == ["fast"]


@pytest.mark.parametrize("state", [PhaseState.WAITING, PhaseState.RUNNING])
def test_a_phase_that_never_ended_has_no_account(state: PhaseState) -> None:
    run = running()
    phases = (PhaseReport("fast", state=state, outcome="finished"),)
    run, _ = follow(run, AT + 400, pods=[the_pod(run)], report=a_report(run, phases=phases))
    report = a_report(run, phases=phases, result="stopped")
    run, _ = follow(run, AT + 401, pods=[the_pod(run)], report=report)
    assert (run.state, run.phase_accounts) == (State.ENDING, ())


def test_a_phase_that_ended_without_a_word_was_lost() -> None:
    run = running()
    report = a_report(run, phases=(replace(ENDED, outcome=None),), result="failed")
    run, _ = follow(run, AT + 400, pods=[the_pod(run)], report=report)
    assert run.phases["fast"].outcome == "lost"


def test_the_second_pods_gate_is_judged_anew() -> None:
    run = second_running()
    assert run.gates["fast"].passed is False
    report = a_report(run, phases=(replace(ENDED, gate=PASSED),))
    run, _ = follow(run, AT + 800, pods=[the_pod(run)], report=report)
    assert (run.gates["fast"].generation, run.gates["fast"].passed) == (2, True)
    assert [account.generation for account in run.phase_accounts] == [1, 2]
    assert ask(run, AT + 801, pods=[the_pod(run)], report=report) == Decision(), "and once"


# -- ending ------------------------------------------------------------------------------------


def test_a_pod_that_ends_is_not_told_to_land() -> None:
    run = stopped(ending(), AT + 505)
    assert ask(run, AT + 510, pods=[the_pod(run)]) == Decision()


def test_a_pod_that_has_landed_late_keeps_its_grace() -> None:
    """Told at 100 s, its patience ends at 260 s; what it said at 250 s counts from then."""
    run = stopped(running(), AT + 100)
    report = a_report(run, phases=(ENDED,), result="stopped")
    run, _ = follow(run, AT + 250, pods=[the_pod(run)], report=report)
    assert ask(run, AT + 270, pods=[the_pod(run)], report=report) == Decision()
    (action,) = ask(run, AT + 310, pods=[the_pod(run)], report=report).actions
    assert sentence(action.reason) == "training has finished"


def test_a_strange_result_is_quoted_up_to_eighty_characters() -> None:
    run = running()
    report = a_report(run, result="x" * 100, message="why")
    run, _ = follow(run, AT + 100, pods=[the_pod(run)], report=report)
    assert sentence(run.reason) == f"its agent ended with '{'x' * 80}': why"


def test_a_run_without_a_generation_in_the_middle_of_its_life_is_an_error() -> None:
    with pytest.raises(ValueError, match="r1 has no generation in state running"):
        ask(RunState("r1", state=State.RUNNING), AT)


@pytest.mark.parametrize(
    ("asked", "stands", "ended"),
    [
        ("EU-RO-1", "US-KS-2", True),
        ("EU-RO-1", "EU-RO-1", False),
        ("eu-ro-1", "EU-RO-1", False),
        ("EU-RO-1", "", False),
        ("any", "US-KS-2", False),
        ("", "US-KS-2", False),
    ],
)
def test_a_pod_elsewhere_than_asked_is_ended(asked: str, stands: str, ended: bool) -> None:
    run = booting()
    plan = StubPlan((cast(StubCandidate, as_candidate(region=asked)),))
    decision = ask(run, AT + 60, plan=plan, pods=[the_pod(run, region=stands)])
    assert [a.verb for a in decision.actions] == ([TERMINATE] if ended else [])
    if ended:
        assert sentence(decision.actions[0].reason) == "it is in US-KS-2, but EU-RO-1 was requested"


def test_what_is_billed_is_what_the_list_says_now() -> None:
    run = booting()
    (action,) = ask(run, AT + 60, pods=[the_pod(run, rate=Usd(9))]).actions
    assert (action.verb, "billed $9.00/h" in sentence(action.reason)) == (TERMINATE, True)
    dear = replace(run.generations[0], billed_rate=Usd(9))
    unseen = replace(run, generations=(dear,))
    assert ask(unseen, AT + 60, pods=[the_pod(run)]) == Decision(), "it has come down since"
    (action,) = ask(unseen, AT + 60, pods=UnknownSince(AT)).actions
    assert action.verb == TERMINATE, "while there is no list, what was seen last counts"
