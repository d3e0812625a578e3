"""A month's money: tables and bars in the terminal, and the same as a page."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trmcloud.cli.views.text import table
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.text import one_line
from trmcloud.core.values import replace
from trmcloud.operations.curves.charts import Mark, Series, legend, line_chart
from trmcloud.operations.money.html_page import head_of, html_table, instant, named_rows, words
from trmcloud.operations.money.spending import month_bounds

if TYPE_CHECKING:
    from trmcloud.operations.views import Month, MonthLine, MonthShare

_BAR = 24
_KINDS = {
    "compute": "machines",
    "volumes": "network volumes",
    "buckets": "buckets, uploads beyond grants",
    "orphans": "orphaned pods",
}


def month_lines(report: Month) -> list[str]:
    """Return the lines that ``report --month`` prints."""
    counted = f"{len(report.runs)} run{'' if len(report.runs) == 1 else 's'}"
    lines = [f"{report.month} · {counted} · {_against(report.budget)}"]
    if report.account.cap_usd is not None:
        lines.append(f"account · {_against(report.account)}")
    lines += [f"project {one_line(each.name)} · {_against(each)}" for each in report.project_months]
    if not report.projects:
        return [*lines, "no money was spent or reserved"]
    for title, shares in _lists(report):
        most = max((_held(share).micros for share in shares), default=0)
        rows = [
            (
                share.name,
                str(share.runs) if share.runs else "–",
                str(share.spent_usd),
                str(share.reserved_usd),
                _cap(share) if title == "project" else "",
                _bar(share, most),
            )
            for share in shares
        ]
        header = (title, "runs", "spent", "reserved", "cap" if title == "project" else "", "")
        lines += ["", *table(header, rows)]
    if report.budget.unproven_usd:
        lines += [
            "",
            f"of this, at most {report.budget.unproven_usd}: bills that are not final yet",
        ]
    return lines


def month_page(report: Month, now: float, made_by: str) -> str:
    """One page that opens offline, with a plot of the month against its cap."""
    title = f"{report.month}: spent and reserved"
    parts = [
        head_of(title),
        f"<h1>{words(title)}</h1>\n",
        f'<p class="dim">made {instant(now)} by {words(made_by)}</p>\n',
        f"<p>{words(_against(report.budget))}</p>\n",
        _plot(report),
        named_rows(
            [
                ("account", words(_against(report.account))),
                *(
                    (words(f"project {each.name}"), words(_against(each)))
                    for each in report.project_months
                ),
            ]
        ),
    ]
    for name, shares in _lists(report):
        rows = [
            (
                words(s.name),
                str(s.runs or "–"),
                str(s.spent_usd),
                str(s.reserved_usd),
                words(_cap(s)),
            )
            for s in shares
        ]
        header = (name, "runs", "spent", "reserved", "cap" if name == "project" else "")
        parts.append(f"<h2>{words(name)}</h2>\n{html_table(header, rows, numbers=1)}\n")
    return "".join(parts) + "</body>\n</html>\n"


def _lists(report: Month) -> list[tuple[str, Sequence[MonthShare]]]:
    kinds = [replace(share, name=_KINDS[share.name]) for share in report.kinds]
    return [("project", report.projects), ("provider", report.providers), ("for", kinds)]


def _against(line: MonthLine) -> str:
    told, left = f"{line.spent_usd} spent, {line.reserved_usd} reserved", line.left_usd
    if line.cap_usd is None or left is None:
        return f"{told}, no cap"
    over = f", {-left} over it" if left < ZERO else f", {left} left"
    return f"{told} of {line.cap_usd}{over}"


def _held(share: MonthShare) -> Usd:
    return share.spent_usd + share.reserved_usd


def _cap(share: MonthShare) -> str:
    if share.cap_usd is None:
        return ""
    return f"{share.cap_usd}, {share.left_usd} left"


def _bar(share: MonthShare, most: int) -> str:
    """Spent, then reserved, as long as their part of the largest one."""
    if not most:
        return ""
    spent, held = (round(_BAR * amount.micros / most) for amount in (share.spent_usd, _held(share)))
    if _held(share) and not held:
        return "╸"
    return "━" * spent + "─" * (held - spent)


def _plot(report: Month) -> str:
    begins, ends = month_bounds(report.month)
    amounts = [(each.until_at, float(each.spent_usd)) for each in report.grown]
    steps: list[tuple[float, float]] = [(begins, 0.0)]
    for at, spent in amounts:
        steps += [(at, steps[-1][1]), (at, spent)]
    series = [Series("spent", tuple(steps))]
    cap = report.budget.cap_usd
    if cap is not None:
        series.append(Series("cap", ((begins, float(cap)), (ends, float(cap)))))
    marks = [Mark(begins, ""), Mark(ends, "")]
    chart = line_chart(
        f"{report.month}: spent, and the cap",
        series,
        marks,
        x_words=lambda at: time.strftime("%d", time.gmtime(at)),
        y_words=lambda usd: str(Usd.from_micros(round(usd * 1_000_000))),
        x_title="day of the month, UTC",
    )
    return f"{legend(series)}{chart}\n"
