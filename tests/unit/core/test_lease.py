"""The lease and its clocks: what an agent may do, until when, and who accepts what could be
spent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plans import a_generation, recorded
from tests.settings import settings_of
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.core.catalog.providers import TRAITS
from trmcloud.core.clock import Anchor, Instant
from trmcloud.core.contract.command import Command
from trmcloud.core.contract.gate import StopRules
from trmcloud.core.contract.pod_contract import Lease, PhaseLease, load_lease
from trmcloud.core.contract.records import dump
from trmcloud.core.control import events as ev
from trmcloud.core.control.budget import (
    VERIFIED_FOR_S,
    UnacceptedExposure,
    exposure_of,
    unaccepted_exposure,
)
from trmcloud.core.control.renting import make_lease, phases_to_run
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import UsageError
from trmcloud.core.money import Usd
from trmcloud.core.spec.plan import Candidate, Interval, PhasePlan

# -- The lease: what a generation's agent may do, and until when --------------------------------


AT = 1_790_000_000.0
SOFT, HARD = AT + 2900.0, AT + 3000.0


def always(seconds: float) -> Interval:
    return Interval(seconds, seconds, seconds)


def phase(
    name: str, p50: float, p90: float, *, step_s: float = 1.0, compile_s: float | None = None
) -> PhasePlan:
    parts = {"training": p50} if compile_s is None else {"compile": compile_s}
    return PhasePlan(
        name=name,
        settings=settings_of("trm", name, preset="extreme"),
        tokens=1,
        flops=7e15 if name == "fast" else 9e15,
        step_s=Interval(step_s / 2, step_s, step_s * 2),
        seconds=Interval(p50 / 2, p50, p90),
        parts_s=parts,
    )


FAST, EXTREME = phase("fast", 800.0, 900.0), phase("extreme", 1000.0, 1200.0)


def candidate(*phases: PhasePlan, **changes: Any) -> Candidate:
    fields: dict[str, Any] = {
        "id": "first", "hardware": "x", "sku": "X", "gpus": 1, "provider": "runpod",
        "region": "any", "rate": Usd(1), "spot": False, "priced_at": AT, "source": "test",
        "startup_s": Interval(50.0, 100.0, 300.0), "phases": phases, "hours": always(1.0),
        "cost_p10": Usd(1), "cost_p50": Usd(1), "cost_p90": Usd(1), "memory_need_gb": 1.0,
        "memory_gb": 2.0, "fits_memory": True, "within_budget": True, "soft_stop_s": 1.0,
        "hard_stop_s": 2.0, "landing_s": 3.0, "worst_case": Usd(1), "reasons": (),
    }  # fmt: skip
    return Candidate(**(fields | changes))


GENERATION = a_generation(
    candidate_id="first", soft_stop_at=SOFT, hard_stop_at=HARD, intended_at=AT - 7
)


def lease(*phases: PhasePlan, run: RunState | None = None, **changes: Any) -> Lease:
    made = candidate(*(phases or (FAST, EXTREME)), **changes)
    return make_lease(
        run or RunState("r1"),
        made,
        GENERATION,
        epoch=4,
        granted_at=AT,
    )


RECOVERABLE = {
    "batch": 32, "accumulation": 1, "activation_checkpointing": False, "compile": True,
    "loader_workers": 1, "preset": "extreme", "climbs": True,
}  # fmt: skip


def allowed_s(made: Lease) -> list[float]:
    return [part.allowed_s for part in made.phases]


def test_it_carries_the_stops_that_were_intended_and_nothing_of_the_plans_own() -> None:
    made = lease()
    assert (made.run_id, made.pod_name, made.epoch) == ("r1", GENERATION.pod_name, 4)
    assert (made.granted_at, made.soft_stop_at, made.hard_stop_at) == (AT, SOFT, HARD)
    assert made.landing_s == 100.0


def test_each_phase_brings_what_it_was_planned_to_take() -> None:
    assert lease().phases == (
        PhaseLease("fast", 1600.0, 800.0, 7e15, RECOVERABLE),
        PhaseLease("extreme", 0.0, 1000.0, 9e15, RECOVERABLE),
    )


def test_a_pod_reads_the_lease_of_several_machines_as_it_was_written() -> None:
    """One that it cannot read ends it at once."""
    made = lease(nodes=2)
    assert made.max_restarts == -1
    assert load_lease(dump(made)) == made


def test_what_failed_on_one_of_several_machines_is_not_started_again_there() -> None:
    assert lease().max_restarts == Lease.max_restarts > 0
    assert lease(nodes=2).max_restarts == -1


# -- who gets how much of the time: 2800 s are left after startup ------------------------------


def test_the_last_phase_has_all_that_is_left() -> None:
    assert allowed_s(lease(FAST)) == [0.0]
    assert allowed_s(lease()) == [1600.0, 0.0]
    assert allowed_s(lease(FAST, EXTREME, phase("third", 1.0, 1.0))) == [1599.0, 2799.0, 0.0]


def test_the_first_may_take_what_the_second_leaves_where_that_is_more() -> None:
    """2800 s, less 1200 s for the second: 1600 s, beside 1.5 × 900 s."""
    assert allowed_s(lease())[0] == 1600.0


def test_the_first_has_half_as_much_again_where_little_is_left() -> None:
    long = phase("fast", 1400.0, 1500.0)
    assert allowed_s(lease(long, EXTREME))[0] == 2250.0


@pytest.mark.parametrize(
    ("p90_s", "fits", "allowed"),
    [
        (1600.0, True, 2400.0),
        (1600.5, False, 2800 * 800 / 1800),
        (9999.0, False, 2800 * 800 / 1800),
    ],
)
def test_where_not_both_fit_each_gets_its_share(p90_s: float, fits: bool, allowed: float) -> None:
    made = lease(phase("fast", 800.0, p90_s), EXTREME)
    assert made.fits_budget is fits
    assert allowed_s(made) == [pytest.approx(allowed), 0.0]


def test_a_plan_beyond_its_budget_shares_the_time_too() -> None:
    made = lease(within_budget=False)
    assert made.fits_budget is False
    assert allowed_s(made) == [pytest.approx(2800 * 800 / 1800), 0.0]


@pytest.mark.parametrize(
    ("p90_s", "allowed"),
    [(900.0, 1350.0), (1600.0, 2800.0 - 500.0), (400.0, 2800 * 800 / 1800)],
)
def test_where_the_last_phase_fills_the_time_the_first_need_not_end_by_its_share(
    p90_s: float, allowed: float
) -> None:
    """It has half as much again as its P90, and leaves the last one half of its P50."""
    run = RunState("r1", recorded_plan=recorded(fill=True))
    made = lease(phase("fast", 800.0, p90_s), EXTREME, run=run, within_budget=False)
    assert not made.fits_budget
    assert allowed_s(made) == [pytest.approx(allowed), 0.0]


# -- what is left to do ------------------------------------------------------------------------


def ended(name: str, outcome: str) -> ev.PhaseEnded:
    return ev.PhaseEnded(1, name, outcome, 5, 1.0, {})


def test_a_phase_that_finished_is_not_run_again_and_one_that_landed_is() -> None:
    both = candidate(FAST, EXTREME)
    for outcome, left in (("finished", [EXTREME]), ("landed_deadline", [FAST, EXTREME])):
        run = RunState("r1", phases={"fast": ended("fast", outcome)})
        assert list(phases_to_run(run, both)) == left
        assert [part.name for part in lease(run=run).phases] == [p.name for p in left]


def test_the_rest_of_a_run_has_all_the_time() -> None:
    run = RunState("r1", phases={"fast": ended("fast", "finished")})
    assert allowed_s(lease(run=run)) == [0.0]


def test_nothing_left_to_do_is_a_lease_without_phases() -> None:
    run = RunState("r1", phases={name: ended(name, "finished") for name in ("fast", "extreme")})
    made = lease(run=run)
    assert (made.phases, made.min_useful_s, made.fits_budget) == ((), 0.0, True)


# -- when it is worth starting, and when a trainer hangs ---------------------------------------


@pytest.mark.parametrize(
    ("step_s", "compile_s", "useful_s"),
    [
        (1.0, None, 5.0),  # three steps would be less than is worth anything
        (1.0, 40.0, 45.0),
        (2.0, 40.0, 46.0),
        (10.0, 0.0, 30.0),
    ],
)
def test_three_steps_after_compiling_are_the_least_that_is_of_use(
    step_s: float, compile_s: float | None, useful_s: float
) -> None:
    made = lease(phase("fast", 800.0, 900.0, step_s=step_s, compile_s=compile_s))
    assert made.min_useful_s == useful_s


def test_the_dearest_phase_to_start_says_what_is_of_use() -> None:
    slow = phase("extreme", 1000.0, 1200.0, step_s=20.0)
    assert lease(FAST, slow).min_useful_s == 60.0


@pytest.mark.parametrize(
    ("provider", "hang_s"), [("local", 120.0), ("runpod", 300.0), ("a stranger", 300.0)]
)
def test_a_trainer_far_away_has_longer_before_it_hangs(provider: str, hang_s: float) -> None:
    assert lease(provider=provider).hang_after_s == hang_s


@pytest.mark.parametrize(
    ("provider", "p90_s", "within_s"),
    [
        ("runpod", 299.0, 900.0),
        ("runpod", 300.0, 900.0),
        ("runpod", 400.0, 1200.0),
        ("local", 400.0, 0.0),
    ],
)
def test_what_is_sent_gets_as_long_as_booting_takes_and_fifteen_minutes_at_least(
    provider: str, p90_s: float, within_s: float
) -> None:
    made = lease(provider=provider, startup_s=Interval(50.0, 100.0, p90_s))
    assert made.ready_within_s == within_s


@pytest.mark.parametrize(("hold", "uploads"), [(False, False), (True, False), (False, True)])
def test_who_brings_checkpoints_home_is_passed_on(hold: bool, uploads: bool) -> None:
    made = make_lease(
        RunState("r1"), candidate(FAST), GENERATION, epoch=1, granted_at=AT,
        hold=hold, uploads=uploads,
    )  # fmt: skip
    assert (made.hold, made.uploads) == (hold, uploads)


def test_a_wait_for_data_is_no_part_of_what_a_phase_is_expected_to_take() -> None:
    waited = replace(FAST, parts_s={"training": 700.0, "data": 100.0})
    made = lease(waited, EXTREME)
    assert [part.expected_s for part in made.phases] == [700.0, 1000.0]


# -- what the caller may leave unsaid ------------------------------------------------------------


def granted(made: Candidate, **said: Any) -> Lease:
    return make_lease(RunState("r1"), made, GENERATION, epoch=1, granted_at=AT, **said)


def test_unless_it_is_said_nobody_is_waited_for_and_nothing_is_sent_by_the_pod() -> None:
    made = granted(candidate(FAST))
    assert (made.hold, made.uploads) == (False, False)


def test_every_phase_is_under_the_rules_that_end_what_no_longer_pays() -> None:
    rules = StopRules(3)
    assert [p.stop for p in granted(candidate(FAST, EXTREME), stop=rules).phases] == [rules] * 2
    assert [p.stop for p in granted(candidate(FAST)).phases] == [StopRules()]


def test_a_batch_set_by_hand_does_not_climb() -> None:
    [by_hand] = granted(candidate(FAST), set_by_hand=("batch",)).phases
    assert by_hand.settings == {k: v for k, v in RECOVERABLE.items() if k != "climbs"}


# -- a command in place of a trainer -------------------------------------------------------------

FROM_ANEW = Command(("python", "train.py"), silent_s=77.0)
GOES_ON = replace(FROM_ANEW, resume=("python", "train.py", "--resume", "{checkpoint}"))


def test_hours_of_a_command_count_from_its_own_start() -> None:
    [limited] = granted(candidate(FAST), command=FROM_ANEW, most_s=90.0).phases
    assert limited.allowed_s == 90.0, "however soon the machine is ready"
    [unlimited] = granted(candidate(FAST), command=FROM_ANEW).phases
    assert unlimited.allowed_s == 0.0


def test_only_a_command_that_can_go_on_is_started_again() -> None:
    """One that cannot would pay for the same steps once more."""
    assert granted(candidate(FAST), command=GOES_ON).max_restarts == Lease.max_restarts
    assert granted(candidate(FAST), command=FROM_ANEW).max_restarts == -1
    assert granted(candidate(FAST, nodes=2), command=GOES_ON).max_restarts == -1


def test_a_command_is_worth_a_second_and_hangs_once_it_was_silent_for_as_long_as_it_said() -> None:
    made = granted(candidate(FAST, EXTREME), command=FROM_ANEW)
    assert (made.min_useful_s, made.hang_after_s) == (1.0, 77.0)


# -- A deadline is the earlier of two clocks, and nothing moves it later ------------------------


SEEN = Instant(wall=1000.0, boot=50.0, boot_id="a")
DEADLINE = Anchor(1100.0, SEEN, 100.0)

moments = st.floats(0, 10**6)


def test_both_clocks_running_alike_agree() -> None:
    assert DEADLINE.seconds_left(SEEN) == 100.0
    assert DEADLINE.seconds_left(Instant(1030.0, 80.0, "a")) == 70.0
    assert DEADLINE.seconds_left(Instant(1130.0, 180.0, "a")) == -30.0


@pytest.mark.parametrize(
    ("wall", "boot", "left_s"),
    [
        (500.0, 80.0, 70.0),  # set back: the boot clock still counts
        (-86_400.0, 160.0, -10.0),  # set back by a day
        (1090.0, 51.0, 10.0),  # set forward: the wall clock says sooner
        (4600.0, 51.0, -3500.0),  # set forward by an hour
    ],
)
def test_setting_a_clock_never_extends_a_deadline(wall: float, boot: float, left_s: float) -> None:
    assert DEADLINE.seconds_left(Instant(wall, boot, "a")) == left_s


def test_after_a_reboot_only_the_wall_clock_is_left() -> None:
    assert DEADLINE.seconds_left(Instant(1030.0, 2.0, "b")) == 70.0
    assert DEADLINE.seconds_left(Instant(1030.0, 900.0, "b")) == 70.0


def test_a_reboot_wins_no_time_where_the_setters_clock_was_ahead() -> None:
    ahead = Anchor(5000.0, SEEN, 100.0)
    assert ahead.seconds_left(Instant(1030.0, 80.0, "a")) == 70.0
    assert ahead.seconds_left(Instant(1030.0, 2.0, "b")) == 70.0
    assert ahead.seconds_left(Instant(900.0, 2.0, "b")) == 100.0, "set back, it wins none either"


def test_a_deadline_that_had_passed_when_first_seen_stays_passed() -> None:
    late = Anchor(900.0, SEEN, -100.0)
    assert late.seconds_left(SEEN) == -100.0
    assert late.seconds_left(Instant(100.0, 50.0, "a")) == 0.0
    assert late.seconds_left(Instant(100.0, 60.0, "a")) == -10.0


@given(moments, moments, moments, moments)
def test_seconds_left_never_exceed_what_either_clock_allows(
    deadline_at: float, seen_wall: float, wall: float, passed_s: float
) -> None:
    anchor = Anchor(deadline_at, Instant(seen_wall, 5.0, "a"), deadline_at - seen_wall)
    left = anchor.seconds_left(Instant(wall, 5.0 + passed_s, "a"))
    assert left <= deadline_at - wall
    assert left <= max(0.0, deadline_at - seen_wall) - (5.0 + passed_s - 5.0) + 1e-6
    later = anchor.seconds_left(Instant(wall, 5.0 + passed_s + 1, "a"))
    assert later <= left, "time that passes never adds time"


def test_what_has_passed_is_told_by_the_clock_that_nobody_sets() -> None:
    earlier = Instant(1000.0, 50.0, "a")
    assert Instant(9000.0, 80.0, "a").since(earlier) == 30.0
    assert Instant(1040.0, 10.0, "b").since(earlier) == 40.0
    assert Instant(1040.0, 80.0).since(Instant(1000.0, 0.0)) == 40.0, "one that has no name is none"


# -- Who has to accept what could be spent while nothing of ours can act ------------------------


NOW = 1_800_000_000.0
RATE = Usd("14.32")
RUNPOD = TRAITS["runpod"]


def verified(*layers: str, age_s: float = 0.0) -> dict[tuple[str, str], float]:
    return {("runpod", layer): NOW - age_s for layer in layers}


def test_this_machine_exposes_nothing() -> None:
    assert unaccepted_exposure(TRAITS["local"], {}, RATE, None, NOW) is None


def test_rented_pods_need_two_layers_or_the_users_word() -> None:
    for counted in ((), ("agent",)):
        told = unaccepted_exposure(RUNPOD, verified(*counted), RATE, None, NOW)
        assert told == UnacceptedExposure("runpod", RATE, is_capped=True, verified=counted)
    assert unaccepted_exposure(RUNPOD, verified("agent", "prepaid"), RATE, None, NOW) is None
    assert unaccepted_exposure(RUNPOD, {}, RATE, Usd("14.32"), NOW) is None
    assert unaccepted_exposure(RUNPOD, {}, RATE, Usd("14.31"), NOW) is not None


def test_where_nothing_caps_the_rent_only_the_users_word_will_do() -> None:
    aws = TRAITS["aws"]
    sure = {("aws", layer): NOW for layer in aws.layers.independent}
    told = unaccepted_exposure(aws, sure, RATE, None, NOW)
    assert told == UnacceptedExposure("aws", RATE, is_capped=False, verified=None)
    told = unaccepted_exposure(aws, {}, RATE, None, NOW)
    assert told == UnacceptedExposure("aws", RATE, is_capped=False, verified=())
    assert unaccepted_exposure(aws, sure, RATE, RATE, NOW) is None


def test_a_cluster_is_exposed_until_its_layers_are_set_up() -> None:
    """Even where its rent had a cap: of its verified layers none would end it before."""
    aws = TRAITS["aws"]
    capped = replace(aws, prices=replace(aws.prices, shows_rate=True))
    later = {("aws", layer): NOW for layer in ("agent", "autostop", "shutdown")}
    told = unaccepted_exposure(capped, later, RATE, None, NOW)
    layers = ("agent", "autostop", "shutdown")
    assert told == UnacceptedExposure("aws", RATE, True, layers, begins_exposed=True)
    assert unaccepted_exposure(capped, later, RATE, RATE, NOW) is None
    guarded = {("aws", "agent"): NOW, ("aws", "guard-elsewhere"): NOW}
    assert unaccepted_exposure(capped, guarded, RATE, None, NOW) is None


def test_what_was_seen_long_ago_counts_no_more() -> None:
    old = verified("agent", "prepaid", age_s=VERIFIED_FOR_S + 1)
    assert unaccepted_exposure(RUNPOD, old, RATE, None, NOW) is not None
    assert exposure_of(RUNPOD, old, NOW).unverified == ("agent", "prepaid", "guard-elsewhere")


def test_another_providers_layers_do_not_count() -> None:
    others = {("aws", "agent"): NOW, ("aws", "shutdown"): NOW}
    assert unaccepted_exposure(RUNPOD, others, RATE, None, NOW) is not None


def test_the_ledger_remembers_what_was_verified(tmp_path: Path) -> None:
    ledger = SqliteLedger(tmp_path / "ledger.db")
    ledger.verify_layer(ev.LayerVerified("runpod", "agent", "smoke run"), NOW)
    again = SqliteLedger(tmp_path / "ledger.db").read()
    assert again.verified == {("runpod", "agent"): NOW}
    with pytest.raises(UsageError, match="no kill layer 'hope'"):
        ledger.verify_layer(ev.LayerVerified("runpod", "hope", "?"), NOW)


# -- For how long a kill layer counts that was seen to work -------------------------------------


DAY_S = 24 * 3600.0


def test_a_layer_counts_for_thirty_days_and_not_a_moment_longer() -> None:
    for age_s, counted in ((0.0, True), (30 * DAY_S, True), (30 * DAY_S + 0.5, False)):
        exposure = exposure_of(RUNPOD, verified("agent", age_s=age_s), NOW)
        assert (exposure.verified == ("agent",)) == counted
        assert ("agent" in exposure.unverified) != counted
