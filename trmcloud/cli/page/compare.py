"""Runs beside each other, for the page: what differs in settings, hardware, money and outcome."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trmcloud.app.context import Context, find_run
from trmcloud.app.run_facts import report_run
from trmcloud.app.run_views import resumed_rows, state_of
from trmcloud.cli.views.metrics import marked_words, score_cell, title_of
from trmcloud.cli.views.text import duration
from trmcloud.core.control.report import RunReport
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import UsageError
from trmcloud.core.text import one_line

LEAST, MOST = 2, 4
_NONE = "–"
OUTCOME, MONEY, HARDWARE, RECIPE_KEYS, LABELS = (
    *("outcome", "money and time", "hardware", "recipe", "labels"),
)
_Rows = Mapping[tuple[str, str], str]


def compare_json(context: Context, names: Sequence[str]) -> dict[str, Any]:
    """Return the answer of ``GET /api/compare``; its fields are described in the reference.

    Raises:
        UsageError: fewer than two runs, or more than four. NotFoundError: there is no such run.
    """
    found = (find_run(context, name) for name in names if name)
    states = list({state.run_id: state for state in found}.values())
    if not LEAST <= len(states) <= MOST:
        raise UsageError(
            f"{LEAST} to {MOST} runs can be compared, not {len(states)}",
            next_step="choose them in the list of runs",
        )
    reports = [report_run(context, state) for state in states]
    columns = [_rows_of(*each) for each in zip(states, reports, strict=True)]
    return {
        "runs": [
            {
                "id": state.run_id,
                "name": one_line(state.name),
                "tags": {one_line(key): one_line(value) for key, value in state.tags},
                "live": state.live,
                "state": state_of(state),
                "metric": title_of(
                    state.spec.command.metric_name if state.spec.command is not None else None
                ),
            }
            for state in states
        ],
        "rows": table(columns),
        "note": marked_words() if any(_is_marked(report) for report in reports) else "",
    }


def table(columns: Sequence[_Rows]) -> list[dict[str, Any]]:
    """A row for each name that any column has, part by part. ``same``: all have the same value."""
    order = (OUTCOME, MONEY, HARDWARE, RECIPE_KEYS, LABELS)
    every = dict.fromkeys(name for column in columns for name in column)
    names = sorted(every, key=lambda name: order.index(name[0]))
    rows = []
    for part, name in names:
        values = [one_line(column.get((part, name), _NONE) or _NONE) for column in columns]
        same = len(set(values)) == 1
        rows.append({"part": part, "name": one_line(name), "values": values, "same": same})
    return rows


def _rows_of(run: RunState, report: RunReport) -> _Rows:
    found: dict[tuple[str, str], str] = {}
    for part, rows in (
        (OUTCOME, _outcome(run, report)),
        (MONEY, _money(run, report)),
        (HARDWARE, _hardware(run)),
        (RECIPE_KEYS, _recipe(run)),
        (LABELS, _labels(run)),
    ):
        found.update({(part, name): value for name, value in rows})
    return found


def _outcome(run: RunState, report: RunReport) -> Iterable[tuple[str, str]]:
    best = report.best
    yield "state", state_of(run)
    yield "best metric", score_cell(report.command, report.best_told)
    yield "best at step", f"{best.step:,}" if best is not None else _NONE
    yield "steps", f"{report.steps_done:,}"


def _money(run: RunState, report: RunReport) -> Iterable[tuple[str, str]]:
    yield "cost", str(report.accrued if report.billed is None else report.billed)
    yield "bill", "final" if report.billed is not None else "not final"
    yield "cap", str(run.cap)
    yield "planned cost", str(report.planned)
    yield "paid time", duration(report.paid_s)
    yield "training", duration(report.seconds.get("training", 0.0))
    per = report.usd_per_centibpb
    if per is not None:
        yield "cost per −0.01 bpb", f"${per:.4f}"


def _hardware(run: RunState) -> Iterable[tuple[str, str]]:
    chosen, generation = run.chosen, run.generation
    yield "hardware", chosen.hardware if chosen is not None else _NONE
    if generation is not None:
        yield "provider", generation.provider
        yield "price per hour", str(generation.billed_rate or generation.rate)
    elif chosen is not None:
        yield "provider", chosen.provider
        yield "price per hour", str(chosen.rate)
    if chosen is not None:
        yield "region", chosen.region
        yield "spot", "yes" if chosen.spot else "no"
        yield "GPUs", f"{chosen.nodes} × {chosen.gpus}" if chosen.nodes > 1 else str(chosen.gpus)
    yield "machines so far", str(sum(g.not_made is None for g in run.generations))


def _recipe(run: RunState) -> Iterable[tuple[str, str]]:
    spec, chosen = run.spec, run.chosen
    yield "recipe", spec.recipe
    yield "data", spec.data or "the recipe's"
    yield "phases", ", ".join(spec.phases)
    if spec.command is not None:
        yield "command", " ".join(spec.command.words)
    for phase in chosen.phases if chosen is not None else ():
        for name in phase.settings.names():
            if name not in ("recipe", "family", "phase"):
                value = getattr(phase.settings, name)
                yield f"{phase.name}: {name}", _plain(value)
    yield from resumed_rows(run)


def _labels(run: RunState) -> Iterable[tuple[str, str]]:
    yield "name", run.name
    yield "project", run.project
    yield from ((f"tag {key}", value) for key, value in run.tags)


def _is_marked(report: RunReport) -> bool:
    return report.best is not None and report.best.val_bpb is not None and not report.here


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}" if isinstance(value, int) else str(value)
