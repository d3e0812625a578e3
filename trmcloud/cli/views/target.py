"""The verdict on a recipe that a guide promises a loss of."""

from __future__ import annotations

from trmcloud.app.context import Context
from trmcloud.app.reports import report_run
from trmcloud.app.run_queries import told_by
from trmcloud.app.target import Judged, judged
from trmcloud.cli.views.text import bpb
from trmcloud.core.control.report import RunReport
from trmcloud.core.control.reported import Reported
from trmcloud.core.control.run_state import RunState
from trmcloud.core.plain_text import one_line

_WORDS = {True: "passed", False: "FAILED", None: "not judged"}


def verdict_of(run: RunState, report: RunReport) -> Judged | None:
    return judged(run, report.best, report.seconds.get("training", 0.0) / 3600)


def target_rows(context: Context, run: RunState) -> list[tuple[str, str]]:
    made = verdict_of(run, report_run(context, run))
    return [] if made is None else [("verdict", text) for text in target_lines(told_by(run, made))]


def target_lines(told: Reported[Judged]) -> list[str]:
    """The verdict, whose word it rests on, and why the promise could not be kept where it was
    not."""
    said = told.as_reported(_words)
    return [one_line(said), *told.checked(lambda made: [] if made.passed else made.target.why_not)]


def _words(made: Judged) -> str:
    target = made.target
    told = (
        f"{_WORDS[made.passed]}: validation loss {made.nats:.4f} nats a token "
        f"({bpb(made.bits_per_byte)} bits per byte) at {made.label} after {made.hours:.2f} h of "
        f"training; the guide's is {target.nats} in {target.hours:g} h"
    )
    if made.other:
        told += f", and {made.other}"
    return told
