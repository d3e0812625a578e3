"""A run is a fold of its events: the table is complete, and nothing illegal leaves a trace."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plans import a_candidate, a_phase, a_plan, errand_json, plan_json, recorded
from tests.present import present
from tests.reasons import quoted
from tests.unit.core.runs import (
    AT,
    TRAITS,
    booting,
    failed,
    follow,
    renting,
    reserved,
    running,
    the_pod,
)
from trmcloud.core.catalog.providers import AbsenceProof
from trmcloud.core.clock import DatedFact, Instant, UnknownSince
from trmcloud.core.control import events as ev
from trmcloud.core.control.actions import CREATE
from trmcloud.core.control.controller import waits_for
from trmcloud.core.control.events import ActionKey, FailureKind, StopRequested
from trmcloud.core.control.ledger_records import event_from_json, event_to_json
from trmcloud.core.control.reason import MEANINGS, ReasonKind
from trmcloud.core.control.run_state import (
    STAYING,
    TRANSITIONS,
    Absence,
    ActionState,
    Errand,
    IllegalTransition,
    RunState,
    State,
    apply_event,
    fold,
)
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO, Usd, total
from trmcloud.core.spec.plan import Interval, RecordedPlan
from trmcloud.operations.reasons import sentence

# -- run state ----------------------------------------------------------------------------------
# A run is a fold of its events: the table is complete, and nothing illegal leaves a trace.


KINDS = ev.RunEvent.__subclasses__()


def sample(kind: type[Any], generation: int = 1) -> Any:
    """One event of each kind."""
    return {
        ev.RunPlanned: ev.RunPlanned(plan_json(), Usd(10), "thesis"),
        ev.Reserved: ev.Reserved(Usd(5)),
        ev.PodIntended: ev.PodIntended(
            generation,
            f"pod-{generation}",
            "local",
            "c1",
            Usd(1),
            AT + 50,
            AT + 60,
            limit_at=AT + 90,
        ),
        ev.Extended: ev.Extended(generation, AT + 80, Usd(7)),
        ev.ActionStarted: ev.ActionStarted("r1/g1/create/1", "create"),
        ev.ActionFinished: ev.ActionFinished("r1/g1/create/1", "create", "id-1"),
        ev.ActionFailed: ev.ActionFailed(
            "r1/g1/create/1", "create", FailureKind.NO_CAPACITY, "none left"
        ),
        ev.PodUp: ev.PodUp(generation, f"id-{generation}", Usd(1)),
        ev.PodNotMade: ev.PodNotMade(generation, quoted("none left")),
        ev.PodMissed: ev.PodMissed(generation),
        ev.PodFound: ev.PodFound(generation),
        ev.AgentUp: ev.AgentUp(generation),
        ev.PhaseEnded: ev.PhaseEnded(generation, "fast", "finished", 9, 1.5, {"training": 3.0}),
        ev.GateJudged: ev.GateJudged(generation, "fast", True, {"passed": True}),
        ev.StopRequested: ev.StopRequested("user", quoted("enough")),
        ev.SaveRequested: ev.SaveRequested(generation, "user"),
        ev.StopLowering: ev.StopLowering(generation, AT + 55, "another run"),
        ev.StopKnown: ev.StopKnown(generation),
        ev.StopLowered: ev.StopLowered(generation, Usd(1), "guard-elsewhere"),
        ev.ResultKnown: ev.ResultKnown("finished", quoted("done")),
        ev.PodGone: ev.PodGone(generation, AT + 40),
        ev.Settled: ev.Settled(generation, Usd(2), Usd(2)),
        ev.Closed: ev.Closed("finished"),
        ev.Reopened: ev.Reopened(Usd(20)),
        ev.PlanRevised: ev.PlanRevised("c2", quoted("the first is out of stock")),
        ev.BoardFound: ev.BoardFound(generation, quoted("another board")),
        ev.PaceMeasured: ev.PaceMeasured(
            generation, "fast", 40, 0.42, 0.4, 0.5, 0.35, 5.1, 5.0, 5.3, Usd("13.2"), 900
        ),
        ev.WaitStarted: ev.WaitStarted(9e9, Usd("0.5"), Usd("3.2")),
        ev.MoveStarted: ev.MoveStarted("c2", Usd(1), Usd(3), Usd(9), Usd(4)),
        ev.HandedOver: ev.HandedOver(generation),
        ev.Moved: ev.Moved(generation),
        ev.Pulled: ev.Pulled(generation, "fast", 9, "ab" * 32),
        ev.Fetched: ev.Fetched("fast", 9, "ab" * 32, "/home/ada/best"),
        ev.Billed: ev.Billed(generation, Usd("0.5")),
        ev.BucketSwept: ev.BucketSwept(generation, 7 << 30, Usd("0.25")),
        ev.LateReport: ev.LateReport(generation, "finished", None),
    }[kind]


def run_of(*kinds: type[Any]) -> RunState:
    """Legal kinds in a row; the generation's number follows by itself."""
    run = RunState("r1")
    for n, kind in enumerate(kinds):
        number = len(run.generations) + (kind is ev.PodIntended)
        run = apply_event(run, ev.Record(n + 1, "r1", 1, AT + n, sample(kind, number)))
    return run


PLANNED = (ev.RunPlanned,)
RESERVED = (*PLANNED, ev.Reserved)
RENTING = (*RESERVED, ev.PodIntended)
BOOTING = (*RENTING, ev.PodUp)
RUNNING = (*BOOTING, ev.AgentUp)
ENDING = (*RUNNING, ev.ResultKnown)
SETTLING = (*ENDING, ev.PodGone)
SETTLED = (*SETTLING, ev.Settled)
CLOSED = (*SETTLED, ev.Closed)
WAYS = {
    State.NEW: (),
    State.PLANNED: PLANNED,
    State.RESERVED: RESERVED,
    State.RENTING: RENTING,
    State.BOOTING: BOOTING,
    State.RUNNING: RUNNING,
    State.ENDING: ENDING,
    State.SETTLING: SETTLING,
    State.SETTLED: SETTLED,
    State.CLOSED: CLOSED,
}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_table_says_all(state: State, kind: type[Any]) -> None:
    run = run_of(*WAYS[state])
    assert run.state is state
    number = len(run.generations) + (kind is ev.PodIntended)
    record = ev.Record(99, "r1", 2, AT + 99, sample(kind, number))
    before = copy.deepcopy(run)
    follow = (ev.Billed, ev.LateReport, ev.HandedOver, ev.Moved, ev.StopKnown, ev.StopLowered)
    if kind in follow:
        # No estimate was settled, no errand is run, no machine stands by, no stop is lowered.
        with pytest.raises(IllegalTransition):
            apply_event(run, record)
    elif (state, kind) in TRANSITIONS or state in STAYING.get(kind, ()):
        after = apply_event(run, record)
        assert after.state is TRANSITIONS.get((state, kind), state)
        assert (after.epoch, after.updated_at) == (2, AT + 99)
    else:
        with pytest.raises(IllegalTransition, match=f"{kind.__name__} in state {state.value}"):
            apply_event(run, record)
    assert run == before, "what was passed in is never changed"


def test_a_ledgers_event_belongs_to_no_run() -> None:
    with pytest.raises(IllegalTransition):
        apply_event(run_of(*RESERVED), ev.Record(9, "r1", 1, AT, ev.CapSet("account", "", Usd(1))))


def test_no_event_both_moves_and_stays() -> None:
    for state, kind in TRANSITIONS:
        assert state not in STAYING.get(kind, ())


def test_every_state_is_reached_and_leads_to_the_end() -> None:
    after: dict[State, set[State]] = {state: set() for state in State}
    for (state, _), target in TRANSITIONS.items():
        after[state].add(target)

    def reachable(start: State) -> set[State]:
        seen, todo = {start}, [start]
        while todo:
            for state in after[todo.pop()] - seen:
                seen.add(state)
                todo.append(state)
        return seen

    assert reachable(State.NEW) == set(State)
    assert all(State.CLOSED in reachable(state) for state in State)


def test_outcomes_have_exit_codes_of_their_own() -> None:
    codes = [outcome.exit_code for outcome in Outcome]
    assert len(set(codes)) == len(codes)
    assert Outcome.FINISHED.exit_code == 0
    assert all(code >= 20 for code in codes if code), "below 20 are errors'"
    assert all(MEANINGS[outcome] for outcome in Outcome)


# -- what each event changes -------------------------------------------------------------------


def test_a_run_from_plan_to_close() -> None:
    run = run_of(*CLOSED)
    (generation,) = run.generations
    assert (run.cap, run.project, run.plan) == (Usd(10), "thesis", a_plan())
    assert (run.settled, run.reserved, run.billed) == (Usd(2), ZERO, Usd(2))
    assert (generation.pod_id, generation.ended_at, generation.open) == ("id-1", AT + 40, False)
    assert (run.outcome, run.result, sentence(run.reason)) == (Outcome.FINISHED, "finished", "done")
    assert not run.live


@pytest.mark.parametrize("kind", [ev.PodUp, ev.PodNotMade, ev.AgentUp, ev.PodGone, ev.Settled])
@pytest.mark.parametrize("number", [0, 2])
def test_an_event_of_another_generation_is_illegal(kind: type[Any], number: int) -> None:
    ways = {
        ev.PodUp: RENTING,
        ev.PodNotMade: RENTING,
        ev.AgentUp: BOOTING,
        ev.PodGone: RUNNING,
        ev.Settled: SETTLING,
    }
    run = run_of(*ways[kind])
    with pytest.raises(IllegalTransition, match=f"generation {number}"):
        apply_event(run, ev.Record(9, "r1", 1, AT, sample(kind, number)))


@pytest.mark.parametrize("number", [-1, 0, 1, 3])
def test_generations_are_counted_without_gap_or_repeat(number: int) -> None:
    run = run_of(*RENTING, ev.PodNotMade)
    with pytest.raises(IllegalTransition, match="next"):
        apply_event(run, ev.Record(9, "r1", 1, AT, sample(ev.PodIntended, number)))
    assert len(run_of(*RENTING, ev.PodNotMade, ev.PodIntended).generations) == 2


@pytest.mark.parametrize(
    ("way", "event"),
    [(RUNNING, ev.ResultKnown("victory")), (SETTLED, ev.Closed("")), (RESERVED, ev.Closed("won"))],
)
def test_a_run_ends_in_words_that_are_known(way: tuple[type[Any], ...], event: ev.RunEvent) -> None:
    with pytest.raises(IllegalTransition, match="outcome"):
        apply_event(run_of(*way), ev.Record(9, "r1", 1, AT, event))


def test_the_first_wish_to_stop_counts() -> None:
    run = run_of(*RUNNING, ev.StopRequested)
    cut = ev.StopRequested("budget", quoted("cut"))
    again = apply_event(run, ev.Record(9, "r1", 1, AT + 99, cut))
    assert (run.stop, run.stop_at) == (ev.StopRequested("user", quoted("enough")), AT + 5)
    assert (again.stop, again.stop_at) == (run.stop, run.stop_at)


def test_a_reopened_run_remembers_which_generation_it_begins_with() -> None:
    assert RunState("r1").first_generation == run_of(*RENTING).first_generation == 1
    assert run_of(*RENTING, ev.PodNotMade, ev.PodIntended).first_generation == 1
    assert run_of(*SETTLED, ev.Reserved).first_generation == 1
    assert run_of(*CLOSED, ev.Reopened, ev.Reserved).first_generation == 2


def test_the_next_machine_begins_without_the_last_ones_result() -> None:
    run = run_of(*SETTLED, ev.Reserved)
    assert (run.result, run.result_at, sentence(run.reason)) == (None, None, "")
    assert (run.reserved, run.reservation) == (Usd(5), Usd(5))
    assert run_of(*SETTLED).reservation == Usd(5)


def test_what_was_pulled_is_known_by_its_hash() -> None:
    pulled = run_of(*RUNNING, ev.Pulled).pulled
    assert {key: event.sha256 for key, event in pulled.items()} == {("fast", 9): "ab" * 32}


def test_a_request_to_save_is_counted_on_the_pod_that_trains() -> None:
    run = run_of(*RUNNING, ev.SaveRequested, ev.SaveRequested)
    assert run.state is State.RUNNING
    assert run.generations[-1].saves_asked == 2
    late = ev.Record(99, "r1", 1, AT, ev.SaveRequested(7, "user"))
    with pytest.raises(IllegalTransition):
        apply_event(run, late)


def test_a_pod_trains_alone_once_its_files_are_there() -> None:
    def staged(run: RunState) -> RunState:
        done = ev.ActionFinished("r1/g1/stage/1", "stage", "")
        return apply_event(run, ev.Record(9, "r1", 1, AT + 30, done))

    here = run_of(*RUNNING)
    assert here.trains
    rented = replace(here, generations=(replace(here.generations[0], provider="runpod"),))
    assert not rented.trains
    assert staged(rented).trains
    assert staged(rented).generations[0].staged_at == AT + 30
    assert not staged(run_of(*BOOTING)).trains


def test_a_refused_machine_is_marked() -> None:
    run = run_of(*RUNNING)
    unfit = ev.ResultKnown("unfit", quoted("4 GPUs where 8 were rented"))
    run = apply_event(run, ev.Record(9, "r1", 1, AT + 30, unfit))
    assert sentence(run.generations[0].unfit) == "4 GPUs where 8 were rented"


def test_a_refused_generation_costs_nothing_and_keeps_the_reservation() -> None:
    run = run_of(*RENTING, ev.PodNotMade)
    assert (run.reserved, run.settled, run.billed) == (Usd(5), ZERO, None)
    assert sentence(run.generations[0].not_made) == "none left"
    assert not run.generations[0].open


def test_a_bill_that_is_not_known_is_not_zero() -> None:
    run = run_of(*SETTLING)
    unknown = apply_event(run, ev.Record(9, "r1", 1, AT, ev.Settled(1, Usd(2), None)))
    assert unknown.settled == Usd(2)
    assert unknown.billed is None


def test_closing_lets_the_reservation_go() -> None:
    assert run_of(*RESERVED, ev.Closed).reserved == ZERO


def test_a_reopened_run_starts_afresh_but_forgets_no_cost() -> None:
    run = run_of(*ENDING, ev.StopRequested, ev.PodGone, ev.Settled, ev.Closed)
    again = apply_event(run, ev.Record(99, "r1", 2, AT + 99, ev.Reopened(Usd(20))))
    assert (again.outcome, again.result, again.result_at, again.reason) == (None,) * 4
    assert (again.stop, again.stop_at) == (None, None)
    assert (again.cap, again.settled, len(again.generations)) == (Usd(20), Usd(2), 1)
    assert again.live


def test_actions_are_remembered_with_how_they_went() -> None:
    run = run_of(*RESERVED, ev.ActionStarted)
    action = run.actions[ActionKey("r1", 1, "create", 1)]
    assert (action.started_at, action.ended_at, action.finished) == (AT + 2, None, False)
    done = apply_event(run, ev.Record(9, "r1", 1, AT + 8, sample(ev.ActionFinished)))
    assert done.actions[ActionKey("r1", 1, "create", 1)].finished
    assert done.actions[ActionKey("r1", 1, "create", 1)].started_at == AT + 2
    failed = apply_event(run, ev.Record(9, "r1", 1, AT + 8, sample(ev.ActionFailed)))
    action = failed.actions[ActionKey("r1", 1, "create", 1)]
    assert (action.finished, action.failed_kind) == (False, "no_capacity")
    assert action.error == "none left"


def test_a_wish_or_an_action_takes_no_state_from_another_kind() -> None:
    """Whatever stays, stays: only ``updated_at``, ``epoch`` and its own field move."""
    run = run_of(*RUNNING)
    for kind in (ev.ActionStarted, ev.StopRequested, ev.PhaseEnded, ev.GateJudged, ev.Fetched):
        after = apply_event(run, ev.Record(9, "r1", 1, AT + 9, sample(kind)))
        assert after.state is run.state
        assert (after.reserved, after.settled, after.generations) == (
            run.reserved, run.settled, run.generations,
        )  # fmt: skip


# -- properties --------------------------------------------------------------------------------

money = st.integers(0, 10**8).map(Usd.from_micros)
numbers = st.integers(0, 4)
texts = st.text(max_size=5)
ids = texts | st.builds(str, st.builds(ActionKey, st.just("r1"), numbers, st.just("pull"), numbers))
kinds = st.sampled_from(FailureKind)
EVENTS: dict[type[Any], Callable[[int], st.SearchStrategy[Any]]] = {
    ev.Reserved: lambda n: st.builds(ev.Reserved, money),
    ev.PodIntended: lambda n: st.builds(sample, st.just(ev.PodIntended), st.just(n + 1) | numbers),
    ev.Settled: lambda n: st.builds(ev.Settled, st.just(n) | numbers, money, st.none() | money),
    ev.Closed: lambda n: st.builds(ev.Closed, st.sampled_from(["finished", "lost", "nonsense"])),
    ev.ResultKnown: lambda n: st.builds(ev.ResultKnown, st.sampled_from(["landed", "killed", "?"])),
    ev.Reopened: lambda n: st.builds(
        ev.Reopened, money, settings=st.sampled_from([{}, {"fast": {"seed": 7}}])
    ),
    ev.ActionStarted: lambda n: st.builds(ev.ActionStarted, ids, texts),
    ev.ActionFinished: lambda n: st.builds(ev.ActionFinished, ids, texts),
    ev.ActionFailed: lambda n: st.builds(ev.ActionFailed, ids, texts, kinds, texts),
    ev.StopRequested: lambda n: st.builds(ev.StopRequested, texts, texts.map(quoted)),
}


@st.composite
def histories(draw: st.DrawFn) -> list[ev.Record]:
    """What a mad controller might try to write, legal more often than not."""
    tried: list[ev.Record] = []
    run = RunState("r1")
    for seq in range(draw(st.integers(0, 25))):
        likely = [kind for state, kind in TRANSITIONS if state is run.state] * 3
        kind = draw(st.sampled_from([*likely, *KINDS]))
        n = len(run.generations)
        simple = st.builds(sample, st.just(kind), st.just(n) | numbers)
        event = draw(EVENTS[kind](n) if kind in EVENTS else simple)
        record = ev.Record(seq + 1, "r1", draw(st.integers(1, 3)), AT + seq, event)
        tried.append(record)
        try:
            run = apply_event(run, record)
        except IllegalTransition:
            continue
    return tried


@settings(max_examples=80)
@given(histories())
def test_no_history_corrupts_a_run(tried: list[ev.Record]) -> None:
    run = RunState("r1")
    kept: list[ev.Record] = []
    for record in tried:
        before = copy.deepcopy(run)
        try:
            after = apply_event(run, record)
        except IllegalTransition:
            assert run == before
            continue
        assert run == before, "apply_event changed what it was given"
        run = after
        kept.append(record)
        swept: dict[int, Usd] = {}  # of what is found again the larger record counts
        for event in (each.event for each in kept):
            if isinstance(event, ev.BucketSwept) and event.size_bytes:
                known = swept.get(event.generation, ZERO)
                swept[event.generation] = max(known, event.amount)
        check(run, total(swept.values()))
        assert fold("r1", kept) == run, "the fold of every prefix is what was built step by step"
    assert fold("r1", kept) == fold("r1", list(kept)), "and folding again gives the same"


def check(run: RunState, swept: Usd = ZERO) -> None:
    """What holds of a run at any time; ``swept``: what its bucket held too much has cost."""
    pods = total(g.settled for g in run.generations if g.settled is not None)
    assert run.settled == pods + swept
    assert run.reserved >= ZERO
    assert [g.number for g in run.generations] == list(range(1, len(run.generations) + 1))
    assert {g.number for g in run.generations if g.open} <= {g.number for g in run.open_generations}
    assert run.live == (run.state not in (State.NEW, State.CLOSED))
    if run.state is State.CLOSED:
        assert run.outcome is not None
        assert run.reserved == ZERO
    if run.state in (State.RENTING, State.BOOTING, State.RUNNING, State.ENDING):
        assert run.generations[-1].open
    if run.state is State.SETTLED:
        assert run.reserved == (run.standby_usd or ZERO), "proof of the cost frees the reservation"
    if run.billed is not None:
        assert run.billed == total(g.billed for g in run.generations if g.billed is not None)


@settings(max_examples=50)
@given(histories())
def test_events_survive_json(tried: list[ev.Record]) -> None:
    for record in tried:
        kind = type(record.event).__name__
        assert event_from_json(kind, event_to_json(record.event)) == record.event


def test_a_fold_of_nothing_is_a_run_that_is_not_there() -> None:
    assert fold("r1", []) == RunState("r1")


def test_an_errand_rents_what_it_needs_and_changes_no_outcome() -> None:
    def more(run: RunState, *events: Any) -> RunState:
        for event in events:
            run = apply_event(run, ev.Record(99, "r1", 2, AT + 99, event))
        return run

    closed = run_of(*CLOSED)
    before = closed.outcome
    errand = errand_json()
    run = more(closed, ev.Reopened(Usd(20), errand), ev.Reserved(Usd(1)))
    assert run.errand == Errand("fetch1", before, closed.reason)
    assert run.plan.launchable == ("fetch1",)
    assert run.plan.candidates[-1].id == "fetch1"
    assert run.outcome is None
    back = more(run, ev.Closed("lost", quoted("its machine was lost")))
    assert (back.outcome, back.reason, back.errand) == (before, closed.reason, None)
    assert more(back, ev.Reopened(Usd(30)), ev.Reserved(Usd(1))).errand is None


def test_a_run_goes_on_with_what_it_was_reopened_with() -> None:
    planned = ev.RunPlanned(plan_json(a_candidate(phases=(a_phase(),))), Usd(10), "thesis")
    ended = ev.PhaseEnded(1, "fast", "finished", 1000, 1.5, {"training": 3.0})
    closed = replace(
        run_of(*CLOSED), recorded_plan=RecordedPlan(planned.plan), phases={"fast": ended}
    )
    changed = {"fast": {"steps": 3000, "seed": 7, "batch": 16}}
    reopened = ev.Reopened(Usd(20), settings=changed, accepted={"seed": [1337, 7]})
    run = apply_event(closed, ev.Record(99, "r1", 2, AT + 99, reopened))
    assert run.resumed == reopened
    assert run.phases == {}, "what has finished is trained on"
    before, after = (each.plan.candidate("c1").phases[0] for each in (closed, run))
    assert (after.settings.steps, after.settings.seed, after.settings.batch) == (3000, 7, 16)
    assert after.settings == replace(before.settings, steps=3000, seed=7, batch=16)
    assert present(run.chosen).phases[0].settings.seed == 7
    again = ev.Reopened(Usd(30))
    done = replace(run, state=State.CLOSED)
    later = apply_event(done, ev.Record(100, "r1", 3, AT + 100, again))
    assert later.resumed == again, "what was accepted once is not accepted for good"
    assert later.plan == run.plan, "and what was set stays set"


def test_time_and_flops_are_those_of_the_tokens_that_are_trained() -> None:
    phase = replace(
        a_phase(training=100.0, landing=10.0),
        tokens=2_000, flops=50.0, seconds=Interval(90.0, 110.0, 160.0),
    )  # fmt: skip
    told = recorded(a_candidate(phases=(phase, a_phase("extreme"))))
    settings = phase.settings
    made = told.with_settings({"fast": {"steps": 3 * settings.steps}}).plan.candidates[0].phases
    assert (made[0].tokens, made[0].flops) == (6_000, 150.0)
    assert made[0].parts_s == {"training": 300.0, "landing": 10.0}
    assert made[0].seconds == Interval(290.0, 310.0, 360.0)
    assert made[1] == a_phase("extreme")


def test_a_pod_that_is_listed_at_last_is_missed_no_more() -> None:
    run = run_of(*RENTING, ev.PodMissed, ev.PodUp)
    assert run.generations[-1].absence is None


# -- waiting ------------------------------------------------------------------------------------
# Whoever looks is told what a run waits for, and until when; it ends as ``decide`` ends it.


NOBODY = UnknownSince(AT, "401: the key is not valid")


def test_a_run_at_work_waits_for_nothing() -> None:
    run = running()
    assert waits_for(run, TRAITS, DatedFact((the_pod(run),), AT)) is None


def test_a_boot_ends_where_the_controller_ends_it() -> None:
    run = booting()
    told = present(waits_for(run, TRAITS, DatedFact((the_pod(run),), AT)))
    assert (told.until_at, told.what.kind) == (AT + 310, ReasonKind.AWAITS_AGENT)


def test_an_unclear_create_is_waited_for_until_it_counts_as_never_made() -> None:
    run = failed("ambiguous")
    told = present(waits_for(run, TRAITS, DatedFact((), AT)))
    assert told.until_at is not None
    assert "it said ambiguous" in sentence(told.what)
    before, _ = follow(run, told.until_at - 1, absent_lists=3)
    after, _ = follow(run, told.until_at, absent_lists=3)
    assert (before.state, after.generations[0].not_made is not None) == (State.RENTING, True)


def test_a_list_that_cannot_be_read_is_named_with_its_reason() -> None:
    told = present(waits_for(failed("ambiguous"), TRAITS, NOBODY))
    assert told.until_at is None
    assert "401" in sentence(told.what)
    refused, _ = follow(failed("refused"), AT + 5, pods=NOBODY)
    told = present(waits_for(refused, TRAITS, NOBODY))
    assert (refused.state, told.until_at) == (State.RESERVED, None)
    assert "it must show first that no earlier pod is left" in sentence(told.what)
    assert "401" in sentence(told.what)
    told = present(waits_for(refused, TRAITS, DatedFact((), AT)))
    assert told.what.kind is ReasonKind.AWAITS_EARLIER_POD
    stopped = replace(refused, stop=StopRequested("user", quoted("enough")))
    told = present(waits_for(stopped, TRAITS, NOBODY))
    assert told.what.kind is ReasonKind.AWAITS_LIST_TO_STOP


def test_what_is_listed_or_was_never_asked_for_is_not_waited_for() -> None:
    run = failed("ambiguous")
    assert waits_for(run, TRAITS, DatedFact((the_pod(run),), AT)) is None
    assert waits_for(renting(), TRAITS, DatedFact((), AT)) is None
    assert waits_for(reserved(), TRAITS, DatedFact((), AT)) is None


@pytest.mark.parametrize(
    ("answered_s", "missed_s", "answer", "until_s"),
    [
        (None, None, ReasonKind.CREATE_UNANSWERED, 900.0),
        (7.0, None, ReasonKind.CREATE_TAKEN, 907.0),
        (7.0, 50.0, ReasonKind.CREATE_TAKEN, 350.0),
    ],
)
def test_a_pod_is_waited_for_until_its_absence_has_lasted(
    answered_s: float | None, missed_s: float | None, answer: ReasonKind, until_s: float
) -> None:
    run = renting()
    create = ActionState(CREATE, AT, None if answered_s is None else AT + answered_s)
    absence = None if missed_s is None else Absence(Instant(AT + missed_s, 0.0))
    missed = replace(run.generations[-1], absence=absence)
    run = replace(run, actions={ActionKey("r1", 1, CREATE, 1): create}, generations=(missed,))
    lagging = replace(TRAITS, absence=AbsenceProof(lists=3, missing_s=300.0))
    told = present(waits_for(run, lagging, DatedFact((), AT)))
    assert (present(told.what.more).kind, told.until_at) == (answer, AT + until_s)
