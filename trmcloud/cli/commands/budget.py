"""``trmcloud budget``: caps for account, month, project and a project's month."""

from __future__ import annotations

import datetime as dt
import shlex
from typing import Annotated

import typer

from trmcloud.app import ledger_care, views
from trmcloud.app.context import Context
from trmcloud.app.run_views import budget_lines, volume_notes
from trmcloud.app.views import filled
from trmcloud.cli import options
from trmcloud.cli.catch_up import catch_up
from trmcloud.cli.views.json_output import print_document
from trmcloud.cli.views.text import table
from trmcloud.core.control.budget import Line
from trmcloud.core.control.events import CapSet
from trmcloud.core.errors import UsageError
from trmcloud.core.money import Usd, parse_budget
from trmcloud.wiring import build_context

app = options.make_group(
    "Caps for all launches: account, month, project, project-month.",
    "trmcloud budget set month 500",
)

_LEVEL = typer.Argument(help="account, month, project or project-month.")
_AMOUNT = typer.Argument(help="USD.", metavar="USD")
_KEY = typer.Option(
    "--for",
    help="2026-12 (month), a project, or 'PROJECT 2026-12' (default: this month, this project).",
)


@app.command("set")
def set_(
    level: Annotated[str, _LEVEL],
    amount: Annotated[str, _AMOUNT],
    key: Annotated[str, _KEY] = "",
    as_json: options.Json = False,
) -> None:
    """Set or lower a cap.

    Example: trmcloud budget set month 500
    """
    context = build_context()
    line, cap = ledger_care.line_of(context, level, key), _amount(amount)
    if line.cap is not None and cap > line.cap:
        raise UsageError(
            f"the {level} cap is {line.cap}; raise it with its own command",
            next_step=f"trmcloud budget raise {level} {amount}{_for(key)}",
        )
    _tell(context, ledger_care.set_cap(context, line, cap), as_json=as_json)


@app.command("raise")
def raise_(
    level: Annotated[str, _LEVEL],
    amount: Annotated[str, _AMOUNT],
    key: Annotated[str, _KEY] = "",
    as_json: options.Json = False,
) -> None:
    """Raise a cap; the change is recorded.

    Example: trmcloud budget raise month 800
    """
    context = build_context()
    line = ledger_care.line_of(context, level, key)
    lower = f"trmcloud budget set {level} {amount}{_for(key)}"
    raised = ledger_care.raise_cap(context, line, _amount(amount), next_step=lower)
    _tell(context, raised, as_json=as_json)


@app.command("show")
def show(as_json: options.Json = False) -> None:
    """Show the caps of account, month and this project: spent, reserved and left.

    Example: trmcloud budget show
    """
    context = build_context()
    catch_up(context)
    lines = context.ledger.read().lines_for(context.caller.project, context.wall())
    if as_json:
        print_document(budget_lines(lines))
        return
    rows = [
        (
            f"{line.level} {line.key}".strip(),
            str(line.cap) if line.cap is not None else "no cap",
            str(line.settled),
            str(line.reserved),
            str(line.remaining) if line.remaining is not None else "–",
        )
        for line in lines
    ]
    print("\n".join(table(("budget", "cap", "spent", "reserved", "left"), rows)))
    if lines[0].strays:
        print(f"of this, {lines[0].strays} for orphaned pods")
    for note in volume_notes(context.ledger.read(), context.wall()):
        print(note.message)
    if lines[0].quarantined:
        print(f"of this, at most {lines[0].quarantined} for runs with damaged records")
    for lost in context.ledger.read().unread:
        what = "which sets a cap" if lost.kind == "CapSet" else "of the whole ledger"
        print(
            f"record {lost.seq}, {what}, is damaged: no run can be launched · trmcloud admin "
            "ledger check"
        )
    if lines[0].unproven:
        print(f"of this, at most {lines[0].unproven}: bills that are not final yet")


@app.command("history")
def history(as_json: options.Json = False) -> None:
    """Show all changes of caps: time, amount, user.

    Example: trmcloud budget history
    """
    records = build_context().ledger.read().cap_history
    changes = [(record.at, record.event) for record in records if isinstance(record.event, CapSet)]
    if as_json:
        rows = tuple(filled(views.CapChange, event, changed_at=at) for at, event in changes)
        print_document(views.CapHistory(changes=rows))
        return
    if not changes:
        print("no cap is set · trmcloud budget set month 500")
    for at, event in changes:
        when = dt.datetime.fromtimestamp(at, dt.timezone.utc)
        name = f"{event.level} {event.key}".strip()
        cap = event.cap if event.cap is not None else "no cap"
        print(f"{when:%Y-%m-%d %H:%M:%S} UTC  {name}  {cap}  {event.by}")


def _amount(text: str) -> Usd:
    try:
        return Usd(0) if text.strip() in ("0", "$0") else parse_budget(text)
    except ValueError as error:
        raise UsageError(str(error), next_step="trmcloud budget set month 500") from None


def _for(key: str) -> str:
    return f" --for {shlex.quote(key)}" if key else ""


def _tell(context: Context, line: Line, *, as_json: bool) -> None:
    catch_up(context)
    if as_json:
        print_document(budget_lines([line]))
        return
    print(f"{line.level} {line.key}".strip() + f" cap: {line.cap}")
