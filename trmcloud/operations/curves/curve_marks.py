"""Events of a run as marks on its curves, and the evaluations in its ledger."""

from __future__ import annotations

from collections.abc import Sequence

from trmcloud.core.contract.command import shown_metric
from trmcloud.core.control import events as ev
from trmcloud.core.control.billing import paid_by
from trmcloud.core.control.run_state import RunState
from trmcloud.core.values import Value, replace
from trmcloud.operations.context import Context
from trmcloud.operations.curves.curves import Phase, Series, starts, step_at
from trmcloud.operations.curves.symptoms import remedy_text, trouble_text
from trmcloud.operations.curves.trainings import recoveries_of
from trmcloud.operations.narration import Narrator, Severity

_MOST_MARKS = 400


class Mark(Value):
    """``kind``: pod, price, checkpoint, gate, recovery, stop, phase or bill. ``step`` on the common
    axis, None where none is known; paid ``hours`` and ``usd`` by then."""

    kind: str
    at: float
    text: str
    step: int | None = None
    hours: float = 0.0
    usd: float = 0.0


def marks_of(context: Context, run: RunState, phases: Sequence[Phase]) -> tuple[Mark, ...]:
    """Return events by time: the ledger's facts, checkpoints and recoveries."""
    marks = _marks(context, run, phases)[-_MOST_MARKS:]
    hours, usd = paid_by(run, [mark.at for mark in marks])
    return tuple(
        replace(
            mark,
            step=mark.step if mark.step is not None else step_at(phases, mark.at),
            hours=round(hour, 6),
            usd=round(spent, 6),
        )
        for mark, hour, spent in zip(marks, hours, usd, strict=True)
    )


def _marks(context: Context, run: RunState, phases: Sequence[Phase]) -> list[Mark]:
    begins = dict(starts(phases))
    saves = [(phase.name, step, at) for phase in phases for step, at in phase.saves]
    marks = [
        Mark("checkpoint", at, f"{phase} step {step:,} saved", begins[phase] + step)
        for phase, step, at in saves
    ]
    for row in recoveries_of(context, run):
        told = f"{trouble_text(row)}; {remedy_text(row)}"
        step = begins.get(row.phase, 0) + row.recovery.step
        marks.append(Mark("recovery", row.recovery.at, told, step))
    for event in Narrator().tell(context.ledger.records(run.run_id)):
        is_saved = bool(saves) and isinstance(event.record.event, ev.Pulled)
        if event.severity >= Severity.MARK and not is_saved:
            marks.append(Mark(event.mark, event.record.at, event.line))
    return sorted(marks, key=lambda mark: mark.at)


def evals_on_record(context: Context, run: RunState) -> Series | None:
    """Return the evaluations of the ledger, where no other source is left: pulled checkpoints, and
    the ends of phases."""
    rows: dict[int, tuple[float, float]] = {}
    for record in context.ledger.records(run.run_id):
        event = record.event
        if not isinstance(event, ev.Pulled | ev.PhaseEnded):
            continue
        if event.step is not None and event.val_bpb is not None:
            rows.setdefault(event.step, (record.at, event.val_bpb))
    if not rows:
        return None
    steps = sorted(rows)
    at = [rows[step][0] for step in steps]
    hours, usd = paid_by(run, at)
    nothing: list[float | None] = [None] * len(steps)
    value = [shown_metric(run.spec.command, rows[step][1]) for step in steps]
    return Series(steps, at, hours, usd, value, nothing, [])
