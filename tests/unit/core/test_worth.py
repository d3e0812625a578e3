"""What the next dollar buys, and when a training is told that it no longer pays."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.core.phases import BEAT, EXTREME, LEASE, PASSED, RUNNING, ended, view
from trmcloud.core.contract.phase_account import close_attempt
from trmcloud.core.contract.pod_contract import ContractError, PhaseState, dump, load_lease
from trmcloud.core.contract.supervisor import (
    EndPod,
    FinishTrainer,
    JudgeGate,
    KillTrainer,
    LandTrainer,
    StartPhase,
    Wait,
    supervise,
)
from trmcloud.core.contract.worth import (
    LEAST_POINTS,
    Curve,
    StopRules,
    fit,
    gain_per_usd,
    gain_soon,
    is_worse,
    since_best,
    why_stop,
)
from trmcloud.core.outcome import Outcome

RECORDED = Path(__file__).parent / "metrics"
STEPS = tuple(range(100, 2001, 100))
HOURLY = 3600.0
"""A step a second."""


def falling(slope: float = -0.3) -> list[tuple[int, float]]:
    return [(step, 4.0 + slope * math.log(step)) for step in STEPS]


def curve_of(points: list[tuple[int, float]]) -> Curve:
    fitted = fit(points)
    assert fitted is not None
    return Curve(points[-1][0], *fitted, HOURLY, since_best(points))


def test_a_line_in_the_logarithm_of_the_steps_is_found_again() -> None:
    slope, scatter = fit(falling()) or (0.0, 1.0)
    assert slope == pytest.approx(-0.3)
    assert scatter == pytest.approx(0.0, abs=1e-9)


def test_nothing_is_said_of_few_evaluations() -> None:
    assert fit(falling()[: LEAST_POINTS - 1]) is None
    assert fit(falling()[:LEAST_POINTS]) is not None
    assert fit([(7, 2.0)] * LEAST_POINTS) is None


def test_the_newest_half_counts() -> None:
    """A training that fell fast and is flat now buys nothing more."""
    points = [(step, 2.0 + max(0.0, 1.0 - step / 1000)) for step in STEPS]
    assert (fit(points) or (1.0, 1.0)) == pytest.approx((0.0, 0.0), abs=1e-9)


def test_the_next_dollar_is_that_of_the_rate() -> None:
    """$2 an hour: a dollar is 1,800 steps, from 2,000 to 3,800."""
    curve = curve_of(falling())
    expected = 0.3 * math.log(3800 / 2000)
    assert gain_per_usd(curve, 10_000, 2.0) == pytest.approx(expected)
    assert gain_soon(curve, 10_000) == pytest.approx(0.3 * math.log(5600 / 2000))


def test_where_less_than_a_dollar_is_left_it_is_the_price_of_what_is_left() -> None:
    """180 steps at $2 an hour are a tenth of a dollar."""
    expected = 0.3 * math.log(2180 / 2000) / 0.1
    assert gain_per_usd(curve_of(falling()), 180, 2.0) == pytest.approx(expected)


def test_where_nothing_is_paid_or_left_no_dollar_buys_anything() -> None:
    curve = curve_of(falling())
    assert gain_per_usd(curve, 100, 0.0) is None
    assert gain_per_usd(curve, 0, 2.0) is None
    assert gain_per_usd(replace(curve, steps_per_hour=0.0), 100, 2.0) is None


def test_numbers_that_a_pod_makes_up_come_to_nothing() -> None:
    wild = Curve(1, -1e6, 1e6, 1e-300, 0)
    for left in (1, 10**18):
        for rate in (1e-300, 1.0, 1e9):
            gain = gain_per_usd(wild, left, rate, at_most=True)
            assert gain is None or math.isfinite(gain)


@pytest.mark.parametrize(
    ("gain", "stops"),
    [(0.2, True), (0.19, False)],
    ids=["less than asked for", "as much as asked for"],
)
def test_a_dollar_that_buys_too_little_ends_it(gain: float, stops: bool) -> None:
    why = why_stop(StopRules(gain, 0, 2.0), curve_of(falling()), 10_000)  # buys 0.1926
    assert why == ("the next dollar buys 0.19 bpb, less than 0.2" if stops else "")


def test_doubt_is_for_going_on() -> None:
    """One that scatters is only stopped where two standard errors more would not pay either."""
    curve = replace(curve_of(falling()), scatter=0.1)
    steeper = replace(curve, slope=curve.slope - 2 * curve.scatter)
    hoped = gain_per_usd(steeper, 10_000, 2.0)
    assert hoped is not None
    assert why_stop(StopRules(hoped - 0.01, 0, 2.0), curve, 10_000) == ""
    assert why_stop(StopRules(hoped + 0.01, 0, 2.0), curve, 10_000)


def test_one_that_rises_buys_nothing() -> None:
    curve = curve_of(falling(+0.1))
    told = "the next dollar buys no better bpb"
    assert why_stop(StopRules(0.001, 0, 2.0), curve, 10_000) == told


def test_patience_counts_from_the_best() -> None:
    points = [*falling()[:10], *[(step, 3.0) for step in STEPS[10:14]]]
    assert since_best(points) == 4
    rules, curve = StopRules(patience=4), curve_of(points)
    assert why_stop(rules, curve, 10) == "4 evaluations in a row were no better than the best"
    assert why_stop(replace(rules, patience=5), curve, 10) == ""


def test_without_rules_or_figures_nothing_ends_it() -> None:
    assert why_stop(StopRules(), curve_of(falling(+1.0)), 10) == ""
    assert why_stop(StopRules(1.0, 1, 1.0), None, 10) == ""
    assert why_stop(StopRules(1.0, 1, 1.0), curve_of(falling()), 0) == ""


def test_what_is_worse_than_scatter() -> None:
    assert not is_worse([])
    best = (1, 2.0)
    assert not is_worse([best, (2, 2.1), (3, 2.1)])
    assert not is_worse([best, (2, 2.1), (3, 2.019), (4, 2.1)]), "one of the newest is as good"
    assert is_worse([best, (2, 2.01), (3, 2.021), (4, 2.1), (5, 2.021)])


@pytest.mark.parametrize(("name", "most_error"), [("trm", 0.07)])
def test_recorded_trainings_went_on_as_predicted(name: str, most_error: float) -> None:
    """Of two real ones: from two thirds on, what was predicted of the last evaluation."""
    lines = map(json.loads, (RECORDED / f"{name}.jsonl").read_text().splitlines())
    points = [(x["step"], x["val_bpb"]) for x in lines if x["kind"] == "eval" and x["step"] > 20]
    known, last = points[: max(LEAST_POINTS, len(points) * 2 // 3)], points[-1]
    slope, _ = fit(known) or (0.0, 0.0)
    predicted = slope * math.log(last[0] / known[-1][0])
    assert predicted < 0
    assert predicted == pytest.approx(last[1] - known[-1][1], abs=most_error)


# -- what the agent does about it -----------------------------------------------------------------
RULED = replace(LEASE, phases=tuple(replace(p, stop=StopRules(0.2, 0, 2.0)) for p in LEASE.phases))
SPENT = replace(BEAT, step=2000, steps=9000, curve=curve_of(falling()))
WHY = "the next dollar buys 0.19 bpb, less than 0.2"


def test_a_training_that_no_longer_pays_is_told_once() -> None:
    assert supervise(RULED, (RUNNING, EXTREME), view(heartbeat=SPENT)) == FinishTrainer(WHY)
    told = view(heartbeat=SPENT, finish_told=True)
    assert supervise(RULED, (RUNNING, EXTREME), told) == Wait()


def test_without_a_rule_it_goes_on() -> None:
    assert supervise(LEASE, (RUNNING, EXTREME), view(heartbeat=SPENT)) == Wait()


def test_one_that_pays_or_cools_down_already_goes_on() -> None:
    for beat in (replace(SPENT, curve=curve_of(falling(-0.9))), replace(SPENT, curve=None)):
        assert supervise(RULED, (RUNNING, EXTREME), view(heartbeat=beat)) == Wait()


def test_landing_and_the_hard_stop_come_first() -> None:
    asked = view(heartbeat=SPENT, land_ordered=True, land_reason="you")
    assert supervise(RULED, (RUNNING, EXTREME), asked) == LandTrainer("you")
    over = view(heartbeat=SPENT, hard_left_s=0.0)
    assert isinstance(supervise(RULED, (RUNNING, EXTREME), over), KillTrainer)


def test_one_that_was_told_to_land_is_not_told_that_it_no_longer_pays() -> None:
    """It lands, which is sooner than to cool down."""
    for order in ({"told_to_land_s": 3.0}, {"told_to_land_s": 3.0, "land_ordered": True}):
        told = view(heartbeat=SPENT, **order)
        assert supervise(RULED, (RUNNING, EXTREME), told) == Wait()


def test_one_with_no_step_left_is_let_come_to_its_own_end() -> None:
    done = replace(SPENT, step=9000)
    assert supervise(RULED, (RUNNING, EXTREME), view(heartbeat=done)) == Wait()


def test_what_was_decided_holds_for_the_next_attempt() -> None:
    """Which begins a little further back, where it still may pay."""
    decided = replace(RUNNING, stopping=WHY, attempts=2)
    pays = replace(SPENT, attempt=2, curve=curve_of(falling(-0.9)))
    assert supervise(RULED, (decided, EXTREME), view(heartbeat=pays)) == FinishTrainer(WHY)


def test_its_end_says_why_and_is_a_clean_one() -> None:
    beat = replace(SPENT, state="ended", outcome="stopped_paying", curve=None)
    closed = close_attempt(replace(RUNNING, stopping=WHY), beat, 9.0)
    assert (closed.outcome, closed.message, closed.state) == (
        "stopped_paying",
        WHY,
        PhaseState.ENDED,
    )
    alone = replace(RULED, phases=RULED.phases[:1])
    assert supervise(alone, (closed,), view()) == EndPod(Outcome.FINISHED.value, WHY)


def test_it_is_finished_for_the_gate_and_the_next_phase() -> None:
    spent = ended("stopped_paying", message=WHY)
    assert supervise(RULED, (spent, EXTREME), view()) == JudgeGate("fast")
    judged = replace(spent, gate=PASSED)
    assert supervise(RULED, (judged, EXTREME), view()) == StartPhase("extreme", 1)


def test_rules_are_read_strictly_and_a_lease_of_before_has_none() -> None:
    text = dump(RULED)
    assert load_lease(text) == RULED
    data = json.loads(text)
    for phase in data["phases"]:
        del phase["stop"]
    assert load_lease(json.dumps(data)).phases[0].stop == StopRules()
    wrong: tuple[Any, ...] = ({"patience": -1}, {"gain_per_usd": "x"}, {"usd_per_hour": -1.0}, [])
    for bad in wrong:
        data["phases"][0]["stop"] = bad
        with pytest.raises(ContractError):
            load_lease(json.dumps(data))
