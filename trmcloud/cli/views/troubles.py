"""Lines about what was found, and what could not be looked at."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from trmcloud.core.errors import TrmcloudError
from trmcloud.core.text import one_line
from trmcloud.operations.context import Context

if TYPE_CHECKING:
    from trmcloud.operations import views
    from trmcloud.operations.commands.failed_commands import Failure


def trouble_lines(context: Context) -> list[str]:
    """A line for each run that could not be brought up to date by the last ``reconcile``."""
    lines = []
    for run_id, error in context.troubles.items():
        known = isinstance(error, TrmcloudError)
        what = str(error) if known else f"unexpected {type(error).__name__}: {error}"
        lines.append(one_line(f"{run_id} could not be updated: {what}"))
    return lines


def unreached_lines(context: Context) -> list[str]:
    """A line for each provider that gave no list: what it rents to us continues, unseen."""
    return [
        one_line(f"{provider} was not checked: {why}")
        for provider, why in context.machines.lists.unreached()
    ]


def tell_unreached(context: Context) -> None:
    for line in unreached_lines(context):
        print(line, file=sys.stderr, flush=True)


def tell_troubles(context: Context) -> None:
    for line in trouble_lines(context):
        print(line, file=sys.stderr, flush=True)


def trouble_code(context: Context, run_id: str = "") -> int:
    """The exit code of a command that looks at all runs, or at the one that is named: 0 where each
    was brought up to date."""
    troubles = [e for name, e in context.troubles.items() if run_id in ("", name)]
    return max((int(getattr(error, "exit_code", 1)) for error in troubles), default=0)


def hurt_line(hurt: views.DamagedRun) -> str:
    """A run in quarantine: what is known, what it counts as, what to type next."""
    records = hurt.records_read + len(hurt.damaged)
    what = f"{hurt.run}: its records are damaged; {hurt.records_read} of {records} could be read"
    if hurt.settled_usd is not None:
        return f"{what}; settled manually at {hurt.settled_usd}"
    most = "an unknown amount" if hurt.at_most_usd is None else f"at most {hurt.at_most_usd}"
    return f"{what}; it counts as {most} · trmcloud admin ledger restore"


def failure_lines(failure: Failure | None) -> list[str]:
    """Return the last lines of a command that failed, and a file that it did not find though it is
    here; none of any other run."""
    if failure is None:
        return []
    lines = ["  its last lines:", *(f"  | {line}" for line in failure.lines)]
    told = lines if failure.lines else []
    if failure.missing:
        told.append(f"  missing: {one_line(failure.missing)} exists here but was not sent")
        told.append(f"  try: {one_line(failure.fix)}")
    return told
