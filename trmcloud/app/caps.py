"""Caps of account, month and project: which one is meant, and how it is set on record."""

from __future__ import annotations

from trmcloud.app.context import Context
from trmcloud.core.control.budget import LEVELS, Line, month_of
from trmcloud.core.control.events import CapSet, DamageSettled
from trmcloud.core.errors import UsageError
from trmcloud.core.money import ZERO, Usd


def line_of(context: Context, level: str, key: str = "") -> Line:
    """``key``: this month's, this project's where it is empty.

    Raises:
        UsageError: no such level.
    """
    if level not in LEVELS[:3]:
        raise UsageError(f"no budget level {level!r}", next_step="account, month or project")
    default = {"account": "", "month": month_of(context.wall()), "project": context.project}[level]
    return context.ledger.read().line(level, key or default)


def raise_cap(context: Context, line: Line, cap: Usd, *, by: str, next_step: str = "") -> Line:
    """
    Raises:
        UsageError: there is no cap, or it is no lower than ``cap``.
    """
    if line.cap is None or cap <= line.cap:
        raise UsageError(
            f"the {line.level} cap is {line.cap or 'not set'}: {cap} does not raise it",
            next_step=next_step,
        )
    return set_cap(context, line, cap, by=by)


def set_cap(context: Context, line: Line, cap: Usd, *, by: str) -> Line:
    """The line as it is then. Where the record of a cap is damaged, this is that cap set again."""
    context.ledger.set_cap(CapSet(line.level, line.key, cap, by=by), context.wall())
    for lost in context.ledger.read().unread:
        if lost.kind == "CapSet":
            context.ledger.note(DamageSettled(lost.name, ZERO, by), context.wall())
    return context.ledger.read().line(line.level, line.key)
