"""The lease: what a generation's agent may do, and until when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.settings import settings_of
from trmcloud.core.contract.command import Command
from trmcloud.core.contract.pod_contract import Lease, PhaseLease, dump, load_lease
from trmcloud.core.contract.worth import StopRules
from trmcloud.core.control import events as ev
from trmcloud.core.control.lease import make_lease, phases_to_run
from trmcloud.core.control.run_state import Generation, RunState
from trmcloud.core.money import Usd
from trmcloud.core.spec.plan import Candidate, Interval, PhasePlan

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


GENERATION = Generation(
    number=1,
    pod_name="trmc-abcd1234-r1-g1-1790003000",
    provider="runpod",
    candidate_id="first",
    rate=Usd(1),
    soft_stop_at=SOFT,
    hard_stop_at=HARD,
    intended_at=AT - 7,
)


def lease(*phases: PhasePlan, run: RunState | None = None, **changes: Any) -> Lease:
    made = candidate(*(phases or (FAST, EXTREME)), **changes)
    return make_lease(
        run or RunState("r1"), made, GENERATION, epoch=4, granted_at=AT, strict_gate=False
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
    assert made.strict_gate is False


def test_a_strict_gate_is_passed_on() -> None:
    made = make_lease(
        RunState("r1"), candidate(FAST), GENERATION, epoch=1, granted_at=AT, strict_gate=True
    )
    assert made.strict_gate is True


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


@pytest.mark.parametrize(("provider", "hang_s"), [("local", 120.0), ("runpod", 300.0)])
def test_a_trainer_far_away_is_given_longer_before_it_counts_as_hung(
    provider: str, hang_s: float
) -> None:
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
        RunState("r1"), candidate(FAST), GENERATION, epoch=1, granted_at=AT, strict_gate=False,
        hold=hold, uploads=uploads,
    )  # fmt: skip
    assert (made.hold, made.uploads) == (hold, uploads)


def test_a_wait_for_data_is_no_part_of_what_a_phase_is_expected_to_take() -> None:
    waited = replace(FAST, parts_s={"training": 700.0, "data": 100.0})
    made = lease(waited, EXTREME)
    assert [part.expected_s for part in made.phases] == [700.0, 1000.0]


# -- what the caller may leave unsaid ------------------------------------------------------------


def granted(made: Candidate, **said: Any) -> Lease:
    return make_lease(
        RunState("r1"), made, GENERATION, epoch=1, granted_at=AT, strict_gate=False, **said
    )


def test_unless_it_is_said_nobody_is_waited_for_and_nothing_is_sent_by_the_pod() -> None:
    made = granted(candidate(FAST))
    assert (made.hold, made.uploads) == (False, False)


def test_every_phase_is_under_the_rules_that_end_what_no_longer_pays() -> None:
    rules = StopRules(0.2, 3, 2.0)
    assert [p.stop for p in granted(candidate(FAST, EXTREME), stop=rules).phases] == [rules] * 2
    assert [p.stop for p in granted(candidate(FAST)).phases] == [StopRules()]


def test_a_batch_set_by_hand_does_not_climb_and_depth_is_cut_only_where_it_was_asked_for() -> None:
    [by_hand] = granted(candidate(FAST), set_by_hand=("batch",)).phases
    assert by_hand.settings == {k: v for k, v in RECOVERABLE.items() if k != "climbs"}
    [to_cut] = granted(candidate(FAST), last_rungs=("depth",)).phases
    assert to_cut.settings == {**RECOVERABLE, "depth": FAST.settings.depth}


# -- a command in place of a trainer -------------------------------------------------------------

FROM_ANEW = Command(("python", "train.py"), silent_s=77.0)
GOES_ON = replace(FROM_ANEW, resume=("python", "train.py", "--resume", "{checkpoint}"))


def test_only_a_command_that_can_go_on_is_started_again() -> None:
    """One that cannot would pay for the same steps once more."""
    assert granted(candidate(FAST), command=GOES_ON).max_restarts == Lease.max_restarts
    assert granted(candidate(FAST), command=FROM_ANEW).max_restarts == -1
    assert granted(candidate(FAST, nodes=2), command=GOES_ON).max_restarts == -1


def test_a_command_is_worth_a_second_and_hangs_once_it_was_silent_for_as_long_as_it_said() -> None:
    made = granted(candidate(FAST, EXTREME), command=FROM_ANEW)
    assert (made.min_useful_s, made.hang_after_s) == (1.0, 77.0)
