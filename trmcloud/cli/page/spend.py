"""A month's spending for the page: by day; by project, provider, person or tag; to its end; and
who waits for a machine or for more money.

Every sum is that of the month's budget (``budget show``, ``report --month``): ``spent`` is settled,
``reserved`` is held, and ``accrued`` is the part of ``reserved`` that has been used by now. A
machine's cost is spread evenly over the time from its order to its end. What belongs to a month and
fell outside of it (a run that began on its last evening) stands at the month's first or last day.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from trmcloud.cli.page.shown import money
from trmcloud.cli.views.month import bounds
from trmcloud.core.catalog.offers import DAY_S
from trmcloud.core.control.budget import (
    GRANT,
    PROJECT_MONTH,
    LedgerState,
    Line,
    grant_line,
    project_month,
)
from trmcloud.core.control.grants import OWNER, money_of, month_of
from trmcloud.core.control.ledger_facts import holds
from trmcloud.core.control.report import Item, month_items
from trmcloud.core.control.run_book import MONTH, present_runs, terms_in_use
from trmcloud.core.control.run_state import State
from trmcloud.core.errors import UsageError
from trmcloud.core.money import ZERO, Usd, total
from trmcloud.core.text import one_line
from trmcloud.core.values import dataclass, replace

PROJECT, PROVIDER, PERSON, TAG = "project", "provider", "person", "tag:"
DAMAGED = "damaged records"
UNTAGGED = "without this tag"
MACHINE, ANSWER = "machine", "answer"
"""What somebody waits for."""
MOST_LINES = 6
"""As many as a chart has colours for; the last one holds what is beyond them."""
_MOST_GROUPS = 100
_MOST_MONTHS = 24
_MOST_RUNS = 1000
"""Runs of one group that are named."""
_MOST_HELD = 200
_MEAN_DAYS = 7
RULE = (
    f"Low: what is spent so far, and the mean day of the last {_MEAN_DAYS} days for each day that "
    "is left. High: the same, and live runs use all that they reserve."
)
SHORT_RULE = "Spending began {days} ago, so that is what the mean is taken of."


@dataclass(frozen=True)
class Forecast:
    """What a month may have cost at its end. ``per_day`` is the mean of ``days`` days, in which
    ``recent`` was spent; ``days_left`` are the current month's."""

    low: Usd
    high: Usd
    per_day: Usd
    recent: Usd
    days: float
    days_left: float


@dataclass(frozen=True)
class Group:
    """One project, provider, person or value of a tag. ``by_day``: spent and accrued until each
    day's end, added up."""

    name: str
    runs: int
    spent: Usd
    accrued: Usd
    reserved: Usd
    by_day: tuple[Usd, ...]
    run_ids: tuple[str, ...] = ()
    limit: Line | None = None
    """The cap of the project, or the person's grant: over all months."""
    month_limit: Line | None = None
    """Likewise, for the month that is shown."""

    @property
    def so_far(self) -> Usd:
        return self.spent + self.accrued

    def to_json(self) -> dict[str, Any]:
        return {
            "name": one_line(self.name),
            "runs": self.runs,
            "spent": money(self.spent),
            "accrued": money(self.accrued),
            "so_far": money(self.so_far),
            "reserved": money(self.reserved),
            "run_ids": list(self.run_ids[:_MOST_RUNS]),
            "limit": money(self.limit.cap) if self.limit is not None else None,
            "limit_left": money(self.limit.remaining) if self.limit is not None else None,
            "month_limit": money(self.month_limit.cap) if self.month_limit is not None else None,
            "month_left": (
                money(self.month_limit.remaining) if self.month_limit is not None else None
            ),
        }


@dataclass(frozen=True)
class MonthSpending:
    """``until`` are the ends of its days, up to now (epoch s); ``groups`` stand with the largest
    first, and ``whole`` holds all of them."""

    month: str
    line: Line
    until: tuple[float, ...]
    groups: tuple[Group, ...]
    whole: Group
    forecast: Forecast | None


def spend_json(ledger: LedgerState, now: float, *, month: str = "", by: str = "") -> dict[str, Any]:
    """Return the answer of ``GET /api/spend``; its fields are described in the reference.

    Raises:
        UsageError: no such month, or no such grouping.
    """
    month, by = month or month_of(now), by or PROJECT
    known = months(ledger, now)
    if month not in known:
        raise UsageError(f"nothing is on record of month {month!r:.20}", next_step=known[0])
    made = spending(ledger, month, now, by)
    begins, ends = bounds(month)
    drawn = _merged(made.groups, MOST_LINES)
    return {
        "month": month,
        "months": known,
        "by": by,
        "groupings": groupings(ledger, month),
        "now": now,
        "begins": begins,
        "ends": ends,
        "until": list(made.until),
        "groups": [group.to_json() for group in _merged(made.groups, _MOST_GROUPS)],
        "lines": [
            {"name": one_line(group.name), "usd": _floats(group.by_day), "text": _texts(group)}
            for group in drawn
        ],
        "total": {
            **made.whole.to_json(),
            "usd": _floats(made.whole.by_day),
            "text": _texts(made.whole),
        },
        "cap": money(made.line.cap),
        "left": money(made.line.remaining),
        "over": money(made.line.over),
        "unproven": money(made.line.unproven),
        "forecast": _forecast_json(made.forecast, made.line),
        "held": held(ledger),
        "asked": asked(ledger),
        "waits": waits(ledger),
    }


def held(ledger: LedgerState) -> list[dict[str, Any]]:
    """What is reserved now, for whom, and until when at the latest (epoch s; None: no machine is
    ordered yet), the largest sum first."""
    return [
        {
            **{key: row[key] for key in ("run", "kind", "waits", "until")},
            **{key: one_line(row[key]) for key in ("name", "person", "project")},
            "reserved": money(row["amount"]),
        }
        for row in _held(ledger)
    ]


def _held(ledger: LedgerState) -> list[dict[str, Any]]:
    rows = []
    for run in present_runs(ledger.runs):
        if not run.reserved:
            continue
        last = run.generation
        until = last.hard_stop_at if last is not None and last.open else None
        rows.append((run, run.reserved, until, "run"))
    for hold in holds(ledger):
        if hold.deleted_at is None and hold.run_id in ledger.runs:
            rows.append((ledger.runs[hold.run_id], hold.amount, hold.until, "volume"))
    rows.sort(key=lambda row: (-row[1].micros, row[0].run_id))
    return [
        {
            "run": run.run_id,
            "name": run.name,
            "person": run.principal or OWNER,
            "project": run.project,
            "kind": kind,
            "waits": kind == "run" and run.state is State.RESERVED,
            "amount": amount,
            "until": until,
        }
        for run, amount, until, kind in rows[:_MOST_HELD]
    ]


def waits(ledger: LedgerState) -> list[dict[str, Any]]:
    """Who waits, the earliest first: for a machine, or for an answer to a request for more."""
    return [
        {**row, "person": one_line(row["person"]), "words": one_line(row["words"]),
         "amount": money(row["amount"])}
        for row in _waits(ledger)
    ]  # fmt: skip


def _waits(ledger: LedgerState) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {
            "for": MACHINE,
            "id": run.run_id,
            "person": run.principal or OWNER,
            "words": run.name or run.project,
            "amount": run.reserved,
            "since": run.reserved_at or run.created_at,
        }
        for run in present_runs(ledger.runs)
        if run.state is State.RESERVED
    ]
    rows += [
        {
            "for": ANSWER,
            "id": each.asked.id,
            "person": each.asked.principal,
            "words": each.asked.why,
            "amount": each.asked.more,
            "since": each.asked_at,
        }
        for each in ledger.approvals.values()
        if each.is_given is None
    ]
    rows.sort(key=lambda row: (row["since"], row["id"]))
    return rows[:_MOST_HELD]


def asked(ledger: LedgerState) -> list[dict[str, Any]]:
    """Requests for more that nobody has answered yet, the earliest first."""
    return [
        {
            "id": each.asked.id,
            "person": one_line(each.asked.principal),
            "why": one_line(each.asked.why),
            "more": money(each.asked.more),
            "asked_at": each.asked_at,
        }
        for each in ledger.approvals.values()
        if each.is_given is None
    ]


def months(ledger: LedgerState, now: float) -> list[str]:
    """The months that have anything on record, and the present one; the newest first."""
    found = {month_of(now)}
    found |= terms_in_use(ledger.runs, MONTH)
    found |= {month_of(stray.at) for stray in ledger.strays.values()}
    return sorted(found, reverse=True)[:_MOST_MONTHS]


def groupings(ledger: LedgerState, month: str) -> list[dict[str, str]]:
    """What a month's money can be divided by: (key of the request, words)."""
    named = {item.run_id for item in month_items(ledger, month)}
    keys = sorted({key for run in named & ledger.runs.keys() for key, _ in ledger.runs[run].tags})
    return [
        {"key": PROJECT, "words": "project"},
        {"key": PROVIDER, "words": "provider"},
        {"key": PERSON, "words": "person"},
        *({"key": f"{TAG}{key}", "words": f"tag {one_line(key)}"} for key in keys),
    ]


def spending(ledger: LedgerState, month: str, now: float, by: str = PROJECT) -> MonthSpending:
    """
    Raises:
        UsageError: no such grouping.
    """
    name_of = _namer(ledger, by)
    line = ledger.line("month", month)
    items = month_items(ledger, month, now)
    items += _damaged(line, items, month, now)
    begins, ends = bounds(month)
    until = tuple(_day_ends(begins, min(ends, max(now, begins))))
    by_name: dict[str, list[Item]] = {}
    for item in items:
        by_name.setdefault(name_of(item), []).append(item)
    groups = [
        replace(
            _group(name, mine, until, now),
            limit=_limit(ledger, by, name),
            month_limit=_month_limit(ledger, by, name, month),
        )
        for name, mine in by_name.items()
    ]
    groups.sort(key=lambda group: (-(group.spent + group.reserved).micros, group.name))
    whole = _group("all", items, until, now)
    current = begins <= now < ends
    forecast = _forecast(ledger, whole, now, ends) if current else None
    return MonthSpending(month, line, until, tuple(groups), whole, forecast)


def _limit(ledger: LedgerState, by: str, name: str) -> Line | None:
    line = None
    if by == PROJECT:
        line = ledger.line("project", name)
    elif by == PERSON:
        line = grant_line(ledger, name)
    return line if line is not None and line.cap is not None else None


def _month_limit(ledger: LedgerState, by: str, name: str, month: str) -> Line | None:
    if by == PROJECT:
        line = ledger.line(PROJECT_MONTH, project_month(name, month))
        return line if line.cap is not None else None
    grant = ledger.grants.get(name) if by == PERSON else None
    if grant is None or grant.terms.per_month is None:
        return None
    held = money_of(ledger, grant, month)
    return Line(GRANT, name, grant.terms.per_month, held.settled, held.whole - held.settled)


def _namer(ledger: LedgerState, by: str) -> Callable[[Item], str]:
    if by == PROJECT:
        return lambda item: item.project
    if by == PROVIDER:
        return lambda item: item.provider
    if by == PERSON:
        return lambda item: _person_of(ledger, item)
    if not by.startswith(TAG):
        raise UsageError(f"spending cannot be grouped by {by!r:.40}", next_step="by=project")
    key = by.removeprefix(TAG)

    def tagged(item: Item) -> str:
        run = ledger.runs.get(item.run_id)
        return dict(run.tags).get(key, UNTAGGED) if run is not None else UNTAGGED

    return tagged


def _person_of(ledger: LedgerState, item: Item) -> str:
    run = ledger.runs.get(item.run_id)
    return (run.principal if run is not None else "") or OWNER


def _damaged(line: Line, items: Sequence[Item], month: str, now: float) -> list[Item]:
    """What the month's budget holds beyond its runs: runs whose records cannot be read."""
    spent = line.settled - total(item.spent for item in items)
    reserved = line.reserved - total(item.reserved for item in items)
    if not spent and not reserved:
        return []
    at = min(now, bounds(month)[1])
    return [Item("", DAMAGED, DAMAGED, "", spent, reserved, reserved, at, at)]


def _day_ends(begins: float, now: float) -> Iterable[float]:
    """The end of each day since ``begins``; the last one ends now."""
    at = begins
    while at + DAY_S < now:
        at += DAY_S
        yield at
    yield now


def _group(name: str, items: Sequence[Item], until: Sequence[float], now: float) -> Group:
    by_day = [total(_by(item, at, now) for item in items) for at in until[:-1]]
    spent = total(item.spent for item in items)
    accrued = total(item.accrued for item in items)
    return Group(
        name,
        len({item.run_id for item in items if item.run_id}),
        spent,
        accrued,
        total(item.reserved for item in items),
        (*by_day, spent + accrued),
        tuple(dict.fromkeys(item.run_id for item in items if item.run_id)),
    )


def _by(item: Item, at: float, now: float) -> Usd:
    """Return the part of an item's cost until ``at``, spread evenly over its time."""
    whole = item.spent + item.accrued
    ends = item.at if item.spent and item.at is not None else now
    since = ends if item.since is None else min(item.since, ends)
    if at >= ends:
        return whole
    if at <= since:
        return ZERO
    return Usd.from_micros(int(whole.micros * ((at - since) / (ends - since))))


def _forecast(ledger: LedgerState, whole: Group, now: float, ends: float) -> Forecast:
    items = [item for month in months(ledger, now) for item in month_items(ledger, month, now)]
    items = [item for item in items if item.spent or item.accrued]
    begun = min((_begun(item, now) for item in items), default=now)
    days = min(float(_MEAN_DAYS), max(1.0, (now - begun) / DAY_S))
    since = now - days * DAY_S
    recent = total(_by(item, now, now) - _by(item, since, now) for item in items)
    left = (ends - now) / DAY_S
    per_day = Usd.from_micros(round(recent.micros / days))
    more = Usd.from_micros(round(recent.micros / days * left))
    held = max(whole.so_far, whole.spent + whole.reserved)
    return Forecast(whole.so_far + more, held + more, per_day, recent, days, left)


def _begun(item: Item, now: float) -> float:
    return next((at for at in (item.since, item.at) if at is not None), now)


def _merged(groups: Sequence[Group], most: int) -> list[Group]:
    """At most so many; the last one holds all beyond them."""
    if len(groups) <= most:
        return list(groups)
    kept, rest = list(groups[: most - 1]), groups[most - 1 :]
    by_day = zip(*(group.by_day for group in rest), strict=True)
    other = replace(
        rest[0],
        name=f"{len(rest)} others",
        runs=sum(group.runs for group in rest),
        spent=total(group.spent for group in rest),
        accrued=total(group.accrued for group in rest),
        reserved=total(group.reserved for group in rest),
        by_day=tuple(total(day) for day in by_day),
        run_ids=tuple(run_id for group in rest for run_id in group.run_ids),
        limit=None,
        month_limit=None,
    )
    return [*kept, other]


def _forecast_json(made: Forecast | None, line: Line) -> Mapping[str, Any] | None:
    if made is None:
        return None
    cap, rule = line.cap, RULE
    if made.days < _MEAN_DAYS:
        days = "a day" if made.days < 1.05 else f"{made.days:.1f} days"
        rule = f"{RULE} {SHORT_RULE.format(days=days)}"
    return {
        "low": money(made.low),
        "high": money(made.high),
        "per_day": money(made.per_day),
        "recent": money(made.recent),
        "days": round(made.days, 3),
        "days_left": round(made.days_left, 3),
        "rule": rule,
        "over_cap": cap is not None and made.high > cap,
    }


def _floats(amounts: Sequence[Usd]) -> list[float]:
    return [float(amount) for amount in amounts]


def _texts(group: Group) -> list[str]:
    return [str(amount) for amount in group.by_day]
