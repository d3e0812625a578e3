"""``supervise`` at its edges: the last second, a third phase, causes that meet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.core.phases import (
    BEAT,
    EXTREME,
    FAST,
    LEASE,
    ONE,
    PASSED,
    RUNNING,
    after,
    ended,
    measured,
    view,
    watching,
)
from trmcloud.core.contract.pod_contract import PhaseLease, PhaseReport, PhaseState
from trmcloud.core.contract.supervisor import (
    REPRICED_P90,
    EndPod,
    KillTrainer,
    SaveNow,
    StartPhase,
    Wait,
    repriced_s,
    supervise,
)

# -- the last second ---------------------------------------------------------------------------


def test_until_the_hard_stop_has_come_it_has_not() -> None:
    assert watching(BEAT, hard_left_s=0.5) == Wait()
    assert supervise(ONE, (FAST,), view(hard_left_s=0.5)) == StartPhase("fast", attempt=1)
    assert after(ended("crashed"), hard_left_s=0.5) == StartPhase("fast", attempt=2)


def test_what_crashed_at_the_hard_stop_was_killed_by_it() -> None:
    """And not because nothing more may begin: the message tells them apart."""
    killed = EndPod("killed", "the hard stop came before the trainer had landed")
    assert after(ended("crashed"), hard_left_s=0.0) == killed
    assert after(ended("crashed"), hard_left_s=-0.5) == killed


def test_told_a_moment_ago_it_is_not_told_again_for_the_soft_stop() -> None:
    late = {"soft_left_s": -30.0, "hard_left_s": 70.0}
    assert watching(BEAT, **late, told_to_land_s=5.0) == Wait()


@pytest.mark.parametrize("cause", [{"hard_left_s": -1.0}, {"land_ordered": True}])
def test_what_would_only_happen_again_has_failed_whatever_else_there_is(
    cause: dict[str, Any],
) -> None:
    assert after(ended("non_finite", message="why"), **cause) == EndPod("failed", "why")


def test_a_short_patience_is_kept_where_no_step_was_measured() -> None:
    lease = replace(LEASE, hang_after_s=10.0)
    beat = replace(BEAT, step_seconds=None)
    seen = view(heartbeat=beat, heartbeat_age_s=11.0)
    assert supervise(lease, (RUNNING, EXTREME), seen) == KillTrainer("no step for 11 s")


@pytest.mark.parametrize(("left_s", "said"), [(59.4, "59 s"), (-50.0, "0 s")])
def test_too_little_time_is_said_in_seconds_and_never_below_none(left_s: float, said: str) -> None:
    act = supervise(ONE, (FAST,), view(soft_left_s=left_s))
    assert act == EndPod("next_phase_refused", f"{said} are left, too few to train in")


# -- the phases before -------------------------------------------------------------------------


def test_the_last_phase_that_ended_says_how_the_run_did() -> None:
    phases = (ended("finished", gate=PASSED), replace(ended("landed_deadline"), name="extreme"))
    assert supervise(LEASE, phases, view()) == EndPod("landed", "the budget's soft stop came")


def test_the_first_phase_is_entered_whatever_it_needs() -> None:
    """It was planned to take 900 s; nothing has been measured that would say otherwise."""
    assert supervise(LEASE, (FAST, EXTREME), view(soft_left_s=500.0)) == StartPhase("fast", 1)


def test_what_just_fits_is_entered() -> None:
    needed_s = 1000.0 * REPRICED_P90
    for left_s, enters in ((needed_s, True), (needed_s - 0.5, False)):
        act = after(measured(900.0), LEASE, soft_left_s=left_s, hard_left_s=left_s + 100)
        assert isinstance(act, StartPhase) == enters


def test_a_pace_is_taken_from_phases_that_were_planned_and_have_ended() -> None:
    running = replace(measured(1800.0), state=PhaseState.RUNNING)
    assert repriced_s(LEASE, (running, EXTREME), "extreme") == 1000.0
    third = replace(LEASE, phases=(PhaseLease("warm-up", 0.0, 0.0, 1.0), *LEASE.phases))
    warm_up = replace(measured(1800.0), name="warm-up")
    assert repriced_s(third, (warm_up, measured(900.0), EXTREME), "extreme") == 1000.0


def test_a_short_phase_has_a_pace_too() -> None:
    short = replace(LEASE, phases=(PhaseLease("fast", 0.0, 0.5, 1.0), LEASE.phases[1]))
    report = PhaseReport(
        "fast", state=PhaseState.ENDED, outcome="finished", seconds={"training": 1.0}
    )
    assert repriced_s(short, (report, EXTREME), "extreme") == 2000.0


# -- nothing to train --------------------------------------------------------------------------


def test_a_lease_without_phases_ends_once_the_machine_was_looked_at() -> None:
    bare = replace(LEASE, phases=())
    assert supervise(bare, (), view(waiting="checking")) == Wait()
    assert supervise(bare, (), view(waiting="installing")) == EndPod("finished", "")
    assert supervise(bare, (), view(waiting="files")) == EndPod("finished", "")
    assert supervise(bare, (), view()) == EndPod("finished", "")
    unfit = view(waiting="checking", refusal="1 GPU was rented, 0 found")
    assert supervise(bare, (), unfit) == EndPod("unfit", "1 GPU was rented, 0 found")
    late = view(waiting="checking", hard_left_s=0.0)
    assert supervise(bare, (), late) == EndPod("killed", "the hard stop came")


# -- landing and checking ------------------------------------------------------------------------


def test_a_checkpoint_that_is_owed_is_not_asked_of_one_that_was_just_told_to_land() -> None:
    saves = {"save_owed": True}
    beat = replace(BEAT, saves=0)
    assert watching(beat, **saves) == SaveNow()
    assert watching(beat, **saves, land_ordered=True, told_to_land_s=5.0) == Wait()
    assert watching(beat, **saves, told_to_land_s=5.0) == Wait()


def test_a_trainer_that_was_told_to_land_and_evaluates_has_its_patience() -> None:
    """Landing is reserved 100 s: who evaluates first may take four times that."""
    landing_s = LEASE.landing_s
    lease = replace(LEASE, hang_after_s=10.0)
    for state, age_s, act in (
        ("landing", landing_s + 1, KillTrainer(f"no step for {landing_s + 1:.0f} s")),
        ("evaluating", 4 * landing_s - 1, Wait()),
    ):
        seen = view(
            heartbeat=replace(BEAT, state=state), heartbeat_age_s=age_s,
            land_ordered=True, told_to_land_s=5.0,
        )  # fmt: skip
        assert supervise(lease, (RUNNING, EXTREME), seen) == act


def test_with_every_phase_at_its_end_nothing_is_waited_for() -> None:
    """Whatever the machine was last said to be waiting for."""
    done = replace(ended("finished"), gate=PASSED)
    assert supervise(ONE, (done,), view(waiting="checking")) == EndPod("finished", "")
    assert supervise(ONE, (), view(waiting="checking")) == Wait()
