"""JSON for the page: a run's facts with the words that screens have for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from trmcloud.app import views
from trmcloud.app.checkpoints.inventory import Checkpoint, Place
from trmcloud.app.conditions import meaning_of
from trmcloud.app.context import Context
from trmcloud.app.curves import Phase, Series, draw_curves, starts, step_at
from trmcloud.app.grants import ApprovalRequest
from trmcloud.app.narration import Narrator, Severity
from trmcloud.app.reasons import sentence
from trmcloud.app.run_facts import Run, Training
from trmcloud.app.run_views import gate_verdict, volume_notes
from trmcloud.app.steering import Forecast
from trmcloud.app.symptoms import remedy_text, trouble_text
from trmcloud.app.trainings import recoveries_of
from trmcloud.cli.page.details import refusals_of
from trmcloud.cli.views.foreseen import question
from trmcloud.cli.views.grants import wish_words
from trmcloud.cli.views.metrics import buys_words, title_of, value_words
from trmcloud.cli.views.text import pick
from trmcloud.core.contract.command import shown_metric
from trmcloud.core.control import events as ev
from trmcloud.core.control.billing import paid_by
from trmcloud.core.control.budget import Line
from trmcloud.core.control.run_state import RunState
from trmcloud.core.money import Usd
from trmcloud.core.reported import BY_POD, ReportedValue
from trmcloud.core.text import one_line
from trmcloud.core.values import dataclass

_MOST_MARKS = 400


def run_json(run: Run) -> dict[str, Any]:
    """A row of the table of runs, and the head of a run's page."""
    amounts = pick(run.money, "cap", "proven", "at_most", "reserved", "left", "rate")
    return {
        "id": run.id,
        "name": one_line(run.name),
        "tags": {one_line(key): one_line(value) for key, value in run.tags.items()},
        "recipe": one_line(run.recipe),
        "project": one_line(run.project),
        "principal": one_line(run.principal),
        "outcome": run.outcome.value if run.outcome is not None else None,
        **pick(run, "hardware", "provider", "state", "live", "landing", "driven", "created_at"),
        "clock": one_line(run.clock),
        **pick(run, "unasked"),
        "money": {name: money(amount) for name, amount in amounts.items()},
        "metric": title_of(run.metric),
        "training": training_json(run.training) if run.training is not None else None,
        "layers": [
            {"name": x.name, "state": x.state, "detail": one_line(x.detail)} for x in run.layers
        ],
        "max_overspend": run.max_overspend.text if run.live else None,
        "why": one_line(sentence(run.reason)),
        "waits_for": one_line(sentence(run.waits_for)),
        "trouble": one_line(run.trouble),
    }


def training_json(training: Training) -> dict[str, Any]:
    """Return what changes with each heartbeat. ``reported_by``: whose word all of it is."""
    told = ReportedValue(_finite(training.best), here=training.trained_here)
    words = partial(value_words, training.metric)
    is_scored = told.checked(lambda best: best is not None)
    return {
        **pick(training, "phase", "state", "step", "steps", "at", "tokens"),
        **pick(training, "best_step", "saved_step"),
        "loss": _finite(training.loss),
        "passes": [_finite(each) for each in training.passes],
        "value": words(_finite(training.value)),
        "best": told.as_reported(words) if is_scored else words(None),
        "reported_by": told.source,
        "by": "" if told.here else BY_POD,
        "tokens_per_s": _finite(training.tokens_per_s),
        "buys": buys_words(training.next_usd_buys, training.next_hour_buys),
    }


def whole_json(context: Context, state: RunState, run: Run) -> dict[str, Any]:
    """All that a run's page shows beside its curves, but for its health."""
    told = run_json(run)
    told["cannot"] = refusals_of(context, state)
    told["meaning"] = meaning_of(state, run.outcome) if run.outcome is not None else ""
    volumes = volume_notes(context.ledger.read(), context.wall(), state.run_id)
    told["volumes"] = [note.message for note in volumes]
    told["gates"] = [
        _gate_json(phase, gate_verdict(state, phase, each.verdict))
        for phase, each in state.gates.items()
    ]
    told["sweep"] = _sweep_json(context, state)
    told["ledger"] = f"{context.ledger.ledger_id}, {len(context.ledger.records(run.id))} records"
    return told


def _sweep_json(context: Context, state: RunState) -> dict[str, Any] | None:
    """The table of a sweep's trials and its report; the modules that read them are of no use to
    other runs."""
    if state.spec.sweep is None:
        return None
    from trmcloud.app.sweep_facts import sweep_of
    from trmcloud.app.sweep_priors import priors_of
    from trmcloud.cli.views.sweep import report_lines, trial_table

    facts = sweep_of(context, state)
    if facts is None:
        return None
    heads, rows = trial_table(facts)
    said = report_lines(facts, priors_of(state.plan, facts.terms))
    return {"said": [one_line(each) for each in said], "heads": heads, "rows": rows}


def checkpoint_json(found: Checkpoint) -> dict[str, Any]:
    told = ReportedValue(found.value, here=found.trained_here)
    words = partial(value_words, found.metric)
    return {
        **pick(found, "label", "phase", "step", "sha256", "best", "latest"),
        "value": "not evaluated" if found.value is None else told.as_reported(words),
        "mb": round(found.size_bytes / 1e6, 1),
        "best_words": told.as_pods(lambda _: "best") if found.best else "",
        "places": [{"kind": place.kind, "where": _where(place)} for place in found.places],
    }


def place_text(place: Place) -> str:
    """Return the place, as the end of a sentence."""
    known = {"pod": "only on its pod so far", "volume": "on its network volume"}
    return known.get(place.kind, f"in {_where(place)}")


def _where(place: Place) -> str:
    here = place.kind in ("here", "fetched")
    return one_line(as_typed(Path(place.where)) if here else place.where)


def as_typed(path: Path) -> str:
    """``~/…`` for what is below the user's own folder."""
    own = Path.home()
    return f"~/{path.relative_to(own)}" if path.is_relative_to(own) else str(path)


def line_json(line: Line) -> dict[str, Any]:
    """A budget. ``share`` is what of it is spent or held."""
    held = line.settled + line.reserved
    return {
        **pick(line, "level", "key"),
        "name": one_line(f"{line.level} {line.key}".strip()),
        "cap": money(line.cap),
        "settled": money(line.settled),
        "reserved": money(line.reserved),
        "left": money(line.remaining),
        "unproven": money(line.unproven),
        "share": held.micros / line.cap.micros if line.cap else None,
    }


def approval_json(request: ApprovalRequest) -> dict[str, Any]:
    """A principal's request: what it asks for in words."""
    return {
        **pick(request, "id", "principal", "state"),
        "wish": wish_words(request),
        "why": one_line(request.why),
    }


def money(amount: Usd | None) -> dict[str, Any] | None:
    """As a screen shows it, and as a bar is drawn by it."""
    return {"text": str(amount), "usd": float(amount)} if amount is not None else None


# -- the effect of a click -------------------------------------------------------------------------


def foreseen_json(seen: Forecast, folder: str) -> dict[str, Any]:
    """A question that names the dollars. ``folder`` is where a checkpoint would be copied to."""
    title, button, lines = question(seen, folder)
    return {
        "verb": seen.verb,
        "title": title,
        "refused": one_line(seen.refused),
        "lines": [one_line(line) for line in lines] if not seen.refused else [],
        "button": button,
        "at_most": seen.at_most.plain(),
        "cap": seen.cap.plain(),
    }


# -- curves, and the marks on them -----------------------------------------------------------------


@dataclass(frozen=True)
class Mark:
    """``kind``: pod, price, checkpoint, gate, recovery, stop, phase or bill. ``step`` on the common
    axis; None: whatever was the newest then."""

    kind: str
    at: float
    text: str
    step: int | None = None


def curves_json(context: Context, state: RunState, phases: Sequence[Phase]) -> dict[str, Any]:
    """Columns, and every mark with where it stands on each axis."""
    curves = draw_curves(state, phases)
    evals, told = curves.evals, ""
    if not evals.step and (kept := _evals_of_ledger(context, state)) is not None:
        evals, told = kept, "from the ledger: the metrics themselves are not here"
    return {
        "train": curves.train.to_json(),
        "evals": evals.to_json(),
        "phases": [{"name": name, "step": step} for name, step in curves.phases],
        "whole": curves.whole,
        "told": told,
        "marks": marks_json(context, state, phases),
    }


def marks_json(context: Context, state: RunState, phases: Sequence[Phase]) -> list[dict[str, Any]]:
    """Return events by time: the ledger's facts, checkpoints and recoveries."""
    marks = _marks(context, state, phases)[-_MOST_MARKS:]
    hours, usd = paid_by(state, [mark.at for mark in marks])
    return [
        {
            "kind": mark.kind,
            "at": mark.at,
            "text": one_line(mark.text),
            "step": mark.step if mark.step is not None else step_at(phases, mark.at),
            "hours": round(hour, 6),
            "usd": round(spent, 6),
        }
        for mark, hour, spent in zip(marks, hours, usd, strict=True)
    ]


def _marks(context: Context, state: RunState, phases: Sequence[Phase]) -> list[Mark]:
    begins = dict(starts(phases))
    saves = [(phase.name, step, at) for phase in phases for step, at in phase.saves]
    marks = [
        Mark("checkpoint", at, f"{phase} step {step:,} saved", begins[phase] + step)
        for phase, step, at in saves
    ]
    for row in recoveries_of(context, state):
        told = f"{trouble_text(row)}; {remedy_text(row)}"
        step = begins.get(row.phase, 0) + row.recovery.step
        marks.append(Mark("recovery", row.recovery.at, told, step))
    for event in Narrator().tell(context.ledger.records(state.run_id)):
        is_saved = bool(saves) and isinstance(event.record.event, ev.Pulled)
        if event.severity >= Severity.MARK and not is_saved:
            marks.append(Mark(event.mark, event.record.at, event.line))
    return sorted(marks, key=lambda mark: mark.at)


def _evals_of_ledger(context: Context, state: RunState) -> Series | None:
    """Return the evaluations of the ledger, where no other source is left: pulled checkpoints, and
    the ends of phases."""
    rows: dict[int, tuple[float, float]] = {}
    for record in context.ledger.records(state.run_id):
        event = record.event
        if not isinstance(event, ev.Pulled | ev.PhaseEnded):
            continue
        if event.step is not None and event.val_bpb is not None:
            rows.setdefault(event.step, (record.at, event.val_bpb))
    if not rows:
        return None
    steps = sorted(rows)
    at = [rows[step][0] for step in steps]
    hours, usd = paid_by(state, at)
    nothing: list[float | None] = [None] * len(steps)
    value = [shown_metric(state.spec.command, rows[step][1]) for step in steps]
    return Series(steps, at, hours, usd, value, nothing, [])


def _gate_json(phase: str, verdict: views.GateVerdict | None) -> dict[str, Any]:
    if verdict is None:
        return {"phase": one_line(phase), "passed": None, "checks": []}
    return {
        "phase": one_line(phase),
        "passed": verdict.passed,
        "checks": [
            {"name": check.code, **pick(check, "passed", "blocking"), "detail": check.message}
            for check in verdict.checks
        ],
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
