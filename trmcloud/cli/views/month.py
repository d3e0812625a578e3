"""Metrics, and a month's money."""

from __future__ import annotations

import time
from collections.abc import Sequence

from trmcloud.cli.views.charts import Mark, Series, legend, line_chart
from trmcloud.cli.views.html_page import head_of, html_table, instant, named_rows, words
from trmcloud.cli.views.text import bpb, losses, table
from trmcloud.core.contract.command import Command
from trmcloud.core.contract.manifest import CheckpointManifest
from trmcloud.core.contract.trainer_contract import Heartbeat
from trmcloud.core.control.budget import Line
from trmcloud.core.control.monthly import MonthReport, Share
from trmcloud.core.control.reported import BY_POD, MARK, Reported
from trmcloud.core.money import Usd
from trmcloud.core.plain_text import one_line

_EXTRA = "metric"


def metric_words(command: Command | None, told: Reported[Heartbeat]) -> str:
    """``bpb 2.310``, ``pod's val_loss 1.87``; of a command without a metric ``no metric``."""
    if told.checked(lambda beat: beat.val_bpb is None) or (command and not command.metric_name):
        return told.checked(lambda beat: _metric(command, beat.val_bpb))
    return told.as_pods(lambda beat: _metric(command, beat.val_bpb))


def metric_cell(command: Command | None, told: Reported[Heartbeat] | None) -> str:
    """The number alone, in a table that has ``marked_words`` below it."""
    if told is None or told.checked(lambda beat: beat.val_bpb is None):
        return _number(command, None)
    return told.as_marked(lambda beat: _number(command, beat.val_bpb))


def best_words(command: Command | None, told: Reported[Heartbeat]) -> str:
    """``best 2.310 at step 1,200``; '' before there is one."""
    if told.checked(lambda beat: beat.best_step is None):
        return ""
    return told.as_pods(
        lambda b: f"best {_number(command, b.best_bpb)} at step {b.best_step or 0:,}"
    )


def losses_words(told: Reported[Heartbeat]) -> str:
    """``ℓ 5.9 > 4.7``; '' where it has said none."""
    if told.checked(lambda beat: not beat.step_losses):
        return ""
    return told.as_pods(lambda beat: f"ℓ {losses(beat.step_losses)}")


def training_rows(command: Command | None, told: Reported[Heartbeat]) -> list[tuple[str, str]]:
    """How far it is, and by what it is judged, with whose word it is."""
    done = told.as_reported(lambda b: f"{b.phase} step {steps_words(b, ' of ')} · {b.state}")
    if command is not None:
        scored = told.checked(lambda beat: beat.val_bpb is not None)
        by = told.as_reported if scored and command.metric_name else told.checked
        return [("training", done), ("metric", by(lambda b: _metric(command, b.val_bpb)))]
    said = told.as_reported(lambda b: f"ℓ {losses(b.step_losses)} · {_metric(None, b.val_bpb)}")
    return [("training", done), ("losses", said)]


def _metric(command: Command | None, score: float | None) -> str:
    if command is None:
        return f"bpb {bpb(score)}"
    if not command.metric_name:
        return "no metric"
    return f"{one_line(command.metric_name)} {number(command.shown(score))}"


def _number(command: Command | None, score: float | None) -> str:
    """The number alone."""
    return bpb(score) if command is None else number(command.shown(score))


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def steps_words(beat: Heartbeat, of: str = "/") -> str:
    """``120/3,000``; ``120`` where nobody knows how many there are."""
    return f"{beat.step:,}{of}{beat.steps:,}" if beat.steps else f"{beat.step:,}"


def score_rows(command: Command | None, told: Reported[CheckpointManifest]) -> list[str]:
    """``final-step bpb  2.310   ℓ 3.9 > 3.8``, or a command's own metric, where it has one; a
    pod's report says that it is one, and the losses get a line of their own."""
    name = "final-step bpb" if command is None else one_line(command.metric_name)[:40]
    value = told.as_reported(_value)
    if command is not None:
        return [f"  {name:<14}  {value}"] if told.checked(_is_scored) and name else []
    if not told.checked(_is_scored):
        return [f"  {name}  {bpb(None)}   ℓ {losses(())}"]
    of_steps = told.checked(lambda manifest: f"ℓ {losses(manifest.step_losses)}")
    if told.here:
        return [f"  {name}  {value}   {of_steps}"]
    return [f"  {name}  {value}", f"  {'':<14}  {of_steps}"]


def score_words(command: Command | None, told: Reported[CheckpointManifest]) -> str:
    """``val_loss 1.87``, ``bpb 2.310``; a pod's report says that it is one."""
    name = "bpb" if command is None else one_line(command.metric_name)[:40]
    return f"{name} {told.as_reported(_value)}" if name else "no metric"


def score_cell(told: Reported[CheckpointManifest] | None, *, named: bool = False) -> str:
    """The number alone, or behind its name, in a table that has ``marked_words`` below it."""
    if told is None or not told.checked(_is_scored):
        return "–"
    return told.as_marked(_named if named else _value)


def _named(manifest: CheckpointManifest) -> str:
    told = manifest.extra.get(_EXTRA)
    name = told.get("name", "metric") if isinstance(told, dict) else "metric"
    return f"{one_line(str(name))[:40]} {_value(manifest)}"


def marked_words() -> str:
    return f"{MARK} {BY_POD}: trmcloud eval FOLDER measures a fetched one here"


def _is_scored(manifest: CheckpointManifest) -> bool:
    return manifest.val_bpb is not None


def _value(manifest: CheckpointManifest) -> str:
    told = manifest.extra.get(_EXTRA)
    if not isinstance(told, dict):
        return bpb(manifest.val_bpb)
    value = told.get("value")
    return number(float(value) if isinstance(value, (int, float)) else None)


_BAR = 24
_KINDS = {
    "compute": "machines",
    "volumes": "network volumes",
    "buckets": "buckets, beyond grants",
    "orphans": "orphaned pods",
}


def month_lines(report: MonthReport) -> list[str]:
    """What ``report --month`` prints."""
    counted = f"{len(report.runs)} run{'' if len(report.runs) == 1 else 's'}"
    lines = [f"{report.month} · {counted} · {_against(report.line)}"]
    if report.account.cap is not None:
        lines.append(f"account · {_against(report.account)}")
    if not report.projects:
        return [*lines, "nothing was spent or reserved in it"]
    for title, shares in _lists(report):
        most = max((share.held.micros for share in shares), default=0)
        rows = [
            (
                share.name,
                str(share.runs) if share.runs else "–",
                str(share.spent),
                str(share.reserved),
                _cap(share) if title == "project" else "",
                _bar(share, most),
            )
            for share in shares
        ]
        header = (title, "runs", "spent", "reserved", "cap" if title == "project" else "", "")
        lines += ["", *table(header, rows)]
    if report.line.unproven:
        lines += ["", f"of that, {report.line.unproven} at most: bills that are not final yet"]
    return lines


def month_page(report: MonthReport, now: float, made_by: str) -> str:
    """One page that opens offline, with a plot of the month against its cap."""
    title = f"{report.month}: spent and reserved"
    parts = [
        head_of(title),
        f"<h1>{words(title)}</h1>\n",
        f'<p class="dim">made {instant(now)} by {words(made_by)}</p>\n',
        f"<p>{words(_against(report.line))}</p>\n",
        _plot(report),
        named_rows([("account", words(_against(report.account)))]),
    ]
    for name, shares in _lists(report):
        rows = [
            (words(s.name), str(s.runs or "–"), str(s.spent), str(s.reserved), words(_cap(s)))
            for s in shares
        ]
        header = (name, "runs", "spent", "reserved", "cap" if name == "project" else "")
        parts.append(f"<h2>{words(name)}</h2>\n{html_table(header, rows, numbers=1)}\n")
    return "".join(parts) + "</body>\n</html>\n"


def _lists(report: MonthReport) -> list[tuple[str, Sequence[Share]]]:
    kinds = [Share(_KINDS[s.name], s.runs, s.spent, s.reserved, s.at_most) for s in report.kinds]
    return [("project", report.projects), ("provider", report.providers), ("for", kinds)]


def _against(line: Line) -> str:
    told = f"{line.settled} spent, {line.reserved} reserved"
    if line.cap is None:
        return f"{told}, no cap"
    over = f", {line.over} over it" if line.over else f", {line.remaining} left"
    return f"{told} of {line.cap}{over}"


def _cap(share: Share) -> str:
    if share.cap is None:
        return ""
    return f"{share.cap}, {share.left} left"


def _bar(share: Share, most: int) -> str:
    """Spent, then reserved, as long as their part of the largest one."""
    if not most:
        return ""
    spent, held = (round(_BAR * amount.micros / most) for amount in (share.spent, share.held))
    if share.held and not held:
        return "╸"
    return "━" * spent + "─" * (held - spent)


def _plot(report: MonthReport) -> str:
    begins, ends = _bounds(report.month)
    amounts = [(at, float(spent)) for at, spent in report.grown]
    steps: list[tuple[float, float]] = [(begins, 0.0)]
    for at, spent in amounts:
        steps += [(at, steps[-1][1]), (at, spent)]
    series = [Series("spent", tuple(steps))]
    cap = report.line.cap
    if cap is not None:
        series.append(Series("cap", ((begins, float(cap)), (ends, float(cap)))))
    marks = [Mark(begins, ""), Mark(ends, "")]
    chart = line_chart(
        f"{report.month}: spent against the cap",
        series,
        marks,
        x_words=lambda at: time.strftime("%d", time.gmtime(at)),
        y_words=lambda usd: str(Usd.from_micros(round(usd * 1_000_000))),
        x_title="day of the month, UTC",
    )
    return f"{legend(series)}{chart}\n"


def _bounds(month: str) -> tuple[float, float]:
    import calendar

    year, number = int(month[:4]), int(month[5:])
    begins = calendar.timegm((year, number, 1, 0, 0, 0))
    after = (year + 1, 1) if number == 12 else (year, number + 1)
    return float(begins), float(calendar.timegm((*after, 1, 0, 0, 0)))
