"""JSON for the page: a run's facts with the words that screens have for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

from trmcloud.api import Line
from trmcloud.cli.page.encoding import page_json
from trmcloud.cli.views.foreseen import question
from trmcloud.cli.views.grants import wish_words
from trmcloud.cli.views.metrics import buys_words
from trmcloud.cli.views.text import pick
from trmcloud.core.reported import BY_POD, ReportedValue
from trmcloud.core.text import one_line
from trmcloud.operations import views
from trmcloud.operations.checkpoints.inventory import Checkpoint, Place
from trmcloud.operations.context import Context, run_by_id
from trmcloud.operations.curves.curve_marks import evals_on_record, marks_of
from trmcloud.operations.curves.curves import Phase, draw_curves
from trmcloud.operations.launch.steering import Forecast, refusals_of
from trmcloud.operations.money.grants import ApprovalRequest
from trmcloud.operations.reasons import sentence
from trmcloud.operations.runs.conditions import meaning_of
from trmcloud.operations.runs.run_facts import Run, Training
from trmcloud.operations.runs.run_views import gate_verdict, volume_notes
from trmcloud.operations.words import title_of, value_words


def run_json(run: Run) -> dict[str, Any]:
    """A row of the table of runs, and the head of a run's page."""
    names = (
        *("id", "name", "tags", "recipe", "project", "principal", "outcome", "hardware"),
        *("provider", "state", "live", "landing", "driven", "created_at", "clock", "unasked"),
    )
    amounts = pick(run.money, "cap", "proven", "at_most", "reserved", "left", "rate")
    layers = [pick(layer, "name", "state", "detail") for layer in run.layers]
    told: dict[str, Any] = page_json(
        {
            **pick(run, *names, "trouble"),
            "money": amounts,
            "layers": layers,
            "max_overspend": run.max_overspend.text if run.live else None,
            "why": sentence(run.reason),
            "waits_for": sentence(run.waits_for),
        }
    )
    told["metric"] = title_of(run.metric)
    told["training"] = training_json(run.training) if run.training is not None else None
    return told


def training_json(training: Training) -> dict[str, Any]:
    """Return what changes with each heartbeat. ``reported_by``: whose word all of it is."""
    best = training.best if training.best is not None and isfinite(training.best) else None
    told = ReportedValue(best, here=training.trained_here)
    words = partial(value_words, training.metric)
    names = (
        *("phase", "state", "step", "steps", "at", "tokens", "best_step", "saved_step"),
        *("loss", "passes", "tokens_per_s"),
    )
    made: dict[str, Any] = page_json(pick(training, *names))
    return {
        **made,
        "value": words(page_json(training.value)),
        "best": words(None) if best is None else told.as_reported(words),
        "reported_by": told.source,
        "by": "" if told.here else BY_POD,
        "buys": buys_words(training.next_usd_buys, training.next_hour_buys),
    }


def whole_json(context: Context, run: Run) -> dict[str, Any]:
    """All that a run's page shows beside its curves, but for its health."""
    told, state = run_json(run), run_by_id(context, run.id)
    told["cannot"] = page_json(refusals_of(context, state))
    told["meaning"] = meaning_of(state, run.outcome) if run.outcome is not None else ""
    volumes = volume_notes(context.ledger.read(), context.wall(), state.run_id)
    told["volumes"] = [note.message for note in volumes]
    told["gates"] = [
        _gate_json(phase, gate_verdict(state, phase, each.verdict))
        for phase, each in state.gates.items()
    ]
    told["sweep"] = _sweep_json(context, run.id) if state.spec.sweep is not None else None
    told["ledger"] = f"{context.ledger.ledger_id}, {len(context.ledger.records(run.id))} records"
    return told


def _sweep_json(context: Context, run_id: str) -> dict[str, Any] | None:
    """The table of a sweep's trials and its report; the modules that read them are of no use to
    other runs."""
    from trmcloud.cli.views.sweep import report_lines, trial_table
    from trmcloud.operations.sweeps.sweep_facts import sweep_of
    from trmcloud.operations.sweeps.sweep_priors import priors_of

    state = run_by_id(context, run_id)
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
    told: dict[str, Any] = page_json(
        {
            **pick(line, "level", "key", "cap", "settled", "reserved", "unproven"),
            "name": f"{line.level} {line.key}".strip(),
            "left": line.remaining,
            "share": held.micros / line.cap.micros if line.cap else None,
        }
    )
    return told


def approval_json(request: ApprovalRequest) -> dict[str, Any]:
    """A principal's request: what it asks for in words."""
    told: dict[str, Any] = page_json(pick(request, "id", "principal", "state", "why"))
    return {**told, "wish": wish_words(request)}


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


def curves_json(context: Context, run_id: str, phases: Sequence[Phase]) -> dict[str, Any]:
    """Columns, and every mark with where it stands on each axis."""
    run = run_by_id(context, run_id)
    curves = draw_curves(run, phases)
    evals, told = curves.evals, ""
    if not evals.step and (kept := evals_on_record(context, run)) is not None:
        evals, told = kept, "from the ledger: the metrics themselves are not here"
    return {
        "train": curves.train.to_json(),
        "evals": evals.to_json(),
        "phases": [{"name": name, "step": step} for name, step in curves.phases],
        "whole": curves.whole,
        "told": told,
        "marks": page_json(marks_of(context, run, phases)),
    }


def _gate_json(phase: str, verdict: views.GateVerdict | None) -> dict[str, Any]:
    checks = verdict.checks if verdict is not None else ()
    return {
        "phase": one_line(phase),
        "passed": verdict.passed if verdict is not None else None,
        "checks": [
            {"name": check.code, **pick(check, "passed", "blocking"), "detail": check.message}
            for check in checks
        ],
    }
