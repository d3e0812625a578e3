"""`decide` for a run that waits for a machine: whom it asks when, at what price, within what money,
until when; and how it ends without one."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.plans import a_candidate, plan_json
from tests.present import only, present
from tests.unit.core.runs import (
    AT,
    BOOTED_AT,
    ENDED,
    FIRST,
    StubPlan,
    StubSpec,
    a_report,
    apply,
    ask,
    created,
    failed,
    follow,
    reserved,
    running,
    stopped,
    the_pod,
)
from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.clock import DatedFact, Instant, UnknownSince
from trmcloud.core.control import events as ev
from trmcloud.core.control.actions import CREATE, TERMINATE
from trmcloud.core.control.controller import waits_for
from trmcloud.core.control.events import FailureKind
from trmcloud.core.control.observation import Bill, PodStatus
from trmcloud.core.control.reason import ReasonKind, make_reason
from trmcloud.core.control.run_state import Errand, RunState, State
from trmcloud.core.control.waiting import (
    NO_OTHERS,
    allows_waiting,
    ask_rate,
    asks,
    candidates_left,
    end_of_wait,
    failed_boots,
    idle_s,
    is_over,
    is_waiting,
    other_waits,
    spent_on_boots,
)
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO, Usd, cost
from trmcloud.core.spec.boots import ASK_EVERY_S, LEAST_BOOTS, boot_budget, boot_cost
from trmcloud.core.spec.plan import Candidate, Plan
from trmcloud.operations.reasons import sentence

HOUR_S = 3600.0
HERE = replace(FIRST, id="here", provider="runpod")
HERE_TOO = replace(FIRST, id="here-too", provider="runpod", rate=Usd("1.8"))
THERE = replace(FIRST, id="there", provider="vast", rate=Usd("2.4"))
ALONE = StubPlan((HERE,))
PLAN = StubPlan((HERE, HERE_TOO, THERE))
RUNPOD = traits_of("runpod")
RICH = Usd("20")


def of(plan: StubPlan) -> Plan:
    return cast(Plan, plan)


def waiting(
    wait_s: float = 6 * HOUR_S,
    *,
    most: Usd | None = None,
    boots: Usd = RICH,
    amount: Usd = RICH,
) -> RunState:
    run = apply(reserved(amount), ev.WaitStarted(AT + wait_s, boots, most), at=AT)
    assert is_waiting(run)
    return run


def refused(run: RunState, at: float, kind: str = "no_capacity", retry_s: float = 0.0) -> RunState:
    """Its create was answered so, and is put on record."""
    assert run.state is State.RENTING
    name = f"{run.run_id}/g{len(run.generations)}/create/1"
    answer = ev.ActionFailed(name, CREATE, FailureKind(kind), f"it said {kind}", retry_s)
    run = apply(run, ev.ActionStarted(name, CREATE), at=at)
    return apply(run, answer, at=at)


def play(
    run: RunState, plan: StubPlan, until: float, kind: str = "no_capacity", retry_s: float = 0.0
) -> tuple[RunState, list[tuple[float, str]]]:
    """Everything is refused; (the run, when which candidate was asked for)."""
    now, asked = AT, []
    while now < until and run.live:
        run, actions = follow(run, now, plan=plan, traits=RUNPOD)
        if actions:
            generation = run.generations[-1]
            asked.append((now, generation.candidate_id))
            run = refused(run, now, kind, retry_s)
            continue
        now += max(1.0, idle_s(run, of(plan), now)) if run.live else 0.0
    return run, asked


def planned(run: RunState, plan: StubPlan, run_id: str = "r2") -> RunState:
    recorded: Any = SimpleNamespace(plan=plan, spec=plan.spec)
    return replace(run, run_id=run_id, recorded_plan=recorded)


def play_together(runs: list[RunState], plan: StubPlan, until: float) -> list[tuple[float, str]]:
    """Everything is refused to runs that wait side by side; (when which of them asked)."""
    now, asked = AT, []
    while now < until:
        for at, run in enumerate(runs):
            others = other_waits(runs, run.run_id, now)
            run, actions = follow(run, now, plan=plan, traits=RUNPOD, others=others)
            if actions:
                asked.append((now, run.run_id))
                run, _ = follow(refused(run, now), now, plan=plan, traits=RUNPOD, others=others)
            runs[at] = run
        now += 30.0
    return asked


def never_boots(run: RunState, plan: StubPlan, at: float) -> tuple[RunState, float]:
    """The pod that is asked for now comes up and is never heard; (the run once it is settled)."""
    run, _ = follow(run, at, plan=plan, traits=RUNPOD)
    run = created(run, at)
    run, _ = follow(run, at + 5, pods=[the_pod(run)], plan=plan, traits=RUNPOD)
    assert run.state is State.BOOTING
    late = at + 5 + RUNPOD.boot_deadline_s
    run, [action] = follow(run, late, pods=[the_pod(run)], plan=plan, traits=RUNPOD)
    assert action.verb == TERMINATE
    gone = [the_pod(run, status=PodStatus.GONE, ended_at=late + 5)]
    run, _ = follow(run, late + 10, pods=gone, plan=plan, traits=RUNPOD)
    run, _ = follow(run, late + 90, plan=plan, traits=RUNPOD)
    return run, late + 90


def test_each_candidate_is_tried_at_once_and_then_each_provider_every_five_minutes() -> None:
    run, asked = play(waiting(), PLAN, AT + 3 * HOUR_S)
    assert [name for _, name in asked[:3]] == ["here", "here-too", "there"]
    assert {at for at, _ in asked[:3]} == {AT}
    for names in (("here", "here-too"), ("there",)):
        times = [at for at, name in asked if name in names and at > AT]
        gaps = [after - before for before, after in itertools.pairwise(times)]
        assert all(0.8 * ASK_EVERY_S <= gap <= 1.2 * ASK_EVERY_S + 1 for gap in gaps)
        assert len(set(gaps)) > len(gaps) / 2, "jitter"
    counts = Counter(name for _, name in asked)
    assert abs(counts["here"] - counts["here-too"]) <= 1
    assert run.state is State.RESERVED
    assert run.reserved == RICH


def test_where_nothing_comes_it_ends_in_time_with_what_was_said_last() -> None:
    run, asked = play(waiting(2 * HOUR_S), ALONE, AT + 9 * HOUR_S)
    assert (run.state, run.outcome) == (State.CLOSED, Outcome.NO_MACHINE)
    assert Outcome.NO_MACHINE.exit_code == 75
    assert (run.reserved, run.settled) == (ZERO, ZERO)
    assert run.updated_at == AT + 2 * HOUR_S
    assert sentence(run.reason) == (
        f"waited 2 h 00 min; requests: {len(asked)}; failed boots: 0, at most $0.00: "
        "it said no_capacity"
    )


def test_a_run_that_does_not_wait_tries_each_candidate_once() -> None:
    run, asked = play(reserved(RICH), PLAN, AT + HOUR_S)
    assert [name for _, name in asked] == ["here", "here-too", "there"]
    assert run.outcome is Outcome.NOT_STARTED


@pytest.mark.parametrize("number", [2, 3, 7])
def test_runs_that_wait_at_one_provider_share_its_pace(number: int) -> None:
    runs = [planned(waiting(), ALONE, f"r{n}") for n in range(1, number + 1)]
    asked = play_together(runs, ALONE, AT + 5 * HOUR_S)
    gaps = [after - before for (before, _), (after, _) in itertools.pairwise(asked)]
    assert min(gaps) >= 0.8 * ASK_EVERY_S
    counts = Counter(who for _, who in asked)
    assert set(counts) == {run.run_id for run in runs}
    assert max(counts.values()) <= 2 * min(counts.values()) + 1
    assert len(asked) >= 5 * HOUR_S / ASK_EVERY_S / 2, "as often as one would"


def test_runs_that_wait_elsewhere_or_have_ended_share_nothing() -> None:
    mine, there = waiting(), StubPlan((THERE,))
    elsewhere, _ = play(planned(waiting(), there), there, AT + 60)
    others = other_waits([elsewhere], "r1", AT + 60)
    assert (others.count, dict(others.at)) == (1, {"vast": 1})
    assert idle_s(mine, of(ALONE), AT + 60, others) == 0.0
    here, _ = play(planned(waiting(HOUR_S), ALONE), ALONE, AT + 60)
    assert idle_s(mine, of(ALONE), AT + 60, other_waits([here], "r1", AT + 60)) > 0.0
    for ended in (stopped(here, AT + 60), replace(running(), run_id="r2"), mine):
        assert other_waits([ended], "r1", AT + 60) == NO_OTHERS
    assert other_waits([here], "r1", AT + 2 * HOUR_S) == NO_OTHERS


def test_it_is_asked_for_by_whoever_stays_alone() -> None:
    run = waiting()
    assert ask(run, AT, plan=PLAN, attended=False).events == ()
    over = ask(run, AT + 7 * HOUR_S, plan=PLAN, attended=False).events
    assert [type(event) for event in over] == [ev.Closed]


def test_a_wish_to_stop_ends_it_at_once() -> None:
    run, _ = play(waiting(), ALONE, AT + HOUR_S)
    run, _ = follow(stopped(run, AT + HOUR_S), AT + HOUR_S, plan=ALONE)
    assert (run.state, run.outcome, run.reserved) == (State.CLOSED, Outcome.STOPPED, ZERO)


def test_an_hour_of_429_is_waited_through_with_ever_fewer_questions() -> None:
    run, asked = play(waiting(), ALONE, AT + HOUR_S, "throttled")
    gaps = [b[0] - a[0] for a, b in itertools.pairwise(asked)]
    assert len(asked) <= 5
    assert gaps == sorted(gaps)
    assert run.state is State.RESERVED
    run, actions = follow(run, AT + 2 * HOUR_S, plan=ALONE, traits=RUNPOD)
    assert [action.verb for action in actions] == [CREATE]


def test_no_candidate_of_a_provider_that_asks_for_time_is_tried_at_once() -> None:
    run, _ = follow(waiting(), AT, plan=PLAN, traits=RUNPOD)
    run, _ = follow(refused(run, AT, "throttled", 900.0), AT, plan=PLAN, traits=RUNPOD)
    assert [g.candidate_id for g in run.generations] == ["here", "there"]
    assert idle_s(refused_and_noted(run), of(PLAN), AT) == pytest.approx(ASK_EVERY_S, rel=0.2)


def refused_and_noted(run: RunState) -> RunState:
    return follow(refused(run, AT), AT, plan=PLAN, traits=RUNPOD)[0]


def test_the_pause_that_a_provider_names_is_kept() -> None:
    run, _ = follow(waiting(), AT, plan=ALONE, traits=RUNPOD)
    run, _ = follow(refused(run, AT, "throttled", 3000.0), AT, plan=ALONE, traits=RUNPOD)
    assert idle_s(run, of(ALONE), AT) == 3000.0
    assert ask(run, AT + 2999, plan=ALONE).events == ()
    assert ask(run, AT + 3001, plan=ALONE).events != ()


def test_a_provider_that_refuses_for_good_is_not_waited_for() -> None:
    run, _ = follow(waiting(), AT, plan=ALONE, traits=RUNPOD)
    run, _ = follow(refused(run, AT, "final"), AT, plan=ALONE, traits=RUNPOD)
    assert (run.outcome, sentence(run.reason)) == (Outcome.NOT_STARTED, "it said final")


def test_the_others_are_waited_for_where_one_refuses_for_good() -> None:
    run, _ = follow(waiting(), AT, plan=PLAN, traits=RUNPOD)
    run, _ = follow(refused(run, AT, "final"), AT, plan=PLAN, traits=RUNPOD)
    run, _ = play(run, PLAN, AT + HOUR_S)
    assert {g.candidate_id for g in run.generations[1:]} == {"there"}
    assert run.live


def test_a_clock_that_is_set_back_puts_off_neither_question_nor_end() -> None:
    run, _ = play(waiting(), ALONE, AT + 60)
    assert ask(run, AT - 86_400, plan=ALONE).events != ()
    wakes = Instant(AT - 86_400.0, AT + 7 * HOUR_S - BOOTED_AT, "here")
    assert is_over(run, wakes.wall, wakes)
    closed = only(ev.Closed, ask(run, wakes.wall, plan=ALONE, clock=wakes).events)
    assert closed.outcome == Outcome.NO_MACHINE.value
    assert not is_over(run, AT, Instant(AT, AT - BOOTED_AT, "here"))
    assert not is_over(reserved(), AT + 1e9)


def test_nothing_is_asked_for_while_an_earlier_pod_may_live() -> None:
    run, _ = play(waiting(), ALONE, AT + 60)
    later = AT + HOUR_S
    assert ask(run, later, plan=ALONE, pods=UnknownSince(later)).events == ()
    stray = replace(the_pod(run), name=run.generations[0].pod_name)
    assert ask(run, later, plan=ALONE, pods=DatedFact((stray,), later)).events == ()


def test_no_more_is_paid_than_the_user_named_whatever_it_was_planned_at() -> None:
    run = waiting(most=Usd("2.0"))
    assert ask_rate(run, cast(Candidate, HERE)) == Usd("2.0")
    run, _ = follow(run, AT, plan=ALONE, traits=RUNPOD)
    assert run.generations[0].rate == Usd("2.0")
    assert ask_rate(reserved(), cast(Candidate, HERE)) == HERE.rate


def test_a_dearer_price_buys_less_time_of_the_same_reservation() -> None:
    run = waiting(most=Usd("36"), amount=Usd("6"))
    run, _ = follow(run, AT, plan=ALONE, traits=RUNPOD)
    [generation] = run.generations
    most_s = generation.hard_stop_at - AT + RUNPOD.kill_latency_s
    assert cost(generation.rate, most_s) <= Usd("6")


def test_a_pod_that_never_boots_is_followed_by_the_next_under_the_same_reservation() -> None:
    run, _ = never_boots(waiting(), PLAN, AT)
    assert [g.candidate_id for g in run.generations] == ["here", "here-too"]
    [boot] = failed_boots(run)
    assert boot.settled is not None
    assert spent_on_boots(run) == boot.settled <= boot_cost(cast(Candidate, HERE)) + Usd("0.11")
    assert run.reserved + boot.settled == RICH


def test_the_one_that_booted_least_badly_is_asked_first() -> None:
    run, now = never_boots(waiting(), PLAN, AT)
    run = refused(run, now)
    run, _ = follow(run, now, plan=PLAN, traits=RUNPOD)
    assert run.generations[-1].candidate_id == "there"


def test_boots_that_fail_end_it_where_another_would_exceed_their_budget() -> None:
    budget = boot_cost(cast(Candidate, HERE)) + Usd("0.2")
    run, _ = never_boots(waiting(boots=budget), ALONE, AT)
    assert (run.state, run.outcome) == (State.CLOSED, Outcome.NO_MACHINE)
    assert run.reason is not None
    assert run.reason.kind is ReasonKind.BOOTS_SPENT
    assert run.settled <= budget
    told = sentence(run.reason)
    assert told.startswith(f"failed boots: 1, at most {run.settled}")


def test_a_reservation_smaller_than_one_boot_is_waited_with_all_the_same() -> None:
    small = Usd.from_micros(boot_cost(cast(Candidate, HERE)).micros - 1)
    run, asked = play(waiting(boots=small), ALONE, AT + HOUR_S)
    assert run.live
    assert len(asked) > 1


def test_three_boots_may_fail_at_the_dearest_price() -> None:
    candidates = [cast(Candidate, each) for each in (HERE, HERE_TOO)]
    assert boot_budget(candidates, RICH).micros == LEAST_BOOTS * boot_cost(candidates[0]).micros
    assert boot_budget([cast(Candidate, replace(HERE, provider="local"))], RICH) == ZERO
    assert boot_budget((), RICH) == ZERO
    assert boot_budget(candidates, Usd("0.6")) == Usd("0.6")
    dear = boot_budget(candidates, Usd("200"), Usd("36"))
    assert dear.micros == LEAST_BOOTS * cost(Usd("36"), 900 + 60).micros


def test_what_is_found_too_late_for_the_deadline_is_not_rented() -> None:
    near = StubPlan((HERE,), StubSpec(deadline_at=AT + HOUR_S + 200))
    run, _ = play(waiting(), near, AT + 2 * HOUR_S)
    assert (run.state, run.outcome) == (State.CLOSED, Outcome.NO_MACHINE)
    assert run.updated_at < AT + 2 * HOUR_S
    assert all(g.hard_stop_at <= AT + HOUR_S + 200 for g in run.generations)


def test_who_looks_hears_what_it_waits_for_until_when() -> None:
    run, asked = play(waiting(), ALONE, AT + HOUR_S)
    told = present(waits_for(run, RUNPOD, UnknownSince(AT)))
    assert (told.what.kind, told.until_at) == (ReasonKind.AWAITS_CAPACITY, AT + 6 * HOUR_S)
    assert told.what.facts["asked"] == len(asked) == len(asks(run))


def test_what_it_waits_for_is_told_by_its_hardware() -> None:
    planned = ev.RunPlanned(plan_json(a_candidate("here", hardware="8xH100-SXM")), RICH, "thesis")
    wait = ev.WaitStarted(AT + HOUR_S, RICH, None)
    run = apply(RunState("r1"), planned, ev.Reserved(RICH), wait, at=AT)
    told = present(waits_for(run, RUNPOD, UnknownSince(AT)))
    assert told.what.facts["hardware"] == "8xH100-SXM"


def test_once_a_machine_is_asked_for_its_create_is_what_is_waited_for() -> None:
    run, _ = follow(waiting(), AT, plan=ALONE, traits=RUNPOD)
    told = present(waits_for(created(run), RUNPOD, DatedFact((), AT)))
    assert told.what.kind is ReasonKind.AWAITS_POD


def test_a_run_that_waited_and_trained_ends_as_its_machine_did() -> None:
    run, _ = follow(waiting(), AT, plan=ALONE, traits=RUNPOD)
    run = created(run)
    report = a_report(run)
    run, _ = follow(run, AT + 5, pods=[the_pod(run)], report=report, plan=ALONE, traits=RUNPOD)
    assert run.state is State.RUNNING
    done = replace(report, phases=(ENDED,), result="finished")
    gone = [the_pod(run, status=PodStatus.GONE, ended_at=AT + 505)]
    run, _ = follow(run, AT + 500, pods=[the_pod(run)], report=done, plan=ALONE, traits=RUNPOD)
    run, _ = follow(run, AT + 510, pods=gone, plan=ALONE, traits=RUNPOD)
    run, _ = follow(run, AT + 600, plan=ALONE, traits=RUNPOD)
    assert (run.state, run.outcome) == (State.CLOSED, Outcome.FINISHED)


def test_a_run_that_is_resumed_waits_only_if_it_is_asked_to_again() -> None:
    run, _ = play(waiting(HOUR_S), ALONE, AT + 2 * HOUR_S)
    again = apply(run, ev.Reopened(RICH), ev.Reserved(RICH), at=AT + 3 * HOUR_S)
    assert again.wait is None
    assert asks(again) == ()
    assert not is_waiting(again)


def test_a_machine_that_came_trains_as_any_other() -> None:
    run = running()
    assert not is_waiting(run)
    assert idle_s(run, of(ALONE), AT) == 0.0


@pytest.mark.parametrize("kind", ["refused", "no_capacity"])
def test_a_refusal_that_is_none_for_good_is_waited_through(kind: str) -> None:
    run, asked = play(waiting(), ALONE, AT + HOUR_S, kind)
    assert run.live
    assert len(asked) >= 7


def test_why_nothing_came_names_the_boots_and_the_money() -> None:
    why = end_of_wait(waiting(), of(ALONE), AT + 60)
    assert dict(why.facts) == {"waited_s": 60.0, "asked": 0, "boots": 0, "spent_usd": "0"}


def test_the_failed_create_of_the_shared_helper_is_refused_for_good_without_a_wait() -> None:
    run, _ = follow(failed("throttled"), AT)
    assert run.outcome is Outcome.NOT_STARTED


# -- how long a provider is left alone, in seconds ------------------------------------------------


def answered(*kinds: str, retry_s: float = 0.0, took_s: float = 0.0) -> RunState:
    """A run that has asked for ``HERE`` at ``AT`` as often, and was refused so each time."""
    run = waiting()
    for number, kind in enumerate(kinds, 1):
        intent = ev.PodIntended(number, f"pod-{number}", "runpod", "here", HERE.rate, AT, AT)
        create = f"r1/g{number}/create/1"
        failed = ev.ActionFailed(create, CREATE, FailureKind(kind), "no", retry_s)
        run = apply(run, intent, ev.ActionStarted(create, CREATE), at=AT)
        run = apply(run, failed, ev.PodNotMade(number, SAID), at=AT + took_s)
    return run


SAID = make_reason(ReasonKind.PROVIDER_SAID, text="no")


def pauses(run: RunState) -> list[float]:
    """Of two hundred runs that have asked so."""
    return [idle_s(replace(run, run_id=f"r{n}"), of(ALONE), AT) for n in range(200)]


@pytest.mark.parametrize(
    ("kinds", "times"),
    [
        (("no_capacity",), 1),
        (("refused",), 1),
        (("throttled",), 2),
        (("throttled", "no_capacity"), 1),  # it answers again
        (("no_capacity", "throttled"), 2),
    ],
)
def test_eight_minutes_give_or_take_a_fifth_and_twice_as_long_for_each_429(
    kinds: tuple[str, ...], times: int
) -> None:
    found = pauses(answered(*kinds))
    assert 384.0 * times <= min(found) < 394.0 * times
    assert 566.0 * times < max(found) <= 576.0 * times


def test_no_pause_is_longer_than_half_an_hour_unless_one_is_named_and_then_six_hours() -> None:
    throttled = ("throttled",) * 4
    assert set(pauses(answered(*throttled))) == {1800.0}
    assert set(pauses(answered("throttled", retry_s=5 * 3600.0))) == {5 * 3600.0}
    day = answered("throttled", retry_s=86_400.0)
    longer = replace(day, wait=ev.WaitStarted(AT + 1e6, RICH))
    assert set(pauses(longer)) == {6 * 3600.0}


def test_a_pause_begins_with_the_answer() -> None:
    run = answered("no_capacity", retry_s=3000.0, took_s=50.0)
    assert idle_s(run, of(ALONE), AT + 50.0) == 3000.0
    assert idle_s(run, of(ALONE), AT + 3050.0) == idle_s(run, of(ALONE), AT + 9000.0) == 0.0
    # A clock that is set back by less than that cannot be told from the pause itself.
    assert idle_s(run, of(ALONE), AT + 50.0 - 2999.0) == 5999.0
    assert idle_s(run, of(ALONE), AT + 50.0 - 3000.0) == 0.0


def test_no_pause_lasts_longer_than_the_wait() -> None:
    run = answered("no_capacity", retry_s=3000.0)
    for left_s in (2999.0, 1.0, 0.0):
        ends = replace(run, wait=ev.WaitStarted(AT + left_s, RICH))
        assert idle_s(ends, of(ALONE), AT) == left_s
    past = replace(run, wait=ev.WaitStarted(AT - 5.0, RICH))
    assert idle_s(past, of(ALONE), AT) == 0.0
    assert idle_s(answered("final"), of(ALONE), AT) == 0.0, "nobody is left to ask"
    assert idle_s(replace(run, wait=None), of(ALONE), AT) == 0.0


def test_of_many_candidates_of_a_provider_three_are_tried_at_once() -> None:
    five = StubPlan(tuple(replace(HERE, id=f"c{n}") for n in range(5)))
    _, asked = play(waiting(), five, AT + HOUR_S)
    assert [name for at, name in asked if at == AT] == ["c0", "c1", "c2"]
    after = [(at, name) for at, name in asked if at > AT][:2]
    assert [name for _, name in after] == ["c3", "c4"]
    assert after[0][0] >= AT + 384.0
    assert after[1][0] >= after[0][0] + 384.0


# -- boots that fail -----------------------------------------------------------------------------


def refuses(run: RunState, plan: StubPlan, at: float) -> RunState:
    """The machine that is asked for now comes, and its agent refuses it half a minute later; the
    run once that is settled, a minute later."""
    run, _ = follow(run, at, plan=plan, traits=RUNPOD)
    run = created(run, at)
    report = a_report(run, result="unfit", message="4 GPUs where 8 were rented")
    run, _ = follow(run, at + 30, pods=[the_pod(run)], report=report, plan=plan, traits=RUNPOD)
    gone = [the_pod(run, status=PodStatus.GONE, ended_at=at + 40)]
    bill = Bill("id-1", Usd("0.04"), final=True)
    return follow(run, at + 60, pods=gone, bill=bill, plan=plan, traits=RUNPOD)[0]


def test_where_a_boot_failed_the_same_candidate_is_asked_for_again_at_once() -> None:
    """The boot budget bounds that, and no pause; what was refused before does not count."""
    run = refuses(waiting(), ALONE, AT)
    assert [g.candidate_id for g in run.generations] == ["here", "here"]
    assert run.generations[-1].intended_at == AT + 60
    run, _ = follow(waiting(), AT, plan=ALONE, traits=RUNPOD)
    run, _ = follow(refused(run, AT), AT + 600.0, plan=ALONE, traits=RUNPOD)
    run = refuses(run, ALONE, AT + 600.0)
    assert [g.candidate_id for g in run.generations] == ["here"] * 3
    assert run.generations[-1].intended_at == AT + 660


def test_a_machine_that_was_not_what_was_rented_counts_as_a_failed_boot() -> None:
    run = refuses(waiting(), PLAN, AT)
    assert [g.number for g in failed_boots(run)] == [1]
    assert spent_on_boots(run) == Usd("0.04")
    assert run.generations[-1].candidate_id == "here-too", "the others come first"


def test_where_the_boot_budget_is_spent_and_the_others_refuse_for_good_it_ends_without_one() -> (
    None
):
    mine, theirs = boot_cost(cast(Candidate, HERE)), boot_cost(cast(Candidate, THERE))
    assert theirs < mine
    both = StubPlan((HERE, THERE))
    run, now = never_boots(waiting(boots=mine + mine), both, AT)
    assert run.generations[-1].candidate_id == "there"
    run = refused(run, now, "final")
    run, _ = follow(run, now, plan=both, traits=RUNPOD)
    assert (run.state, run.outcome) == (State.CLOSED, Outcome.NO_MACHINE)


def settled_boots(*usd: str, boots: str) -> RunState:
    """A waiting run whose boots have failed and cost so much."""
    made = tuple(
        replace(GENERATION, number=n, agent_at=None, ended_at=AT, settled=Usd(each))
        for n, each in enumerate(usd, 1)
    )
    return replace(waiting(boots=Usd(boots)), generations=made)


GENERATION = running().generations[0]
BOOT = boot_cost(cast(Candidate, HERE))


@pytest.mark.parametrize(
    ("spent", "budget", "kind"),
    [
        (("1",), Usd(1) + BOOT, ReasonKind.WAIT_OVER),  # another one fits exactly
        (("1",), Usd("0.999999") + BOOT, ReasonKind.BOOTS_SPENT),
        (("0.5", "0.5"), Usd("0.999999") + BOOT, ReasonKind.BOOTS_SPENT),
        ((), Usd("0.01"), ReasonKind.WAIT_OVER),  # a small reservation, and no boot yet
    ],
)
def test_it_ends_for_its_boots_where_the_cheapest_other_boot_does_not_fit(
    spent: tuple[str, ...], budget: Usd, kind: ReasonKind
) -> None:
    run = settled_boots(*spent, boots=str(float(budget)))
    dear = replace(HERE, id="dear", rate=Usd(9))
    for candidates in ((HERE,), (HERE, dear), (dear, HERE)):
        assert end_of_wait(run, of(StubPlan(candidates)), AT + 60).kind is kind


def test_how_long_it_waited_is_within_the_wait_whatever_the_clock_says() -> None:
    run = waiting(HOUR_S)
    for now, waited_s in ((AT + 60, 60.0), (AT + 9e9, HOUR_S), (AT - 500, 0.0)):
        assert end_of_wait(run, of(ALONE), now).facts["waited_s"] == waited_s
    never = end_of_wait(replace(settled_boots("1", boots="1"), wait=None), of(ALONE), AT + 60)
    assert (never.kind, never.facts["waited_s"]) == (ReasonKind.WAIT_OVER, 0.0)


def test_which_run_may_wait() -> None:
    run = waiting()
    assert allows_waiting(run)
    assert not allows_waiting(reserved())
    assert not allows_waiting(stopped(run, AT))
    assert not allows_waiting(replace(run, errand=Errand("fetch1"))), "nothing: it does not train"
    assert not is_waiting(replace(run, state=State.RENTING))
    assert candidates_left(reserved(), of(PLAN)) == ()


def test_the_shortest_wait_is_over_after_a_second() -> None:
    run = waiting(1.0)
    assert not is_over(run, AT)
    assert not is_over(run, AT + 0.999)
    assert is_over(run, AT + 1.0)
    elsewhere = Instant(AT + 0.5, 12.0, "another machine")
    assert not is_over(run, AT + 0.5, elsewhere)
