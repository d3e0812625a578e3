"""Destinations of notifications: which are valid, what they were sent, a test of them."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trmcloud.core.contract.notices import NoticeKind, headers_of, secret_of
from trmcloud.core.contract.records import ContractError
from trmcloud.core.errors import NotFoundError, UsageError
from trmcloud.core.nearest import nearest
from trmcloud.operations.views import NoticeTarget, note
from trmcloud.ports.notices import DeliveryResult, DeliveryState, Destination

_WITHIN_S = 30.0
_LABEL = r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}"
NONE_SENT = DeliveryState(0, 0.0)


def check_destination(
    way: str, where: str, name: str, only: Sequence[str], *, on_pod: bool, secret_from: str
) -> None:
    """
    Raises:
        UsageError: this cannot be told anything.
    """
    ways = ("webhook", "email", "ntfy", "slack", "discord")
    kinds = [kind.value for kind in NoticeKind if kind is not NoticeKind.TEST]
    if way not in ways:
        raise UsageError(f"no way {way!r}", next_step=", ".join(ways))
    if not re.fullmatch(_LABEL, name):
        raise UsageError(
            f"{name!r:.60} is not a valid name", next_step="letters, digits and . _ -, at most 40"
        )
    for kind in only:
        if kind not in kinds:
            near = nearest(kind, kinds, likeness=0.5)
            raise UsageError(
                f"there is no kind of notification {kind!r:.40}"
                + (f"; did you mean {near!r}?" if near else ""),
                next_step=f"use --only with one of {', '.join(kinds)}",
            )
    if way != "webhook":
        if on_pod or secret_from:
            option = "--on-pod" if on_pod else "--secret-from"
            raise UsageError(
                f"{option} needs a webhook", next_step="trmcloud admin notify add webhook URL"
            )
        return
    try:
        parts = urlsplit(where)
        plain = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        plain = False
    if not plain or not where.isascii() or re.search(r"[\s\x00-\x1f]", where):
        raise UsageError(
            "that is not the address of a webhook",
            next_step="trmcloud admin notify add webhook https://example.org/trmcloud",
        )


def secret_in(path: str) -> str:
    """Return the secret in a file, or a new one where ``path`` is empty.

    Raises:
        UsageError: it is none.
    """
    if not path:
        return secret_of(os.urandom(32))
    try:
        secret = Path(path).read_text(encoding="utf-8").strip()
        headers_of("id", "", secret, 0.0)
    except (OSError, ValueError, ContractError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"the secret cannot be used: {why}",
            where=path,
            next_step="leave out --secret-from to make a new secret",
        ) from None
    return secret


def destination_named(known: Sequence[Destination], name: str) -> Destination:
    """
    Raises:
        NotFoundError: there is no such destination.
    """
    for each in known:
        if each.name == name:
            return each
    names = ", ".join(each.name for each in known) or "none"
    raise NotFoundError(
        f"no destination {name!r:.60}", next_step=f"trmcloud admin notify list (there are: {names})"
    )


def target_of(made: Destination, state: DeliveryState = NONE_SENT) -> NoticeTarget:
    """Return a destination with what it was sent last."""
    waiting = state.waiting
    why = next((each.why for each in reversed(waiting) if each.why), "")
    return NoticeTarget(
        name=made.name,
        way=made.way,
        where=host_of(made),
        only=tuple(made.only),
        on_pod=made.on_pod,
        last_told_at=state.last_told_at,
        waiting=len(waiting),
        trouble=note("not_sent", why) if why else None,
        gave_up=state.gave_up or None,
    )


def send_within(send: Any, notice_id: str, body: str) -> DeliveryResult:
    """Return the result of a send within a deadline: a receiver may drip its answer for ever."""
    results: list[DeliveryResult] = []
    thread = threading.Thread(target=lambda: results.append(send(notice_id, body)), daemon=True)
    thread.start()
    thread.join(_WITHIN_S)
    return results[0] if results else DeliveryResult(False, f"no answer within {_WITHIN_S:.0f} s")


def host_of(destination: Destination) -> str:
    """Return its host: the rest of an address may be a secret."""
    try:
        parts = urlsplit(destination.where)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "…"
    if destination.way in ("slack", "discord") and parts.scheme != "https":
        host, port = f"{destination.way}.com", None
    rest = "/…" if parts.path.strip("/") or parts.query else ""
    return f"{host}:{port}{rest}" if port else f"{host}{rest}"
