from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from tests.present import only
from trmcloud.core.codec import from_json, to_json
from trmcloud.core.errors import UsageError
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.sweep import events as ev
from trmcloud.core.sweep.halving import (
    Begin,
    Continue,
    End,
    FinishWinner,
    Move,
    Reason,
    Seed2,
    left,
    next_moves,
    reserved,
    usd_per_step,
)
from trmcloud.core.sweep.samplers import Sampler, make_sampler
from trmcloud.core.sweep.space import Point, read_words
from trmcloud.core.sweep.state import IllegalEvent, SweepState, TrialState, apply, fold, lost_events
from trmcloud.core.sweep.terms import Goal, SweepTerms, make_terms
from trmcloud.core.values import replace

SPACE = ("lr=log:1e-4,1e-2", "width=int:64,256,step=32")


def terms_of(usd: str = "100", full: str = "9", *words: str, **more: object) -> SweepTerms:
    space = read_words(words or SPACE)
    given: dict[str, object] = {"metric": "loss", "goal": Goal.MIN, "seeds": 1}
    return make_terms(
        space,
        space.default({})[0],
        usd=Usd(usd),
        full_usd=Usd(full),
        slot_rate=Usd("3.6"),
        **(given | more),  # type: ignore[arg-type]
    )


def sampler_of(terms: SweepTerms, name: str = "halton") -> Sampler:
    return make_sampler(name, terms.space, terms.default, terms.goal, terms.seed)


def loss_of(terms: SweepTerms, point: Point, rung: int) -> float:
    return sum((share or 0.0) for share in terms.space.shares(point)) + 1 / (rung + 1)


def play(
    terms: SweepTerms, metric: Callable[[Point, int], float | None] | None = None
) -> tuple[SweepState, list[Move]]:
    """Run trials one after another, each as it was ordered."""
    state, made, sampler = SweepState(), list[Move](), sampler_of(terms)
    while not state.ended:
        for move in next_moves(state, terms, 1, sampler):
            made.append(move)
            state = apply(state, move.event)
            if not isinstance(move, End):
                point = state.trials[move.trial].point
                value = metric(point, move.rung) if metric else loss_of(terms, point, move.rung)
                done = ev.rung_reached(move.trial, move.rung, value, move.train_usd, 1.0)
                state = apply(state, done)
    return state, made


def end_of(made: list[Move]) -> End:
    assert isinstance(made[-1], End)
    return made[-1]


def test_the_default_is_first_and_the_budget_is_used() -> None:
    terms = terms_of()
    state, made = play(terms)
    assert isinstance(made[0], Begin)
    assert made[0].point == terms.default
    assert terms.rungs == (Usd("0.333333"), Usd("1"), Usd("3"), Usd("9"))
    end = end_of(made)
    assert end.reason is Reason.BUDGET
    assert end.winner is not None
    assert state.trials[end.winner].state is TrialState.COMPLETE
    assert terms.usd - state.spent < terms.most_usd(-1, terms.last)
    assert len(state.trials) > 25


def test_a_third_of_each_rung_is_promoted() -> None:
    state, _ = play(terms_of())
    reached = [
        sum(any(r.rung == rung for r in trial.results) for trial in state.trials.values())
        for rung in range(4)
    ]
    assert reached[0] >= 2 * reached[1] >= 4 * reached[2]
    assert reached[3] >= 1


def test_an_interval_trains_for_the_difference_of_two_rungs() -> None:
    terms = terms_of(restart_s=10, overrun_s=20)
    _, made = play(terms)
    move = next(move for move in made if isinstance(move, Continue) and move.rung == 2)
    assert move.train_usd == terms.rungs[2] - terms.rungs[1]
    assert move.most_usd == move.train_usd + Usd("0.03")
    assert terms.seconds(Usd("0.03")) == 30


def test_what_cannot_resume_is_charged_from_its_start() -> None:
    _, made = play(terms_of(can_resume=False))
    move = next(move for move in made if isinstance(move, Continue) and move.rung == 2)
    assert move.train_usd == Usd("3")


def test_the_winner_is_trained_out_of_what_was_reserved() -> None:
    terms = terms_of("18", eta=4)
    state, made = play(terms)
    (finish,) = [move for move in made if isinstance(move, FinishWinner)]
    assert finish.to_end
    before = made[: made.index(finish)]
    assert not any(move.to_end for move in before if isinstance(move, Continue))
    assert state.trials[end_of(made).winner or 0].state is TrialState.COMPLETE
    assert reserved(state, terms) == terms.finish_usd


def test_two_seeds_of_winner_and_default_are_trained_to_the_end() -> None:
    terms = terms_of("200", seeds=2)
    assert terms.confirm_usd == Usd("27")
    state, made = play(terms)
    repeats = [move for move in made if isinstance(move, Seed2)]
    assert [move.repeats for move in repeats] == [end_of(made).winner, 1]
    assert all(move.to_end and move.seed != terms.seed for move in repeats)
    assert state.trials[1].state is TrialState.COMPLETE


def test_a_default_without_a_finite_metric_is_not_repeated() -> None:
    terms = terms_of("200", seeds=2)

    def metric(point: Point, rung: int) -> float | None:
        is_last = point == terms.default and rung == terms.last
        return math.nan if is_last else loss_of(terms, point, rung)

    _, made = play(terms, metric)
    repeats = [move.repeats for move in made if isinstance(move, Seed2)]
    assert repeats == [end_of(made).winner] != [1]


def test_repetitions_that_take_too_much_are_left_out() -> None:
    assert terms_of("40", seeds=2).confirm_usd == Usd("9")
    assert terms_of("30", seeds=2).confirm_usd == ZERO


def test_a_space_of_one_point_trains_the_default_with_two_seeds() -> None:
    state, made = play(terms_of("100", "9", "lr=3", seeds=2))
    assert end_of(made) == End(Reason.ONE_POINT, 1)
    assert [trial.repeats for trial in state.trials.values()] == [0, 1]
    assert all(trial.state is TrialState.COMPLETE for trial in state.trials.values())


def test_a_small_space_ends_when_all_is_trained() -> None:
    state, made = play(terms_of("500", "9", "a=1|2|3"))
    assert end_of(made).reason is Reason.SPACE
    assert all(trial.state is TrialState.COMPLETE for trial in state.trials.values())


@pytest.mark.parametrize(
    ("metric", "reason"),
    [
        (lambda point, rung: math.nan, Reason.NOT_A_NUMBER),
        (lambda point, rung: -math.inf, Reason.NOT_A_NUMBER),
        (lambda point, rung: None, Reason.NO_METRIC),
    ],
)
def test_without_any_metric_it_ends_after_four_trials(
    metric: Callable[[Point, int], float | None], reason: Reason
) -> None:
    state, made = play(terms_of(), metric)
    assert end_of(made) == End(reason, None)
    assert len(state.trials) == 4


def test_equal_trials_end_with_the_default_trained() -> None:
    _, made = play(terms_of(), lambda point, rung: 1 / (rung + 1))
    assert end_of(made).reason is Reason.EQUAL
    assert end_of(made).winner == 1
    assert isinstance(made[-2], FinishWinner)


def test_trials_that_all_crash_end_it() -> None:
    terms = terms_of()
    state, sampler = SweepState(), sampler_of(terms)
    for _ in range(20):
        (move,) = next_moves(state, terms, 1, sampler)
        state = apply(state, move.event)
        if isinstance(move, End):
            break
        state = apply(state, ev.TrialFailed(move.trial, Usd("0.1"), 1.0, "exit 1"))
    assert move == End(Reason.CRASHES, None)
    assert state.spent == Usd("0.4")


def test_nan_in_one_trial_is_never_promoted_nor_the_winner() -> None:
    terms = terms_of()

    def metric(point: Point, rung: int) -> float:
        return math.nan if dict(point)["width"] == 64 else loss_of(terms, point, rung)

    state, made = play(terms, metric)
    winner = state.trials[end_of(made).winner or 0]
    assert dict(winner.point)["width"] != 64
    assert all(t.rung == 0 for t in state.trials.values() if dict(t.point)["width"] == 64)


@pytest.mark.parametrize("more", [{}, {"slots": 4, "usd": "20"}])
def test_a_budget_of_less_than_a_rung_is_refused_in_one_line(more: dict[str, object]) -> None:
    usd = str(more.pop("usd", "0.5"))
    with pytest.raises(UsageError, match="less than one rung of one trial") as refused:
        terms_of(usd, "9", finish_s=2400, restart_s=1000, overrun_s=1000, **more)
    assert "raise the budget to $" in refused.value.next_step


@pytest.mark.parametrize("more", [{"full": "0"}, {"eta": 1}, {"slots": 0}])
def test_terms_that_are_none_are_refused(more: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="cost something"):
        terms_of("10", str(more.pop("full", "9")), **more)


def test_a_promotion_whose_worst_case_does_not_fit_is_refused() -> None:
    terms = terms_of("30", overrun_s=600)
    state, sampler, most = SweepState(), sampler_of(terms), ZERO
    while not state.ended:
        for move in next_moves(state, terms, 1, sampler):
            state = apply(state, move.event)
            assert state.committed + reserved(state, terms) <= terms.usd
            assert left(state, terms) >= ZERO
            if not isinstance(move, End):
                # Each overruns by all that it may.
                loss = loss_of(terms, state.trials[move.trial].point, move.rung)
                done = ev.rung_reached(move.trial, move.rung, loss, move.most_usd, 1.0)
                state = apply(state, done)
                most = max(most, move.most_usd)
    assert state.spent <= terms.usd
    assert state.overdrawn == ZERO
    assert state.is_trained


def test_a_lost_machine_costs_the_last_interval_alone() -> None:
    terms = terms_of()
    begun = ev.TrialStarted(1, terms.default, 0, 0, Usd("0.4"))
    reached = ev.rung_reached(1, 0, 1.0, Usd("0.3"), 300)
    again = ev.TrialContinued(1, 1, Usd("0.7"))
    lost = ev.TrialLost(1, Usd("0.5"), 500, kept_rung=0)
    state = fold([begun, reached, again, lost])
    move = only(Continue, next_moves(state, terms, 1, sampler_of(terms)))
    assert (move.trial, move.rung) == (1, 1)
    assert move.train_usd == terms.rungs[1] - terms.rungs[0]
    assert state.spent == Usd("0.8")
    assert state.trials[1].metric == 1.0


def test_a_trial_without_its_checkpoint_begins_anew_and_gives_up_after_three_losses() -> None:
    terms = terms_of()
    state, sampler = SweepState(), sampler_of(terms)
    for number in range(3):
        move = only(Begin, next_moves(state, terms, 1, sampler))
        assert (move.trial, move.seed) == (1, 0)
        state = apply(state, move.event)
        state = apply(state, ev.TrialLost(1, Usd("0.1"), 1.0, kept_rung=-1))
        assert state.trials[1].losses == number + 1
    move = only(Begin, next_moves(state, terms, 1, sampler))
    assert move.trial == 2


def test_what_ran_when_the_executor_was_killed_is_accounted_for() -> None:
    terms = terms_of(slots=2)
    state = SweepState()
    for move in next_moves(state, terms, 1, sampler_of(terms)):
        state = apply(state, move.event)
    (lost,) = lost_events(state, {}, {})
    assert lost.usd == state.trials[1].most_usd
    (lost,) = lost_events(state, {1: Usd("0.1")}, {1: 100.0})
    assert (lost.usd, lost.seconds, lost.kept_rung) == (Usd("0.1"), 100.0, -1)


def test_a_soft_stop_lands_and_begins_nothing() -> None:
    terms = terms_of()
    state = fold([ev.TrialStarted(1, terms.default, 0, 0, Usd("0.4")), ev.StopAsked("soft stop")])
    assert next_moves(state, terms, 1, sampler_of(terms)) == []
    state = apply(state, ev.TrialLanded(1, 0.7, Usd("0.1"), 100.0, 5))
    assert next_moves(state, terms, 1, sampler_of(terms)) == [End(Reason.STOPPED, 1)]


def test_a_landed_trial_trains_on_for_what_is_missing() -> None:
    terms = terms_of()
    state = fold(
        [
            ev.TrialStarted(1, terms.default, 0, 0, Usd("0.4")),
            ev.rung_reached(1, 0, 1.0, terms.rungs[0], 300),
            ev.TrialContinued(1, 1, Usd("0.7")),
            ev.TrialLanded(1, 0.7, Usd("0.2"), 200.0, 5),
        ]
    )
    move = only(Continue, next_moves(state, terms, 1, sampler_of(terms)))
    assert move.train_usd == terms.rungs[1] - terms.rungs[0] - Usd("0.2")


def test_nothing_begins_that_cannot_end_before_the_soft_stop() -> None:
    terms = terms_of()
    needed = terms.seconds(terms.most_usd(-1, 0) + terms.winner_usd)
    sampler = sampler_of(terms)
    assert next_moves(SweepState(), terms, 1, sampler, seconds_left=needed + 1)
    (move,) = next_moves(SweepState(), terms, 1, sampler, seconds_left=needed - 1)
    assert move == End(Reason.TOO_SMALL, None)


def test_slots_get_a_move_each_and_points_of_their_own() -> None:
    terms = terms_of("400", slots=4)
    state, sampler = SweepState(), sampler_of(terms)
    moves = next_moves(state, terms, 4, sampler)
    assert len({move.point for move in moves if isinstance(move, Begin)}) == 4


def test_the_winner_is_trained_where_its_repetitions_do_not_fit_before_the_soft_stop() -> None:
    terms = terms_of("72", slots=2, seeds=2, can_resume=False)
    assert terms.confirm_usd
    sampler = sampler_of(terms)
    state = SweepState()
    move = only(Begin, next_moves(state, terms, 1, sampler))
    state = apply(state, move.event)
    state = apply(state, ev.rung_reached(1, 0, 1.0, move.train_usd, 1.0))
    left_s = terms.seconds(terms.kept_by_slot)  # so much was left beside the trial's interval
    last = only(FinishWinner, next_moves(state, terms, 1, sampler, seconds_left=left_s))
    assert last.rung == terms.last


def test_settings_whose_first_rung_buys_too_few_steps_are_passed_over() -> None:
    terms = replace(terms_of(slots=4), least_steps=100)
    sampler = sampler_of(terms)

    def price(point: Point) -> float:
        return float(dict(point)["width"]) * 2e-5

    default = ev.TrialStarted(1, terms.default, 0, 0, Usd("0.4"))
    state = fold([default])
    moves = next_moves(state, terms, 3, sampler, price=price)
    widths = [float(dict(move.point)["width"]) for move in moves if isinstance(move, Begin)]
    assert len(widths) == 3
    assert max(widths) <= 0.333333 / 100 / 2e-5 < 256
    assert next_moves(state, terms, 1, sampler, price=lambda point: 9.0) == []
    assert next_moves(state, terms, 1, sampler, price=lambda point: None)


def test_a_prediction_is_corrected_by_what_was_measured() -> None:
    terms = terms_of()
    default = ev.TrialStarted(1, terms.default, 0, 0, Usd("0.4"))
    state = fold([default, ev.PaceMeasured(1, 0.003)])
    assert usd_per_step(state, terms.default, lambda point: 0.001) == pytest.approx(0.003)
    assert usd_per_step(fold([default]), terms.default, lambda point: 0.001) == 0.001


def test_impossible_events_are_refused() -> None:
    terms = terms_of()
    begun = ev.TrialStarted(1, terms.default, 0, 0, Usd("0.4"))
    reached = ev.rung_reached(1, 0, 1.0, Usd("0.3"), 300)
    for events in (
        [reached],
        [begun, begun],
        [begun, ev.TrialContinued(1, 1, Usd("1"))],
        [begun, reached, reached],
        [begun, reached, ev.TrialContinued(1, 0, Usd("1"))],
        [begun, ev.Ended("budget")],
        [begun, ev.TrialDropped(1)],
        [ev.TrialStarted(2, terms.default, 0, 0, Usd("0.4"))],
        [ev.Ended("budget"), ev.SlotsIdle(Usd("1"))],
    ):
        with pytest.raises(IllegalEvent):
            fold(events)


@pytest.mark.parametrize("kind", ev.EVENT_TYPES.values())
def test_events_are_lines_that_are_read_again(kind: type[ev.SweepEvent]) -> None:
    values: dict[str, object] = {
        "trial": 3, "rung": 1, "usd": Usd("1.5"), "most_usd": Usd("2"), "seconds": 1.5, "why": "x",
        "point": (("lr", 1e-3), ("opt", "muon"), ("flag", True)), "seed": 7, "metric": 0.5,
        "kept_rung": -1, "usd_per_step": 1e-9, "reason": "budget",
    }  # fmt: skip
    names = {name for name in kind.__dataclass_fields__ if name in values}
    event = kind(**{name: values[name] for name in names})
    line = ev.write_event(event)
    assert "\n" not in line
    assert ev.read_event(line) == event


def test_a_journal_whose_last_line_was_cut_is_read_without_it() -> None:
    line = ev.write_event(ev.SlotsIdle(Usd("1")))
    assert ev.read_journal(f"{line}\n{line[:9]}") == (ev.SlotsIdle(Usd("1")),)
    with pytest.raises(ValueError, match="no event of a sweep"):
        ev.read_journal(f"{line[:9]}\n{line}\n")
    with pytest.raises(ValueError, match="no event of a sweep"):
        ev.read_event('{"event":"SlotsIdle","usd":"1","newer":2}')


def test_terms_are_kept_as_json() -> None:
    terms = terms_of("200", seeds=2, slots=2)
    assert from_json(SweepTerms, to_json(terms)) == terms
