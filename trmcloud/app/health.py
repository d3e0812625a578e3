"""How a run's trainings fare, by the metrics of theirs that are on this machine."""

from __future__ import annotations

from trmcloud.app.context import Context
from trmcloud.app.run_queries import last_report
from trmcloud.core.contract.pod_contract import GPU_NOTE, window_from
from trmcloud.core.control.run_state import RunState
from trmcloud.core.health import Expected, Finding, Rule, findings
from trmcloud.core.spec.plan import PhasePlan

_OF_A_COMMAND = (Rule.NOT_FINITE, Rule.GPU_IDLE, Rule.GPU_LAGS)
"""Rules that need no knowledge of a model."""


def unwell(context: Context, run: RunState) -> dict[str, tuple[Finding, ...]]:
    """phase → what is found in it; phases in which nothing is found are left out."""
    found = {}
    report = last_report(context, run)
    window = window_from(report.notes.get(GPU_NOTE, "")) if report is not None else None
    begun = [phase.name for phase in report.phases if phase.attempts] if report is not None else []
    for phase in planned_phases(run):
        expected = expected_of(phase)
        lines = context.files.metrics(run.run_id, phase.name)
        is_last = bool(begun) and phase.name == begun[-1]  # the one that the GPUs are sampled in
        made = findings(lines, expected, window if is_last else None)
        if run.spec.command is not None:
            made = tuple(finding for finding in made if finding.rule in _OF_A_COMMAND)
        if made:
            found[phase.name] = made
    return found


def planned_phases(run: RunState) -> tuple[PhasePlan, ...]:
    """As the machine that the run is on was planned to train them."""
    generation = run.generation
    if generation is None:
        return ()
    return run.plan.candidate(generation.candidate_id).phases


def expected_of(phase: PhasePlan) -> Expected:
    settings = phase.settings
    return Expected(settings.steps, settings.warmup_steps, phase.step_s.p90, settings.accumulation)
