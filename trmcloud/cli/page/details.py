"""JSON for the lower part of a run's page: its log and its configuration."""

from __future__ import annotations

from typing import Any

from trmcloud.cli.page.encoding import page_json
from trmcloud.cli.views.launch import frozen_rows
from trmcloud.cli.views.plan import limit_rows
from trmcloud.cli.views.text import pick
from trmcloud.core.text import one_line
from trmcloud.operations.context import Context, find_run
from trmcloud.operations.runs.configuration import Configuration, configuration_of, differences_of
from trmcloud.operations.runs.run_logs import logs_of, read_log
from trmcloud.wiring_plans import build_planner

_MOST_CELL = 200


def log_json(context: Context, name: str, phase: str, after: int | None) -> dict[str, Any]:
    """Return the end of the log of ``phase``, or of the newest one; what is behind ``after``."""
    run = find_run(context, name)
    logs = list(logs_of(context, run))
    told: dict[str, Any] = {"logs": logs, "live": run.live}
    if not logs and not phase:
        return {**told, "log": "", "start": 0, "end": 0, "size": 0, "text": ""}
    log = phase or logs[-1]
    piece = read_log(context, run, log, after)
    return {**told, "log": log, **pick(piece, "start", "end", "size", "text")}


def launched_json(context: Context, name: str) -> dict[str, Any]:
    run = find_run(context, name)
    made = configuration_of(run)
    differences = differences_of(made, build_planner(context.home).recipe)
    return {
        "recipe": one_line(run.spec.recipe) if run.spec.command is None else "",
        "rows": page_json(_launched_rows(made)),
        "differences": None if differences is None else [
            {name: one_line(text)[:_MOST_CELL] for name, text in each._asdict().items()}
            for each in differences
        ],
    }  # fmt: skip


def _launched_rows(found: Configuration) -> list[tuple[str, str]]:
    """Return (name, text) of each row: a run's plan, hardware, cap and stops."""
    plan = found.plan
    if plan is None:
        return [("plan", "its record cannot be read")]
    rows = frozen_rows(plan, found.chosen, verbose=True)
    if plan.spec.command is None:
        rows.insert(1, ("recipe", f"{plan.spec.recipe}, {' then '.join(plan.spec.phases)}"))
    if plan.cap is not None and found.cap != plan.cap:
        rows.append(("cap now", f"{found.cap}, changed since the launch"))
    if found.kill_layers:
        rows.append(("kill layers", " · ".join(found.kill_layers)))
    return [*rows, *limit_rows(plan, verbose=False), *found.resumed]
