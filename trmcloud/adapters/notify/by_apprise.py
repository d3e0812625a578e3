"""Mail, ntfy, Slack and Discord through Apprise, which is imported where one of them is used."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from trmcloud.core.errors import MissingExtra, UsageError
from trmcloud.core.plain_text import one_line
from trmcloud.ports.notices import Told

WAYS: Mapping[str, tuple[str, ...]] = {
    "email": ("mailto", "mailtos"),
    "ntfy": ("ntfy", "ntfys", "https"),
    "slack": ("slack", "https"),
    "discord": ("discord", "https"),
}
"""By way: the schemes that its addresses begin with."""
_PLUGINS = {"email": "Email", "ntfy": "Ntfy", "slack": "Slack", "discord": "Discord"}
EXAMPLES: Mapping[str, str] = {
    "email": "mailtos://USER:PASSWORD@smtp.example.org?to=you@example.org",
    "ntfy": "https://ntfy.sh/a-topic-of-your-own",
    "slack": "https://hooks.slack.com/services/T…/B…/…",
    "discord": "https://discord.com/api/webhooks/…/…",
}
_TIMEOUT_S = 10.0


class AppriseSender:
    """Tells one address, which stands for one of ``WAYS``.

    Raises:
        MissingExtra: Apprise is not installed.
        UsageError: it is no such address.
    """

    def __init__(self, way: str, where: str, timeout_s: float = _TIMEOUT_S) -> None:
        try:
            import apprise
        except ImportError:
            raise MissingExtra(f"telling by {way}", "notify") from None
        self._apprise: Any = apprise
        self._one = self._service(way, where, timeout_s)

    def _service(self, way: str, where: str, timeout_s: float) -> Any:
        limits = f"cto={timeout_s:g}&rto={timeout_s:g}&overflow=truncate"
        parts = urlsplit(where)
        query = f"{parts.query}&{limits}" if parts.query else limits
        with _quiet():
            made = self._apprise.Apprise(asset=self._asset())
            known = made.add(where) and type(made[0]).__name__ == f"Notify{_PLUGINS[way]}"
            if known and parts.scheme in WAYS[way] and parts.scheme != "https":
                made = self._apprise.Apprise(asset=self._asset())
                known = made.add(urlunsplit(parts._replace(query=query)))
            elif known:
                made[0].socket_connect_timeout = made[0].socket_read_timeout = timeout_s
        if not known:
            raise UsageError(
                f"that is no address for {way}",
                next_step=f"one like {EXAMPLES[way]}",
            )
        made[0].redirects = False  # whatever the address itself asks for
        return made[0]

    def _asset(self) -> Any:
        """Without redirects: an answer must not send a notice, or the key in its address, on to
        another server."""
        return self._apprise.AppriseAsset(http_redirects=False)

    def __call__(self, notice_id: str, body: str) -> Told:
        told = json.loads(body)
        text = f"{told['text']}\n\nid {notice_id}"
        with _quiet() as said:
            try:
                taken = bool(self._one.notify(body=text, title=told["title"]))
            except Exception as error:  # a library's own, of any kind
                return Told(False, one_line(f"{type(error).__name__}: {error}")[:200])
        return Told(taken, "" if taken else said.last)


class _Kept(logging.Handler):
    """The last thing that the library said, for whoever asks why it did not work."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = "it was not taken"

    def emit(self, record: logging.LogRecord) -> None:
        self.last = one_line(record.getMessage())[:200]


@contextmanager
def _quiet() -> Iterator[_Kept]:
    """Keeps the library's log from the user's terminal."""
    logger, kept = logging.getLogger("apprise"), _Kept()
    before, logger.propagate = logger.propagate, False
    logger.addHandler(kept)
    try:
        yield kept
    finally:
        logger.removeHandler(kept)
        logger.propagate = before
