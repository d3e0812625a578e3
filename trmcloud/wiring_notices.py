"""The part of ``wiring`` that builds who is told, and what tells them beside a command."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.app.home import close_home, home_dir

if TYPE_CHECKING:
    from trmcloud.app.context import Context
    from trmcloud.app.telling import Teller, Words
    from trmcloud.ports.notices import Destination, Outbox, Send, Telling


def telling_thread(context: Context, words: Words) -> Telling | None:
    """What tells others while ``context`` is used; None where nobody is to be told."""
    teller = build_teller(context, words)
    if teller is None:
        return None
    from trmcloud.adapters.notify.thread import TellingThread

    return TellingThread(teller)


def build_teller(context: Context, words: Words) -> Teller | None:
    """What is to be told of this home, and whom. Its ledger is its own: another thread's to read.

    None where nobody is to be told, or where that cannot be read, which a command that is about
    something else is not held up by.
    """
    if not (context.home / "notify.json").exists():
        return None
    from trmcloud.adapters.notify.destinations import read_destinations
    from trmcloud.app.telling import Teller
    from trmcloud.core.errors import NotifyError
    from trmcloud.core.values import replace

    try:
        destinations = read_destinations(context.home)
    except NotifyError:
        return None
    if not destinations:
        return None
    own = replace(context, ledger=SqliteLedger(context.home / "ledger.db"))
    return Teller(own, outbox_of(context.home), destinations, sender_of, words)


def destinations_file() -> tuple[
    Callable[[], tuple[Destination, ...]], Callable[[Sequence[Destination]], None]
]:
    """(what reads who is to be told, what writes it)"""
    from trmcloud.adapters.notify.destinations import read_destinations, write_destinations

    close_home(os.environ)
    home = home_dir(os.environ)
    return partial(read_destinations, home), partial(write_destinations, home)


def outbox_of(home: Path) -> Outbox:
    from trmcloud.adapters.notify.outbox import NAME, SqliteOutbox

    return SqliteOutbox(home / NAME)


def sender_of(destination: Destination) -> Send:
    """By its way.

    Raises:
        MissingExtra, UsageError: it cannot be told.
    """
    if destination.way == "webhook":
        from trmcloud.adapters.notify.webhook import WebhookSender

        return WebhookSender(destination.where, destination.secret)
    from trmcloud.adapters.notify.by_apprise import AppriseSender

    return AppriseSender(destination.way, destination.where)


def pod_webhook(home: Path) -> str:
    """``webhook.json`` for a pod; '' where no destination is to be told from there."""
    if not (home / "notify.json").exists():
        return ""
    from trmcloud.adapters.notify.destinations import read_destinations
    from trmcloud.core.contract.notices import Webhook
    from trmcloud.core.contract.pod_contract import dump
    from trmcloud.core.errors import NotifyError

    try:
        chosen = next((d for d in read_destinations(home) if d.on_pod), None)
    except NotifyError:
        return ""
    return "" if chosen is None else dump(Webhook(chosen.where, chosen.secret, chosen.only))
