"""A month's spending as a view: by day; by project, provider, person or tag; to its end; and who
waits for a machine or for more money.

Every sum is that of the month's budget (``budget show``, ``report --month``): ``spent`` is settled,
``reserved`` is held, and ``accrued`` is the part of ``reserved`` that has been used by now. A
machine's cost is spread evenly over the time from its order to its end. What belongs to a month and
fell outside of it (a run that began on its last evening) stands at the month's first or last day.
"""

from __future__ import annotations

import calendar
import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from trmcloud.core.catalog.offers import DAY_S
from trmcloud.core.control.budget import (
    GRANT,
    PROJECT_MONTH,
    LedgerState,
    Line,
    grant_line,
    is_project_month,
    project_month,
)
from trmcloud.core.control.focus import COLUMNS, focus_rows, total_of
from trmcloud.core.control.grants import OWNER, money_of, month_of
from trmcloud.core.control.ledger_facts import holds
from trmcloud.core.control.month import Item, month_items, runs_of_month
from trmcloud.core.control.run_book import MONTH, present_runs, terms_in_use
from trmcloud.core.control.run_state import State
from trmcloud.core.errors import UsageError
from trmcloud.core.money import ZERO, Usd, total
from trmcloud.core.values import replace
from trmcloud.operations.views import Month, MonthLine, MonthShare, SpentBy, View, filled

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


class GroupRow(View):
    """One project, provider, person or value of a tag. ``limit`` is the cap of the project, or the
    person's grant, over all months; ``month_limit`` likewise, for the month that is shown."""

    name: str
    runs: int
    spent: Usd
    accrued: Usd
    so_far: Usd
    reserved: Usd
    run_ids: tuple[str, ...]
    limit: Usd | None = None
    limit_left: Usd | None = None
    month_limit: Usd | None = None
    month_left: Usd | None = None


class Group(GroupRow):
    """``by_day``: spent and accrued until each day's end, added up."""

    by_day: tuple[Usd, ...] = ()


class ChartLine(View):
    """A line of a chart: for each day's end, the amount as a number and as text."""

    name: str
    usd: tuple[float, ...]
    text: tuple[str, ...]


class WholeMonth(GroupRow):
    """All groups, with their line of the chart."""

    usd: tuple[float, ...] = ()
    text: tuple[str, ...] = ()


class Forecast(View):
    """What a month may have cost at its end. ``per_day`` is the mean of ``days`` days, in which
    ``recent`` was spent; ``days_left`` are the current month's. ``rule`` says in words how it is
    made; ``over_cap``: ``high`` is above the month's cap."""

    low: Usd
    high: Usd
    per_day: Usd
    recent: Usd
    days: float
    days_left: float
    rule: str
    over_cap: bool


class Grouping(View):
    """What a month's money can be divided by: the key of the request, and words."""

    key: str
    words: str


class Held(View):
    """An amount that is reserved now, for a run or its volume. ``until``: when its machine ends at
    the latest (epoch s); None: none is ordered yet."""

    run: str
    name: str
    person: str
    project: str
    kind: str
    waits: bool
    reserved: Usd
    until: float | None


class Asked(View):
    """A request for more that nobody has answered yet."""

    id: str
    person: str
    why: str
    more: Usd
    asked_at: float


class Waiting(View):
    """Somebody waits ``for_`` a machine, or for an answer to a request for more."""

    for_: str
    id: str
    person: str
    words: str
    amount: Usd
    since: float


class MonthSpending(View):
    """``until`` are the ends of its days, up to now (epoch s); ``groups`` stand with the largest
    first, and ``total`` holds all of them. ``lines`` are as many as a chart has colours for."""

    month: str
    months: tuple[str, ...]
    by: str
    groupings: tuple[Grouping, ...]
    now: float
    begins: float
    ends: float
    until: tuple[float, ...]
    groups: tuple[GroupRow, ...]
    lines: tuple[ChartLine, ...]
    total: WholeMonth
    cap: Usd | None
    left: Usd | None
    over: Usd
    unproven: Usd
    forecast: Forecast | None
    held: tuple[Held, ...]
    asked: tuple[Asked, ...]
    waits: tuple[Waiting, ...]


def month_spending(
    ledger: LedgerState, now: float, *, month: str = "", by: str = ""
) -> MonthSpending:
    """Return a month's spending; by default the present month's, by project.

    Raises:
        UsageError: no such month, or no such grouping.
    """
    month, by = month or month_of(now), by or PROJECT
    known = months(ledger, now)
    if month not in known:
        raise UsageError(f"nothing is on record of month {month!r:.20}", next_step=known[0])
    line, (begins, ends) = ledger.line("month", month), month_bounds(month)
    until, groups, whole = grouped(ledger, month, now, by)
    is_current = begins <= now < ends
    return filled(
        MonthSpending,
        line,
        month=month,
        months=tuple(known),
        by=by,
        groupings=groupings(ledger, month),
        now=now,
        begins=begins,
        ends=ends,
        until=until,
        groups=tuple(
            filled(GroupRow, each, run_ids=each.run_ids[:_MOST_RUNS])
            for each in _merged(groups, _MOST_GROUPS)
        ),
        lines=tuple(
            ChartLine(name=each.name, usd=_floats(each.by_day), text=_texts(each.by_day))
            for each in _merged(groups, MOST_LINES)
        ),
        total=filled(
            WholeMonth,
            whole,
            run_ids=whole.run_ids[:_MOST_RUNS],
            usd=_floats(whole.by_day),
            text=_texts(whole.by_day),
        ),
        left=line.remaining,
        forecast=_forecast(ledger, whole, line, now, ends) if is_current else None,
        held=_held(ledger),
        asked=_asked(ledger),
        waits=_waiting(ledger),
    )


def _held(ledger: LedgerState) -> tuple[Held, ...]:
    """What is reserved now, the largest sum first."""
    rows = []
    for run in present_runs(ledger.runs):
        if run.reserved:
            last = run.generation
            until = last.hard_stop_at if last is not None and last.open else None
            rows.append((run, run.reserved, until, "run"))
    for hold in holds(ledger):
        if hold.deleted_at is None and hold.run_id in ledger.runs:
            rows.append((ledger.runs[hold.run_id], hold.amount, hold.until, "volume"))
    rows.sort(key=lambda row: (-row[1].micros, row[0].run_id))
    return tuple(
        Held(
            run=run.run_id,
            name=run.name,
            person=run.payer.principal or OWNER,
            project=run.project,
            kind=kind,
            waits=kind == "run" and run.state is State.RESERVED,
            reserved=amount,
            until=until,
        )
        for run, amount, until, kind in rows[:_MOST_HELD]
    )


def _asked(ledger: LedgerState) -> tuple[Asked, ...]:
    """Requests for more, the earliest first."""
    return tuple(
        filled(Asked, each.asked, person=each.asked.principal, asked_at=each.asked_at)
        for each in ledger.approvals.values()
        if each.is_given is None
    )


def _waiting(ledger: LedgerState) -> tuple[Waiting, ...]:
    """Who waits, the earliest first."""
    rows = [
        Waiting(
            for_=MACHINE,
            id=run.run_id,
            person=run.payer.principal or OWNER,
            words=run.name or run.project,
            amount=run.reserved,
            since=run.reserved_at or run.created_at,
        )
        for run in present_runs(ledger.runs)
        if run.state is State.RESERVED
    ]
    rows += [
        filled(Waiting, each, for_=ANSWER, words=each.why, amount=each.more, since=each.asked_at)
        for each in _asked(ledger)
    ]
    return tuple(sorted(rows, key=lambda row: (row.since, row.id))[:_MOST_HELD])


def months(ledger: LedgerState, now: float) -> list[str]:
    """The months that have anything on record, and the present one; the newest first."""
    found = {month_of(now)}
    found |= terms_in_use(ledger.runs, MONTH)
    found |= {month_of(stray.at) for stray in ledger.strays.values()}
    return sorted(found, reverse=True)[:_MOST_MONTHS]


def month_bounds(month: str) -> tuple[float, float]:
    """Return its first and last instant in UTC (epoch s)."""
    year, number = int(month[:4]), int(month[5:])
    after = (year + 1, 1) if number == 12 else (year, number + 1)
    begins, ends = ((*each, 1, 0, 0, 0) for each in ((year, number), after))
    return float(calendar.timegm(begins)), float(calendar.timegm(ends))


def groupings(ledger: LedgerState, month: str) -> tuple[Grouping, ...]:
    named = {item.run_id for item in month_items(ledger, month)}
    keys = sorted({key for run in named & ledger.runs.keys() for key, _ in ledger.runs[run].tags})
    usual = [(each, each) for each in (PROJECT, PROVIDER, PERSON)]
    rows = (*usual, *((f"{TAG}{key}", f"tag {key}") for key in keys))
    return tuple(Grouping(key=key, words=words) for key, words in rows)


class Grouped(NamedTuple):
    """The ends of a month's days (epoch s), its groups, the largest first, and all of them."""

    until: tuple[float, ...]
    groups: tuple[Group, ...]
    whole: Group


def grouped(ledger: LedgerState, month: str, now: float, by: str = PROJECT) -> Grouped:
    """

    Raises:
        UsageError: no such grouping.
    """
    name_of = _namer(ledger, by)
    items = month_items(ledger, month, now)
    items += _damaged(ledger.line("month", month), items, month, now)
    begins, ends = month_bounds(month)
    until = tuple(_day_ends(begins, min(ends, max(now, begins))))
    groups = [
        replace(_group(name, mine, until, now), **_limits(ledger, by, name, month))
        for name, mine in _split(items, name_of)
    ]
    return Grouped(until, tuple(groups), _group("all", items, until, now))


def _split(items: Iterable[Item], name_of: Callable[[Item], str]) -> list[tuple[str, list[Item]]]:
    """Return the items of each name, the name with the largest sum first."""
    by_name: dict[str, list[Item]] = {}
    for item in items:
        by_name.setdefault(name_of(item), []).append(item)
    held = {
        name: total(item.spent + item.reserved for item in mine) for name, mine in by_name.items()
    }
    return sorted(by_name.items(), key=lambda row: (-held[row[0]].micros, row[0]))


def _limits(ledger: LedgerState, by: str, name: str, month: str) -> dict[str, Any]:
    """A project's caps, or a person's grant; empty of other groups."""
    whole = of_month = None
    if by == PROJECT:
        whole = ledger.line("project", name)
        of_month = ledger.line(PROJECT_MONTH, project_month(name, month))
    elif by == PERSON:
        whole, grant = grant_line(ledger, name), ledger.grants.get(name)
        if grant is not None:
            used = money_of(ledger, grant, month)
            held = used.whole - used.settled
            of_month = Line(GRANT, name, grant.terms.per_month, used.settled, held)
    found: dict[str, Any] = {}
    if whole is not None:
        found |= {"limit": whole.cap, "limit_left": whole.remaining}
    if of_month is not None:
        found |= {"month_limit": of_month.cap, "month_left": of_month.remaining}
    return found


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
    return (run.payer.principal if run is not None else "") or OWNER


def _damaged(line: Line, items: Sequence[Item], month: str, now: float) -> list[Item]:
    """What the month's budget holds beyond its runs: runs whose records cannot be read."""
    spent = line.settled - total(item.spent for item in items)
    reserved = line.reserved - total(item.reserved for item in items)
    if not spent and not reserved:
        return []
    at = min(now, month_bounds(month)[1])
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
    spent, accrued = total(item.spent for item in items), total(item.accrued for item in items)
    runs = tuple(dict.fromkeys(item.run_id for item in items if item.run_id))
    return Group(
        name=name,
        runs=len(runs),
        spent=spent,
        accrued=accrued,
        so_far=spent + accrued,
        reserved=total(item.reserved for item in items),
        run_ids=runs,
        by_day=(*by_day, spent + accrued),
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


def _forecast(ledger: LedgerState, whole: Group, line: Line, now: float, ends: float) -> Forecast:
    items = [item for month in months(ledger, now) for item in month_items(ledger, month, now)]
    items = [item for item in items if item.spent or item.accrued]
    begun = min((_begun(item, now) for item in items), default=now)
    days = min(float(_MEAN_DAYS), max(1.0, (now - begun) / DAY_S))
    since = now - days * DAY_S
    recent = total(_by(item, now, now) - _by(item, since, now) for item in items)
    left = (ends - now) / DAY_S
    more = Usd.from_micros(round(recent.micros / days * left))
    high = max(whole.so_far, whole.spent + whole.reserved) + more
    rule = RULE
    if days < _MEAN_DAYS:
        words = "a day" if days < 1.05 else f"{days:.1f} days"
        rule = f"{RULE} {SHORT_RULE.format(days=words)}"
    return Forecast(
        low=whole.so_far + more,
        high=high,
        per_day=Usd.from_micros(round(recent.micros / days)),
        recent=recent,
        days=round(days, 3),
        days_left=round(left, 3),
        rule=rule,
        over_cap=line.cap is not None and high > line.cap,
    )


def _begun(item: Item, now: float) -> float:
    return next((at for at in (item.since, item.at) if at is not None), now)


def _merged(groups: Sequence[Group], most: int) -> list[Group]:
    """At most so many; the last one holds all beyond them."""
    if len(groups) <= most:
        return list(groups)
    first, rest = groups[: most - 1], groups[most - 1 :]
    amounts = ("spent", "accrued", "so_far", "reserved")
    other = Group(
        name=f"{len(rest)} others",
        runs=sum(group.runs for group in rest),
        run_ids=tuple(run_id for group in rest for run_id in group.run_ids),
        by_day=tuple(map(total, zip(*(group.by_day for group in rest), strict=True))),
        **{name: total(getattr(group, name) for group in rest) for name in amounts},
    )
    return [*first, other]


def _floats(amounts: Sequence[Usd]) -> tuple[float, ...]:
    return tuple(map(float, amounts))


def _texts(amounts: Sequence[Usd]) -> tuple[str, ...]:
    return tuple(map(str, amounts))


# A month's money by project, by provider and by kind, against the caps.


def month_view(ledger: LedgerState, now: float, month: str = "", html: str = "") -> Month:
    """Return a month's money, by default the present month's; each of its three lists adds up to
    what its budget holds. ``html``: the page that is made of it."""
    month = month or month_of(now)
    items = month_items(ledger, month)
    by_project = ((each, ledger.line("project", each.name)) for each in _shares(items, "project"))
    projects = [replace(each, cap_usd=cap.cap, left_usd=cap.remaining) for each, cap in by_project]
    counts = {each.name: each.runs for each in projects}
    return Month(
        month=month,
        budget=MonthLine(**_amounts(ledger.line("month", month))),
        account=MonthLine(**_amounts(ledger.line("account", ""))),
        projects=tuple(projects),
        providers=tuple(_shares(items, "provider")),
        kinds=tuple(_shares(items, "kind")),
        runs=tuple(run.run_id for run in runs_of_month(ledger, month)),
        grown=tuple(_grown(items)),
        html=html or None,
        project_months=tuple(
            MonthShare(name=name, runs=counts.get(name, 0), **_amounts(line))
            for name, line in _project_months(ledger, month)
        ),
    )


def _amounts(line: Line) -> dict[str, Any]:
    return {
        "cap_usd": line.cap,
        "spent_usd": line.settled,
        "reserved_usd": line.reserved,
        "left_usd": line.remaining,
        "unproven_usd": line.unproven,
    }


def _shares(items: Iterable[Item], field: str) -> Iterator[MonthShare]:
    for name, mine in _split(items, attrgetter(field)):
        yield MonthShare(
            name=name,
            runs=len({item.run_id for item in mine if item.run_id}),
            cap_usd=None,
            spent_usd=total(item.spent for item in mine),
            reserved_usd=total(item.reserved for item in mine),
            left_usd=None,
            unproven_usd=total(item.at_most for item in mine),
        )


def _grown(items: Iterable[Item]) -> Iterator[SpentBy]:
    """Yield what was spent until each end of a pod."""
    spent = ZERO
    dated = [(item.at, item.spent) for item in items if item.at is not None and item.spent]
    for at, amount in sorted(dated, key=lambda each: each[0]):
        spent += amount
        yield SpentBy(until_at=at, spent_usd=spent)


def _project_months(ledger: LedgerState, month: str) -> list[tuple[str, Line]]:
    """Return the month's budget of each project that has a cap for it."""
    named = (key for level, key in ledger.caps if level == PROJECT_MONTH)
    projects = {key.rpartition(" ")[0] if is_project_month(key) else key for key in named}
    lines = {name: ledger.line(PROJECT_MONTH, project_month(name, month)) for name in projects}
    return sorted((name, line) for name, line in lines.items() if line.cap is not None)


class FocusCsv(NamedTuple):
    """A month's charges as the text of a CSV file of FOCUS 1.0."""

    month: str
    text: str
    rows: int
    billed: Usd


def focus_csv(ledger: LedgerState, now: float, month: str = "") -> FocusCsv:
    """Return the charges of ``month``, by default of the present one."""
    month = month or month_of(now)
    rows, text = focus_rows(ledger, month), io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return FocusCsv(month, text.getvalue(), len(rows), total_of(rows))
