"""The amounts that a month's money is made of. Pure.

What counts towards a month is what its budget counts: runs by when their latest reservation was
made, orphaned pods by when they were first charged. So their sum is that of the month's own line of
the budget.
"""

from __future__ import annotations

from collections.abc import Iterable

from trmcloud.core.control.budget import LedgerState
from trmcloud.core.control.grants import month_of
from trmcloud.core.control.ledger_facts import holds
from trmcloud.core.control.report import paid_seconds
from trmcloud.core.control.run_book import MONTH, find_runs
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.money import ZERO, Usd, cost, total
from trmcloud.core.values import Value

COMPUTE, VOLUMES, BUCKETS, ORPHANS = "compute", "volumes", "buckets", "orphans"
KINDS = (COMPUTE, VOLUMES, BUCKETS, ORPHANS)
NO_RUN = "no run of this ledger"


class Item(Value):
    """One amount: whose, for what, and whether it is still reserved. ``accrued`` is what the
    reserved part has cost by now, as far as that was asked for."""

    run_id: str
    project: str
    provider: str
    kind: str
    spent: Usd
    reserved: Usd
    at_most: Usd = ZERO
    at: float | None = None
    """When it was settled, as far as that is known."""
    since: float | None = None
    """When its cost began, likewise."""
    accrued: Usd = ZERO


def month_items(ledger: LedgerState, month: str, now: float | None = None) -> list[Item]:
    """Return the amounts that count towards ``month``. ``now`` (epoch s): until when the open ones
    accrue; None: they do not."""
    mine = runs_of_month(ledger, month)
    items = [item for run in mine for item in _items_of(run, now)]
    items += _of_volumes(ledger, {run.run_id for run in mine}, now)
    items += _of_strays(ledger, month, now)
    return items


def runs_of_month(ledger: LedgerState, month: str) -> list[RunState]:
    """Return the runs whose latest reservation was made in ``month``."""
    return [
        run
        for run in find_runs(ledger.runs, MONTH, month)
        if run.state is not State.NEW and run.reserved_at and month_of(run.reserved_at) == month
    ]


def _items_of(run: RunState, now: float | None) -> Iterable[Item]:
    project = run.project
    for generation in run.generations:
        if generation.settled is None:
            continue
        amount = generation.settled
        at_most = amount if generation.billed is None else ZERO
        yield Item(
            run.run_id,
            project,
            generation.provider,
            COMPUTE,
            amount,
            ZERO,
            at_most=at_most,
            at=generation.ended_at,
            since=generation.intended_at,
        )
    if run.swept.rent:
        where = run.bucket.partition("://")[0] or "bucket"
        yield Item(run.run_id, project, where, BUCKETS, run.swept.rent, ZERO, at=run.swept.at)
    if run.reserved:
        latest, chosen = run.generation, run.chosen
        provider = latest.provider if latest is not None and latest.open else ""
        provider = provider or (chosen.provider if chosen is not None else NO_RUN)
        since = min((g.intended_at for g in run.unsettled), default=None)
        accrued = ZERO if now is None else min(run.reserved, _accrued(run, now))
        yield Item(
            run.run_id, project, provider, COMPUTE, ZERO, run.reserved, since=since, accrued=accrued
        )


def _accrued(run: RunState, now: float) -> Usd:
    """Return the cost of its open generations by ``now``, as its report has it."""
    return total(cost(run.hourly_rate(g), paid_seconds(g, now)) for g in run.unsettled)


def _of_volumes(ledger: LedgerState, counted: set[str], now: float | None) -> Iterable[Item]:
    for hold in holds(ledger) if counted else ():
        if hold.run_id in counted and hold.amount:
            over = hold.deleted_at is not None
            yield Item(
                hold.run_id,
                ledger.runs[hold.run_id].project,
                hold.provider,
                VOLUMES,
                hold.amount if over else ZERO,
                ZERO if over else hold.amount,
                at=hold.deleted_at,
                since=hold.since,
                accrued=ZERO if over or now is None else hold.accrued(now),
            )


def _of_strays(ledger: LedgerState, month: str, now: float | None) -> Iterable[Item]:
    for stray in ledger.strays.values():
        if month_of(stray.at) != month:
            continue
        run = ledger.runs.get(stray.run_id)
        unbilled = stray.amount if stray.billed is None else ZERO
        yield Item(
            stray.run_id,
            run.project if run is not None else NO_RUN,
            stray.provider,
            ORPHANS,
            stray.billed or ZERO,
            unbilled,
            unbilled,
            stray.at,
            stray.since,
            ZERO if now is None else unbilled,
        )
