"""``supervise`` once a trainer has ended: gate, next phase, another attempt."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.core.phases import (
    BEAT,
    EXTREME,
    FAILED,
    LEASE,
    PASSED,
    RUNNING,
    after,
    ended,
    measured,
    view,
)
from trmcloud.core.contract.phase_account import close_attempt
from trmcloud.core.contract.pod_contract import PhaseState
from trmcloud.core.contract.supervisor import EndPod, JudgeGate, StartPhase, repriced_s, supervise
from trmcloud.core.contract.trainer_contract import CLEAN, OUTCOMES, RETRYABLE
from trmcloud.core.outcome import Outcome

# -- after a clean end -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "ordered", "result"),
    [
        ("finished", False, Outcome.FINISHED),
        ("finished", True, Outcome.FINISHED),
        ("landed_deadline", False, Outcome.LANDED),
        ("landed_deadline", True, Outcome.LANDED),
        ("landed_signal", False, Outcome.LANDED),
        ("landed_signal", True, Outcome.STOPPED),
    ],
)
def test_how_the_last_phase_ended_is_how_the_run_did(
    outcome: str, ordered: bool, result: Outcome
) -> None:
    act = after(ended(outcome), land_ordered=ordered)
    assert isinstance(act, EndPod)
    assert act.result == result.value
    late = after(ended(outcome), land_ordered=ordered, soft_left_s=-200.0, hard_left_s=-1.0)
    assert late == act, "a clean end stays one, however late it is looked at"


@pytest.mark.parametrize("outcome", ["finished", "landed_deadline"])
def test_between_phases_the_gate_is_judged(outcome: str) -> None:
    assert after(ended(outcome), LEASE) == JudgeGate("fast")
    assert after(ended(outcome, gate=PASSED), LEASE) == StartPhase("extreme", attempt=1)
    act = after(ended(outcome, gate=FAILED), LEASE)
    assert act == EndPod("gate_failed", "the gate after fast failed")


def test_an_order_to_land_between_phases_is_kept() -> None:
    act = after(ended("finished", gate=PASSED), LEASE, land_ordered=True, land_reason="enough")
    assert act == EndPod("stopped", "enough")


def test_landed_by_a_signal_the_next_phase_is_not_begun() -> None:
    for ordered in (True, False):
        act = after(ended("landed_signal"), LEASE, land_ordered=ordered)
        assert isinstance(act, EndPod)


def test_after_the_hard_stop_the_next_phase_is_not_begun() -> None:
    for gate in (None, PASSED):
        act = after(ended("finished", gate=gate), LEASE, hard_left_s=0.0)
        assert act == EndPod("killed", "the hard stop came")


# -- the next phase's price --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("took_s", "left_s", "enters"),
    [
        (900.0, 1101.0, True),  # as planned: 1000 s at P50, 1100 s at P90
        (900.0, 1099.0, False),
        (1800.0, 2199.0, False),  # twice as slow
        (1800.0, 2201.0, True),
        (450.0, 551.0, True),  # twice as fast
    ],
)
def test_the_next_phase_is_entered_if_it_fits_at_the_pace_that_was_measured(
    took_s: float, left_s: float, enters: bool
) -> None:
    act = after(measured(took_s), LEASE, soft_left_s=left_s, hard_left_s=left_s + 100)
    if enters:
        assert act == StartPhase("extreme", attempt=1)
    else:
        assert isinstance(act, EndPod)
        assert act.result == "next_phase_refused"
        assert f"{left_s:.0f} s are left" in act.message


def test_a_plan_that_means_to_be_cut_short_enters_all_the_same() -> None:
    short = replace(LEASE, fits_budget=False)
    left: dict[str, Any] = {"soft_left_s": 61.0, "hard_left_s": 161.0}
    assert after(measured(900.0), short, **left) == StartPhase("extreme", attempt=1)
    left = {"soft_left_s": 60.0, "hard_left_s": 160.0}
    assert isinstance(after(measured(900.0), short, **left), EndPod)


def test_a_next_phase_that_was_begun_before_is_not_priced_again() -> None:
    begun = replace(EXTREME, attempts=1)
    seen = view(soft_left_s=500.0, hard_left_s=600.0)
    assert supervise(LEASE, (measured(900.0), begun), seen) == StartPhase("extreme", attempt=2)


def test_a_pace_is_measured_on_finished_phases_alone() -> None:
    assert repriced_s(LEASE, (measured(1800.0), EXTREME), "extreme") == 2000.0
    landed = replace(measured(1800.0), outcome="landed_deadline")
    assert repriced_s(LEASE, (landed, EXTREME), "extreme") == 1000.0
    assert repriced_s(LEASE, (ended("finished"), EXTREME), "extreme") == 1000.0
    unplanned = replace(LEASE, phases=(replace(LEASE.phases[0], expected_s=0.0), LEASE.phases[1]))
    assert repriced_s(unplanned, (measured(1800.0), EXTREME), "extreme") == 1000.0


# -- after a bad end ---------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["crashed", "lost", None])
def test_what_crashed_is_started_again(outcome: str | None) -> None:
    assert after(ended(outcome)) == StartPhase("fast", attempt=2)
    assert after(ended(outcome), LEASE) == StartPhase("fast", attempt=2)
    assert after(ended(outcome, saved_step=None)) == StartPhase("fast", attempt=2)


@pytest.mark.parametrize("outcome", sorted(set(OUTCOMES) - CLEAN - RETRYABLE))
def test_what_would_only_happen_again_is_not_tried_again(outcome: str) -> None:
    assert after(ended(outcome, message="why")) == EndPod("failed", "why")
    assert after(ended(outcome), LEASE) == EndPod("failed", outcome)


@pytest.mark.parametrize(("fruitless", "again"), [(0, True), (3, True), (4, False), (9, False)])
def test_restarts_without_progress_have_an_end(fruitless: int, again: bool) -> None:
    act = after(ended("crashed", fruitless=fruitless, attempts=fruitless, message="boom"))
    assert act == (StartPhase("fast", fruitless + 1) if again else EndPod("failed", "boom"))


def test_too_late_to_start_again_it_has_landed_on_its_last_checkpoint() -> None:
    late: dict[str, Any] = {"soft_left_s": 60.0, "hard_left_s": 160.0}
    act = after(ended("crashed"), **late)
    assert isinstance(act, EndPod)
    assert act.result == "landed"
    assert "too little time" in act.message


def test_too_late_and_without_a_checkpoint_it_has_failed() -> None:
    late: dict[str, Any] = {"soft_left_s": 60.0, "hard_left_s": 160.0}
    act = after(ended("crashed", saved_step=None, message="boom"), **late)
    assert act == EndPod("failed", "boom")


@pytest.mark.parametrize("saved_step", [None, 5])
@pytest.mark.parametrize("ordered", [False, True])
def test_killed_at_the_hard_stop_it_was_killed(saved_step: int | None, ordered: bool) -> None:
    """And has neither landed nor failed, whatever it saved before."""
    act = after(
        ended("lost", saved_step=saved_step),
        soft_left_s=-101.0,
        hard_left_s=-1.0,
        land_ordered=ordered,
    )
    assert isinstance(act, EndPod)
    assert act.result == "killed"


def test_a_crash_while_told_to_land_is_a_stop() -> None:
    act = after(ended("crashed"), land_ordered=True, land_reason="enough")
    assert act == EndPod("stopped", "enough")


@pytest.mark.parametrize(
    ("cause", "end"),
    [
        (
            {"hard_left_s": 0.0},
            EndPod("killed", "the hard stop came before the trainer had landed"),
        ),
        ({"land_ordered": True, "land_reason": "enough"}, EndPod("stopped", "enough")),
    ],
)
def test_the_hard_stop_and_orders_are_why_one_ended_that_had_no_restart_left(
    cause: dict[str, Any], end: EndPod
) -> None:
    assert after(ended("crashed", fruitless=9, message="boom"), **cause) == end


def test_one_without_an_outcome_is_called_lost() -> None:
    late = after(ended(None), soft_left_s=60.0)
    assert late == EndPod("landed", "lost, and too little time was left to start again")
    assert after(ended(None, fruitless=9)) == EndPod("failed", "lost")


def test_a_trainer_that_crashes_for_ever_is_given_up_and_one_that_gets_on_is_not() -> None:
    for saves, expected in ((False, EndPod("failed", "boom")), (True, StartPhase("fast", 21))):
        report = replace(RUNNING, attempts=1)
        for number in range(1, 21):
            saved = number if saves else None
            beat = replace(BEAT, outcome="crashed", message="boom", saved_step=saved)
            report = close_attempt(report, beat, 50.0)
            act = after(report)
            if not isinstance(act, StartPhase):
                break
            report = replace(report, state=PhaseState.RUNNING, attempts=act.attempt)
        assert act == expected
    assert report.attempts == 21
