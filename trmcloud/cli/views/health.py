"""A training's health, its recoveries and its number formats, as rows."""

from __future__ import annotations

from typing import Any

from trmcloud.app.context import Context
from trmcloud.app.symptoms import (
    advice_of,
    evidence_text,
    finding_text,
    loss_text,
    remedy_text,
    trouble_text,
)
from trmcloud.app.trainings import find_symptoms, formats_of, recoveries_of
from trmcloud.core.control.run_state import RunState


def health_rows(context: Context, run: RunState) -> list[tuple[str, str]]:
    """A row for each finding of a run, what helps in the row below."""
    rows = []
    for phase, found in find_symptoms(context, run).items():
        for finding in found:
            rows.append(("unwell", finding_text(phase, finding)))
            if advice := advice_of(finding, run):
                rows.append(("  try", advice))
    return rows


def health_json(context: Context, run: RunState) -> list[dict[str, Any]]:
    return [
        {
            "phase": phase,
            "rule": finding.rule.value,
            "step": finding.step,
            "facts": dict(finding.facts),
            "text": evidence_text(finding),
            "next": advice_of(finding, run) or None,
        }
        for phase, found in find_symptoms(context, run).items()
        for finding in found
    ]


def recovered_rows(context: Context, run: RunState) -> list[tuple[str, str]]:
    """Two rows for each thing that was mended."""
    rows = []
    for each in recoveries_of(context, run):
        rows.append(("recovered", trouble_text(each)))
        rows.append(("  by", f"{remedy_text(each)} · {loss_text(each)}"))
    return rows


def format_rows(context: Context, run: RunState) -> list[tuple[str, str]]:
    """A row for what each phase took, and one below it for each thing that was left."""
    rows = []
    for each in formats_of(context, run):
        if each.taken:
            rows.append(("precision", f"{each.phase}: {each.taken}: {each.why}"))
        rows += [("  not", f"{what}: {why}") for what, why in each.left]
    return rows
