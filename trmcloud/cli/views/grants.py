"""Grants and requests for approval, as text and as documents."""

from __future__ import annotations

from collections.abc import Sequence

from trmcloud.cli.views.text import duration, table
from trmcloud.core.clock import utc_minute, utc_second
from trmcloud.core.text import one_line
from trmcloud.operations import views
from trmcloud.operations.money.grants import STANDING, ApprovalRequest, GrantAccount

SAME_USER = (
    "a grant stops mistakes: a program that runs as your own user can act as the owner: "
    "docs/guide/agents.md"
)


def grants_table(accounts: Sequence[GrantAccount]) -> list[str]:
    has_months = any(each.per_month is not None for each in accounts)
    months = ("this month",) if has_months else ()
    header = ("principal", "state", "total", "spent", "reserved", "left", "today", *months, "runs")
    return table((*header, "until"), [_row(each, has_months) for each in accounts])


def _row(account: GrantAccount, has_months: bool) -> tuple[str, ...]:
    month = account.spent_this_month + account.reserved_this_month
    per_month = f" of {account.per_month}" if account.per_month is not None else ""
    today = account.spent_today + account.reserved_today
    per_day = f" of {account.per_day}" if account.per_day is not None else ""
    at_once = f" of {account.runs_at_once}" if account.runs_at_once else ""
    return (
        account.principal,
        account.state,
        str(account.total),
        str(account.spent),
        str(account.reserved),
        str(account.left) if account.state == STANDING else "–",
        f"{today}{per_day}",
        *((f"{month}{per_month}",) if has_months else ()),
        f"{len(account.live_runs)}{at_once}",
        utc_minute(account.expires_at) if account.expires_at is not None else "–",
    )


def account_lines(account: GrantAccount) -> list[str]:
    """One grant in words: what it allows, and what is left."""
    limits = [f"{account.total} in total", *_limits(account, " or ")]
    if account.buckets:
        limits.append("buckets: " + ", ".join(account.buckets))
    if account.idle_s:
        limits.append(f"a run ends after {duration(account.idle_s)} without a step")
    return [
        f"{account.principal}: {'; '.join(limits)}",
        f"  {account.spent} spent, {account.reserved} reserved, {account.left} left for a new run",
        f"  {SAME_USER}",
    ]


def wish_words(request: ApprovalRequest) -> str:
    """Return the terms that a request asks for, in one line."""
    wishes = [f"{request.more} more"] if request.more else []
    return ", ".join([*wishes, *_limits(request, ", ")])


def _limits(of: GrantAccount | ApprovalRequest, joint: str) -> list[str]:
    """The terms beside the total; ``joint`` stands between names of one kind."""
    limits = [
        f"{amount} per {unit}"
        for amount, unit in (
            (of.per_run, "run"),
            (of.per_day, "UTC day"),
            (of.per_month, "UTC month"),
        )
        if amount is not None
    ]
    if of.runs_at_once:
        runs = "run" if of.runs_at_once == 1 else "runs"
        limits.append(f"{of.runs_at_once} {runs} at once")
    limits += [joint.join(names) for names in (of.hardware, of.providers) if names]
    if of.expires_at is not None:
        limits.append(f"until {utc_minute(of.expires_at)}")
    return limits


def request_words(request: ApprovalRequest) -> str:
    """A request in one line, with the command that answers it."""
    why = f' ("{one_line(request.why)}")' if request.why else ""
    return (
        f"{request.principal} asks for {wish_words(request)}{why} · trmcloud grant approve "
        f"{request.id}"
        f" · trmcloud grant deny {request.id}"
    )


def history_lines(changes: Sequence[views.GrantChange]) -> list[str]:
    lines = []
    for each in changes:
        facts = [each.kind, *([str(each.total_usd)] if each.total_usd is not None else [])]
        facts += [text for text in (each.request, each.by) if text]
        lines.append(f"{utc_second(each.changed_at)}  {each.principal}  {'  '.join(facts)}")
    return lines
