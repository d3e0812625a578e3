"""``supervise``: what the agent does next, in every situation it can meet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trmcloud.core.outcome import Outcome
from trmcloud.core.pod_contract import (
    CLEAN,
    OUTCOMES,
    RETRYABLE,
    TRAINER_STATES,
    Heartbeat,
    Lease,
    PhaseLease,
    PhaseReport,
)
from trmcloud.core.supervisor import (
    Act,
    AwaitUploads,
    EndPod,
    JudgeGate,
    KillTrainer,
    LandTrainer,
    StartPhase,
    TrainerView,
    Wait,
    close_attempt,
    repriced_s,
    supervise,
)

LEASE = Lease(
    run_id="r1",
    pod_name="trmc-abcd1234-r1-g1-1790003000",
    epoch=1,
    granted_at=0.0,
    soft_stop_at=2900.0,
    hard_stop_at=3000.0,
    landing_s=100.0,
    phases=(PhaseLease("fast", 0.0, 900.0, 1e15), PhaseLease("extreme", 0.0, 1000.0, 1e15)),
    fits_budget=True,
    min_useful_s=60.0,
    hang_after_s=300.0,
    max_restarts=3,
)
ONE = replace(LEASE, phases=LEASE.phases[:1])
BEAT = Heartbeat("r1", "fast", 1, 77, "boot-1", 100.0, "training", 5, 90, step_seconds=1.0)
FAST, EXTREME = PhaseReport("fast"), PhaseReport("extreme")
RUNNING = PhaseReport("fast", state="running", attempts=1)
PASSED, FAILED = {"passed": True}, {"passed": False}


def view(**changes: Any) -> TrainerView:
    seen = TrainerView(
        running=False,
        heartbeat=None,
        heartbeat_age_s=0.0,
        soft_left_s=2000.0,
        hard_left_s=2100.0,
    )
    return replace(seen, **changes)


def watching(beat: Heartbeat | None = BEAT, **changes: Any) -> Act:
    """What is done about a trainer that runs."""
    return supervise(LEASE, (RUNNING, EXTREME), view(running=True, heartbeat=beat, **changes))


def ended(outcome: str | None, **changes: Any) -> PhaseReport:
    report = PhaseReport("fast", state="ended", outcome=outcome, attempts=1, saved_step=5)
    return replace(report, **changes)


def after(report: PhaseReport, lease: Lease = ONE, **changes: Any) -> Act:
    """What follows once the only process is gone; ``LEASE`` has a second phase waiting."""
    phases = (report, EXTREME) if lease is not ONE else (report,)
    return supervise(lease, phases, view(**changes))


# -- starting ----------------------------------------------------------------------------------


def test_the_first_phase_is_started() -> None:
    assert supervise(LEASE, (FAST, EXTREME), view()) == StartPhase("fast", attempt=1)


def test_a_phase_that_was_begun_elsewhere_counts_on() -> None:
    begun = replace(FAST, attempts=2)
    assert supervise(ONE, (begun,), view()) == StartPhase("fast", attempt=3)


def test_where_nothing_is_left_to_do_the_pod_ends() -> None:
    assert supervise(replace(LEASE, phases=()), (), view()) == EndPod("finished", "")


@pytest.mark.parametrize("left_s", [60.0, 59.0, 0.0, -50.0])
def test_too_little_time_to_train_in_starts_nothing(left_s: float) -> None:
    act = supervise(ONE, (FAST,), view(soft_left_s=left_s, hard_left_s=left_s + 100))
    assert isinstance(act, EndPod)
    assert act.result == Outcome.NEXT_PHASE_REFUSED.value


def test_after_the_hard_stop_nothing_is_started() -> None:
    act = supervise(ONE, (FAST,), view(soft_left_s=500.0, hard_left_s=0.0))
    assert act == EndPod("killed", "the hard stop came")


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
        seen = view(running=True, heartbeat=beat, heartbeat_age_s=age_s)
        done = supervise(lease, (RUNNING, EXTREME), seen)
        assert done == (act or KillTrainer(f"no step for {age_s:.0f} s"))


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


@pytest.mark.parametrize("gate", [{}, {"passed": None}, {"passed": 0}])
def test_a_gate_without_a_verdict_has_not_passed(gate: dict[str, Any]) -> None:
    act = after(ended("finished", gate=gate), LEASE)
    assert isinstance(act, EndPod)
    assert act.result == "gate_failed"


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


def measured(seconds: float) -> PhaseReport:
    return ended("finished", gate=PASSED, seconds={"training": seconds - 10, "saving": 10.0})


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


# -- an attempt's account ----------------------------------------------------------------------


def test_a_process_that_said_nothing_is_lost() -> None:
    closed = close_attempt(RUNNING, None, 50.0)
    assert (closed.state, closed.outcome, closed.ended_at, closed.fruitless) == (
        "ended",
        "lost",
        50.0,
        1,
    )


@pytest.mark.parametrize("outcome", [None, "finished", "non_finite"])
def test_the_last_heartbeat_says_how_it_ended(outcome: str | None) -> None:
    beat = replace(BEAT, outcome=outcome, message="why", val_bpb=1.5, saved_step=4)
    closed = close_attempt(RUNNING, beat, 50.0)
    assert closed.outcome == (outcome or "lost")
    assert (closed.step, closed.val_bpb, closed.message, closed.saved_step) == (5, 1.5, "why", 4)


@pytest.mark.parametrize(
    ("before", "saved", "fruitless"),
    [(None, 4, 0), (4, 5, 0), (4, 4, 3), (4, 3, 3), (None, None, 3), (4, None, 3)],
)
def test_only_a_newer_checkpoint_is_progress(
    before: int | None, saved: int | None, fruitless: int
) -> None:
    report = replace(RUNNING, saved_step=before, fruitless=2)
    closed = close_attempt(report, replace(BEAT, saved_step=saved), 50.0)
    assert closed.fruitless == fruitless
    assert closed.saved_step == (saved if saved is not None else before)


def test_seconds_add_up_over_attempts() -> None:
    report = replace(RUNNING, seconds={"training": 5.0, "compiling": 2.0})
    beat = replace(BEAT, seconds={"training": 3.0, "saving": 1.0})
    closed = close_attempt(report, beat, 50.0)
    assert closed.seconds == {"training": 8.0, "compiling": 2.0, "saving": 1.0}


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
            report = replace(report, state="running", attempts=act.attempt)
        assert act == expected
    assert report.attempts == 21


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
    st.sampled_from(["waiting", "running", "ended"]),
    outcomes,
    st.integers(0, 9),
    st.none() | st.integers(0, 9),
    st.sampled_from([None, PASSED, FAILED]),
)


@settings(max_examples=200)
@given(
    reports, st.booleans(), beats, seconds, seconds, st.floats(0, 1e5), st.booleans(), st.booleans()
)
def test_past_the_hard_stop_nothing_starts_and_nothing_goes_on(
    fast: PhaseReport,
    running: bool,
    beat: Heartbeat | None,
    soft_left_s: float,
    past_s: float,
    age_s: float,
    ordered: bool,
    fits: bool,
) -> None:
    seen = TrainerView(
        running=running,
        heartbeat=beat,
        heartbeat_age_s=age_s,
        soft_left_s=soft_left_s,
        hard_left_s=-abs(past_s),
        land_ordered=ordered,
    )
    act = supervise(replace(LEASE, fits_budget=fits), (fast, EXTREME), seen)
    if fast.state == "running" and running:
        assert act == KillTrainer("hard stop")
    else:
        assert isinstance(act, EndPod)


@settings(max_examples=200)
@given(reports, st.booleans(), beats, seconds, st.floats(0, 1e5), st.booleans(), st.booleans())
def test_told_to_land_nothing_new_is_ever_begun(
    fast: PhaseReport,
    running: bool,
    beat: Heartbeat | None,
    soft_left_s: float,
    age_s: float,
    ordered: bool,
    fits: bool,
) -> None:
    seen = TrainerView(
        running=running,
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


def test_without_a_bucket_no_result_waits() -> None:
    assert supervise(ONE, (ended("finished"),), view(unstored=True)) == EndPod("finished", "")


@pytest.mark.parametrize("late", [{"upload_idle_s": 100.0}, {"hard_left_s": 2.5}])
def test_money_comes_before_an_upload(late: dict[str, float]) -> None:
    """One that stands still for as long as landing may take, and any at the hard stop."""
    act = supervise(UPLOADS, (ended("finished"),), view(unstored=True, **late))
    assert act == EndPod("finished", "not everything could be uploaded")


def test_grants_are_not_waited_for_for_ever() -> None:
    assert supervise(UPLOADS, (FAST,), view(waiting="grants", age_s=299.0)) == Wait()
    act = supervise(UPLOADS, (FAST,), view(waiting="grants", age_s=301.0))
    assert act == EndPod("failed", "still grants after 301 s")
