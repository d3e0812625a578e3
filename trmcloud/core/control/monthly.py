"""A month's money, added up by project, by provider and by kind, against the caps. Pure.

What counts towards a month is what its budget counts: runs by when their latest reservation was
made, orphaned pods by when they were first charged. So every sum here is that of the month's own
line of the budget, divided in another way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from trmcloud.core.control.budget import LedgerState, Line, month_of
from trmcloud.core.control.kept_volumes import holds
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.money import ZERO, Usd, total
from trmcloud.core.values import dataclass, replace

COMPUTE, VOLUMES, BUCKETS, ORPHANS = "compute", "volumes", "buckets", "orphans"
KINDS = (COMPUTE, VOLUMES, BUCKETS, ORPHANS)
NO_RUN = "no run of this ledger"


@dataclass(frozen=True)
class Share:
    """What one project, provider or kind took of a month. ``at_most``: of both, what stands there
    at most, until bills are final. ``cap`` and ``left`` are a project's, of all its months."""

    name: str
    runs: int
    spent: Usd
    reserved: Usd
    at_most: Usd = ZERO
    cap: Usd | None = None
    left: Usd | None = None

    @property
    def held(self) -> Usd:
        return self.spent + self.reserved


@dataclass(frozen=True)
class MonthReport:
    """``line`` is the month's budget; each of the three lists adds up to what it holds. ``days``:
    (epoch s, spent until then) of every end of a pod."""

    month: str
    line: Line
    account: Line
    projects: tuple[Share, ...]
    providers: tuple[Share, ...]
    kinds: tuple[Share, ...]
    runs: tuple[str, ...]
    grown: tuple[tuple[float, Usd], ...]


@dataclass(frozen=True)
class _Item:
    """One amount: whose, for what, and whether it is still reserved."""

    run_id: str
    project: str
    provider: str
    kind: str
    spent: Usd
    reserved: Usd
    at_most: Usd = ZERO
    at: float | None = None
    """When it was settled, as far as that is known."""


def report_month(ledger: LedgerState, month: str) -> MonthReport:
    """The report on ``month`` (``2026-11``)."""
    mine = [run for run in ledger.runs.values() if _counts(run, month)]
    items = [item for run in mine for item in _items_of(run)]
    items += _of_volumes(ledger, {run.run_id for run in mine})
    items += _of_strays(ledger, month)
    projects = []
    for share in _shares(items, lambda item: item.project):
        of_all = ledger.line("project", share.name)
        projects.append(replace(share, cap=of_all.cap, left=of_all.remaining))
    return MonthReport(
        month=month,
        line=ledger.line("month", month),
        account=ledger.line("account", ""),
        projects=tuple(projects),
        providers=_shares(items, lambda item: item.provider),
        kinds=_shares(items, lambda item: item.kind),
        runs=tuple(run.run_id for run in mine),
        grown=_grown(items),
    )


def _counts(run: RunState, month: str) -> bool:
    return run.state is not State.NEW and run.reserved_at > 0 and month_of(run.reserved_at) == month


def _items_of(run: RunState) -> Iterable[_Item]:
    project = run.project
    for generation in run.generations:
        if generation.settled is None:
            continue
        yield _Item(
            run.run_id,
            project,
            generation.provider,
            COMPUTE,
            generation.settled,
            ZERO,
            generation.settled if generation.billed is None else ZERO,
            generation.ended_at,
        )
    if run.oversized_rent:
        where = run.bucket.partition("://")[0] or "bucket"
        yield _Item(run.run_id, project, where, BUCKETS, run.oversized_rent, ZERO, at=run.swept_at)
    if run.reserved:
        latest, chosen = run.generation, run.chosen
        provider = latest.provider if latest is not None and latest.open else ""
        provider = provider or (chosen.provider if chosen is not None else NO_RUN)
        yield _Item(run.run_id, project, provider, COMPUTE, ZERO, run.reserved)


def _of_volumes(ledger: LedgerState, counted: set[str]) -> Iterable[_Item]:
    for hold in holds(ledger) if counted else ():
        if hold.run_id in counted and hold.amount:
            over = hold.deleted_at is not None
            yield _Item(
                hold.run_id,
                ledger.runs[hold.run_id].project,
                hold.provider,
                VOLUMES,
                hold.amount if over else ZERO,
                ZERO if over else hold.amount,
                at=hold.deleted_at,
            )


def _of_strays(ledger: LedgerState, month: str) -> Iterable[_Item]:
    for stray in ledger.strays.values():
        if month_of(stray.at) != month:
            continue
        run = ledger.runs.get(stray.run_id)
        billed = stray.billed
        yield _Item(
            stray.run_id,
            run.project if run is not None else NO_RUN,
            stray.provider,
            ORPHANS,
            ZERO if billed is None else billed,
            stray.amount if billed is None else ZERO,
            stray.amount if billed is None else ZERO,
            stray.at,
        )


def _shares(items: Iterable[_Item], name_of: Callable[[_Item], str]) -> tuple[Share, ...]:
    groups: dict[str, list[_Item]] = {}
    for item in items:
        groups.setdefault(name_of(item), []).append(item)
    made = [
        Share(
            name,
            len({item.run_id for item in group if item.run_id}),
            total(item.spent for item in group),
            total(item.reserved for item in group),
            total(item.at_most for item in group),
        )
        for name, group in groups.items()
    ]
    return tuple(sorted(made, key=lambda share: (-share.held.micros, share.name)))


def _grown(items: Iterable[_Item]) -> tuple[tuple[float, Usd], ...]:
    spent, grown = ZERO, []
    dated = [(item.at, item.spent) for item in items if item.at is not None and item.spent]
    for at, amount in sorted(dated, key=lambda each: each[0]):
        spent += amount
        grown.append((at, spent))
    return tuple(grown)


def month_to_json(report: MonthReport) -> Mapping[str, object]:
    """As ``report --month --json`` has it; money in dollars as numbers."""

    def line(budget: Line) -> dict[str, object]:
        return {
            "cap_usd": _number(budget.cap),
            "spent_usd": float(budget.settled),
            "reserved_usd": float(budget.reserved),
            "left_usd": _number(budget.remaining),
            "unproven_usd": float(budget.unproven),
        }

    def shares(rows: Iterable[Share]) -> list[dict[str, object]]:
        return [
            {
                "name": row.name,
                "runs": row.runs,
                "spent_usd": float(row.spent),
                "reserved_usd": float(row.reserved),
                "unproven_usd": float(row.at_most),
                "cap_usd": _number(row.cap),
                "left_usd": _number(row.left),
            }
            for row in rows
        ]

    return {
        "month": report.month,
        "budget": line(report.line),
        "account": line(report.account),
        "projects": shares(report.projects),
        "providers": shares(report.providers),
        "kinds": shares(report.kinds),
        "runs": list(report.runs),
        "grown": [{"at": at, "spent_usd": float(spent)} for at, spent in report.grown],
    }


def _number(amount: Usd | None) -> float | None:
    return None if amount is None else float(amount)
