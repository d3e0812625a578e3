"""Other attempts of a phase: after a bad end, with a larger micro-batch, and while the next
dollar is worth it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.present import present
from tests.unit.core.phases import BEAT, EXTREME, LEASE, ONE, PASSED, RUNNING, after, ended, view
from trmcloud.adapters.files import load_recipe
from trmcloud.core.contract import recovery
from trmcloud.core.contract.gate import (
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
from trmcloud.core.contract.phase_account import (
    CLIMBS,
    LEVELS,
    climb_settings,
    close_attempt,
    is_worth_it,
    next_level,
    next_try,
    start_attempt,
)
from trmcloud.core.contract.pod_contract import (
    AgentReport,
    Lease,
    PhaseReport,
    PhaseState,
    load_lease,
    load_report,
)
from trmcloud.core.contract.records import ContractError, dump
from trmcloud.core.contract.recovery import (
    AGAIN,
    LADDER,
    SKIPPED,
    SPARE,
    Recovery,
    note_recovery,
    overrides_of,
    read_overrides,
)
from trmcloud.core.contract.supervisor import (
    Act,
    ClimbTrainer,
    EndPod,
    FinishTrainer,
    JudgeGate,
    KillTrainer,
    LandTrainer,
    StartPhase,
    Wait,
    supervise,
)
from trmcloud.core.contract.trainer_contract import OUTCOMES
from trmcloud.core.errors import Outcome
from trmcloud.core.spec.overrides import recoverable

# -- recovery -----------------------------------------------------------------------------------
# What is tried after a bad end: which, in which order, how often, and what is told of it.


OWN: dict[str, Any] = {
    "batch": 12, "accumulation": 2, "activation_checkpointing": False, "compile": True,
    "loader_workers": 2, "preset": "extreme",
}  # fmt: skip
TRIED_LEASE = replace(ONE, phases=(replace(ONE.phases[0], settings=OWN),))


def tries(outcome: str, lease: Any = TRIED_LEASE, **own: Any) -> list[tuple[str, dict[str, Any]]]:
    """All that is tried where every attempt ends in the same way: rungs and overrides."""
    share = replace(lease.phases[0], settings={**lease.phases[0].settings, **own})
    lease, report, made = replace(lease, phases=(share,)), ended(outcome, fruitless=1), []
    while isinstance(act := after(report, lease), StartPhase):
        report = start_attempt(lease, report, act.attempt, 100.0)
        made.append((report.recoveries[-1].rung, dict(act.overrides)))
        assert overrides_of(report.recoveries) == act.overrides
        report = close_attempt(report, replace(BEAT, outcome=outcome, message="why"), 200.0)
    assert isinstance(act, EndPod)
    assert act.result == "failed"
    return made


def test_out_of_memory_is_answered_from_the_top_of_the_ladder_down() -> None:
    first = {"batch": 6, "accumulation": 4}
    second, third = {"batch": 3, "accumulation": 8}, {"batch": 1, "accumulation": 24}
    kept = {**third, "activation_checkpointing": True}
    assert tries("out_of_memory") == [
        ("batch", first),
        ("batch", second),
        ("batch", third),
        ("checkpointing", kept),
        ("compile", {**kept, "compile": False}),
        ("loader", {**kept, "compile": False, "loader_workers": 0}),
    ]


def test_a_rung_with_nothing_to_change_is_passed_over() -> None:
    bare = {"batch": 1, "activation_checkpointing": True, "compile": False, "loader_workers": 0}
    assert tries("out_of_memory", **bare) == []
    assert tries("out_of_memory", **{**bare, "compile": True}) == [("compile", {"compile": False})]


@pytest.mark.parametrize("outcome", ["non_finite", "diverged"])
def test_a_loss_that_is_lost_goes_back_at_half_the_rate_then_a_preset_lower(outcome: str) -> None:
    quarter = {"rate": 0.25}
    assert tries(outcome) == [
        ("rate", {"rate": 0.5}),
        ("rate", quarter),
        ("preset", {**quarter, "preset": "aggressive"}),
        ("preset", {**quarter, "preset": "moderate"}),
    ]
    own = {key: value for key, value in OWN.items() if key != "preset"}
    dense = replace(TRIED_LEASE, phases=(replace(TRIED_LEASE.phases[0], settings=own),))
    assert [rung for rung, _ in tries(outcome, dense)] == ["rate", "rate"]


def test_no_rung_is_tried_more_often_than_the_table_says() -> None:
    for outcome in OUTCOMES:
        rungs = (
            [rung for rung, _ in tries(outcome, batch=2**30)] if outcome in recovery.MENDED else []
        )
        for rung in LADDER:
            assert rungs.count(rung.name) <= rung.most


def test_what_did_not_help_is_told_at_the_end() -> None:
    rate = Recovery("non_finite", "rate", changed={"rate": 0.25})
    rows = (rate, rate, Recovery("non_finite", "preset", changed={"preset": "moderate"}))
    act = after(ended("non_finite", message="the loss is nan", recoveries=rows), TRIED_LEASE)
    told = "the loss is nan; nothing is left to try: not even rate=0.25, preset=moderate helped"
    assert act == EndPod("failed", told)


def test_settings_are_not_blamed_for_an_end_that_they_were_not_to_prevent() -> None:
    changed = Recovery("out_of_memory", "batch", changed={"batch": 6, "accumulation": 4})
    crashed = ended("crashed", message="boom", fruitless=9, recoveries=(changed,))
    assert after(crashed, TRIED_LEASE) == EndPod("failed", "boom")


def test_a_lease_that_names_no_settings_has_nothing_changed() -> None:
    for outcome in ("out_of_memory", "non_finite"):
        assert after(ended(outcome, message="why")) == EndPod("failed", "why")


def test_one_of_several_machines_is_not_started_again_with_other_settings() -> None:
    several = replace(TRIED_LEASE, max_restarts=-1)
    assert after(ended("out_of_memory", message="why"), several) == EndPod("failed", "why")


def test_the_money_and_orders_come_before_another_try() -> None:
    last = ended("out_of_memory")
    assert after(last, TRIED_LEASE, hard_left_s=0.0).result == "killed"  # type: ignore[attr-defined]
    stopped = after(last, TRIED_LEASE, land_ordered=True, land_reason="asked to")
    assert stopped == EndPod("stopped", "asked to")
    late = after(last, TRIED_LEASE, soft_left_s=TRIED_LEASE.min_useful_s)
    assert late == EndPod("landed", "out_of_memory, and too little time was left to start again")


def test_other_settings_are_another_try_with_restarts_of_its_own() -> None:
    tired = ended("out_of_memory", fruitless=TRIED_LEASE.max_restarts + 1)
    assert start_attempt(TRIED_LEASE, tired, 5, 1.0).fruitless == 0
    assert start_attempt(TRIED_LEASE, ended("crashed", fruitless=2), 5, 1.0).fruitless == 2


def test_a_crash_keeps_what_was_changed_before_it() -> None:
    changed = Recovery("out_of_memory", "batch", changed={"batch": 6, "accumulation": 4})
    act = after(ended("lost", recoveries=(changed,)), TRIED_LEASE)
    assert act == StartPhase("fast", 2, {"batch": 6, "accumulation": 4})


def test_what_it_cost_is_what_was_done_since_the_last_checkpoint() -> None:
    running = PhaseReport("fast", state=PhaseState.RUNNING, attempts=1, saved_step=30)
    beat = replace(BEAT, step=47, saved_step=40)
    closed = close_attempt(running, beat, 500.0, 12.5)
    assert (closed.lost_steps, closed.lost_s) == (7, 12.5)
    again = start_attempt(TRIED_LEASE, closed, 2, 501.0)
    [row] = again.recoveries
    assert (row.what, row.rung, row.step, row.at) == ("lost", "again", 47, 500.0)
    assert (row.lost_steps, row.lost_s, row.times) == (7, 12.5, 1)
    twice = close_attempt(again, replace(beat, step=41), 600.0, 2.5)
    [row] = start_attempt(TRIED_LEASE, twice, 3, 601.0).recoveries
    assert (row.step, row.lost_steps, row.lost_s, row.times) == (41, 8, 15.0, 2)


def test_why_a_trainer_was_killed_is_told_where_it_has_no_last_word() -> None:
    running = PhaseReport("fast", state=PhaseState.RUNNING, message="no step for 300 s")
    closed = close_attempt(running, BEAT, 500.0, 301.0)
    row = present(next_try(TRIED_LEASE, closed))
    assert (row.what, row.why) == ("lost", "no step for 300 s")
    own = close_attempt(running, replace(BEAT, outcome="crashed", message="its own"), 500.0)
    assert own.message == "its own"
    assert start_attempt(TRIED_LEASE, own, 2, 1.0).message == ""


def test_steps_left_out_are_told_at_the_price_of_a_step() -> None:
    running = PhaseReport("fast", state=PhaseState.RUNNING)
    beat = replace(BEAT, outcome="finished", skipped=3, skipped_step=77, step_seconds=2.0)
    closed = close_attempt(running, beat, 500.0)
    [row] = closed.recoveries
    assert (row.rung, row.step, row.times, row.lost_steps, row.lost_s) == ("skipped", 77, 3, 3, 6.0)
    assert overrides_of(closed.recoveries) == {}


def test_a_phase_taken_up_anew_keeps_its_overrides() -> None:
    rows = (Recovery("non_finite", "rate", changed={"rate": 0.5}),)
    act = supervise(TRIED_LEASE, (PhaseReport("fast", recoveries=rows), EXTREME), view())
    assert act == StartPhase("fast", 1, {"rate": 0.5})


def test_the_account_is_bounded_whatever_happens() -> None:
    rows: tuple[Recovery, ...] = ()
    for number in range(100):
        rows = note_recovery(rows, Recovery(f"w{number}", "again", why="x" * 1000))
    assert len(rows) == recovery.MOST_RECOVERIES
    assert all(len(row.why) <= 300 for row in rows)
    load_report(dump(report_with(rows)))


def report_with(rows: Any) -> AgentReport:
    phase = PhaseReport("fast", recoveries=rows)
    return AgentReport("r1", "p", 1, 1, 0.0, 0.0, (phase,), 0.0, 0.0)


@pytest.mark.parametrize(
    "row",
    [
        Recovery("a b", "again"),
        Recovery("lost", "\x1b[2J"),
        Recovery("lost", "again", lost_s=-1.0),
        Recovery("lost", "again", lost_s=1e12),
        Recovery("lost", "again", step=-1),
        Recovery("lost", "again", times=-1),
        Recovery("lost", "again", why="x" * 301),
        Recovery("lost", "again", changed={"a b": 1}),
        Recovery("lost", "again", changed={"a": "\x1b[2J"}),
        Recovery("lost", "again", changed={"a": [1]}),
        Recovery("lost", "again", changed={f"k{n}": n for n in range(17)}),
    ],
)
def test_what_no_agent_of_ours_would_say_is_no_report(row: Recovery) -> None:
    with pytest.raises(ContractError):
        load_report(dump(report_with((row,))))


def test_more_rows_than_there_can_be_are_no_report() -> None:
    with pytest.raises(ContractError):
        load_report(dump(report_with((Recovery("lost", "again"),) * 33)))


def test_reports_and_leases_of_before_still_open() -> None:
    text = dump(report_with(())).replace(', "recoveries": []', "").replace('"lost_s": 0.0, ', "")
    assert "recoveries" not in text
    assert load_report(text).phases[0].recoveries == ()
    assert load_lease(dump(TRIED_LEASE)) == TRIED_LEASE
    old = dump(ONE).replace(', "settings": {}', "")
    assert "settings" not in old
    assert load_lease(old) == ONE


@pytest.mark.parametrize(
    "text",
    [
        "[]", "no", '{"steps": 1}', '{"batch": 0}', '{"batch": true}', '{"batch": 2.0}',
        '{"rate": 2.0}', '{"rate": 0.0}', '{"rate": 1}', '{"compile": 0}', '{"preset": "extreme"}',
        '{"loader_workers": 4}', '{"loader_workers": false}', '{"rate": NaN}',
    ],
)  # fmt: skip
def test_overrides_that_no_rung_gives_are_refused(text: str) -> None:
    with pytest.raises(ContractError):
        read_overrides(text)


@given(
    st.integers(1, 4096), st.integers(1, 64), st.booleans(), st.booleans(), st.integers(0, 8),
    st.sampled_from(["moderate", "aggressive", "extreme"]),
    st.sampled_from(["out_of_memory", "non_finite", "diverged"]),
)  # fmt: skip
def test_every_override_can_be_read_and_keeps_the_batch(
    batch: int, accumulation: int, kept: bool, compiled: bool, workers: int, preset: str,
    outcome: str,
) -> None:  # fmt: skip
    own = {
        "batch": batch, "accumulation": accumulation, "activation_checkpointing": kept,
        "compile": compiled, "loader_workers": workers, "preset": preset,
    }  # fmt: skip
    for _, overrides in tries(outcome, **own):
        assert read_overrides(dump(overrides)) == overrides
        now = {**own, **overrides}
        assert now["batch"] * now["accumulation"] == batch * accumulation


# -- A micro-batch that climbs: by which names, how far, when, and what comes of it -------------


CLIMBING_OWN: dict[str, Any] = {
    "batch": 8, "accumulation": 12, "activation_checkpointing": False, "compile": True,
    "loader_workers": 2, CLIMBS: True,
}  # fmt: skip
AGGRESSIVE = Recovery(SPARE, "aggressive", changed={"batch": 12, "accumulation": 8})
CLIMBING_EXTREME = Recovery(SPARE, "extreme", changed={"batch": 16, "accumulation": 6})
LONG = replace(BEAT, step=5, steps=100_000, landing_seconds=20.0)
CLIMBER: Lease = replace(ONE, phases=(replace(ONE.phases[0], settings=CLIMBING_OWN),))


def watching(beat: Any = LONG, phase: Any = RUNNING, lease: Lease = CLIMBER, **seen: Any) -> Act:
    seen = {"memory_share": 0.4, "soft_left_s": 90_000.0, "hard_left_s": 91_000.0, **seen}
    return supervise(lease, (phase,), view(heartbeat=beat, **seen))


# -- which level ---------------------------------------------------------------------------------


def test_levels_are_climbed_in_order_and_each_once() -> None:
    assert next_level(CLIMBING_OWN, (), 0.4) == "aggressive"
    assert climb_settings(CLIMBING_OWN, (), "aggressive") == AGGRESSIVE.changed
    assert next_level(CLIMBING_OWN, (AGGRESSIVE,), 0.5) == "extreme"
    assert climb_settings(CLIMBING_OWN, (AGGRESSIVE,), "extreme") == CLIMBING_EXTREME.changed
    assert next_level(CLIMBING_OWN, (AGGRESSIVE, CLIMBING_EXTREME), 0.1) == ""
    shrunk = Recovery("out_of_memory", "batch", changed={"batch": 6, "accumulation": 16})
    for recoveries in ((AGGRESSIVE,), (AGGRESSIVE, shrunk)):
        assert climb_settings(CLIMBING_OWN, recoveries, "aggressive") == {}
    assert climb_settings(CLIMBING_OWN, (), "boundless") == {}


@pytest.mark.parametrize(
    ("share", "level"),
    [
        (None, ""), (80 / 141, ""), (0.5202, ""), (110 / 141 * 8 / 12, "aggressive"),
        (0.0, "aggressive"),
    ],
)  # fmt: skip
def test_no_level_fills_more_than_the_guide_has_it_fill(share: float | None, level: str) -> None:
    assert next_level(CLIMBING_OWN, (), share) == level


def test_a_level_without_a_batch_that_divides_is_passed_over() -> None:
    power = {**CLIMBING_OWN, "batch": 32, "accumulation": 4}
    assert climb_settings(power, (), "aggressive") == {}
    assert next_level(power, (), 0.4) == "extreme"
    assert climb_settings(power, (), "extreme") == {"batch": 64, "accumulation": 2}
    assert next_level(power, (), 0.4609) == "extreme"
    assert next_level(power, (), 0.4611) == "", "twice that is more than an extreme batch fills"
    odd = {**CLIMBING_OWN, "batch": 9, "accumulation": 8}
    assert climb_settings(odd, (), "aggressive") == {"batch": 12, "accumulation": 6}


def test_from_eighty_of_141_gb_on_nothing_is_to_spare() -> None:
    quarter = {**CLIMBING_OWN, "accumulation": 5}
    assert climb_settings(quarter, (), "aggressive") == {"batch": 10, "accumulation": 4}
    assert next_level(quarter, (), 80 / 141) == ""
    assert next_level(quarter, (), 80 / 141 - 0.0005) == "aggressive"


@pytest.mark.parametrize(
    "changed", [{CLIMBS: False}, {"batch": 96, "accumulation": 1}, {"accumulation": 1, "batch": 7}]
)
def test_what_the_user_set_and_what_is_one_pass_already_stays(changed: dict[str, Any]) -> None:
    assert next_level({**CLIMBING_OWN, **changed}, (), 0.2) == ""
    bare = {key: value for key, value in CLIMBING_OWN.items() if key != "compile"}
    assert next_level(bare, (), 0.2) == "", "a lease that names less lets nothing be changed"


def test_nothing_climbs_where_anything_went_wrong() -> None:
    assert next_level(CLIMBING_OWN, (Recovery("unsound", SKIPPED),), 0.4) == "aggressive"
    for row in (
        Recovery("out_of_memory", "batch", changed={"batch": 4, "accumulation": 24}),
        Recovery("crashed", AGAIN),
        Recovery("non_finite", "rate", changed={"rate": 0.5}),
    ):
        assert next_level(CLIMBING_OWN, (row,), 0.4) == ""


@given(st.integers(1, 300), st.integers(1, 64), st.floats(0.0, 1.0))
def test_a_step_keeps_its_sequences_and_memory(batch: int, accumulation: int, share: float) -> None:
    own = {**CLIMBING_OWN, "batch": batch, "accumulation": accumulation}
    name = next_level(own, (), share)
    if not name:
        return
    made = climb_settings(own, (), name)
    assert made["batch"] * made["accumulation"] == batch * accumulation
    level = next(each for each in LEVELS if each.name == name)
    assert batch < made["batch"] <= level.factor * batch
    assert share * made["batch"] / batch <= level.fills


# -- when ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "landing_s"),
    [
        ({"startup": 20.0, "compile": 40.0, "training": 9.0}, 20.0),
        ({"startup": 60.0}, 20.0),
        ({"compile": 80.0}, None),
    ],
)
def test_it_is_worth_twice_what_landing_and_starting_take(
    seconds: dict[str, float], landing_s: float | None
) -> None:
    """80 s, of which twice is a hundredth of 16,000 s: 8,000 steps."""
    beat = replace(BEAT, step=1000, steps=9_001, step_seconds=2.0, seconds=seconds)
    beat = replace(beat, landing_seconds=landing_s)
    assert is_worth_it(beat, 1e9)
    assert not is_worth_it(replace(beat, steps=9_000), 1e9)
    assert not is_worth_it(beat, 16_000.0), "the soft stop comes before its last step"
    assert not is_worth_it(replace(beat, cooldown_from=0), 1e9)
    assert not is_worth_it(replace(beat, step_seconds=None), 1e9)


def test_a_start_takes_a_minute_whatever_was_measured_of_it() -> None:
    quick = replace(BEAT, step=0, steps=12_001, step_seconds=1.0, landing_seconds=None)
    assert is_worth_it(quick, 1e9)
    assert not is_worth_it(replace(quick, steps=12_000), 1e9)


def test_a_trainer_with_memory_to_spare_is_told_and_no_other() -> None:
    assert watching() == ClimbTrainer("aggressive")
    assert watching(memory_share=None) == Wait()
    assert watching(memory_share=0.6) == Wait()
    assert watching(replace(LONG, state="evaluating")) == Wait()
    assert watching(replace(LONG, steps=500)) == Wait()
    assert watching(told_to_land_s=3.0) == Wait()
    assert watching(share_left_s=500.0) == Wait(), "its phase ends before its steps do"
    assert watching(lease=replace(CLIMBER, max_restarts=-1)) == Wait(), "one of several machines"
    assert isinstance(watching(land_ordered=True), LandTrainer)


def test_to_climb_is_no_restart_that_could_be_forbidden() -> None:
    assert watching(lease=replace(CLIMBER, max_restarts=0)) == ClimbTrainer("aggressive")


def test_a_trainer_that_no_longer_pays_does_not_climb() -> None:
    share = replace(CLIMBER.phases[0], stop=StopRules(patience=3))
    curve = Curve(step=100, slope=-1e-6, scatter=0.0, steps_per_hour=1000.0, since_best=3)
    done = watching(replace(LONG, curve=curve), lease=replace(CLIMBER, phases=(share,)))
    assert isinstance(done, FinishTrainer)
    assert watching(phase=replace(RUNNING, stopping="it buys nothing")) == Wait()


def test_what_was_decided_holds_for_an_agent_that_is_started_anew() -> None:
    decided = replace(RUNNING, climbing="aggressive")
    assert watching(phase=decided, memory_share=None) == ClimbTrainer("aggressive")
    report = AgentReport("r1", "p", 1, 7, 0.0, 0.0, (decided,), 1.0, 2.0)
    assert load_report(dump(report)).phases[0].climbing == "aggressive"


# -- what comes of it ----------------------------------------------------------------------------


def test_once_landed_it_goes_on_with_the_larger_batch() -> None:
    report = ended("landed_signal", climbing="aggressive", step=40, lost_s=2.5)
    act = after(report, CLIMBER)
    assert act == StartPhase("fast", 2, {"batch": 12, "accumulation": 8})
    again = start_attempt(CLIMBER, report, 2, 50.0)
    assert again.climbing is None
    [row] = again.recoveries
    assert (row.what, row.rung, row.step, row.lost_steps) == (SPARE, "aggressive", 40, 0)
    assert row.changed == AGGRESSIVE.changed


def test_an_order_or_too_little_time_ends_it_all_the_same() -> None:
    report = ended("landed_signal", climbing="aggressive")
    act = after(report, CLIMBER, land_ordered=True, land_reason="asked to")
    assert act == EndPod("stopped", "asked to")
    short = after(report, CLIMBER, soft_left_s=10.0)
    assert isinstance(short, EndPod)
    assert short.result == "landed"
    plain = after(ended("landed_signal"), CLIMBER)
    assert plain == EndPod("landed", "asked to stop")


def test_one_that_landed_by_order_was_stopped_however_late_it_is_looked_at() -> None:
    """It had decided to climb, and has landed: the hard stop has cut nothing short."""
    late = {"land_ordered": True, "land_reason": "asked to", "hard_left_s": -1.0}
    report = ended("landed_signal", climbing="aggressive")
    assert after(report, CLIMBER, **late) == EndPod("stopped", "asked to")


def test_one_that_came_to_its_end_meanwhile_has_finished() -> None:
    report = ended("finished", climbing="aggressive")
    assert supervise(CLIMBER, (report,), view()) == EndPod("finished", "")


def test_memory_that_runs_out_after_a_climb_takes_it_back() -> None:
    report = ended("out_of_memory", recoveries=(AGGRESSIVE,), fruitless=1)
    act = after(report, CLIMBER)
    assert act == StartPhase("fast", 2, {"batch": 6, "accumulation": 16})
    shrunk = start_attempt(CLIMBER, report, 2, 50.0)
    assert next_level(CLIMBING_OWN, shrunk.recoveries, 0.1) == ""


# -- What the next dollar buys, and when a training is told that it no longer pays --------------


RECORDED = Path(__file__).parent / "metrics"
STEPS = tuple(range(100, 2001, 100))
HOURLY = 3600.0
"""A step a second."""


def falling(slope: float = -0.3) -> list[tuple[int, float]]:
    return [(step, 4.0 + slope * math.log(step)) for step in STEPS]


def curve_of(points: list[tuple[int, float]]) -> Curve:
    fitted = present(fit(points))
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
            gain = gain_per_usd(wild, left, rate)
            assert gain is None or math.isfinite(gain)


def test_patience_counts_from_the_best() -> None:
    points = [*falling()[:10], *[(step, 3.0) for step in STEPS[10:14]]]
    assert since_best(points) == 4
    rules, curve = StopRules(patience=4), curve_of(points)
    assert why_stop(rules, curve, 10) == "4 evaluations in a row were not better than the best"
    assert why_stop(replace(rules, patience=5), curve, 10) == ""


def test_without_rules_or_figures_nothing_ends_it() -> None:
    assert why_stop(StopRules(), curve_of(falling(+1.0)), 10) == ""
    assert why_stop(StopRules(1), None, 10) == ""
    assert why_stop(StopRules(1), curve_of([*falling(), (2100, 9.0)]), 0) == ""


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
RULED = replace(LEASE, phases=tuple(replace(p, stop=StopRules(4)) for p in LEASE.phases))
FALLS = curve_of(falling())
SPENT = replace(BEAT, step=2000, steps=9000, curve=replace(FALLS, since_best=4))
WHY = "4 evaluations in a row were not better than the best"


def test_a_training_that_no_longer_pays_is_told_once() -> None:
    assert supervise(RULED, (RUNNING, EXTREME), view(heartbeat=SPENT)) == FinishTrainer(WHY)
    told = view(heartbeat=SPENT, finish_told=True)
    assert supervise(RULED, (RUNNING, EXTREME), told) == Wait()


def test_without_a_rule_it_goes_on() -> None:
    assert supervise(LEASE, (RUNNING, EXTREME), view(heartbeat=SPENT)) == Wait()


def test_one_that_pays_or_cools_down_already_goes_on() -> None:
    for beat in (replace(SPENT, curve=FALLS), replace(SPENT, curve=None)):
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
    pays = replace(SPENT, attempt=2, curve=FALLS)
    assert supervise(RULED, (decided, EXTREME), view(heartbeat=pays)) == FinishTrainer(WHY)


def test_its_end_says_why_and_is_a_clean_one() -> None:
    beat = replace(SPENT, state="ended", outcome="stopped_paying", curve=None)
    closed = close_attempt(replace(RUNNING, stopping=WHY), beat, 9.0)
    assert (closed.outcome, closed.message) == ("stopped_paying", WHY)
    assert closed.state == PhaseState.ENDED
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
    wrong: tuple[Any, ...] = ({"patience": -1}, {"patience": "x"}, [])
    for bad in wrong:
        data["phases"][0]["stop"] = bad
        with pytest.raises(ContractError):
            load_lease(json.dumps(data))


# -- what a lease names of a recipe ---------------------------------------------------------------


def test_a_batch_set_by_hand_does_not_climb() -> None:
    trm = load_recipe("trm-tiny").resolve("fast", hardware="local", gpus=1)
    assert recoverable(trm)[CLIMBS] is True
    assert CLIMBS not in recoverable(trm, ["batch"])
    assert CLIMBS not in recoverable(trm, ["accumulation"])
