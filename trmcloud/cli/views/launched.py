"""Configuration of a run: its plan, hardware, cap and stops."""

from __future__ import annotations

from trmcloud.app.configuration import Configuration
from trmcloud.cli.views.launch import frozen_rows
from trmcloud.cli.views.plan import limit_rows


def launched_rows(found: Configuration) -> list[tuple[str, str]]:
    """Return (name, text) of each row."""
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
