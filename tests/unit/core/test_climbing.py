"""A micro-batch that climbs: by which names, how far, when, and what comes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.core.phases import BEAT, ONE, RUNNING, after, ended, view
from trmcloud.core.contract.climbing import CLIMBS, LEVELS, climbed, is_worth_it, next_level
from trmcloud.core.contract.phase_account import started
from trmcloud.core.contract.pod_contract import AgentReport, Lease, dump, load_report
from trmcloud.core.contract.recovery import AGAIN, SKIPPED, SPARE, Recovery
from trmcloud.core.contract.supervisor import (
    Act,
    ClimbTrainer,
    EndPod,
    FinishTrainer,
    LandTrainer,
    StartPhase,
    Wait,
    supervise,
)
from trmcloud.core.contract.worth import Curve, StopRules

OWN: dict[str, Any] = {
    "batch": 8, "accumulation": 12, "activation_checkpointing": False, "compile": True,
    "loader_workers": 2, CLIMBS: True,
}  # fmt: skip
AGGRESSIVE = Recovery(SPARE, "aggressive", changed={"batch": 12, "accumulation": 8})
EXTREME = Recovery(SPARE, "extreme", changed={"batch": 16, "accumulation": 6})
LONG = replace(BEAT, step=5, steps=100_000, landing_seconds=20.0)
LEASE: Lease = replace(ONE, phases=(replace(ONE.phases[0], settings=OWN),))


def watching(beat: Any = LONG, phase: Any = RUNNING, lease: Lease = LEASE, **seen: Any) -> Act:
    seen = {"memory_share": 0.4, "soft_left_s": 90_000.0, "hard_left_s": 91_000.0, **seen}
    return supervise(lease, (phase,), view(heartbeat=beat, **seen))


# -- which level ---------------------------------------------------------------------------------


def test_levels_are_climbed_in_order_and_each_once() -> None:
    assert next_level(OWN, (), 0.4) == "aggressive"
    assert climbed(OWN, (), "aggressive") == AGGRESSIVE.changed
    assert next_level(OWN, (AGGRESSIVE,), 0.5) == "extreme"
    assert climbed(OWN, (AGGRESSIVE,), "extreme") == EXTREME.changed
    assert next_level(OWN, (AGGRESSIVE, EXTREME), 0.1) == ""
    assert climbed(OWN, (AGGRESSIVE,), "aggressive") == {}
    assert climbed(OWN, (), "boundless") == {}


@pytest.mark.parametrize(
    ("share", "level"),
    [(None, ""), (80 / 141, ""), (0.53, ""), (0.52, "aggressive"), (0.0, "aggressive")],
)
def test_no_level_fills_more_than_the_guide_has_it_fill(share: float | None, level: str) -> None:
    assert next_level(OWN, (), share) == level


def test_a_level_without_a_batch_that_divides_is_passed_over() -> None:
    power = {**OWN, "batch": 32, "accumulation": 4}
    assert climbed(power, (), "aggressive") == {}
    assert next_level(power, (), 0.4) == "extreme"
    assert climbed(power, (), "extreme") == {"batch": 64, "accumulation": 2}
    assert next_level(power, (), 0.47) == "", "twice that is more than an extreme batch fills"


@pytest.mark.parametrize(
    "changed", [{CLIMBS: False}, {"batch": 96, "accumulation": 1}, {"accumulation": 1, "batch": 7}]
)
def test_what_the_user_set_and_what_is_one_pass_already_stays(changed: dict[str, Any]) -> None:
    assert next_level({**OWN, **changed}, (), 0.2) == ""
    bare = {key: value for key, value in OWN.items() if key != "compile"}
    assert next_level(bare, (), 0.2) == "", "a lease that names less lets nothing be changed"


def test_nothing_climbs_where_anything_went_wrong() -> None:
    assert next_level(OWN, (Recovery("unsound", SKIPPED),), 0.4) == "aggressive"
    for row in (
        Recovery("out_of_memory", "batch", changed={"batch": 4, "accumulation": 24}),
        Recovery("crashed", AGAIN),
        Recovery("non_finite", "rate", changed={"rate": 0.5}),
    ):
        assert next_level(OWN, (row,), 0.4) == ""


@given(st.integers(1, 300), st.integers(1, 64), st.floats(0.0, 1.0))
def test_a_step_keeps_its_sequences_and_memory_its_bound(
    batch: int, accumulation: int, share: float
) -> None:
    own = {**OWN, "batch": batch, "accumulation": accumulation}
    name = next_level(own, (), share)
    if not name:
        return
    made = climbed(own, (), name)
    assert made["batch"] * made["accumulation"] == batch * accumulation
    level = next(each for each in LEVELS if each.name == name)
    assert batch < made["batch"] <= level.factor * batch
    assert share * made["batch"] / batch <= level.fills


# -- when ----------------------------------------------------------------------------------------


def test_it_is_worth_twice_what_landing_and_starting_take() -> None:
    beat = replace(BEAT, step=0, steps=16_001, step_seconds=1.0, landing_seconds=20.0)
    beat = replace(beat, seconds={"startup": 20.0, "compile": 40.0, "training": 9.0})
    assert is_worth_it(beat, 1e9)
    assert not is_worth_it(replace(beat, steps=16_000), 1e9)
    assert not is_worth_it(beat, 16_000.0), "the soft stop comes before its last step"
    assert not is_worth_it(replace(beat, cooldown_from=0), 1e9)
    assert not is_worth_it(replace(beat, step_seconds=None), 1e9)
    quick = replace(beat, seconds={}, landing_seconds=None, steps=12_000)
    assert not is_worth_it(quick, 1e9), "a start takes a minute, whatever was measured of it"


def test_a_trainer_with_memory_to_spare_is_told_and_no_other() -> None:
    assert watching() == ClimbTrainer("aggressive")
    assert watching(memory_share=None) == Wait()
    assert watching(memory_share=0.6) == Wait()
    assert watching(replace(LONG, state="evaluating")) == Wait()
    assert watching(replace(LONG, steps=500)) == Wait()
    assert watching(told_to_land_s=3.0) == Wait()
    assert watching(share_left_s=500.0) == Wait(), "its phase ends before its steps do"
    assert watching(lease=replace(LEASE, max_restarts=-1)) == Wait(), "one of several machines"
    assert isinstance(watching(land_ordered=True), LandTrainer)


def test_to_climb_is_no_restart_that_could_be_forbidden() -> None:
    assert watching(lease=replace(LEASE, max_restarts=0)) == ClimbTrainer("aggressive")


def test_a_trainer_that_no_longer_pays_does_not_climb() -> None:
    rules = StopRules(gain_per_usd=1.0, usd_per_hour=3.6)
    share = replace(LEASE.phases[0], stop=rules)
    curve = Curve(step=100, slope=-1e-6, scatter=0.0, steps_per_hour=1000.0, since_best=0)
    done = watching(replace(LONG, curve=curve), lease=replace(LEASE, phases=(share,)))
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
    act = after(report, LEASE)
    assert act == StartPhase("fast", 2, {"batch": 12, "accumulation": 8})
    again = started(LEASE, report, 2, 50.0)
    assert again.climbing is None
    [row] = again.recoveries
    assert (row.what, row.rung, row.step, row.lost_steps) == (SPARE, "aggressive", 40, 0)
    assert row.changed == AGGRESSIVE.changed


def test_an_order_or_too_little_time_ends_it_all_the_same() -> None:
    report = ended("landed_signal", climbing="aggressive")
    act = after(report, LEASE, land_ordered=True, land_reason="asked to")
    assert act == EndPod("stopped", "asked to")
    short = after(report, LEASE, soft_left_s=10.0)
    assert isinstance(short, EndPod)
    assert short.result == "landed"
    plain = after(ended("landed_signal"), LEASE)
    assert plain == EndPod("landed", "told to land")


def test_one_that_landed_by_order_was_stopped_however_late_it_is_looked_at() -> None:
    """It had decided to climb, and has landed: the hard stop has cut nothing short."""
    late = {"land_ordered": True, "land_reason": "asked to", "hard_left_s": -1.0}
    report = ended("landed_signal", climbing="aggressive")
    assert after(report, LEASE, **late) == EndPod("stopped", "asked to")


def test_one_that_came_to_its_end_meanwhile_has_finished() -> None:
    report = ended("finished", climbing="aggressive")
    assert supervise(LEASE, (report,), view()) == EndPod("finished", "")


def test_memory_that_runs_out_after_a_climb_takes_it_back() -> None:
    report = ended("out_of_memory", recoveries=(AGGRESSIVE,), fruitless=1)
    act = after(report, LEASE)
    assert act == StartPhase("fast", 2, {"batch": 6, "accumulation": 16})
    shrunk = started(LEASE, report, 2, 50.0)
    assert next_level(OWN, shrunk.recoveries, 0.1) == ""


# -- the last rungs ------------------------------------------------------------------------------


def test_depth_and_sequence_are_cut_last_and_only_while_nothing_is_saved() -> None:
    least = {**OWN, "batch": 1, "activation_checkpointing": True, "compile": False,
             "loader_workers": 0}  # fmt: skip
    asked = {**least, "depth": 12, "sequence": 1024}

    def tried(settings: dict[str, Any], saved_step: int | None) -> list[dict[str, Any]]:
        lease = replace(LEASE, phases=(replace(LEASE.phases[0], settings=settings),))
        report, made = ended("out_of_memory", fruitless=1, saved_step=saved_step), []
        while isinstance(act := after(report, lease), StartPhase):
            made.append(dict(act.overrides))
            begun = started(lease, report, act.attempt, 50.0)
            report = replace(report, attempts=act.attempt, recoveries=begun.recoveries)
        return made

    assert tried(least, None) == []
    assert tried(asked, 5) == [], "a checkpoint of another model could not be gone on from"
    shorter = {"depth": 8, "sequence": 512, "accumulation": 24}
    assert tried(asked, None) == [{"depth": 8}, shorter]
    assert tried({**least, "depth": 1, "sequence": 33}, None) == []
