"""A run's trainings as their metrics on this machine show them: formats, health, recovery,
target, timeline.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trmcloud.core.contract.gate import judge, number_of
from trmcloud.core.contract.manifest import CheckpointManifest, KnownCheckpoint
from trmcloud.core.contract.phase_account import with_skips
from trmcloud.core.contract.pod_contract import GPU_NOTE, PhaseState, window_from
from trmcloud.core.contract.recovery import Recovery
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.health import Finding, PhaseExpectation, Rule, findings
from trmcloud.core.money import Usd, cost
from trmcloud.core.spec.plan import PhasePlan
from trmcloud.core.spec.settings import kind_of
from trmcloud.core.text import one_line
from trmcloud.core.values import Value
from trmcloud.operations import views
from trmcloud.operations.context import Context
from trmcloud.operations.run_queries import last_beat, last_report, mark_reported, report_of

# The verdict of the gate between two phases.


def verdicts_of(context: Context, run: RunState) -> dict[str, Mapping[str, Any]]:
    """By phase, each verdict on record; of an ended training without one, that on the metrics of
    its first phase."""
    may_train = run.live and run.state not in (State.ENDING, State.SETTLING)
    if run.gates or may_train or run.spec.command is not None:
        return {phase: each.verdict for phase, each in run.gates.items()}
    phase = next(iter(context.files.phases(run.run_id)), "")
    metrics = context.files.metrics(run.run_id, phase) if phase else []
    return {phase: judge(phase, metrics).to_json()} if metrics else {}


# Which number format and kernels a run's trainings took, and what they left: by their metrics.

_MOST_LEFT = 8
_LONGEST = 240


def formats_of(context: Context, run: RunState) -> tuple[views.Precision, ...]:
    """Return the last number format that each phase reported; a phase without one is left out.
    Texts come from a pod: they are cut, and one line each."""
    found = []
    for phase in planned_phases(run):
        last: dict[str, Mapping[str, Any]] = {}
        for line in context.files.metrics(run.run_id, phase.name):
            if line.get("kind") in ("start", "precision", "attention"):
                if line["kind"] == "start":  # another attempt
                    last.clear()
                last[str(line["kind"])] = line
        last.pop("start", None)
        if last:
            found.append(_taken(phase.name, last))
    return tuple(found)


def _taken(phase: str, last: Mapping[str, Mapping[str, Any]]) -> views.Precision:
    precision = last.get("precision", {})
    left = [pair for line in last.values() for pair in _pairs(line.get("left"))]
    step = number_of(next(iter(last.values())).get("step"))
    taken, why = _text(precision.get("taken")), _text(precision.get("why"))
    notes = [views.note("taken", why)] if why else []
    notes += [views.note("left", text, what=what) for what, text in left[:_MOST_LEFT]]
    return views.Precision(
        phase=phase, step=int(step or 0), taken=taken or None, notes=tuple(notes)
    )


def _pairs(rows: Any) -> list[tuple[str, str]]:
    if not isinstance(rows, list):
        return []
    return [(_text(r[0]), _text(r[1])) for r in rows if isinstance(r, list) and len(r) == 2]


def _text(value: Any) -> str:
    return one_line(value)[:_LONGEST] if isinstance(value, str) else ""


# How a run's trainings fare, by the metrics of theirs that are on this machine.

_OF_A_COMMAND = (Rule.NOT_FINITE, Rule.GPU_IDLE, Rule.GPU_LAGS)
"""Rules that need no knowledge of a model."""


def find_symptoms(context: Context, run: RunState) -> dict[str, tuple[Finding, ...]]:
    """phase → what is found in it; phases in which nothing is found are left out."""
    found: dict[str, tuple[Finding, ...]] = {}
    if run.spec.sweep is not None:
        return found  # the metrics of many trainings are no curve
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


def expected_of(phase: PhasePlan) -> PhaseExpectation:
    settings = phase.settings
    return PhaseExpectation(
        settings.steps, settings.warmup_steps, phase.step_s.p90, settings.accumulation
    )


# What happened to a run's trainings and was mended, as far as this home has heard of it.


class RecoveryRow(Value):
    """One row of an agent's account. ``lost``: its seconds at the machine's rate."""

    generation: int
    phase: str
    recovery: Recovery
    lost: Usd


def recoveries_of(context: Context, run: RunState) -> tuple[RecoveryRow, ...]:
    """In the order in which it happened, over all machines that the run has had."""
    found = []
    for generation in run.generations:
        report = report_of(context, generation)
        rate = generation.charged_rate
        beat = last_beat(context, run) if generation is run.generation else None
        for phase in report.phases if report is not None else ():
            rows = phase.recoveries
            if beat is not None and phase.state is PhaseState.RUNNING and beat.phase == phase.name:
                rows = with_skips(rows, beat)
            found += [
                RecoveryRow(generation.number, phase.name, row, cost(rate, row.lost_s))
                for row in sorted(rows, key=lambda row: row.at)
            ]
    return tuple(found)


# A run's best checkpoint beside what its recipe's guide promises.


def judge_target(
    run: RunState, best: KnownCheckpoint | None, trained_s: float
) -> views.TargetVerdict | None:
    """Return a guide's verdict on the best checkpoint; None where it promises nothing, or nothing
    is evaluated. ``trained_s``: start-up left out."""
    if not isinstance(best, CheckpointManifest) or not best.step_losses:
        return None
    settings = best.settings
    family = kind_of(str(settings.get("family")))
    guide = family.guides.get(run.spec.recipe)
    if guide is None or guide.target is None:
        return None
    target = guide.target
    data = run.spec.data or str(settings.get("data", ""))
    tokenizer = str(settings.get("tokenizer", ""))
    other = ""
    if (data, tokenizer) != (target.data, target.tokenizer):
        other = (
            f"it is measured on {target.data} in the tokens of {target.tokenizer}, this run on "
            f"{data}"
        )
        other += f" in {tokenizer}'s" if tokenizer != target.tokenizer else ""
    nats = best.step_losses[-1]
    notes = [views.note("not_reached", text) for text in target.why_not]
    return views.TargetVerdict(
        passed=None if other else nats <= target.nats,
        checkpoint=best.label,
        nats_per_token=nats,
        bits_per_byte=best.val_bpb,
        trained_s=trained_s,
        target_nats_per_token=target.nats,
        target_s=target.hours * 3600.0,
        reported_by=mark_reported(run, best).source,
        notes=(*notes, *([views.note("not_comparable", other)] if other else [])),
    )
