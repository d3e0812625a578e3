"""``trmcloud admin notify``: who is told, and by which way, when something matters."""

from __future__ import annotations

import getpass
import secrets
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from trmcloud.cli import options
from trmcloud.cli.views.json_output import print_answer, print_document
from trmcloud.cli.views.text import duration, table
from trmcloud.core.contract.notices import Notice, NoticeKind, body_of
from trmcloud.core.errors import ConflictError, NotFoundError, NotifyError
from trmcloud.core.text import one_line
from trmcloud.operations import views
from trmcloud.operations.narration import words_of
from trmcloud.operations.notices.destinations import (
    NONE_SENT,
    check_destination,
    destination_named,
    host_of,
    secret_in,
    send_within,
    target_of,
)
from trmcloud.ports.notices import DeliveryState, Destination
from trmcloud.wiring import (
    build_context,
    build_notifier,
    deliveries_of,
    destinations_file,
    sender_of,
)

app = options.make_group(
    "Send notifications: started, gate, cap, ended, trouble, lost, price, orphan, reaper.",
    "trmcloud admin notify add webhook https://example.org/trmcloud",
)


@app.command("add")
def add(
    way: Annotated[
        str, typer.Argument(help="Type of destination: webhook, email, ntfy, slack or discord.")
    ],
    where: Annotated[
        str, typer.Argument(help="Address; - reads it from standard input.", metavar="URL")
    ],
    name: Annotated[str, typer.Option(help="Name of the destination (default: its type).")] = "",
    only: Annotated[
        list[str] | None,
        typer.Option(help="Kind of notification to send, repeatable (default: all)."),
    ] = None,
    secret_from: Annotated[
        str,
        typer.Option(
            help="File with the webhook's secret, whsec_… (default: a new secret).", metavar="FILE"
        ),
    ] = "",
    on_pod: Annotated[
        bool,
        typer.Option(
            "--on-pod",
            help="Give the webhook and its secret to pods, whose agents then send "
            "notifications, too.",
        ),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Add a destination for notifications.

    A webhook is signed with its own secret, which is shown once. Addresses and secrets are kept
    in notify.json, which only you can read.

    Example: trmcloud admin notify add webhook https://example.org/trmcloud
    """
    where = _typed(where)
    check_destination(way, where, name or way, only or [], on_pod=on_pod, secret_from=secret_from)
    secret = secret_in(secret_from) if way == "webhook" else ""
    made = Destination(name or way, way, where, secret, tuple(only or ()), on_pod, time.time())
    sender_of(made)
    read, write = destinations_file()
    known = read()
    if any(each.name == made.name for each in known):
        raise ConflictError(
            f"the destination {made.name!r} already exists",
            next_step=f"trmcloud admin notify remove {made.name}, or use another --name",
        )
    write([*known, made])
    context = build_context()
    _forget(context.home, made.name)  # what is left of an earlier one of this name
    teller = build_notifier(context)
    if teller is not None:
        teller.derive()
    if as_json:
        shown_once = secret if secret and not secret_from else None
        print_document(views.NoticeTargets(destinations=(target_of(made),), secret=shown_once))
        return
    wanted = ", ".join(made.only) or "everything"
    print(f"{made.name}: {made.way} to {host_of(made)}, {wanted}")
    if secret and not secret_from:
        print(f"  its secret, shown once: {secret}")
    if on_pod:
        print(
            "  pods of runs launched from now on get the webhook and its secret, but not your "
            "account's key"
        )
    print(f"  trmcloud admin notify test {made.name}")


@app.command("list")
def show(as_json: options.Json = False) -> None:
    """List the destinations, their last delivery, and waiting notifications.

    Example: trmcloud admin notify list
    """
    destinations = destinations_file()[0]()
    context = build_context()
    states: dict[str, DeliveryState] = {}
    if destinations:
        with deliveries_of(context.home).change() as kept:
            states = dict(kept)
    data = [target_of(each, states.get(each.name, NONE_SENT)) for each in destinations]
    if as_json:
        print_document(views.NoticeTargets(destinations=tuple(data)))
    elif not data:
        print("no notifications set up · trmcloud admin notify add webhook URL")
    else:
        header = ("name", "type", "where", "kinds", "last sent", "waiting")
        print("\n".join(table(header, [_row(told, context.wall()) for told in data])))
        for told in data:
            if told.gave_up:
                print(f"{told.name}: gave up sending {told.gave_up}")


def _forget(home: Path, name: str) -> None:
    with deliveries_of(home).change() as states:
        states.pop(name, None)


def _row(told: views.NoticeTarget, now: float) -> tuple[str, ...]:
    at, waiting = told.last_told_at, told.waiting
    why = told.trouble.message if told.trouble is not None else ""
    wanted = ", ".join(told.only) or "everything"
    return (
        told.name,
        told.way,
        told.where,
        wanted + (", pods send to it, too" if told.on_pod else ""),
        "never" if at is None else f"{duration(now - at)} ago",
        f"{waiting} wait" + (f": {why}" if why else "") if waiting else "–",
    )


@app.command("remove")
def remove(
    name: Annotated[str, typer.Argument(help="Which one.", metavar="NAME")],
    as_json: options.Json = False,
) -> None:
    """Remove a destination; notifications that wait for it are dropped.

    Example: trmcloud admin notify remove webhook
    """
    read, write = destinations_file()
    known = read()
    made = destination_named(known, name)
    write([each for each in known if each.name != made.name])
    _forget(build_context().home, made.name)
    left = tuple(target_of(each) for each in known if each.name != made.name)
    lines = [f"{made.name} was removed: it gets no more notifications"]
    if made.on_pod:
        lines.append("  pods that have it keep it until they end: disable it at the receiver")
    print_answer(views.NoticeTargets(destinations=left), lines, as_json=as_json)


@app.command("test")
def try_out(
    name: Annotated[
        str, typer.Argument(help="Destination to test (default: all).", metavar="NAME")
    ] = "",
    as_json: options.Json = False,
) -> None:
    """Send a test notification to each destination now, and show the result.

    Example: trmcloud admin notify test
    """
    known = destinations_file()[0]()
    chosen = [destination_named(known, name)] if name else list(known)
    if not chosen:
        raise NotFoundError(
            "no notifications are set up", next_step="trmcloud admin notify add webhook URL"
        )
    context = build_context()
    test_id = f"{context.ledger.ledger_id}/test/{secrets.token_hex(4)}"
    notice = Notice(test_id, NoticeKind.TEST, "", context.wall())
    body = body_of(notice, words_of(notice))
    failed = 0
    rows = []
    for each in chosen:
        told = send_within(sender_of(each), notice.id, body)
        failed += not told.taken
        rows.append(views.CheckRow(code=each.name, passed=told.taken, message=one_line(told.why)))
        result = "it was accepted" if told.taken else f"NOT taken: {told.why}"
        print(one_line(f"{each.name}: {each.way} to {host_of(each)}: {result}"))
    if as_json:
        print_document(views.NoticesTried(passed=not failed, checks=tuple(rows)))
    sys.exit(NotifyError.exit_code if failed else 0)


def _typed(where: str) -> str:
    """The address; one that is itself a secret need not stand in a shell's history."""
    if where != "-":
        return where
    if sys.stdin.isatty():
        return getpass.getpass("URL: ").strip()
    return sys.stdin.readline().strip()
