"""The rate as a pure function of the step, and the one decision that a deadline asks for."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.training.schedule import (
    CONSTANT,
    COSINE,
    SURPLUS,
    WSD,
    Cooldown,
    Costs,
    Schedule,
    cooldown_of_steps,
    decide_cooldown,
    recent_mean,
    steps_that_fit,
)

costs = st.builds(
    Costs,
    step_s=st.floats(0.01, 10),
    evaluation_s=st.floats(0, 30),
    save_s=st.floats(0, 30),
    eval_every=st.integers(1, 50),
    save_every=st.integers(1, 50),
)


@given(
    steps=st.integers(1, 400), warmup=st.integers(0, 60), fraction=st.floats(0, 1), data=st.data()
)
def test_every_step_of_a_run_trains(
    steps: int, warmup: int, fraction: float, data: st.DataObject
) -> None:
    cooldown = cooldown_of_steps(steps, fraction)
    assert cooldown.end == steps
    step = data.draw(st.integers(0, steps - 1))
    for kind in (WSD, COSINE, CONSTANT):
        schedule = Schedule(kind, steps, warmup, fraction)
        assert 0 < schedule.factor(step, schedule.own_cooldown) <= 1


@given(start=st.integers(0, 500), steps=st.integers(1, 500), step=st.integers(0, 1200))
def test_the_cooldown_only_falls(start: int, steps: int, step: int) -> None:
    cooldown = Cooldown(start, steps)
    schedule = Schedule(WSD, 1000)
    now, later = (schedule.factor(s, cooldown) for s in (step, step + 1))
    assert later <= now
    if start <= step < cooldown.end - 1:
        assert later < now


def test_warm_up_stable_and_one_minus_root_by_hand() -> None:
    cooldown = Cooldown(10, 3)
    rates = [Schedule(WSD, 13, 3).factor(s, cooldown) for s in range(13)]
    assert rates[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert rates[4:10] == [1.0] * 6
    assert rates[10:] == pytest.approx([1 - math.sqrt(t / 4) for t in (1, 2, 3)])


def test_a_topped_up_run_warms_up_anew() -> None:
    rates = [Schedule(WSD, 999, 3).factor(s, None, warm_from=100) for s in range(100, 105)]
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])


@given(costs=costs, first=st.integers(0, 1000), remaining_s=st.floats(0, 500))
def test_as_many_steps_as_fit_and_not_one_more(
    costs: Costs, first: int, remaining_s: float
) -> None:
    fitting = steps_that_fit(first, remaining_s, costs)
    if fitting:
        assert costs.seconds(first, fitting) <= remaining_s
    assert costs.seconds(first, fitting + 1) > remaining_s or remaining_s == 0


@given(costs=costs, first=st.integers(0, 300), steps=st.integers(1, 200))
def test_time_counts_every_pause_between_steps(costs: Costs, first: int, steps: int) -> None:
    """Against a walk through the steps, as the loop takes them."""
    seconds = 0.0
    for finished in range(first + 1, first + steps + 1):
        seconds += costs.step_s
        if finished == first + steps:
            break
        saves = finished % costs.save_every == 0
        if saves or finished % costs.eval_every == 0:
            seconds += costs.evaluation_s
        if saves:
            seconds += costs.save_s
    assert costs.seconds(first, steps) == pytest.approx(seconds)


@given(
    costs=costs,
    step=st.integers(0, 500),
    steps=st.integers(1, 600),
    fraction=st.floats(0, 1),
    elapsed_s=st.floats(0, 2000),
    remaining_s=st.floats(0.1, 1000),
)
def test_a_cooldown_lands_at_the_deadline_or_at_the_last_step(
    costs: Costs, step: int, steps: int, fraction: float, elapsed_s: float, remaining_s: float
) -> None:
    step = min(step, steps - 1)
    made = decide_cooldown(
        step,
        steps=steps,
        fraction=fraction,
        elapsed_s=elapsed_s,
        remaining_s=remaining_s,
        deadline_at=5.0,
        costs=costs,
    )
    share = min(max(fraction, 0.2), 0.4)
    if fraction == 0.0:
        assert made is None
        return
    if made is None:
        assert remaining_s > share * elapsed_s
        assert step < cooldown_of_steps(steps, fraction).start
        return
    assert (made.start, made.deadline_at) == (step, 5.0)
    assert step < made.end <= steps
    fitting = steps_that_fit(step, remaining_s, costs)
    assert made.steps <= max(1, math.ceil(fitting * SURPLUS))
    if made.end < steps:
        assert made.steps >= fitting, "paid time would be left unused"


def test_the_share_of_the_cooldown_is_held_between_20_and_40_percent() -> None:
    def begins(fraction: float, remaining_s: float) -> bool:
        costs = Costs(1.0, 0.0, 0.0, 100, 100)
        made = decide_cooldown(
            100,
            steps=1_000_000,
            fraction=fraction,
            elapsed_s=100.0,
            remaining_s=remaining_s,
            deadline_at=0.0,
            costs=costs,
        )
        return made is not None

    assert begins(0.01, 20.0)
    assert not begins(0.01, 21.0)
    assert not begins(0.0, 1.0), "no cooldown was asked for"
    assert begins(0.3, 30.0)
    assert not begins(0.3, 31.0)
    assert begins(0.9, 40.0)
    assert not begins(0.9, 41.0)


@given(st.lists(st.floats(0.1, 1.0), min_size=1, max_size=50))
def test_one_stray_pause_hardly_moves_the_mean(seconds: list[float]) -> None:
    quiet = recent_mean(seconds)
    assert min(seconds) * 0.999 <= quiet <= max(seconds) * 1.001
    assert recent_mean([0.5] * 20 + [1000.0]) <= 0.5 * 23 / 21 + 1e-9


def test_no_steps_have_no_mean() -> None:
    assert recent_mean([]) == 0.0


def test_a_cooldown_survives_json() -> None:
    for cooldown in (Cooldown(3, 4), Cooldown(3, 4, 12.5), Cooldown(3, 9, 7.0).followed_by(6, 2)):
        assert Cooldown.from_json(cooldown.to_json()) == cooldown


# -- against the formulas, written for every step at once --------------------------------------


def test_a_cosine_falls_from_one_to_its_floor_over_all_steps() -> None:
    schedule = Schedule(COSINE, 1000, warmup_steps=10, floor=0.1)
    assert schedule.own_cooldown is None
    for step in (10, 100, 499, 500, 999):
        progress = (step + 1) / 1001
        expected = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress))
        assert schedule.factor(step, None) == pytest.approx(expected, rel=1e-12)
    assert schedule.factor(999, None) == pytest.approx(0.1, abs=1e-4)
    assert schedule.factor(0, None) == pytest.approx(1 / 11, rel=1e-4)


def test_a_cosine_that_a_deadline_cuts_still_ends_at_its_floor() -> None:
    schedule = Schedule(COSINE, 100_000, cooldown_fraction=0.3, floor=0.1)
    cooldown = Cooldown(1000, 400, 5.0)
    rates = [schedule.factor(step, cooldown) for step in range(990, 1400)]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > 0.99
    assert rates[-1] == pytest.approx(0.1, abs=0.002)
    assert schedule.has_come_down(1399, cooldown)
    assert not schedule.has_come_down(1200, cooldown)


def test_a_constant_rate_stays_and_knows_no_cooldown() -> None:
    schedule = Schedule(CONSTANT, 100, warmup_steps=4, cooldown_fraction=0.3)
    assert schedule.fraction == 0.0
    assert [schedule.factor(step, None) for step in (4, 50, 99, 500)] == [1.0] * 4
    assert not schedule.has_come_down(100, schedule.own_cooldown)


def test_a_cooldown_ends_at_the_floor() -> None:
    schedule = Schedule(WSD, 1000, cooldown_fraction=0.5, floor=0.2)
    cooldown = schedule.own_cooldown
    assert cooldown == Cooldown(500, 500)
    for step in (500, 700, 999):
        t = (step - 499) / 501
        assert schedule.factor(step, cooldown) == pytest.approx(0.2 + 0.8 * (1 - math.sqrt(t)))
    assert schedule.has_come_down(999, cooldown)
    assert not schedule.has_come_down(700, cooldown)
