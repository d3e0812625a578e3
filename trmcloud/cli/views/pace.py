"""A machine's measured pace, with the run's hours and dollars by it, in words."""

from __future__ import annotations

from trmcloud.app.run_queries import mark_reported
from trmcloud.cli.views.reasons import sentence
from trmcloud.cli.views.text import duration
from trmcloud.core.control import events as ev
from trmcloud.core.control.pace import planned_step_s
from trmcloud.core.control.run_state import RunState
from trmcloud.core.spec.plan import Candidate, PhasePlan
from trmcloud.core.spec.spec import CONTINUE, MOVE, STOP

_FOLLOWS = {
    STOP: "the run stops and saves now; its checkpoints are kept (outcome stopped, exit code 21)",
    MOVE: "the run moves to another machine if the rest costs less there",
    CONTINUE: "the run continues; to change this: --if-slow stop or move, or trmcloud stop",
}


def pace_lines(run: RunState, pace: ev.PaceMeasured) -> list[str]:
    """``Measured: 0.42 s a step …``, and where the machine is slower than planned a second line:
    what that costs, and what follows."""
    if pace.doubt is not None:
        doubt = mark_reported(run, pace.doubt).as_reported(sentence)
        return [f"Measured pace not plausible: {doubt}; the plan's figures stay valid"]
    lines = [f"Measured: {mark_reported(run, pace).as_reported(lambda told: _words(run, told))}"]
    if pace.slow is not None:
        told = [sentence(pace.slow), *filter(None, [sentence(pace.instead)])]
        lines.append(f"{'; '.join(told)}; {_FOLLOWS.get(pace.follows, pace.follows)}")
    return lines


def _words(run: RunState, pace: ev.PaceMeasured) -> str:
    """``0.42 s a step over 40 steps (planned 0.31 to 0.40): 5.1 h, $13.20 (planned 4.6 h,
    $11.90)``."""
    candidate = _candidate(run, pace)
    phase = _phase(candidate, pace)
    told = f"{pace.step_s:.3g} s per step over {pace.steps} steps"
    if phase is not None:
        planned = planned_step_s(phase)
        told += f" (planned {planned.p10:.3g} to {planned.p90:.3g})"
    told += f": {_hours(pace.hours)} ({_hours(pace.least_hours)} to {_hours(pace.most_hours)})"
    told += f", {pace.usd}"
    if candidate is not None:
        told += f" (planned {_hours(candidate.hours.p50)}, {candidate.cost_p50})"
    if phase is not None and pace.steps_fit < phase.settings.steps:
        told += f"; {pace.steps_fit:,} of {phase.settings.steps:,} steps of {phase.name} fit"
    return told


def pace_mark(pace: ev.PaceMeasured) -> str:
    """A mark of the page's timeline."""
    whole = f"{_hours(pace.hours)} and {pace.usd} in total"
    told = f"its trainer measured {pace.step_s:.3g} s per step, {whole}"
    if pace.doubt is not None:
        return f"{told}; not believed: {sentence(pace.doubt)}"
    return told if pace.slow is None else f"{told}; {sentence(pace.slow)}"


def pace_rows(run: RunState) -> list[tuple[str, str]]:
    """The rows of ``status`` for the newest measurement; none where there is none."""
    if not run.paces:
        return []
    first, *more = pace_lines(run, run.paces[-1])
    rows = [("measured", first.removeprefix("Measured: ").removeprefix("Measured "))]
    return rows + [("slow", line) for line in more]


def _hours(hours: float) -> str:
    return f"{hours:.1f} h" if hours >= 1 else duration(hours * 3600)


def _candidate(run: RunState, pace: ev.PaceMeasured) -> Candidate | None:
    return run.candidate(run.generations[pace.generation - 1].candidate_id)


def _phase(candidate: Candidate | None, pace: ev.PaceMeasured) -> PhasePlan | None:
    phases = candidate.phases if candidate is not None else ()
    return next((phase for phase in phases if phase.name == pace.phase), None)
