"""``trmcloud budget``: caps for account, month, project and a project's month."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from trmcloud.cli import options
from trmcloud.cli.catch_up import catch_up
from trmcloud.cli.views.json_output import print_answer, print_document
from trmcloud.cli.views.text import table
from trmcloud.core.clock import utc_second
from trmcloud.core.errors import UsageError
from trmcloud.operations import views
from trmcloud.operations.context import Context
from trmcloud.operations.money import ledger_care
from trmcloud.operations.runs.run_views import budget_lines, volume_notes
from trmcloud.options import parse_cap
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
    line, cap = (
        ledger_care.line_of(context, level, key),
        parse_cap(amount, "trmcloud budget set month 500"),
    )
    if line.cap is not None and cap > line.cap:
        raise UsageError(
            f"the {level} cap is {line.cap}; raise it with its own command",
            next_step=f"trmcloud budget raise {level} {amount}{_for(key)}",
        )
    _tell(context, budget_lines([ledger_care.set_cap(context, line, cap)]), as_json=as_json)


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
    raised = ledger_care.raise_cap(
        context, line, parse_cap(amount, "trmcloud budget set month 500"), next_step=lower
    )
    _tell(context, budget_lines([raised]), as_json=as_json)


@app.command("show")
def show(as_json: options.Json = False) -> None:
    """Show the caps of account, month and this project: spent, reserved and left.

    Example: trmcloud budget show
    """
    context = build_context()
    catch_up(context)
    ledger = context.ledger.read()
    shown = budget_lines(ledger.lines_for(context.caller.project, context.wall()))
    if as_json:
        print_document(shown)
        return
    lines = shown.budgets
    rows = [
        (
            _name(line),
            str(line.cap_usd) if line.cap_usd is not None else "no cap",
            str(line.settled_usd),
            str(line.reserved_usd),
            str(line.remaining_usd) if line.remaining_usd is not None else "–",
        )
        for line in lines
    ]
    print("\n".join(table(("budget", "cap", "spent", "reserved", "left"), rows)))
    if lines[0].strays_usd:
        print(f"of this, {lines[0].strays_usd} for orphaned pods")
    for note in volume_notes(ledger, context.wall()):
        print(note.message)
    if lines[0].quarantined_usd:
        print(f"of this, at most {lines[0].quarantined_usd} for runs with damaged records")
    for lost in ledger.unread:
        what = "which sets a cap" if lost.kind == "CapSet" else "of the whole ledger"
        print(
            f"record {lost.seq}, {what}, is damaged: no run can be launched · trmcloud admin "
            "ledger check"
        )
    if lines[0].unproven_usd:
        print(f"of this, at most {lines[0].unproven_usd}: bills that are not final yet")


@app.command("history")
def history(as_json: options.Json = False) -> None:
    """Show all changes of caps: time, amount, user.

    Example: trmcloud budget history
    """
    changes = ledger_care.cap_changes(build_context())
    lines = []
    for each in changes:
        cap = each.cap_usd if each.cap_usd is not None else "no cap"
        lines.append(f"{utc_second(each.changed_at)}  {_name(each)}  {cap}  {each.by}")
    nothing = ["no cap is set · trmcloud budget set month 500"]
    print_answer(views.CapHistory(changes=changes), lines or nothing, as_json=as_json)


def _for(key: str) -> str:
    return f" --for {shlex.quote(key)}" if key else ""


def _name(of: views.BudgetLine | views.CapChange) -> str:
    return f"{of.level} {of.key}".strip()


def _tell(context: Context, changed: views.Budgets, *, as_json: bool) -> None:
    catch_up(context)
    lines = (f"{_name(line)} cap: {line.cap_usd}" for line in changed.budgets)
    print_answer(changed, lines, as_json=as_json)
