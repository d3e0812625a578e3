"""Runs beside each other, for the page: what differs in settings, hardware, money and outcome."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trmcloud.cli.page.encoding import page_json
from trmcloud.cli.views.metrics import checkpoint_cell, marked_words
from trmcloud.cli.views.text import duration, pick
from trmcloud.core.errors import UsageError
from trmcloud.core.text import one_line
from trmcloud.operations.context import Context, find_run
from trmcloud.operations.runs.configuration import Configuration, configuration_of
from trmcloud.operations.runs.run_facts import report_run
from trmcloud.operations.runs.run_views import run_account
from trmcloud.operations.views import RunAccount
from trmcloud.operations.words import title_of

LEAST, MOST = 2, 4
_NONE = "–"
OUTCOME, MONEY, HARDWARE, RECIPE_KEYS, LABELS = ORDER = (
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
    accounts = [run_account(context, state, report_run(context, state)) for state in states]
    columns = [
        _rows_of(account, configuration_of(state))
        for account, state in zip(accounts, states, strict=True)
    ]
    is_marked = any(a.best and a.best.evaluated and a.best.reported_by for a in accounts)
    metrics = (state.spec.command.metric_name if state.spec.command else None for state in states)
    return {
        "runs": [
            page_json(
                {
                    **pick(account, "tags", "live", "state"),
                    "id": account.run,
                    "name": account.name or "",
                    "metric": title_of(metric),
                }
            )
            for account, metric in zip(accounts, metrics, strict=True)
        ],
        "rows": table(columns),
        "note": marked_words() if is_marked else "",
    }


def table(columns: Sequence[_Rows]) -> list[dict[str, Any]]:
    """A row for each name that any column has, part by part. ``same``: all have the same value."""
    every = dict.fromkeys(name for column in columns for name in column)
    names = sorted(every, key=lambda name: ORDER.index(name[0]))
    rows = []
    for part, name in names:
        values = [one_line(column.get((part, name), _NONE) or _NONE) for column in columns]
        same = len(set(values)) == 1
        rows.append({"part": part, "name": one_line(name), "values": values, "same": same})
    return rows


def _rows_of(run: RunAccount, made: Configuration) -> _Rows:
    parts = (_outcome(run), _money(run), _hardware(run, made), _recipe(made), _labels(run))
    return {
        (part, name): value for part, rows in zip(ORDER, parts, strict=True) for name, value in rows
    }


def _outcome(run: RunAccount) -> Iterable[tuple[str, str]]:
    yield "state", run.state
    yield "best metric", checkpoint_cell(run.best)
    yield "best at step", f"{run.best.step:,}" if run.best is not None else _NONE
    yield "steps", f"{run.steps:,}"


def _money(run: RunAccount) -> Iterable[tuple[str, str]]:
    yield "cost", str(run.accrued_usd if run.billed_usd is None else run.billed_usd)
    yield "bill", "final" if run.billed_usd is not None else "not final"
    yield "cap", str(run.cap_usd)
    yield "planned cost", str(run.planned_usd)
    yield "paid time", duration(run.paid_s)
    yield "training", duration(run.parts_s.get("training", 0.0))
    if run.per_centibpb_usd is not None:
        yield "cost per −0.01 bpb", f"${run.per_centibpb_usd:.4f}"


def _hardware(run: RunAccount, made: Configuration) -> Iterable[tuple[str, str]]:
    chosen = made.chosen
    yield "hardware", chosen.hardware if chosen is not None else _NONE
    if run.provider is not None and made.rate is not None:
        yield "provider", run.provider
        yield "price per hour", str(made.rate)
    if chosen is not None:
        yield "region", chosen.region
        yield "spot", "yes" if chosen.spot else "no"
        yield "GPUs", f"{chosen.nodes} × {chosen.gpus}" if chosen.nodes > 1 else str(chosen.gpus)
    yield "machines so far", str(made.machines)


def _recipe(made: Configuration) -> Iterable[tuple[str, str]]:
    if made.plan is None:
        return
    spec, chosen = made.plan.spec, made.chosen
    yield "recipe", spec.recipe
    yield "data", spec.data or "the recipe's"
    yield "phases", ", ".join(spec.phases)
    if spec.command is not None:
        yield "command", " ".join(spec.command.words)
    for phase in chosen.phases if chosen is not None else ():
        for name in phase.settings.names():
            if name not in ("recipe", "family", "phase"):
                yield f"{phase.name}: {name}", _plain(getattr(phase.settings, name))
    yield from made.resumed


def _labels(run: RunAccount) -> Iterable[tuple[str, str]]:
    yield "name", run.name or ""
    yield "project", run.project
    yield from ((f"tag {key}", value) for key, value in run.tags.items())


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}" if isinstance(value, int) else str(value)
