"""Number formats and kernels in words: what was taken, and what was not to be had."""

from __future__ import annotations

from typing import Any

from trmcloud.app.context import Context
from trmcloud.app.formats import taken_by
from trmcloud.core.control.run_state import RunState


def format_rows(context: Context, run: RunState) -> list[tuple[str, str]]:
    """A row for what each phase took, and one below it for each thing that was left."""
    rows = []
    for each in taken_by(context, run):
        if each.taken:
            rows.append(("precision", f"{each.phase}: {each.taken}: {each.why}"))
        rows += [("  not", f"{what}: {why}") for what, why in each.left]
    return rows


def formats_json(context: Context, run: RunState) -> list[dict[str, Any]]:
    return [
        {
            "phase": each.phase,
            "step": each.step,
            "taken": each.taken or None,
            "why": each.why or None,
            "left": [{"what": what, "why": why} for what, why in each.left],
        }
        for each in taken_by(context, run)
    ]
