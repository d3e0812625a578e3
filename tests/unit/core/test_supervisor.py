"""``supervise`` while a trainer runs or is to be started, and whatever else it can meet."""

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
    ended,
    view,
    watching,
)
from trmcloud.core.contract.pod_contract import PhaseReport, PhaseState
from trmcloud.core.contract.supervisor import (
    AwaitUploads,
    EndPod,
    KillTrainer,
    LandTrainer,
    SaveNow,
    StartPhase,
    TrainerView,
    Wait,
    supervise,
)
from trmcloud.core.contract.trainer_contract import OUTCOMES, TRAINER_STATES, Heartbeat
from trmcloud.core.outcome import Outcome

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
        seen = view(heartbeat=beat, heartbeat_age_s=age_s)
        done = supervise(lease, (RUNNING, EXTREME), seen)
        assert done == (act or KillTrainer(f"no step for {age_s:.0f} s"))


@pytest.mark.parametrize("order", [{"land_ordered": True}, {"told_to_land_s": 700.0}])
def test_one_that_hangs_in_an_ordered_landing_has_what_landing_was_given(
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
