"""``trmcloud grant``: what principals other than the owner may spend; ``approve`` and ``deny``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Annotated

import typer

from trmcloud.cli import options
from trmcloud.cli.catch_up import catch_up, tell
from trmcloud.cli.views.grants import account_lines, grants_table, history_lines, request_words
from trmcloud.cli.views.json_output import print_answer
from trmcloud.core.errors import UsageError
from trmcloud.operations import views
from trmcloud.operations.context import Context
from trmcloud.operations.money import grants
from trmcloud.operations.money.grants import ApprovalRequest, GrantAccount
from trmcloud.wiring import build_context

app = options.make_group(
    "Let a principal (a person, an agent, a CI job) spend within a grant. The ledger's owner needs "
    "none; all others start at $0.",
    "trmcloud grant give NAME 20 --per-run 5 --per-day 10",
)

_NONE = "no grant was given · trmcloud grant give NAME USD"
_NAME = typer.Argument(help="Name of the principal.", metavar="NAME")
_REQUEST = typer.Argument(help="Id of the request.", metavar="ID")
_TOTAL = typer.Argument(help="USD for everything.", metavar="USD")
_PER_RUN = typer.Option("--per-run", help="Most for one run.", metavar="USD")
_PER_DAY = typer.Option("--per-day", help="Most on one UTC day.", metavar="USD")
_PER_MONTH = typer.Option("--per-month", help="Most in one UTC month.", metavar="USD")
_AT_ONCE = typer.Option("--runs-at-once", help="Most runs at once (0: any number).", min=0)
_HARDWARE = typer.Option(
    "--hardware", help="Hardware that may be rented, repeatable (default: any).", metavar="NxSKU"
)
_PROVIDER = typer.Option("--provider", help="Provider that may be used, repeatable (default: any).")
_EXPIRES = typer.Option(
    "--expires", help="Nothing is reserved after this time: 12h, friday, 2026-12-31T18:00.",
    metavar="TIME",
)  # fmt: skip
_IDLE = typer.Option(
    "--idle", help="End a run that makes no step for this time: 30m, 2h; 0: never.", metavar="TIME"
)
_BUCKET = typer.Option(
    "--bucket",
    help="s3://BUCKET/PREFIX for its checkpoints, repeatable (default: only $TRMCLOUD_BUCKET).",
    metavar="S3_URL",
)


@app.command("give")
def give(
    name: Annotated[str, _NAME],
    total: Annotated[str, _TOTAL],
    per_run: Annotated[str | None, _PER_RUN] = None,
    per_day: Annotated[str | None, _PER_DAY] = None,
    per_month: Annotated[str | None, _PER_MONTH] = None,
    runs_at_once: Annotated[int, _AT_ONCE] = 1,
    hardware: Annotated[list[str] | None, _HARDWARE] = None,
    provider: Annotated[list[str] | None, _PROVIDER] = None,
    expires: Annotated[str | None, _EXPIRES] = None,
    idle: Annotated[str | None, _IDLE] = None,
    bucket: Annotated[list[str] | None, _BUCKET] = None,
    as_json: options.Json = False,
) -> None:
    """Give a principal a grant.

    Example: trmcloud grant give agent 20 --per-run 5 --per-day 10
    """
    context = build_context()
    typed = grants.parse_terms(
        context, total=total, per_run=per_run, per_day=per_day, per_month=per_month,
        runs_at_once=runs_at_once, hardware=hardware, providers=provider, expires=expires,
        idle=idle, buckets=bucket,
    )  # fmt: skip
    terms = grants.make_terms(typed.pop("total"), typed, before=None)
    _show(context, grants.give(context, name, terms), as_json=as_json)


@app.command("raise")
def raise_(
    name: Annotated[str, _NAME],
    total: Annotated[
        str | None,
        typer.Argument(help="USD for everything, the spent part included.", metavar="USD"),
    ] = None,
    per_run: Annotated[str | None, _PER_RUN] = None,
    per_day: Annotated[str | None, _PER_DAY] = None,
    per_month: Annotated[str | None, _PER_MONTH] = None,
    runs_at_once: Annotated[int | None, _AT_ONCE] = None,
    hardware: Annotated[list[str] | None, _HARDWARE] = None,
    provider: Annotated[list[str] | None, _PROVIDER] = None,
    expires: Annotated[str | None, _EXPIRES] = None,
    idle: Annotated[str | None, _IDLE] = None,
    bucket: Annotated[list[str] | None, _BUCKET] = None,
    as_json: options.Json = False,
) -> None:
    """Raise a grant; the change is recorded. Hardware, providers and buckets are added.

    Example: trmcloud grant raise agent 40 --per-run 10
    """
    context = build_context()
    typed = grants.parse_terms(
        context, total=total, per_run=per_run, per_day=per_day, per_month=per_month,
        runs_at_once=runs_at_once, hardware=hardware, providers=provider, expires=expires,
        idle=idle, buckets=bucket,
    )  # fmt: skip
    if not typed:
        raise UsageError(
            "nothing was raised", next_step=f"trmcloud grant raise {shlex.quote(name)} 40"
        )
    terms = grants.added_terms(grants.standing_terms(context, name), typed)
    raised = grants.raise_grant(context, name, terms)
    _show(context, raised, as_json=as_json)


@app.command("revoke")
def revoke(
    name: Annotated[str, _NAME],
    now: Annotated[
        bool, typer.Option("--now", help="End its runs at once: what is not saved is lost.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Revoke a grant: nothing more is reserved under it, and its runs land.

    Example: trmcloud grant revoke agent
    """
    context = build_context()
    tell(context)
    revoked = grants.revoke(context, name, at_once=now)
    lines = [f"the grant of {name} is revoked"]
    for run_id in revoked.live_runs:
        lines.append(f"  {run_id} {'ends now' if now else 'lands'} · trmcloud status {run_id}")
    _print(lines, (revoked,), as_json=as_json)


@app.command("list")
def show(as_json: options.Json = False) -> None:
    """Show each grant, with the money spent, reserved and left, and open requests.

    Example: trmcloud grant list
    """
    context = build_context()
    catch_up(context)
    given = grants.grants(context)
    waiting = [each for each in grants.approvals(context) if each.state == grants.OPEN]
    lines = [*grants_table(given), *map(request_words, waiting)] if given else [_NONE]
    _print(lines, given, waiting, as_json=as_json)


@app.command("history")
def history(as_json: options.Json = False) -> None:
    """Show all changes of grants and all requests: time, principal, user.

    Example: trmcloud grant history
    """
    made = grants.changes(build_context())
    lines = history_lines(made) or [_NONE]
    print_answer(views.GrantHistory(changes=made), lines, as_json=as_json)


@app.command("approve")
def approve(
    request: Annotated[str, _REQUEST],
    as_json: options.Json = False,
) -> None:
    """Approve a principal's request: its grant then allows what was asked for.

    Example: trmcloud grant approve a-1f2e3d4c
    """
    _answer(request, give=True, as_json=as_json)


@app.command("deny")
def deny(
    request: Annotated[str, _REQUEST],
    as_json: options.Json = False,
) -> None:
    """Deny a principal's request.

    Example: trmcloud grant deny a-1f2e3d4c
    """
    _answer(request, give=False, as_json=as_json)


def _answer(request: str, *, give: bool, as_json: bool) -> None:
    context = build_context()
    answered = grants.answer(context, request, give=give)
    mine = next(g for g in grants.grants(context) if g.principal == answered.principal)
    lines = [f"{answered.id} is {answered.state}", *account_lines(mine)]
    _print(lines, (mine,), (answered,), as_json=as_json)


def _show(context: Context, account: GrantAccount, *, as_json: bool) -> None:
    catch_up(context)
    _print(account_lines(account), (account,), as_json=as_json)


def _print(
    lines: Sequence[str],
    given: Sequence[GrantAccount],
    asked: Sequence[ApprovalRequest] = (),
    *,
    as_json: bool,
) -> None:
    shown = views.Grants(
        grants=tuple(map(grants.grant_line, given)),
        requests=tuple(map(grants.approval_line, asked)),
    )
    print_answer(shown, lines, as_json=as_json)
