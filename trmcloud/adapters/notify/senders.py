"""Senders of notifications: a signed webhook, Apprise's services, and the destinations' file."""

from __future__ import annotations

import email.utils
import json
import logging
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from trmcloud.core import codec
from trmcloud.core.contract.notices import headers_of
from trmcloud.core.contract.records import ContractError
from trmcloud.core.errors import MissingExtra, NotifyError, UsageError
from trmcloud.core.text import one_line
from trmcloud.io.files import read_small, write_atomic
from trmcloud.io.installation import install_command
from trmcloud.io.network import send
from trmcloud.ports.notices import DeliveryResult, Destination

# Who is to be told, in ``<home>/notify.json``: addresses and secrets, for their owner alone.

NAME = "notify.json"
_VERSION = 1


def read_destinations(home: Path) -> tuple[Destination, ...]:
    """
    Raises:
        NotifyError: the file cannot be read, or is none of ours.
    """
    path = home / NAME
    try:
        text = read_small(path)
        if text is None:
            return ()
        if os.stat(path).st_mode & 0o077:
            os.chmod(path, 0o600)
        data = json.loads(text)
        if data["version"] != _VERSION:
            raise ValueError(f"its version is {data['version']!r:.20}")
        return tuple(codec.from_json(Destination, row) for row in data["destinations"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotifyError(
            f"the list of destinations cannot be read: {error}",
            where=str(path),
            next_step=f"remove {path}, and add them again",
        ) from None


def write_destinations(home: Path, destinations: Sequence[Destination]) -> None:
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    rows = [codec.to_json(each) for each in destinations]
    text = json.dumps({"version": _VERSION, "destinations": rows}, indent=1)
    write_atomic(home / NAME, text, mode=0o600)


# A webhook by the standard library: one signed POST, which goes where it was sent and nowhere
# else.

TIMEOUT_S = 10.0
MOST_AGAIN_S = 3600.0
"""A receiver is not taken at its word for longer."""
FINAL = (400, 405, 406, 410, 411, 413, 414, 415, 422, 431)
"""Answers that the same request would get again. Others, as 401 and 404, end when the receiver is
mended."""


class WebhookSender:
    """Tells one address. ``now`` is epoch s, for the signature."""

    def __init__(
        self,
        url: str,
        secret: str,
        *,
        timeout_s: float = TIMEOUT_S,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._url, self._secret = url, secret
        self._timeout_s, self._now = timeout_s, now

    def __call__(self, notice_id: str, body: str) -> DeliveryResult:
        now = self._now()
        try:
            headers = headers_of(notice_id, body, self._secret, now)
            request = urllib.request.Request(self._url, body.encode(), headers, method="POST")
            with send(request, self._timeout_s) as answer:
                answer.read(1)
            return DeliveryResult(True)
        except urllib.error.HTTPError as error:
            again_in_s = retry_after_s(error.headers.get("Retry-After"), now)
            error.close()
            text = one_line(f"it answered {error.code}")
            return DeliveryResult(False, text, again_in_s, error.code in FINAL)
        except ContractError as error:
            return DeliveryResult(False, str(error))
        except (OSError, ValueError) as error:
            why = getattr(error, "reason", None) or error
            return DeliveryResult(False, one_line(f"no answer: {why}")[:200])
        except Exception as error:  # http.client's own: an answer that is none
            return DeliveryResult(False, one_line(f"no answer: {type(error).__name__}")[:200])


def retry_after_s(text: str | None, now: float) -> float | None:
    """Of ``Retry-After``: seconds, or a date; None where it is neither."""
    if not text:
        return None
    if text.strip().isascii() and text.strip().isdigit() and len(text) < 10:
        return min(MOST_AGAIN_S, float(text))
    try:
        at = email.utils.parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
    return min(MOST_AGAIN_S, max(0.0, at - now))


# Mail, ntfy, Slack and Discord through Apprise, which is imported where one of them is used.

WAYS: Mapping[str, tuple[str, ...]] = {
    "email": ("mailto", "mailtos"),
    "ntfy": ("ntfy", "ntfys", "https"),
    "slack": ("slack", "https"),
    "discord": ("discord", "https"),
}
"""By way: the schemes that its addresses begin with."""
EXAMPLES: Mapping[str, str] = {
    "email": "mailtos://USER:PASSWORD@smtp.example.org?to=you@example.org",
    "ntfy": "https://ntfy.sh/a-topic-of-your-own",
    "slack": "https://hooks.slack.com/services/T…/B…/…",
    "discord": "https://discord.com/api/webhooks/…/…",
}


class AppriseSender:
    """Tells one address, which stands for one of ``WAYS``.

    Raises:
        MissingExtra: Apprise is not installed.
        UsageError: it is no such address.
    """

    def __init__(self, way: str, where: str, timeout_s: float = TIMEOUT_S) -> None:
        try:
            import apprise
        except ImportError:
            raise MissingExtra(f"notifying by {way}", "notify", install_command("notify")) from None
        # Without redirects: an answer must not send a notice, or the key in its address, on to
        # another server.
        asset = apprise.AppriseAsset(http_redirects=False)
        limits = f"cto={timeout_s:g}&rto={timeout_s:g}&overflow=truncate"
        parts = urlsplit(where)
        query = f"{parts.query}&{limits}" if parts.query else limits
        with _quiet():
            made: Any = apprise.Apprise(asset=asset)
            known = made.add(where) and type(made[0]).__name__ == f"Notify{way.capitalize()}"
            if known and parts.scheme in WAYS[way] and parts.scheme != "https":
                made = apprise.Apprise(asset=asset)
                known = made.add(urlunsplit(parts._replace(query=query)))
            elif known:
                made[0].socket_connect_timeout = made[0].socket_read_timeout = timeout_s
        if not known:
            raise UsageError(
                f"that is not an address for {way}",
                next_step=f"one like {EXAMPLES[way]}",
            )
        self._one: Any = made[0]
        self._one.redirects = False  # whatever the address itself asks for

    def __call__(self, notice_id: str, body: str) -> DeliveryResult:
        notice = json.loads(body)
        text = f"{notice['text']}\n\nid {notice_id}"
        with _quiet() as log:
            try:
                is_sent = bool(self._one.notify(body=text, title=notice["title"]))
            except Exception as error:  # a library's own, of any kind
                return DeliveryResult(False, one_line(f"{type(error).__name__}: {error}")[:200])
        return DeliveryResult(is_sent, "" if is_sent else log.last)


class _LastMessage(logging.Handler):
    """The library's last message, which says why a notice was not sent."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = "it was not accepted"

    def emit(self, record: logging.LogRecord) -> None:
        self.last = one_line(record.getMessage())[:200]


@contextmanager
def _quiet() -> Iterator[_LastMessage]:
    """Keeps the library's log from the user's terminal."""
    logger, kept = logging.getLogger("apprise"), _LastMessage()
    before, logger.propagate = logger.propagate, False
    logger.addHandler(kept)
    try:
        yield kept
    finally:
        logger.removeHandler(kept)
        logger.propagate = before
