"""When a run whose stop is tight gets more time: by the pace that its machine has measured. Pure.

A plan whose length is its work reserves about twice its P90 and no more (``planner.candidates``).
Where that turns out to be too little, whoever drives the run reserves the difference under the
ledger's lock, and the agent then gets later stops: never beyond what the run's own budget buys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from trmcloud.core.contract.pace import LEAST_STEPS, MOST_STEP
from trmcloud.core.contract.pod_contract import PhaseState
from trmcloud.core.contract.supervisor import REPRICED_P90
from trmcloud.core.control import events as ev
from trmcloud.core.control.actions import current_generation
from trmcloud.core.control.pace import needed_s, planned_pause_s, planned_step_s
from trmcloud.core.control.renting import LEAST_EXTENSION_S
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.control.waiting import ask_rate
from trmcloud.core.money import cost
from trmcloud.core.spec.plan import Plan

if TYPE_CHECKING:
    from trmcloud.core.contract.pod_contract import AgentReport, PhaseReport

LATEST_AHEAD_S = 900.0
"""An extension is reserved so long before the soft stop, or not at all: the word has to reach the
machine, and a person has to be able to see it."""
_MARGIN = 1.25
"""Time that is reserved ÷ time that the work needs by its pace, so that one extension does."""
_ENOUGH = 0.1
"""The share of a phase's steps after its pace was told from which on they all tell it better."""
_FRESH_S = 3600.0
"""The greatest age of a report that an extension is based on."""


class Progress(NamedTuple):
    """The step that a training has reached, and the seconds that each has taken since it began,
    pauses for evaluations and saves included; 0: not known yet."""

    step: int
    step_s: float


def progress_from(lines: Iterable[Mapping[str, Any]], since: float) -> Progress | None:
    """Return the progress by lines of training at ``since`` or later, epoch s by the machine's
    clock; None where there are none. The lines may be hostile."""
    first: tuple[float, int] | None = None
    last = first
    for line in lines:
        at, step = line.get("at"), line.get("step")
        if line.get("kind") != "train" or not isinstance(at, (int, float)) or at < since:
            continue
        if type(step) is int and 0 <= step <= MOST_STEP:
            last = float(at), step
            first = first or last
    if first is None or last is None:
        return None
    if last[1] - first[1] < LEAST_STEPS or last[0] <= first[0]:
        return Progress(last[1], 0.0)
    return Progress(last[1], (last[0] - first[0]) / (last[1] - first[1]))


def may_extend(run: RunState, report: AgentReport | None, now: float) -> PhaseReport | None:
    """Return the phase that the run's machine trains, where its stop could be moved now."""
    mine = run.generation
    if mine is None or run.state is not State.RUNNING or run.stop is not None or run.errand:
        return None
    if report is None or report.result is not None or report.landing:
        return None
    if mine.limit_at < mine.hard_stop_at + LEAST_EXTENSION_S:
        return None
    late = mine.soft_stop_at - now < LATEST_AHEAD_S
    if late or not -_FRESH_S < now - report.at < _FRESH_S:
        return None
    return next((p for p in report.phases if p.state is PhaseState.RUNNING), None)


def extension(
    run: RunState, plan: Plan, phase: PhaseReport, progress: Progress | None, now: float
) -> ev.Extended | None:
    """Return the extension that the work needs now, by the ``progress`` of ``phase``; None where it
    fits what is left, or its progress or pace is not known, or not believed."""
    mine = current_generation(run)
    candidate = plan.candidate(mine.candidate_id)
    planned = next((each for each in candidate.phases if each.name == phase.name), None)
    pace = next((p for p in reversed(run.paces) if p.generation == mine.number), None)
    if planned is None or progress is None or pace is None:
        return None
    if pace.phase != planned.name or pace.doubt is not None:
        return None
    ratio = pace.step_s / planned_step_s(planned).p50
    # Its first steps, which may be odd, count no more once there are many others.
    if progress.step_s > 0 and progress.step - pace.step >= _ENOUGH * planned.settings.steps:
        ratio = progress.step_s / planned_pause_s(planned)
    step = max(pace.step, progress.step)
    needs_s = needed_s(run, candidate, planned, step, ratio) * REPRICED_P90
    left_s = mine.soft_stop_at - now
    if needs_s <= left_s:
        return None
    landing_s = mine.hard_stop_at - mine.soft_stop_at
    until = min(now + _MARGIN * needs_s + landing_s, mine.limit_at)
    more_s = until - mine.hard_stop_at
    if more_s < LEAST_EXTENSION_S:
        return None
    hourly = ask_rate(run, candidate) + candidate.disk_rate + candidate.volume_rate
    return ev.Extended(mine.number, until, run.reserved + cost(hourly, more_s))
