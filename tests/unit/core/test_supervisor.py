"""`supervise` while a trainer runs, is to be started, or has ended; and at its edges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.core.phases import (
    BEAT,
    EXTREME,
    FAILED,
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
from trmcloud.core.contract.phase_account import close_attempt
from trmcloud.core.contract.pod_contract import PhaseLease, PhaseReport, PhaseState
from trmcloud.core.contract.supervisor import (
    AwaitUploads,
    EndPod,
    JudgeGate,
    KillTrainer,
    LandTrainer,
    SaveNow,
    StartPhase,
    TrainerView,
    Wait,
    repriced_s,
    supervise,
)
from trmcloud.core.contract.trainer_contract import (
    CLEAN,
    OUTCOMES,
    RETRYABLE,
    TRAINER_STATES,
    Heartbeat,
)
from trmcloud.core.errors import Outcome

# -- ``supervise`` while a trainer runs or is to be started, and whatever else it can meet ------


# -- starting ----------------------------------------------------------------------------------


def test_the_first_phase_is_started() -> None:
    assert supervise(LEASE, (FAST, EXTREME), view()) == StartPhase("fast", attempt=1)


def test_a_phase_that_was_begun_elsewhere_counts_on() -> None:
    begun = replace(FAST, attempts=2)
    assert supervise(ONE, (begun,), view()) == StartPhase("fast", attempt=3)


def test_told_to_land_before_anything_runs_nothing_is_started() -> None:
    act = supervise(ONE, (FAST,), view(land_ordered=True, land_reason="enough"))
    assert act == EndPod("stopped", "enough")


# -- watching ----------------------------------------------------------------------------------


@pytest.mark.parametrize("state", TRAINER_STATES)
def test_a_trainer_at_work_is_left_alone(state: str) -> None:
    assert watching(replace(BEAT, state=state), heartbeat_age_s=29.0) == Wait()


def test_a_trainer_that_has_not_spoken_yet_is_given_time() -> None:
    assert watching(None, heartbeat_age_s=899.0) == Wait()
    assert watching(None, heartbeat_age_s=901.0) == KillTrainer("no step for 901 s")


@pytest.mark.parametrize(
    ("state", "step_s", "landing_s", "patience_s"),
    [
        ("training", 1.0, 100.0, 300.0),
        ("training", None, 100.0, 300.0),
        ("training", 60.0, 100.0, 1200.0),
        ("starting", 1.0, 100.0, 900.0),
        ("compiling", 1.0, 100.0, 900.0),
        ("evaluating", 1.0, 100.0, 400.0),
        ("saving", 1.0, 100.0, 400.0),
        ("saving", 1.0, 10.0, 300.0),
        ("landing", 1.0, 500.0, 2000.0),
        ("ended", 60.0, 500.0, 30.0),
    ],
)
def test_a_trainer_that_hangs_is_killed(
    state: str, step_s: float | None, landing_s: float, patience_s: float
) -> None:
    lease = replace(LEASE, landing_s=landing_s)
    beat = replace(BEAT, state=state, step_seconds=step_s)
    for age_s, act in ((patience_s, Wait()), (patience_s + 1, None)):
        seen = view(heartbeat=beat, heartbeat_age_s=age_s)
        done = supervise(lease, (RUNNING, EXTREME), seen)
        assert done == (act or KillTrainer(f"no step for {age_s:.0f} s"))


@pytest.mark.parametrize("order", [{"land_ordered": True}, {"told_to_land_s": 700.0}])
def test_one_that_hangs_in_an_ordered_landing_has_its_time(
    order: dict[str, Any],
) -> None:
    for landing_s, patience_s in ((500.0, 500.0), (100.0, 300.0)):
        lease, beat = replace(LEASE, landing_s=landing_s), replace(BEAT, state="landing")
        seen = view(heartbeat=beat, heartbeat_age_s=patience_s, **order)
        assert supervise(lease, (RUNNING, EXTREME), seen) == Wait()
        late = replace(seen, heartbeat_age_s=patience_s + 1)
        assert isinstance(supervise(lease, (RUNNING, EXTREME), late), KillTrainer)


@pytest.mark.parametrize("state", TRAINER_STATES)
def test_at_the_hard_stop_everything_is_killed(state: str) -> None:
    for left_s in (0.0, -5.0):
        seen: dict[str, Any] = {"hard_left_s": left_s, "soft_left_s": left_s - 100}
        assert watching(replace(BEAT, state=state), **seen) == KillTrainer("hard stop")
        told = {**seen, "land_ordered": True, "told_to_land_s": 1.0}
        assert watching(replace(BEAT, state=state), **told) == KillTrainer("hard stop")


def test_an_order_to_land_is_passed_on_and_repeated_until_it_is_heard() -> None:
    order: dict[str, Any] = {"land_ordered": True, "land_reason": "enough"}
    assert watching(**order) == LandTrainer("enough")
    assert watching(**order, told_to_land_s=0.0) == Wait()
    assert watching(**order, told_to_land_s=14.9) == Wait()
    assert watching(**order, told_to_land_s=15.0) == LandTrainer("enough")
    assert watching(land_ordered=True) == LandTrainer("asked to")


@pytest.mark.parametrize("state", ["landing", "ended"])
def test_a_trainer_that_lands_is_not_told_again(state: str) -> None:
    beat = replace(BEAT, state=state)
    assert watching(beat, land_ordered=True, told_to_land_s=99.0) == Wait()
    assert watching(beat, soft_left_s=-90.0, hard_left_s=10.0) == Wait()


@pytest.mark.parametrize(
    ("left_s", "lands"), [(1.0, False), (0.0, False), (-25.0, False), (-25.1, True)]
)
def test_the_soft_stop_is_the_trainers_own_and_then_the_agents(left_s: float, lands: bool) -> None:
    act = watching(soft_left_s=left_s, hard_left_s=left_s + 100)
    assert act == (LandTrainer("soft stop") if lands else Wait())


# -- whatever comes ----------------------------------------------------------------------------

seconds = st.floats(-5000, 5000)
outcomes = st.sampled_from([None, "lost", *OUTCOMES])
beats = st.none() | st.builds(
    lambda state, outcome: replace(BEAT, state=state, outcome=outcome),
    st.sampled_from(TRAINER_STATES),
    outcomes,
)
reports = st.builds(
    lambda state, outcome, fruitless, saved, gate: PhaseReport(
        "fast", state, outcome=outcome, attempts=1, fruitless=fruitless, saved_step=saved, gate=gate
    ),
    st.sampled_from(PhaseState),
    outcomes,
    st.integers(0, 9),
    st.none() | st.integers(0, 9),
    st.sampled_from([None, PASSED, FAILED]),
)


@settings(max_examples=200)
@given(reports, beats, seconds, seconds, st.floats(0, 1e5), st.booleans(), st.booleans())
def test_past_the_hard_stop_nothing_starts_and_nothing_goes_on(
    fast: PhaseReport,
    beat: Heartbeat | None,
    soft_left_s: float,
    past_s: float,
    age_s: float,
    ordered: bool,
    fits: bool,
) -> None:
    seen = TrainerView(
        heartbeat=beat,
        heartbeat_age_s=age_s,
        soft_left_s=soft_left_s,
        hard_left_s=-abs(past_s),
        land_ordered=ordered,
    )
    act = supervise(replace(LEASE, fits_budget=fits), (fast, EXTREME), seen)
    if fast.state == "running":
        assert act == KillTrainer("hard stop")
    else:
        assert isinstance(act, EndPod)


@settings(max_examples=200)
@given(reports, beats, seconds, st.floats(0, 1e5), st.booleans(), st.booleans())
def test_told_to_land_nothing_new_is_ever_begun(
    fast: PhaseReport,
    beat: Heartbeat | None,
    soft_left_s: float,
    age_s: float,
    ordered: bool,
    fits: bool,
) -> None:
    seen = TrainerView(
        heartbeat=beat,
        heartbeat_age_s=age_s,
        soft_left_s=soft_left_s,
        hard_left_s=soft_left_s + 100,
        land_ordered=ordered,
    )
    act = supervise(replace(LEASE, fits_budget=fits), (fast, EXTREME), seen)
    if isinstance(act, EndPod):
        Outcome(act.result)
    if ordered:
        assert not isinstance(act, StartPhase)
    if isinstance(act, StartPhase):
        assert soft_left_s > LEASE.min_useful_s


# -- uploads -----------------------------------------------------------------------------------
UPLOADS = replace(ONE, uploads=True)


def test_a_result_waits_for_uploads_that_get_on() -> None:
    done = ended("finished")
    assert supervise(UPLOADS, (done,), view(unstored=True, upload_idle_s=99.0)) == AwaitUploads()
    assert supervise(UPLOADS, (done,), view(unstored=False)) == EndPod("finished", "")


def test_a_trainer_at_work_is_left_to_it_whatever_is_to_be_uploaded() -> None:
    busy = view(heartbeat=BEAT, unstored=True)
    assert supervise(UPLOADS, (RUNNING,), busy) == Wait()
    assert (busy.upload_idle_s, busy.age_s) == (0.0, 0.0), "nothing is old before it has begun"


def test_without_a_bucket_no_result_waits() -> None:
    assert supervise(ONE, (ended("finished"),), view(unstored=True)) == EndPod("finished", "")


@pytest.mark.parametrize("late", [{"upload_idle_s": 100.0}, {"hard_left_s": 2.5}])
def test_money_comes_before_an_upload(late: dict[str, float]) -> None:
    """One that stands still for as long as landing may take, and any at the hard stop."""
    act = supervise(UPLOADS, (ended("finished"),), view(unstored=True, **late))
    assert act == EndPod("finished", "not everything could be uploaded")


def test_grants_are_not_waited_for_for_ever() -> None:
    for age_s in (299.5, 300.0):
        assert supervise(UPLOADS, (FAST,), view(waiting="grants", age_s=age_s)) == Wait()
    act = supervise(UPLOADS, (FAST,), view(waiting="grants", age_s=300.6))
    assert act == EndPod("failed", "still grants after 301 s")


def test_files_are_waited_for_as_long_as_the_lease_says_and_time_is_left() -> None:
    patient = replace(ONE, ready_within_s=120.0)
    assert supervise(patient, (FAST,), view(waiting="files", age_s=120.0)) == Wait()
    act = supervise(patient, (FAST,), view(waiting="files", age_s=120.6))
    assert act == EndPod("failed", "still files after 121 s")
    assert supervise(ONE, (FAST,), view(waiting="files", age_s=99_999.0)) == Wait()
    assert supervise(ONE, (FAST,), view(waiting="files", soft_left_s=60.5)) == Wait()
    act = supervise(ONE, (FAST,), view(waiting="files", soft_left_s=60.0))
    assert act == EndPod("failed", "no time was left to train in: files")


def test_an_upload_may_take_all_but_the_last_three_seconds() -> None:
    waits = view(unstored=True, hard_left_s=3.5, upload_idle_s=1.0)
    assert supervise(UPLOADS, (ended("finished"),), waits) == AwaitUploads()
    over = view(unstored=True, hard_left_s=3.0, upload_idle_s=1.0)
    assert isinstance(supervise(UPLOADS, (ended("finished"),), over), EndPod)
    brief = replace(UPLOADS, landing_s=0.5)
    idle = view(unstored=True, upload_idle_s=2.5)
    assert supervise(brief, (ended("finished"),), idle) == AwaitUploads()
    idle = view(unstored=True, upload_idle_s=3.0)
    assert isinstance(supervise(brief, (ended("finished"),), idle), EndPod)


# -- a checkpoint that is asked for ------------------------------------------------------------

CAN = replace(BEAT, saves=0)


def test_a_trainer_that_can_be_asked_is_told_to_save() -> None:
    assert watching(CAN, save_owed=True) == SaveNow()
    assert watching(CAN) == Wait()
    assert watching(BEAT, save_owed=True) == Wait(), "it would die of it"
    assert watching(None, save_owed=True) == Wait()


def test_one_that_lands_is_not_told_to_save() -> None:
    for changes in ({"land_ordered": True, "told_to_land_s": 1.0}, {"told_to_land_s": 1.0}):
        assert watching(CAN, save_owed=True, **changes) == Wait()
    for beat in (replace(CAN, state="landing"), replace(CAN, state="ended", outcome="finished")):
        assert watching(beat, save_owed=True) == Wait()


def test_money_goes_before_a_save() -> None:
    assert isinstance(watching(CAN, save_owed=True, hard_left_s=0.0), KillTrainer)
    soft = watching(CAN, save_owed=True, soft_left_s=-1e4, hard_left_s=1e4)
    assert isinstance(soft, LandTrainer)


# -- ``supervise`` once a trainer has ended: gate, next phase, another attempt ------------------


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
def test_the_last_phases_end_is_the_runs(outcome: str, ordered: bool, result: Outcome) -> None:
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
        (900.0, 1100.0, True),  # as planned: 1000 s at P50, 1100 s at P90
        (900.0, 1099.5, False),
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
    for cause in ({}, {"hard_left_s": -1.0}, {"land_ordered": True}):
        assert after(ended(outcome, message="why"), **cause) == EndPod("failed", "why")
    assert after(ended(outcome), LEASE) == EndPod("failed", outcome)


@pytest.mark.parametrize(("fruitless", "again"), [(0, True), (3, True), (4, False), (9, False)])
def test_restarts_without_progress_have_an_end(fruitless: int, again: bool) -> None:
    act = after(ended("crashed", fruitless=fruitless, attempts=fruitless, message="boom"))
    assert act == (StartPhase("fast", fruitless + 1) if again else EndPod("failed", "boom"))


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


# -- ``supervise`` at its edges: the last second, a third phase, causes that meet ---------------


# -- the last second ---------------------------------------------------------------------------


def test_until_the_hard_stop_has_come_it_has_not() -> None:
    assert watching(BEAT, hard_left_s=0.5) == Wait()
    assert supervise(ONE, (FAST,), view(hard_left_s=0.5)) == StartPhase("fast", attempt=1)
    assert after(ended("crashed"), hard_left_s=0.5) == StartPhase("fast", attempt=2)


def test_told_a_moment_ago_it_is_not_told_again_for_the_soft_stop() -> None:
    late = {"soft_left_s": -30.0, "hard_left_s": 70.0}
    assert watching(BEAT, **late, told_to_land_s=5.0) == Wait()


def test_a_short_patience_is_kept_where_no_step_was_measured() -> None:
    lease = replace(LEASE, hang_after_s=10.0)
    beat = replace(BEAT, step_seconds=None)
    seen = view(heartbeat=beat, heartbeat_age_s=11.0)
    assert supervise(lease, (RUNNING, EXTREME), seen) == KillTrainer("no step for 11 s")


@pytest.mark.parametrize(
    ("left_s", "said"), [(60.0, "60 s"), (59.4, "59 s"), (0.0, "0 s"), (-50.0, "0 s")]
)
def test_too_little_time_is_said_in_seconds_and_never_below_none(left_s: float, said: str) -> None:
    act = supervise(ONE, (FAST,), view(soft_left_s=left_s))
    assert act == EndPod("next_phase_refused", f"{said} are left, too few to train in")


# -- the phases before -------------------------------------------------------------------------


def test_the_last_phase_that_ended_says_how_the_run_did() -> None:
    phases = (ended("finished", gate=PASSED), replace(ended("landed_deadline"), name="extreme"))
    assert supervise(LEASE, phases, view()) == EndPod("landed", "budget reached")


def test_the_first_phase_is_entered_whatever_it_needs() -> None:
    """It was planned to take 900 s; nothing has been measured that would say otherwise."""
    assert supervise(LEASE, (FAST, EXTREME), view(soft_left_s=500.0)) == StartPhase("fast", 1)


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
