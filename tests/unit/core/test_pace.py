"""A measured pace: how it is timed, what is believed of it, and what follows from it."""

from __future__ import annotations

import random
from dataclasses import asdict, replace
from typing import Any

import pytest

from tests.plans import a_candidate, a_phase, a_plan
from tests.present import only, present
from tests.unit.core.runs import apply
from trmcloud.core.catalog.hardware import least_step_s
from trmcloud.core.contract.pace import (
    LEAST_STEPS,
    PACE,
    TOLERANCE,
    PaceMeter,
    StepPace,
    pace_by_log,
    pace_from,
)
from trmcloud.core.contract.pod_contract import AgentReport, PhaseReport, PhaseState
from trmcloud.core.control import events as ev
from trmcloud.core.control.pace import pace_events, phase_to_time, planned_step_s
from trmcloud.core.control.reason import ReasonKind
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.spec.plan import Interval, Plan, plan_to_json
from trmcloud.core.spec.spec import CONTINUE, STOP
from trmcloud.operations.narration import pace_lines
from trmcloud.operations.runs.run_views import pace_document

AT = 1_790_000_000.0
HOUR_S = 3600.0
RATE = Usd(4)

# -- the meter ---------------------------------------------------------------------------------


def timed(seconds: list[float]) -> tuple[int, StepPace] | None:
    """After how many steps a meter knows the pace, and the pace."""
    meter = PaceMeter()
    for number, step_s in enumerate(seconds, 1):
        if (told := meter.add(step_s)) is not None:
            return number, told
    return None


@pytest.mark.parametrize("factor", [10.0, 0.1, 1.5, 1.0])
def test_the_first_twenty_steps_decide_nothing(factor: float) -> None:
    dice = random.Random(1)
    rest = [0.42 * dice.uniform(0.98, 1.02) for _ in range(300)]
    found = present(timed([0.42 * factor] * 20 + rest))
    number, told = found
    assert told.step_s == pytest.approx(0.42, rel=0.01)
    assert told.steps == LEAST_STEPS
    assert number <= 60, "it is known soon all the same"


def test_steps_that_scatter_are_measured_until_their_halves_agree() -> None:
    dice = random.Random(2)
    found = present(timed([0.42 * dice.uniform(0.7, 1.4) for _ in range(2000)]))
    assert found[1].fast_s < found[1].step_s < found[1].slow_s
    ever_slower = [0.1 * 1.03**n for n in range(400)]
    assert timed(ever_slower) is None, "no pace is steady that changes with each step"


def test_a_machine_that_becomes_slower_later_is_timed_as_it_is_then() -> None:
    found = present(timed([0.4] * 25 + [0.6] * 200))
    assert found[1].step_s == pytest.approx(0.6)


def test_too_few_steps_have_no_pace() -> None:
    assert timed([0.4] * (LEAST_STEPS - 1)) is None
    assert timed([0.0] * 200) is None
    assert 0 < TOLERANCE < 0.1


# -- what is read of a pod's lines -------------------------------------------------------------


def line(**changes: Any) -> dict[str, Any]:
    told = {"kind": PACE, "at": AT, **asdict(StepPace(40, 0.4, 0.39, 0.45, 1000, 8, "2.9.1"))}
    return {**told, "step": 57, **changes}


def test_the_pace_is_read_of_its_line_and_of_no_earlier_attempt() -> None:
    told = present(pace_from([{"kind": "train", "at": AT}, line()], since=AT))
    assert (told.step, told.step_s, told.torch) == (57, 0.4, "2.9.1")
    assert pace_from([line()], since=AT + 1) is None, "another machine's"
    assert pace_from([], since=AT) is None


@pytest.mark.parametrize(
    "odd",
    [
        {"step_s": -1.0}, {"step_s": float("inf")}, {"step_s": "0.4"}, {"step_s": True},
        {"steps": 0}, {"steps": 10**9}, {"fast_s": 0.5}, {"slow_s": 0.1}, {"at": "now"},
        {"at": None}, {"torch": 3}, {"step": -4},
    ],
)  # fmt: skip
def test_a_hostile_line_is_no_pace(odd: dict[str, Any]) -> None:
    assert pace_from([line(**odd)], since=AT) is None


def test_a_commands_pace_is_that_of_its_lines() -> None:
    rows = [{"kind": "train", "step": 10 * n, "at": AT + 4.0 * n} for n in range(60)]
    told = present(pace_by_log(rows, AT))
    assert told.step_s == pytest.approx(0.4)
    assert told.step == 590
    slow = [{"kind": "train", "step": n, "at": AT + 40.0 * n} for n in range(20)]
    late = [{"kind": "train", "step": 20 + n, "at": AT + 800 + 4.0 * n} for n in range(80)]
    told = present(pace_by_log(slow + late, AT))
    assert told.step_s == pytest.approx(4.0)
    assert pace_by_log(rows[:20], AT) is None, "too few"
    odd: list[dict[str, Any]] = [{"kind": "train", "step": "1", "at": AT}, {"kind": "train"}]
    assert pace_by_log([*odd, *rows[:5]], AT) is None


# -- what follows ------------------------------------------------------------------------------


def planned(if_slow: str = CONTINUE) -> Plan:
    phase = replace(a_phase(), name="fast", seconds=Interval(9 * HOUR_S, 10 * HOUR_S, 12 * HOUR_S))
    phase = replace(phase, settings=replace(phase.settings, steps=1000, save_every=50))
    phase = replace(phase, step_s=Interval(32.0, 36.0, 43.0))
    candidate = replace(
        a_candidate(), rate=RATE, planned_rate=RATE, most_rate=RATE,
        startup_s=Interval(60.0, 300.0, 600.0), phases=(phase,), hours=Interval(9.0, 10.1, 12.2),
        soft_stop_s=14 * HOUR_S - 300.0, hard_stop_s=14 * HOUR_S, landing_s=300.0, storage=ZERO,
    )  # fmt: skip
    whole = a_plan(candidate)
    spec = replace(whole.spec, bucket="s3://bucket/x", phases=("fast",), budget=None, hours=None)
    return replace(whole, spec=replace(spec, command=None, if_slow=if_slow), cap=Usd(200))


def with_candidates(plan: Plan, **changes: Any) -> Plan:
    return replace(plan, candidates=tuple(replace(c, **changes) for c in plan.candidates))


def running(plan: Plan) -> RunState:
    hard = AT + 14 * HOUR_S + 1
    return apply(
        RunState("r1"),
        ev.RunPlanned(plan_to_json(plan), Usd(200), "thesis"),
        ev.Reserved(Usd(60)),
        ev.PodIntended(1, "pod-1", "runpod", "c1", RATE, hard - 300.0, hard),
        ev.PodUp(1, "id-1", RATE),
        ev.AgentUp(1),
        at=AT,
    )


def report(*phases: PhaseReport) -> AgentReport:
    return AgentReport(
        run_id="r1", pod_name="pod-1", epoch=1, pid=1, started_at=AT, at=AT, phases=phases,
        soft_stop_at=AT, hard_stop_at=AT,
    )  # fmt: skip


def pace(plan: Plan, step_s: float, **changes: Any) -> StepPace:
    """As the machine's trainer tells it, whose plan says 32, 36 and 43 s."""
    phase = plan.candidates[0].phases[0]
    tokens = phase.settings.tokens_per_step(plan.candidates[0].world_size)
    told = StepPace(40, step_s, step_s, step_s, tokens, 1, "2.9.1+cu128", "NVIDIA H100", step=42)
    return replace(told, **changes)


def follow(plan: Plan, told: StepPace, now: float = AT + HOUR_S) -> tuple[ev.RunEvent, ...]:
    return pace_events(running(plan), plan, plan.candidates[0].phases[0], told, now)


def measured(plan: Plan, told: StepPace, now: float = AT + HOUR_S) -> ev.PaceMeasured:
    event = follow(plan, told, now)[0]
    assert isinstance(event, ev.PaceMeasured)
    return event


def test_a_pace_as_planned_corrects_hours_and_dollars_and_nothing_follows() -> None:
    plan = planned()
    event = only(ev.PaceMeasured, follow(plan, pace(plan, 40.0)))
    # 10 h of training at P50 take 10/9 of that; the rest of the 10.1 h stays.
    assert event.hours == pytest.approx(10.1 + 10.0 / 9)
    assert event.least_hours < event.hours < event.most_hours
    assert float(event.usd) == pytest.approx(float(plan.candidates[0].cost_p50) + 4 * 10 / 9)
    assert (event.doubt, event.slow, event.follows) == (None, None, "")
    assert event.steps_fit == 1000


def test_a_faster_machine_costs_less() -> None:
    plan = planned()
    event = measured(plan, pace(plan, 30.0))
    assert event.hours == pytest.approx(10.1 - 10.0 / 6)
    assert event.slow is None


@pytest.mark.parametrize(("policy", "follows"), [(CONTINUE, CONTINUE), (STOP, STOP)])
def test_beyond_p90_the_policy_follows_and_the_cost_is_said(policy: str, follows: str) -> None:
    plan = planned(policy)
    first, *more = follow(plan, pace(plan, 45.0))
    assert isinstance(first, ev.PaceMeasured)
    assert first.slow is not None
    assert first.slow.kind is ReasonKind.SLOWER_THAN_PLANNED
    assert first.slow.facts["more_s"] == pytest.approx(2.5 * HOUR_S)
    assert Usd(str(first.slow.facts["more_usd"])) == Usd(10), "2.5 h at $4"
    assert first.follows == follows
    assert more == ([ev.StopRequested("if-slow", first.slow)] if policy == STOP else [])


def test_a_stop_is_a_landing_with_the_exit_code_that_is_said() -> None:
    plan = planned(STOP)
    run = apply(running(plan), *follow(plan, pace(plan, 60.0)), at=AT + HOUR_S)
    assert not present(run.stop).at_once
    assert Outcome.STOPPED.exit_code == 21
    assert "exit code 21" in "\n".join(pace_lines(run, run.paces[0]))


def test_work_that_no_longer_fits_is_slow_below_p90_too() -> None:
    plan = planned(STOP)
    event = measured(plan, pace(plan, 40.0), now=AT + 4 * HOUR_S)
    assert event.slow is not None
    assert event.slow.kind is ReasonKind.NO_LONGER_FITS
    # (14 - 4) h less the landing, at 40 s a step, from step 42 on.
    assert event.steps_fit == 42 + int((10 * HOUR_S - 300 + 1) / 40.0)
    within = with_candidates(plan, within_budget=False)
    event = measured(within, pace(within, 40.0), now=AT + 4 * HOUR_S)
    assert event.slow is None, "it was never planned to"
    assert event.hours == within.candidates[0].hours.p50, "the clock ends it"


def test_no_stop_and_no_reservation_changes() -> None:
    plan = planned(STOP)
    before = running(plan)
    after = apply(before, *follow(plan, pace(plan, 60.0)), at=AT + HOUR_S)
    assert after.reserved == before.reserved
    assert (after.cap, after.generations) == (before.cap, before.generations)


# -- what is not believed ----------------------------------------------------------------------


def test_a_pace_beyond_the_boards_peak_is_not_believed_and_nothing_follows() -> None:
    plan = with_candidates(planned(STOP), sku="H100-SXM")
    phase = plan.candidates[0].phases[0]
    flops = phase.settings.tokens_per_step(1) * phase.settings.work().train_flops
    least_s = least_step_s("H100-SXM", 1, flops)
    event = measured(plan, pace(plan, 0.99 * least_s))
    assert present(event.doubt).kind is ReasonKind.FASTER_THAN_PEAK
    run = apply(running(plan), event, at=AT + HOUR_S)
    assert "not plausible" in pace_lines(run, event)[0]
    assert measured(plan, pace(plan, 1.01 * least_s)).doubt is None


def test_steps_that_would_have_taken_longer_than_the_machine_lives_are_not_believed() -> None:
    plan = planned(STOP)
    event = only(ev.PaceMeasured, follow(plan, pace(plan, 1000.0), now=AT + HOUR_S))
    assert present(event.doubt).kind is ReasonKind.SLOWER_THAN_TIME
    assert (event.slow, event.follows) == (None, ""), "a lie does not stop a run"


def test_what_a_machine_says_of_itself_is_cut_and_one_line() -> None:
    plan = planned()
    event = measured(plan, pace(plan, 40.0, torch="2.9\n\x1b[2J" + "x" * 999, board="\u202e" * 99))
    assert "\n" not in event.torch
    assert "\x1b" not in event.torch
    assert len(event.torch) <= 80
    assert event.board == ""


def test_steps_of_other_work_are_compared_with_nothing() -> None:
    plan = planned(STOP)
    event = measured(plan, pace(plan, 60.0, tokens=7))
    assert present(event.doubt).kind is ReasonKind.OTHER_STEPS


# -- when it is looked for ---------------------------------------------------------------------


def test_the_phase_that_is_trained_is_timed_once_on_each_machine() -> None:
    plan = planned()
    run, phase = running(plan), plan.candidates[0].phases[0]
    heard = report(PhaseReport("fast", PhaseState.RUNNING, attempts=1))
    assert phase_to_time(run, plan, heard) == phase
    assert phase_to_time(run, plan, None) is None
    assert phase_to_time(run, plan, replace(heard, landing=True)) is None
    assert phase_to_time(run, plan, replace(heard, phases=(PhaseReport("fast"),))) is None
    timed = apply(run, *follow(plan, pace(plan, 40.0)), at=AT + HOUR_S)
    assert phase_to_time(timed, plan, heard) is None
    stopped = apply(run, ev.StopRequested("user", measured(plan, pace(plan, 60.0)).slow), at=AT)  # type: ignore[arg-type]
    assert phase_to_time(stopped, plan, heard) is None


# -- what is shown -----------------------------------------------------------------------------


def test_the_line_has_pace_hours_and_dollars_beside_the_planned_ones() -> None:
    plan = planned()
    run = apply(running(plan), *follow(plan, pace(plan, 45.0)), at=AT + HOUR_S)
    first, second = pace_lines(run, run.paces[0])
    assert first.startswith(
        "Measured: 45 s per step over 40 steps (planned 32 to 43): 12.6 h (11.3 h to "
    )
    assert "(planned 10.1 h, $" in first
    assert first.endswith("by the pod's report")
    assert "2 h 30 min and $10.00 more" in second
    assert "the run continues" in second
    told = present(pace_document(run))
    assert (told.doubt, told.follows, told.reported_by) == (None, CONTINUE, "pod")
    assert pace_document(running(plan)) is None


def test_a_small_plan_under_a_large_budget_is_stopped_by_its_pace_and_not_by_the_money() -> None:
    """Finding 9 of the planner's review: a plan of cents whose hard stop came after 556 h."""
    made = planned(STOP)
    stops: dict[str, Any] = {"soft_stop_s": 555 * HOUR_S, "hard_stop_s": 556 * HOUR_S}
    small: dict[str, Any] = {"hours": Interval(0.09, 0.1, 0.12), "cost_p50": Usd("0.12")}
    phase = replace(
        made.candidates[0].phases[0],
        step_s=Interval(0.3, 0.36, 0.4),
        seconds=Interval(300.0, 360.0, 400.0),
    )
    plan = with_candidates(made, phases=(phase,), **stops, **small)
    told = pace(plan, 3.6)
    first, *more = pace_events(running(plan), plan, phase, told, AT + 600.0)
    assert isinstance(first, ev.PaceMeasured)
    assert first.hours == pytest.approx(1.0)
    assert first.slow is not None
    assert more == [ev.StopRequested("if-slow", first.slow)]
    plain = replace(plan, spec=replace(plan.spec, if_slow=CONTINUE))
    last = only(ev.PaceMeasured, pace_events(running(plain), plain, phase, told, AT + 600.0))
    assert last.slow == first.slow, "by default the cost is said, and a notification sent"


def test_a_command_is_compared_with_its_probe_and_a_few_percent_are_not_slow() -> None:
    made = planned(STOP)
    phase = replace(
        made.candidates[0].phases[0],
        step_s=Interval(0.0, 0.0, 0.0),
        seconds=Interval(99_000.0, 100_000.0, 101_000.0),
    )
    plan = with_candidates(made, phases=(phase,))
    run = running(plan)
    heard = report(PhaseReport("fast", PhaseState.RUNNING, attempts=1))
    assert phase_to_time(run, plan, heard) == phase
    assert planned_step_s(phase).p50 == pytest.approx(100.0)
    now = AT + 3 * HOUR_S
    few, many = pace(plan, 104.0, tokens=0), pace(plan, 106.0, tokens=0)
    within = with_candidates(plan, within_budget=False)
    event = only(ev.PaceMeasured, pace_events(run, within, phase, few, now))
    assert event.slow is None
    assert len(pace_events(run, within, phase, many, now)) == 2
    unknown = replace(phase, seconds=phase.step_s)
    plan = with_candidates(plan, phases=(unknown,))
    assert phase_to_time(running(plan), plan, heard) is None, "nothing to compare it with"
