"""What a run's steps really took: against what was planned, and for the plans to come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median
from typing import NamedTuple

from trmcloud.app import probes
from trmcloud.app.context import Context
from trmcloud.app.health import planned_phases
from trmcloud.app.recovered import recovered
from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.contract.gate import number_of
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.planner.roofline import Measured
from trmcloud.core.planner.speed import rented_machine, step_seconds
from trmcloud.core.spec.plan import Candidate, PhasePlan

LEAST_ROWS = 20
"""Logged steps, of which the first two warm up."""


class Pace(NamedTuple):
    """Medians over the logged steps of one phase."""

    phase: PhasePlan
    rows: int
    step_s: float

    @property
    def tokens(self) -> float:
        """Of one step, each GPU's."""
        return float(self.phase.settings.tokens_per_step(1))


class Speeds(NamedTuple):
    """Tokens a second of the whole machine: planned (P50), and as they were."""

    planned: float
    measured: float


def pace_of(context: Context, run: RunState) -> Pace | None:
    """Of the last phase of which enough was logged; None where there is none."""
    for phase in reversed(planned_phases(run)):
        seconds = _seconds(context.files.metrics(run.run_id, phase.name))
        if len(seconds) >= LEAST_ROWS:
            return Pace(phase, len(seconds), median(seconds))
    return None


def speeds_of(context: Context, run: RunState) -> Speeds | None:
    candidate, pace = _candidate(run), pace_of(context, run)
    if candidate is None or pace is None:
        return None
    tokens = pace.tokens * candidate.world_size
    return Speeds(tokens / pace.phase.step_s.p50, tokens / pace.step_s)


def note_measured(context: Context, run: RunState) -> None:
    """Keep what the steps of a run that is over took, for plans on the same hardware.

    One whose settings were changed on the way, or that was on machines of two kinds, tells of
    neither; and one that says it was faster than its chip can be tells of nothing.

    Raises:
        OSError: the home cannot be written.
    """
    found = measured_in(context, run)
    if found is None:
        return
    kept = next((m for m in probes.load(context.home) if m.sku == found.sku), None)
    if kept is None or kept.at < found.at:
        probes.record(context.home, found)


def measured_in(context: Context, run: RunState) -> Measured | None:
    candidate = _candidate(run)
    if run.state is not State.CLOSED or candidate is None:
        return None
    if any(each.recovery.changed for each in recovered(context, run)):
        return None
    pace = pace_of(context, run)
    if pace is None:
        return None
    settings = pace.phase.settings
    predicted_s = 0.0
    if candidate.provider != LOCAL:
        machine = rented_machine(
            candidate.sku, candidate.world_size // candidate.nodes, nodes=candidate.nodes
        )
        predicted_s = step_seconds(settings, machine)
    found = Measured(
        sku=candidate.sku,
        gpus=candidate.world_size,
        step_s=pace.step_s,
        steps=pace.rows,
        tokens_per_step=settings.tokens_per_step(candidate.world_size),
        flops_per_token=settings.work().train_flops,
        predicted_s=predicted_s,
        at=run.updated_at,
        run_id=run.run_id,
    )
    return found if found.is_possible else None


def _candidate(run: RunState) -> Candidate | None:
    """The kind of machine that all of the run was trained on."""
    made = [g.candidate_id for g in run.generations if g.agent_at is not None]
    if not made:
        return None
    candidates = [run.plan.candidate(each) for each in made]
    kinds = {(c.sku, c.world_size, c.nodes) for c in candidates}
    return candidates[-1] if len(kinds) == 1 else None


def _seconds(lines: Iterable[Mapping[str, object]]) -> list[float]:
    """Of every logged step but the first two; what is no number was not measured."""
    told = [number_of(line.get("step_seconds")) for line in lines if line.get("kind") == "train"]
    return [each for each in told[2:] if each is not None and each > 0]
