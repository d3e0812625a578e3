"""A training's health, its recoveries, its number formats and its gates, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trmcloud.cli.views.metrics import told_of
from trmcloud.core.text import one_line

if TYPE_CHECKING:
    from trmcloud.operations import views


def health_rows(symptoms: Sequence[views.Symptom]) -> list[tuple[str, str]]:
    """Return a row for each finding of a run, with the advice in the row below."""
    rows = []
    for each in symptoms:
        rows.append(("unwell", f"{each.phase} step {each.step:,}: {each.message}"))
        if each.next:
            rows.append(("  try", each.next))
    return rows


def recovered_rows(recoveries: Sequence[views.Recovery]) -> list[tuple[str, str]]:
    """Return two rows for each recovery: the trouble, and the remedy with its cost."""
    rows = []
    for each in recoveries:
        trouble, remedy, lost = (note.message for note in each.notes)
        rows += [("recovered", trouble), ("  by", f"{remedy} · {lost}")]
    return rows


def format_rows(precision: Sequence[views.Precision]) -> list[tuple[str, str]]:
    """Return a row for the format that each phase took, and one below it for each that it left."""
    rows = []
    for each in precision:
        if each.taken:
            why = next((note.message for note in each.notes if note.code == "taken"), "")
            rows.append(("precision", f"{each.phase}: {each.taken}: {why}"))
        left = (note for note in each.notes if note.code == "left")
        rows += [("  not", f"{note.facts['what']}: {note.message}") for note in left]
    return rows


def verdict_lines(view: views.RunView) -> list[str]:
    """Return the verdict of each gate with its checks, and which verdicts cannot be read."""
    lines = []
    for verdict in view.verdicts:
        judged = told_of(verdict).as_reported(lambda made: "passed" if made.passed else "FAILED")
        lines.append(f"  gate after {one_line(verdict.phase)}: {judged}")
        for check in verdict.checks:
            mark = {True: "✔", False: "✘", None: "–"}[check.passed]
            weight = "" if check.blocking else "  (does not block)"
            lines.append(f"    {mark} {one_line(f'{check.code}: {check.message}')}{weight}")
    unread = (note for note in view.notes if note.code == "unread_verdict")
    lines += [f"  gate after {one_line(note.facts['phase'])}: {note.message}" for note in unread]
    return lines
