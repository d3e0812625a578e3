"""What happened to a run's trainings and was mended, as far as this home has heard of it."""

from __future__ import annotations

from trmcloud.app.context import Context
from trmcloud.app.run_queries import last_beat, report_of
from trmcloud.core.contract.phase_account import with_skips
from trmcloud.core.contract.pod_contract import PhaseState
from trmcloud.core.contract.recovery import Recovery
from trmcloud.core.control.run_state import RunState
from trmcloud.core.money import Usd, cost
from trmcloud.core.values import dataclass


@dataclass(frozen=True)
class Recovered:
    """One row of an agent's account. ``lost``: its seconds at the machine's rate."""

    generation: int
    phase: str
    recovery: Recovery
    lost: Usd


def recovered(context: Context, run: RunState) -> tuple[Recovered, ...]:
    """In the order in which it happened, over all machines that the run has had."""
    found = []
    for generation in run.generations:
        report = report_of(context, generation)
        rate = generation.billed_rate or generation.rate
        beat = last_beat(context, run) if generation is run.generation else None
        for phase in report.phases if report is not None else ():
            rows = phase.recoveries
            if beat is not None and phase.state is PhaseState.RUNNING and beat.phase == phase.name:
                rows = with_skips(rows, beat)
            found += [
                Recovered(generation.number, phase.name, row, cost(rate, row.lost_s))
                for row in sorted(rows, key=lambda row: row.at)
            ]
    return tuple(found)
