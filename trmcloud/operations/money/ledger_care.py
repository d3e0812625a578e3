"""Care of the ledger: caps on record, and what a restored file lacks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trmcloud.core.clock import utc_second
from trmcloud.core.control.budget import (
    LEVELS,
    PROJECT_MONTH,
    LedgerState,
    Line,
    is_project_month,
    project_month,
)
from trmcloud.core.control.events import CapSet, DamageSettled
from trmcloud.core.control.grants import month_of
from trmcloud.core.errors import GrantRefused, NotFoundError, UsageError
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.text import first_of
from trmcloud.core.values import replace
from trmcloud.operations.context import Context
from trmcloud.operations.views import CapChange, filled
from trmcloud.ports.ledger import Restoration

# Caps of account, month and project: which one is meant, and how it is set on record.


def line_of(context: Context, level: str, key: str = "") -> Line:
    """``key``: this month's, this project's where it is empty.

    Raises:
        UsageError: no such level.
    """
    if level not in LEVELS[:-1]:
        raise UsageError(f"there is no budget level {level!r}", next_step=", ".join(LEVELS[:-1]))
    project = context.caller.project
    if level == PROJECT_MONTH:
        return _project_month_line(context, key or project)
    default = {"account": "", "month": month_of(context.wall()), "project": project}[level]
    return context.ledger.read().line(level, key or default)


def _project_month_line(context: Context, key: str) -> Line:
    """The line of ``key``: a project's month, or a project alone, whose cap is that of each month
    without one of its own. Its money is then that of this month."""
    ledger, this = context.ledger.read(), month_of(context.wall())
    if is_project_month(key):
        return ledger.line(PROJECT_MONTH, key)
    line = ledger.line(PROJECT_MONTH, project_month(key, this))
    return replace(line, key=key, cap=ledger.caps.get((PROJECT_MONTH, key)))


def raise_cap(context: Context, line: Line, cap: Usd, *, next_step: str = "") -> Line:
    """
    Raises:
        UsageError: there is no cap, or it is no lower than ``cap``.
    """
    if line.cap is None or cap <= line.cap:
        raise UsageError(
            f"the {line.level} cap is {line.cap or 'not set'}: {cap} would not raise it",
            next_step=next_step,
        )
    return set_cap(context, line, cap)


def set_cap(context: Context, line: Line, cap: Usd) -> Line:
    """The line as it is then. Where the record of a cap is damaged, this is that cap set again.

    Raises:
        GrantRefused: the process's environment names a principal.
    """
    if context.caller.is_bound:
        raise GrantRefused(
            f"{context.caller.principal} cannot change caps or grants",
            next_step="ask the ledger's owner for approval",
        )
    context.ledger.set_cap(CapSet(line.level, line.key, cap), context.wall())
    for lost in context.ledger.read().unread:
        if lost.kind == "CapSet":
            context.ledger.note(DamageSettled(lost.name, ZERO), context.wall())
    return line_of(context, line.level, line.key)


def cap_changes(context: Context) -> tuple[CapChange, ...]:
    """Return all changes of caps on record, the earliest first."""
    records = context.ledger.read().cap_history
    return tuple(
        filled(CapChange, record.event, changed_at=record.at)
        for record in records
        if isinstance(record.event, CapSet)
    )


def settle_damage(context: Context, name: str, cost: Usd) -> None:
    """Put on record what a run with damaged records, or a damaged record, cost.

    Raises:
        NotFoundError: ``name`` is neither.
    """
    ledger = context.ledger.read()
    if name not in ledger.quarantined and name not in {lost.name for lost in ledger.unread}:
        raise NotFoundError(
            f"{name} is neither a run with damaged records nor a damaged record",
            next_step="trmcloud admin ledger check",
        )
    context.ledger.note(DamageSettled(name, cost), context.wall())


# The ledger's file looked after: what a restored one lacks, in words, as far as it can be told.

_MOST_NAMED = 10


def forgotten_runs(home: Path, ledger: LedgerState) -> list[str]:
    """Runs that have a folder in this home and no record in the ledger."""
    try:
        names = sorted(path.name for path in (home / "runs").iterdir() if path.is_dir())
    except OSError:
        return []
    known = {*ledger.runs, *ledger.quarantined}
    return [name for name in names if name.startswith("r-") and name not in known]


def restored_lines(home: Path, ledger: LedgerState, done: Restoration) -> Sequence[str]:
    """Describe the restoration of the ledger, the loss by it, and the next command to type."""
    kept = f"; the damaged file was kept as {done.aside}" if done.aside is not None else ""
    lines = [
        f"the ledger could not be used ({done.why}) and was replaced by backup "
        f"{done.backup.number}, whose last record is of {utc_second(done.backup.at)}{kept}"
    ]
    if done.is_complete:
        return [*lines, "nothing was lost: no record was written after that backup"]
    behind = (done.newest_seq or 0) - done.backup.seq
    if behind > 0:
        lines.append(f"lost: records {done.backup.seq + 1} to {done.newest_seq} ({behind})")
    else:
        lines.append("lost: all records since then; their number is not known")
    names = forgotten_runs(home, ledger)
    if names:
        lines.append(f"runs that it no longer contains: {first_of(names, _MOST_NAMED)}")
    lines.append(
        "no run can be launched until trmcloud admin reap --yes reports that the ledger is "
        "reconciled"
    )
    return lines
