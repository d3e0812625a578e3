"""A webhook by the standard library: one signed POST, which goes where it was sent and nowhere
else."""

from __future__ import annotations

import email.utils
import time
import urllib.error
import urllib.request
from collections.abc import Callable

from trmcloud.core.contract.notices import headers_of
from trmcloud.core.contract.records import ContractError
from trmcloud.core.plain_text import one_line
from trmcloud.io.one_request import send
from trmcloud.ports.notices import Told

TIMEOUT_S = 10.0
MOST_AGAIN_S = 3600.0
"""A receiver is not taken at its word for longer."""


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

    def __call__(self, notice_id: str, body: str) -> Told:
        return post(self._url, self._secret, notice_id, body, self._timeout_s, self._now())


def post(url: str, secret: str, notice_id: str, body: str, timeout_s: float, now: float) -> Told:
    """Send a body, signed at ``now`` (epoch s)."""
    try:
        headers = headers_of(notice_id, body, secret, now)
        request = urllib.request.Request(url, body.encode(), headers, method="POST")
        with send(request, timeout_s) as answer:
            answer.read(1)
        return Told(True)
    except urllib.error.HTTPError as error:
        again_in_s = retry_after_s(error.headers.get("Retry-After"), now)
        error.close()
        return Told(False, one_line(f"it answered {error.code}"), again_in_s)
    except ContractError as error:
        return Told(False, str(error))
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", None) or error
        return Told(False, one_line(f"no answer: {why}")[:200])
    except Exception as error:  # http.client's own: an answer that is none
        return Told(False, one_line(f"no answer: {type(error).__name__}")[:200])


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
