"""`decide` after a machine was lost at work: the run continues on the cheapest other one, of
whatever provider, once the old pod is proven gone; and the cases in which it ends as it did."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Any, cast

import pytest

from tests.present import only, present
from tests.unit.core.runs import (
    AT,
    FIRST,
    RESERVATION,
    TRAITS,
    StubPlan,
    StubSpec,
    apply,
    ask,
    follow,
    reserved,
    running,
    stopped,
    the_pod,
)
from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.catalog.providers import TRAITS as KNOWN
from trmcloud.core.control import events as ev
from trmcloud.core.control.actions import CREATE, TERMINATE
from trmcloud.core.control.continuing import (
    cheapest_first,
    continues,
    limit_s,
    lost_machines,
    revision,
    trained_s,
    worked_s,
)
from trmcloud.core.control.controller import foreseen_end
from trmcloud.core.control.events import FailureKind
from trmcloud.core.control.observation import Bill, PodStatus
from trmcloud.core.control.reason import ReasonKind, make_reason
from trmcloud.core.control.run_state import Errand, Generation, Legacy, RunState, State
from trmcloud.core.errors import Outcome
from trmcloud.core.money import Usd, cost
from trmcloud.core.spec.plan import Candidate, Interval, Plan
from trmcloud.operations.reasons import sentence


@dataclass(frozen=True)
class Resumable:
    """A command's ``resume``."""

    resume: tuple[str, ...]


BUCKET = StubSpec(volume=False, pod_uploads=True)
DEAR = replace(FIRST, id="dear", provider="here", rate=Usd("3.0"))
CHEAP = replace(FIRST, id="cheap", provider="there", rate=Usd("2.4"))
PLAN = StubPlan((FIRST, DEAR, CHEAP), BUCKET)
AS_PLAN = cast(Plan, PLAN)
LOST_AT = AT + 600.0
ENDS = (Outcome.LOST, Outcome.UNREPORTED)
"""Of a run that does not continue, by what outlives its machine."""


def lost(run: RunState | None = None, plan: StubPlan = PLAN, **more: Any) -> RunState:
    """Its pod was taken away at work, is proven gone, and its bill is final."""
    run = run or running()
    generation = run.generations[-1]
    gone = the_pod(
        run, pod_id=generation.pod_id, status=PodStatus.GONE, ended_at=generation.intended_at + 600
    )
    at = generation.intended_at + 610.0
    bill = Bill(generation.pod_id or "", cost(generation.rate, 600.0), final=True)
    run, _ = follow(run, at, pods=[gone], bill=bill, plan=plan, **more)
    return run


def on_the_next(run: RunState, number: int, trains_s: float = 10.0) -> RunState:
    """The next pod is up, and its agent is heard."""
    generation = run.generations[-1]
    assert generation.number == number
    at = generation.intended_at
    name = f"r1/g{number}/create/1"
    run = apply(run, ev.ActionStarted(name, CREATE), at=at)
    run = apply(run, ev.ActionFinished(name, CREATE, f"id-{number}"), at=at)
    run = apply(run, ev.PodUp(number, f"id-{number}", generation.rate), at=at + 5)
    return apply(run, ev.AgentUp(number), at=at + 600.0 - trains_s)


def test_it_continues_on_the_cheapest_other_machine_of_whatever_provider() -> None:
    run = lost()
    assert run.state is State.RENTING
    assert [(g.candidate_id, g.provider) for g in run.generations] == [
        ("first", "test"),
        ("cheap", "there"),
    ]
    assert run.settled + run.reserved == RESERVATION
    assert run.candidate_id == "cheap"


def test_why_it_continues_is_on_record() -> None:
    run = running()
    run = apply(run, ev.PodGone(1, LOST_AT), at=LOST_AT + 5)
    run = apply(run, ev.Settled(1, Usd("0.6"), Usd("0.6")), at=LOST_AT + 6)
    reserved, revised = ask(run, LOST_AT + 7, plan=PLAN).events
    assert isinstance(reserved, ev.Reserved)
    assert reserved.amount == RESERVATION - Usd("0.6")
    assert isinstance(revised, ev.PlanRevised)
    assert revised.candidate_id == "cheap"
    said = "the machine at test was lost; training continues from the bucket"
    assert sentence(revised.reason) == said


def test_nothing_is_rented_before_the_old_pod_is_proven_gone() -> None:
    run = running()
    missing = ask(run, LOST_AT, pods=[], absent_lists=1, plan=PLAN)
    assert all(not isinstance(event, ev.PodGone | ev.Reserved) for event in missing.events)
    run = lost()
    run = apply(run, ev.PodNotMade(2, make_reason(ReasonKind.NEVER_APPEARED)), at=AT + 700)
    twin = the_pod(run, pod_id="id-9")
    assert ask(run, AT + 710, pods=[twin], plan=PLAN).events == ()


def test_one_that_was_lost_is_tried_again_once_the_others_were_lost_too() -> None:
    run = lost()
    names = [run.generations[-1].candidate_id]
    for number in (2, 3, 4):
        run = lost(on_the_next(run, number, trains_s=300.0), plan=rich(PLAN))
        names.append(run.generations[-1].candidate_id)
    assert names == ["cheap", "dear", "cheap", "dear"]


def rich(plan: StubPlan) -> StubPlan:
    """The same plan at a tenth of the prices, which leaves money for many machines."""
    tenth = (replace(c, rate=Usd.from_micros(c.rate.micros // 10)) for c in plan.candidates)
    return replace(plan, candidates=tuple(tenth))


def test_what_could_not_be_had_before_the_loss_may_be_had_now() -> None:
    """Hours lie between."""
    run = running()
    [first] = run.generations
    sold_out = replace(
        first, number=1, candidate_id="cheap", provider="there", pod_id=None, agent_at=None,
        not_made=make_reason(ReasonKind.NEVER_APPEARED),
    )  # fmt: skip
    run = replace(run, generations=(sold_out, replace(first, number=2)))
    run = replace(run, actions={})
    run = apply(run, ev.PodGone(2, LOST_AT), at=LOST_AT + 5)
    run = apply(run, ev.Settled(2, Usd("0.6"), Usd("0.6")), at=LOST_AT + 6)
    run, _ = follow(run, LOST_AT + 7, plan=PLAN)
    assert run.generations[-1].candidate_id == "cheap"


def closed(run: RunState) -> Outcome | None:
    assert run.state is State.CLOSED
    return run.outcome


@pytest.mark.parametrize(
    "plan",
    [
        StubPlan(PLAN.candidates, StubSpec(volume=True)),
        StubPlan(PLAN.candidates, StubSpec(volume=False)),
        StubPlan(PLAN.candidates, replace(BUCKET, command=cast(Any, Resumable(())))),
    ],
    ids=["on a volume", "pulled from here", "a command that cannot continue"],
)
def test_without_something_to_continue_from_it_ends(plan: StubPlan) -> None:
    assert closed(lost(plan=plan)) in ENDS


def test_a_command_that_can_continue_does() -> None:
    words = Resumable(("python", "train.py", "--resume", "{checkpoint}"))
    plan = StubPlan(PLAN.candidates, replace(BUCKET, command=cast(Any, words)))
    assert lost(plan=plan).state is State.RENTING


def test_a_run_that_was_told_to_stop_ends() -> None:
    assert closed(lost(stopped(running(), AT + 100))) is Outcome.STOPPED


def test_one_whose_agent_has_left_its_last_word_ends_with_it() -> None:
    run = apply(running(), ev.ResultKnown("landed"), at=AT + 500)
    assert closed(lost(run)) is Outcome.LANDED


def test_one_that_was_ended_from_here_was_not_lost() -> None:
    run = running()
    name = f"r1/g1/{TERMINATE}/1"
    why = make_reason(ReasonKind.BILLED_ABOVE_RATE, billed_usd_per_hour=Usd(9),
                      planned_usd_per_hour=Usd(3))  # fmt: skip
    run = apply(run, ev.ActionStarted(name, TERMINATE), at=AT + 500)
    run = apply(run, ev.ActionFinished(name, TERMINATE, reason=why), at=AT + 501)
    assert closed(lost(run)) is Outcome.LOST


def test_one_that_its_provider_stopped_was_lost_though_it_is_deleted_from_here() -> None:
    run, name = running(), f"r1/g1/{TERMINATE}/1"
    why = make_reason(ReasonKind.HOST_STOPPED)
    run = apply(run, ev.ActionStarted(name, TERMINATE), at=AT + 500)
    run = apply(run, ev.ActionFinished(name, TERMINATE, reason=why), at=AT + 501)
    assert lost(run).state is State.RENTING


def test_all_that_was_to_be_trained_is_trained() -> None:
    run = running()
    for phase in FIRST.phases:
        run = apply(run, ev.PhaseEnded(1, phase.name, "finished", 9, 1.5, {}), at=AT + 400)
    assert closed(lost(run)) in ENDS


def test_a_look_that_does_not_stay_rents_nothing() -> None:
    """`reconcile` settles the run and closes it: `trmcloud resume` continues it."""
    assert closed(lost(attended=False)) in ENDS


def test_where_no_other_can_be_had_it_says_so_and_keeps_what_was_uploaded() -> None:
    run = lost(plan=rich(PLAN))
    for number in (2, 3, 4):
        why = make_reason(ReasonKind.PROVIDER_SAID, text=f"none left at {number}")
        run = apply(run, ev.PodNotMade(number, why), at=AT + 700 + number)
        run, _ = follow(run, AT + 700 + number, plan=rich(PLAN))
    assert closed(run) in ENDS
    assert (
        sentence(run.reason) == "its machine was lost, and no other could be rented: none left at 4"
    )


def test_stopped_while_another_is_looked_for_it_was_stopped_and_its_last_report_is_missing() -> (
    None
):
    run = apply(lost(), ev.PodNotMade(2, make_reason(ReasonKind.NEVER_APPEARED)), at=AT + 700)
    run, _ = follow(stopped(run, AT + 701), AT + 701, plan=PLAN)
    assert closed(run) is Outcome.STOPPED
    assert run.reason == make_reason(ReasonKind.STOPPED_UNREPORTED)


def test_a_provider_that_refuses_for_good_is_passed_over_for_the_others() -> None:
    run = lost(plan=rich(PLAN))
    name = f"r1/g2/{CREATE}/1"
    provider = run.generations[-1].provider
    run = apply(run, ev.ActionStarted(name, CREATE), at=AT + 700)
    run = apply(run, ev.ActionFailed(name, CREATE, FailureKind.FINAL, "no money"), at=AT + 701)
    run, _ = follow(run, AT + 702, plan=rich(PLAN))
    assert run.state is State.RENTING
    assert run.generations[-1].provider != provider


def test_since_the_last_loss_each_may_be_had_that_was_sold_out_before_it() -> None:
    plan = rich(PLAN)
    run = lost(plan=plan)
    run = apply(run, ev.PodNotMade(2, make_reason(ReasonKind.NEVER_APPEARED)), at=AT + 700)
    run, _ = follow(run, AT + 701, plan=plan)
    assert run.generations[-1].candidate_id == "dear"
    run = lost(on_the_next(run, 3, trains_s=300.0), plan=plan)
    assert run.generations[-1].candidate_id == "cheap"


def test_a_waiting_run_that_lost_its_machine_ends_as_one_that_has_trained() -> None:
    """What it uploaded is there: "no machine" would say that there was none."""
    plan = rich(PLAN)
    wait = ev.WaitStarted(AT + 900.0, RESERVATION, None)
    run = apply(reserved(), wait, at=AT)
    run, _ = follow(run, AT, plan=plan)
    run = apply(run, ev.ActionStarted("r1/g1/create/1", CREATE), at=AT)
    run = apply(run, ev.ActionFinished("r1/g1/create/1", CREATE, "id-1"), at=AT)
    run = apply(run, ev.PodUp(1, "id-1", FIRST.rate), ev.AgentUp(1), at=AT)
    run = lost(run, plan)
    why = make_reason(ReasonKind.PROVIDER_SAID, text="none left")
    now = AT + 700.0
    while run.live:
        if run.state is State.RENTING:
            run = apply(run, ev.PodNotMade(len(run.generations), why), at=now)
        now += 60.0
        run, _ = follow(run, now, plan=plan)
    assert (run.outcome, now >= AT + 900.0) == (Outcome.UNREPORTED, True)
    assert present(run.reason).kind is ReasonKind.NO_OTHER_MACHINE


def test_no_other_machine_is_rented_for_less_time_than_it_needs_to_start_and_land() -> None:
    """The deadline came closer while the others were asked for."""
    soon = StubPlan(PLAN.candidates, replace(BUCKET, deadline_at=AT + 1500.0))
    run = lost(plan=soon)
    run = apply(run, ev.PodNotMade(2, make_reason(ReasonKind.NEVER_APPEARED)), at=AT + 1300)
    enough_s = FIRST.startup_s.p50 + FIRST.landing_s + TRAITS.kill_latency_s
    assert only(ev.PodIntended, ask(run, AT + 1500.0 - enough_s - 1.0, plan=soon).events)
    ends = only(ev.Closed, ask(run, AT + 1500.0 - enough_s, plan=soon).events)
    assert ends.outcome == Outcome.UNREPORTED.value
    assert sentence(ends.reason).startswith("its machine was lost, and no other could be rented")


def test_the_next_is_reserved_only_with_time_and_money_for_its_own_providers_end() -> None:
    """From the end of the machine before on, whenever somebody looks."""
    for deadline_s, goes_on in ((800.0, False), (800.1, True)):  # 30 s to end it, 160 s of use
        plan = StubPlan(PLAN.candidates, replace(BUCKET, deadline_at=AT + deadline_s))
        run = apply(running(), ev.PodGone(1, LOST_AT), at=LOST_AT + 10)
        run = apply(run, ev.Settled(1, Usd("0.6"), Usd("0.6")), at=LOST_AT + 20)
        assert isinstance(ask(run, LOST_AT + 20, plan=plan).events[0], ev.Reserved) is goes_on
    slow = max(KNOWN.values(), key=lambda traits: traits.kill_latency_s)
    there = replace(CHEAP, provider=slow.name)
    plan = StubPlan((FIRST, there), BUCKET)
    run = apply(running(), ev.PodGone(1, LOST_AT), at=LOST_AT + 10)
    needs_s = 160.0 + slow.kill_latency_s
    for left_s, goes_on in ((needs_s, False), (needs_s + 1.0, True)):
        whole = Usd("0.6") + cost(there.rate, left_s)
        bound = replace(run, reservation=whole, reserved=whole)
        bound = apply(bound, ev.Settled(1, Usd("0.6"), Usd("0.6")), at=LOST_AT + 20)
        first = replace(FIRST, rate=Usd(99), planned_rate=Usd(99), hours=Interval(9.0, 9.0, 9.0))
        plan = StubPlan((first, there), BUCKET)
        assert isinstance(ask(bound, LOST_AT + 20, plan=plan).events[0], ev.Reserved) is goes_on


# -- by the functions that ``decide`` asks --------------------------------------------------------


LOST = lost().generations[0]


def a_life(number: int, *, trained_s: float = 9000.0, **changes: Any) -> Generation:
    """A machine that trained for so long and was lost."""
    at = AT + 20_000.0 * number
    made = replace(LOST, number=number, agent_at=at, ended_at=at + trained_s, hard_stop_at=at + 1e6)
    return replace(made, **changes)


def of(*generations: Generation, **changes: Any) -> RunState:
    """A run that is settled after these machines."""
    made = replace(running(), state=State.SETTLED, generations=generations, actions={})
    return replace(made, **changes)


UNFIT = make_reason(ReasonKind.REFUSED)
HARD = AT + 5000.0


@pytest.mark.parametrize(
    ("changes", "is_lost"),
    [
        ({}, True),
        ({"provider": LOCAL}, False),
        ({"agent_at": None}, False),
        ({"unfit": UNFIT}, False),
        ({"legacy": Legacy(stands_by=True)}, False),
        ({"legacy": Legacy(hands_over=True)}, False),
        ({"ended_at": None}, False),
        # At its hard stop, or a second before, that is what ended it.
        ({"ended_at": HARD - 1.001, "hard_stop_at": HARD}, True),
        ({"ended_at": HARD - 1.0, "hard_stop_at": HARD}, False),
        ({"ended_at": HARD + 9.0, "hard_stop_at": HARD}, False),
    ],
)
def test_which_machine_was_lost(changes: dict[str, Any], is_lost: bool) -> None:
    run = of(a_life(1, **changes))
    assert bool(lost_machines(run, AS_PLAN)) is is_lost
    assert continues(run, AS_PLAN) is is_lost
    assert lost_machines(replace(run, errand=Errand("fetch1")), AS_PLAN) == ()
    assert lost_machines(replace(run, first_generation=2), AS_PLAN) == (), "it was reopened since"


def test_a_run_continues_after_its_present_machine_was_lost_and_work_is_left() -> None:
    run = of(a_life(1), a_life(2))
    assert continues(run, AS_PLAN)
    assert not continues(of(), AS_PLAN)
    assert not continues(of(a_life(1), a_life(2, ended_at=None)), AS_PLAN), "this one works"
    assert not continues(stopped(run, AT), AS_PLAN)
    assert not continues(replace(run, result="finished"), AS_PLAN)
    half = apply(running(), ev.PhaseEnded(1, "fast", "finished", 9, 1.5, {}), at=AT + 400)
    assert continues(replace(run, phases=half.phases), AS_PLAN), "the second phase is left"


@pytest.mark.parametrize(
    ("trained_s", "goes_on"),
    [
        ((59.0, 59.0), True),
        ((59.0, 59.0, 59.0), False),
        ((59.0, 59.0, 60.0), True),  # as long as a start takes
        ((60.0, 59.0, 59.0), True),
        ((9000.0, 59.0, 59.0, 59.0), False),
        ((59.0, 59.0, 59.0, 9000.0), True),
    ],
)
def test_three_in_a_row_that_trained_for_less_than_a_start_end_the_run(
    trained_s: tuple[float, ...], goes_on: bool
) -> None:
    lives = [a_life(number, trained_s=s) for number, s in enumerate(trained_s, 1)]
    assert continues(of(*lives), AS_PLAN) is goes_on


def test_a_machine_has_worked_from_its_agents_first_report_to_its_end() -> None:
    assert worked_s(a_life(1, trained_s=70.5)) == 70.5
    for missing in (a_life(1, agent_at=None), a_life(1, ended_at=None)):
        assert worked_s(missing) == 0.0


def test_of_a_limit_on_hours_every_machine_that_trained_has_used_its_part() -> None:
    landed = a_life(2, trained_s=30.0, legacy=Legacy(hands_over=True))
    refused, at_work = a_life(3, unfit=UNFIT), a_life(4, ended_at=None)
    run = of(a_life(1, trained_s=100.0), landed, refused, at_work, a_life(5, trained_s=7.0))
    assert [g.number for g in lost_machines(run, AS_PLAN)] == [1, 5]
    assert trained_s(run, AS_PLAN) == 137.0
    assert trained_s(replace(run, first_generation=2), AS_PLAN) == 137.0, "of the run, not since"
    assert trained_s(run, cast(Plan, StubPlan(PLAN.candidates))) == 137.0, "wherever it saves"
    waited = {"data": 60.0, "training": 40.0}
    account = ev.PhaseEnded(1, "fast", "landed_deadline", 40, None, waited)
    assert trained_s(replace(run, phase_accounts=(account,)), AS_PLAN) == 77.0


def test_a_resumed_run_has_what_is_left_of_its_hours() -> None:
    """Not as many again, and not what its first plan's smaller budget bought."""
    plan = cast(Plan, StubPlan(PLAN.candidates, replace(BUCKET, hours=1.0)))
    run = of(a_life(1, trained_s=600.0), first_generation=2)
    ends_s = FIRST.startup_s.p90 + FIRST.landing_s
    candidate = cast(Candidate, FIRST)
    found = limit_s(run, plan, candidate, AT, kill_latency_s=30.0)
    assert found == pytest.approx(3600.0 - 600.0 + ends_s)
    unlimited = limit_s(run, AS_PLAN, candidate, AT, kill_latency_s=30.0)
    assert unlimited == inf


@pytest.mark.parametrize(
    ("spec", "lives", "waits", "left_s"),
    [
        ({}, (a_life(1),), True, inf),
        ({"deadline_at": AT + 500.0}, (a_life(1),), False, 470.0),
        ({"deadline_at": AT + 500.0}, (), True, 470.0),
        ({"deadline_at": AT + 500.0}, (), False, inf),  # the plan's own stop has it in already
        ({"deadline_at": AT + 10.0}, (a_life(1),), False, 0.0),
        ({"hours": 1.0}, (a_life(1, trained_s=600.0),), False, 2400.0),
        ({"hours": 1.0}, (), True, inf),
        ({"hours": 1.0}, (a_life(1, trained_s=9000.0),), False, 0.0),
        ({"hours": 1.0, "deadline_at": AT + 500.0}, (a_life(1, trained_s=600.0),), False, 470.0),
        ({"hours": 1.0, "deadline_at": AT + 9e6}, (a_life(1, trained_s=600.0),), False, 2400.0),
    ],
)
def test_until_when_a_machine_that_follows_may_run(
    spec: dict[str, Any], lives: tuple[Generation, ...], waits: bool, left_s: float
) -> None:
    plan = cast(Plan, StubPlan(PLAN.candidates, replace(BUCKET, **spec)))
    run = of(*lives, wait=ev.WaitStarted(AT + 900.0, RESERVATION) if waits else None)
    found = limit_s(run, plan, cast(Candidate, FIRST), AT, kill_latency_s=30.0)
    assert found == pytest.approx(left_s)
    assert found >= 0.0


def test_a_plan_is_revised_only_for_a_machine_that_was_lost() -> None:
    cheap = cast(Candidate, CHEAP)
    assert revision(running(), AS_PLAN, cheap) == ()
    assert revision(of(), AS_PLAN, cheap) == ()
    (revised,) = revision(of(a_life(1)), AS_PLAN, cheap)
    assert revised.candidate_id == "cheap"


def test_the_cheapest_is_that_with_its_disks_at_the_planned_price() -> None:
    planned = replace(FIRST, id="planned", rate=Usd(1), planned_rate=Usd(4))
    disks = replace(FIRST, id="disks", rate=Usd(3), disk_rate=Usd("0.5"))
    plain = replace(FIRST, id="plain", rate=Usd("3.2"))
    candidates = [cast(Candidate, c) for c in (planned, disks, plain)]
    ordered = cheapest_first(of(a_life(1)), AS_PLAN, candidates)
    assert [c.id for c in ordered] == ["plain", "disks", "planned"]


def test_no_later_than_the_deadline() -> None:
    by = replace(BUCKET, deadline_at=AT + 1500.0)
    run = lost(plan=StubPlan(PLAN.candidates, by))
    assert run.generations[-1].hard_stop_at - AT == pytest.approx(1500 - TRAITS.kill_latency_s)
    soon = replace(BUCKET, deadline_at=AT + 700.0)
    assert closed(lost(plan=StubPlan(PLAN.candidates, soon))) in ENDS


def test_a_limit_on_hours_counts_what_the_lost_machine_trained() -> None:
    """Of a limit, the plan's hard stop is made."""
    limited = tuple(replace(c, hard_stop_s=1000.0, soft_stop_s=900.0) for c in PLAN.candidates)
    run = lost(plan=StubPlan(limited, replace(BUCKET, hours=0.25)))
    before, after = run.generations
    used_s = (before.ended_at or 0.0) - (before.agent_at or 0.0)
    assert after.hard_stop_at - after.intended_at == pytest.approx(1000.0 - used_s)
    without = lost(plan=StubPlan(limited, BUCKET)).generations[-1]
    assert without.hard_stop_at - without.intended_at == pytest.approx(1000.0)
    tiny = tuple(replace(c, hard_stop_s=700.0, soft_stop_s=600.0) for c in PLAN.candidates)
    assert closed(lost(plan=StubPlan(tiny, replace(BUCKET, hours=0.2)))) in ENDS


def test_a_bucket_that_does_not_answer_is_waited_for() -> None:
    """The agent's last report may be in the bucket; the next machine cannot continue without."""
    run = running()
    run = apply(run, ev.PodGone(1, LOST_AT), at=LOST_AT + 5)
    bill = Bill("id-1", Usd("0.6"), final=True)
    known: dict[str, Any] = {"bill": bill, "plan": PLAN, "pods": []}
    assert ask(run, LOST_AT + 90, bucket_failed=True, **known).events == ()
    assert ask(run, LOST_AT + 90, **known).events
    hard_stop_at = run.generations[0].hard_stop_at
    assert ask(run, hard_stop_at, bucket_failed=True, **known).events, "not for ever"
    assert ask(run, LOST_AT + 90, bucket_failed=True, attended=False, **known).events
    done = apply(run, ev.ResultKnown("finished"), at=LOST_AT + 6)
    assert ask(done, LOST_AT + 90, bucket_failed=True, **known).events, "nothing follows"


def test_the_end_is_not_foreseen_while_it_continues() -> None:
    run = apply(running(), ev.PodGone(1, LOST_AT), at=LOST_AT + 5)
    assert foreseen_end(run, AS_PLAN, TRAITS) is None
    assert continues(run, AS_PLAN)


def test_the_next_is_reserved_with_its_own_providers_time_to_end() -> None:
    """Another provider may take longer to end a machine than the one before."""
    slow = max(KNOWN.values(), key=lambda traits: traits.kill_latency_s)
    there = replace(CHEAP, provider=slow.name, hard_stop_s=1e6)
    run = lost(plan=StubPlan((FIRST, there), BUCKET))
    generation = run.generations[-1]
    assert generation.provider == slow.name
    lasts_s = generation.hard_stop_at - generation.intended_at + slow.kill_latency_s
    assert cost(there.rate, lasts_s) <= run.reserved


def test_without_a_loss_candidates_stand_as_in_the_plan() -> None:
    candidates = [cast(Candidate, c) for c in PLAN.candidates]
    assert cheapest_first(running(), AS_PLAN, candidates) == tuple(candidates)


def test_what_is_cheapest_is_judged_for_the_whole_work() -> None:
    """A machine of a lower rate may take so much longer that it costs more."""
    slow = replace(CHEAP, hours=Interval(0.8, 2.0, 3.0))
    run = lost(plan=StubPlan((FIRST, DEAR, slow), BUCKET))
    assert run.generations[-1].candidate_id == "dear"
