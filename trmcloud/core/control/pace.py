"""Consequences of the pace that a machine has measured: the corrected hours and dollars of a run,
and what ``--if-slow`` says of one that is slower than planned. Pure.

A pace is a pod's word. It is believed within what is physically possible: no faster than the peak
of the rented GPUs allows, and no slower than the time that has passed here. It changes no stop and
no reservation; the most that it leads to is a wish to stop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trmcloud.core.catalog.hardware import LOCAL, least_step_s
from trmcloud.core.contract.pace import TOLERANCE
from trmcloud.core.contract.pod_contract import PhaseState
from trmcloud.core.contract.supervisor import REPRICED_P90
from trmcloud.core.control import events as ev
from trmcloud.core.control.actions import current_generation
from trmcloud.core.control.reason import Reason, ReasonKind, make_reason
from trmcloud.core.control.renting import phases_to_run
from trmcloud.core.control.run_state import Generation, RunState, State
from trmcloud.core.money import ZERO, Usd, cost
from trmcloud.core.spec.plan import Candidate, Interval, PhasePlan, Plan
from trmcloud.core.spec.spec import STOP
from trmcloud.core.text import one_line

if TYPE_CHECKING:
    from trmcloud.core.contract.pace import StepPace
    from trmcloud.core.contract.pod_contract import AgentReport

_LOOKS_S = 120.0
"""Between a machine's clock and ours."""
_S_PER_HOUR = 3600.0
_MOST_CHARS = 80
"""Of what a machine says of itself."""


def phase_to_time(run: RunState, plan: Plan, report: AgentReport | None) -> PhasePlan | None:
    """Return the phase that the working machine trains now, if its pace there is not on record and
    the plan has one to compare it with."""
    generation = run.generation
    if run.state is not State.RUNNING or generation is None or run.errand is not None:
        return None
    if report is None or report.result is not None or report.landing or run.stop is not None:
        return None
    name = next((p.name for p in report.phases if p.state is PhaseState.RUNNING), "")
    timed = {(pace.generation, pace.phase) for pace in run.paces}
    phases = plan.candidate(generation.candidate_id).phases
    phase = next((phase for phase in phases if phase.name == name), None)
    if phase is None or (generation.number, name) in timed or planned_step_s(phase).p50 <= 0:
        return None
    return phase


def planned_step_s(phase: PhasePlan) -> Interval:
    """Return the planned seconds of a step; of a command those of its probe. Zero: not known."""
    steps = phase.settings.steps
    if phase.step_s.p50 > 0 or steps <= 0:
        return phase.step_s
    return phase.seconds.scaled(1 / steps)


def pace_events(
    run: RunState, plan: Plan, phase: PhasePlan, told: StepPace, now: float
) -> tuple[ev.RunEvent, ...]:
    """Return the events that follow from ``told``, the pace of ``phase`` on the run's machine: its
    record, and a wish to stop where ``--if-slow stop`` asks for it."""
    generation = current_generation(run)
    candidate = plan.candidate(generation.candidate_id)
    doubt = why_impossible(run, candidate, generation, phase, told, now)
    found = _forecast(run, plan, candidate, generation, phase, told, now)
    slow = None if doubt is not None else why_slow(plan, candidate, phase, told, found)
    follows = plan.spec.if_slow if slow is not None else ""
    measured = ev.PaceMeasured(
        generation=generation.number,
        phase=phase.name,
        steps=told.steps,
        step_s=told.step_s,
        fast_s=told.fast_s,
        slow_s=told.slow_s,
        planned_s=planned_step_s(phase).p50,
        hours=found.hours.p50,
        least_hours=found.hours.p10,
        most_hours=found.hours.p90,
        usd=found.usd,
        steps_fit=found.steps_fit,
        step=told.step,
        tokens=told.tokens,
        torch=one_line(told.torch)[:_MOST_CHARS],
        board=one_line(told.board)[:_MOST_CHARS],
        code=one_line(told.code)[:_MOST_CHARS],
        doubt=doubt,
        slow=slow,
        follows=follows,
    )
    if follows == STOP and slow is not None:
        return (measured, ev.StopRequested("if-slow", slow))
    return (measured,)


def why_impossible(
    run: RunState,
    candidate: Candidate,
    generation: Generation,
    phase: PhasePlan,
    told: StepPace,
    now: float,
) -> Reason | None:
    """Return why a pace is not believed; None where nothing physical speaks against it."""
    settings = phase.settings
    tokens = settings.tokens_per_step(candidate.world_size) if told.tokens else 0
    if told.tokens != tokens:
        return make_reason(ReasonKind.OTHER_STEPS, tokens=told.tokens, planned_tokens=tokens)
    if tokens and candidate.provider != LOCAL:
        flops = tokens * settings.work().train_flops
        least_s = least_step_s(candidate.sku, candidate.world_size, flops)
        if told.step_s < least_s:
            limit = _seconds(least_s)
            return make_reason(ReasonKind.FASTER_THAN_PEAK, pace=_seconds(told.step_s), limit=limit)
    # Since it was asked for: its agent may have been heard long after it began.
    passed_s = max(0.0, max(now, run.updated_at) - generation.intended_at) + _LOOKS_S
    if told.steps * told.step_s > passed_s:
        whole_s = float(told.steps * told.step_s)
        return make_reason(ReasonKind.SLOWER_THAN_TIME, steps_s=whole_s, passed_s=float(passed_s))
    return None


def why_slow(
    plan: Plan, candidate: Candidate, phase: PhasePlan, told: StepPace, found: Forecast
) -> Reason | None:
    """Return how a machine is slower than planned: beyond the plan's P90, or so that work which
    was planned to fit no longer does; with what that costs."""
    more_s = float(max(0.0, found.hours.p50 - candidate.hours.p50) * _S_PER_HOUR)
    more_usd = max(ZERO, found.usd - candidate.cost_p50)
    pace = _seconds(told.step_s)
    planned = planned_step_s(phase)
    # A probe of this machine leaves a range that is narrower than what a pace is measured to.
    most_s = max(planned.p90, (1 + TOLERANCE) * planned.p50)
    if told.step_s > most_s:
        limit = _seconds(most_s)
        kind = ReasonKind.SLOWER_THAN_PLANNED
        return make_reason(kind, pace=pace, limit=limit, more_s=more_s, more_usd=more_usd)
    if not found.fits and _was_to_fit(plan, candidate):
        fit, steps = found.steps_fit, phase.settings.steps
        kind = ReasonKind.NO_LONGER_FITS
        return make_reason(kind, pace=pace, fit=fit, steps=steps, more_s=more_s, more_usd=more_usd)
    return None


class Forecast(NamedTuple):
    """A run's hours and dollars at the measured pace; ``steps_fit``: the step of the phase up to
    which it comes before the soft stop."""

    hours: Interval
    usd: Usd
    steps_fit: int
    fits: bool


def _forecast(
    run: RunState,
    plan: Plan,
    candidate: Candidate,
    generation: Generation,
    phase: PhasePlan,
    told: StepPace,
    now: float,
) -> Forecast:
    """The plan's P50, with the steps and evaluations of this phase and of those after it at the
    measured pace; their range is the scatter of one machine. What the clock ends takes as long as
    it was planned to."""
    ratio = told.step_s / planned_step_s(phase).p50
    paced_s = sum(map(_paced_s, _phases_left(run, candidate, phase)))
    settings = phase.settings
    done = min(told.step, settings.steps)
    # A stop that is moved where the work needs it is no limit.
    later_s = generation.latest_stop_at - generation.hard_stop_at
    left_s = max(0.0, generation.soft_stop_at + later_s - now)
    fit = min(settings.steps, done + int(left_s / max(1e-9, ratio * planned_pause_s(phase))))
    fits = needed_s(run, candidate, phase, done, ratio) <= left_s
    if not _was_to_fit(plan, candidate):
        return Forecast(candidate.hours, candidate.cost_p50, fit, fits)
    extra_s, scatter_s = (ratio - 1) * paced_s, (REPRICED_P90 - 1) * ratio * paced_s
    hours = candidate.hours.p50 + extra_s / _S_PER_HOUR
    spread_h = scatter_s / _S_PER_HOUR
    hourly = run.hourly_rate(generation)
    usd = candidate.cost_p50
    usd = usd + cost(hourly, extra_s) if extra_s >= 0 else max(ZERO, usd - cost(hourly, -extra_s))
    return Forecast(Interval(max(0.0, hours - spread_h), hours, hours + spread_h), usd, fit, fits)


def needed_s(
    run: RunState, candidate: Candidate, phase: PhasePlan, step: int, ratio: float
) -> float:
    """Return the seconds that the rest of the work needs, from ``step`` of ``phase`` on, where
    steps take ``ratio`` × the planned time; what lies between them, as saves do, its own."""
    paced_s, begins_s = _paced_s(phase), phase.parts_s.get("compile", 0.0)
    whole_s = ratio * paced_s + max(0.0, phase.seconds.p50 - begins_s - paced_s)
    steps = phase.settings.steps
    this_s = whole_s * max(0, steps - step) / max(1, steps)
    later = _phases_left(run, candidate, phase)[1:]
    return this_s + sum(p.seconds.p50 + (ratio - 1) * _paced_s(p) for p in later)


def planned_pause_s(phase: PhasePlan) -> float:
    """Return the planned seconds from one step to the next, evaluations included."""
    return _paced_s(phase) / max(1, phase.settings.steps)


def _phases_left(run: RunState, candidate: Candidate, phase: PhasePlan) -> tuple[PhasePlan, ...]:
    """``phase`` and those that follow it."""
    phases = phases_to_run(run, candidate)
    names = [each.name for each in phases]
    return phases[names.index(phase.name) :] if phase.name in names else (phase,)


def _paced_s(phase: PhasePlan) -> float:
    """Seconds (P50) of a phase that grow with the time of a step."""
    parts = phase.parts_s
    return parts.get("training", phase.seconds.p50) + parts.get("evaluation", 0.0)


def _was_to_fit(plan: Plan, candidate: Candidate) -> bool:
    """Whether the plan's work was to be done within its money, and its length is the work's."""
    spec = plan.spec
    return candidate.within_budget and not spec.fills and spec.hours is None


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s"
