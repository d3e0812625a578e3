"""Requests to the Hub: bearer token, time limits, and reads that are tried again.

Only what can be asked twice is asked twice. A read is repeated after 429, 5xx and lost connections
within ``READ_BOUND_S``; what makes or ends something is sent once. No redirect is followed, since
it would carry the token to wherever it points. Standard library only: nothing is installed to rent
here.
"""

from __future__ import annotations

import json
import re
import time
import urllib.error
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.parse import urlencode

from trmcloud.adapters.request_budget import Priority, RequestBudget
from trmcloud.core.errors import (
    AccessDenied,
    AuthError,
    FinalRefusal,
    PaymentRequired,
    ProviderError,
)
from trmcloud.io.exchanges import ExchangeLog
from trmcloud.io.network import send
from trmcloud.ports.compute import TransientError
from trmcloud.providers.client import (
    LONGEST_RETRY_AFTER_S,
    REQUEST_S,
    NotThere,
    PlainClient,
    retry_after_s,
)
from trmcloud.providers.huggingface.secrets import TOKENS_PAGE

STREAM_S = 3.0
STREAM_BYTES = 1 << 18
_OUTAGES = "wait a minute; https://status.huggingface.co shows outages"
"""The next step where the Hub itself fails."""

_RESETS_IN = re.compile(r";\s*r\s*=\s*\d+\s*;\s*t\s*=\s*(\d{1,6})")
"""Of the header ``RateLimit`` of a 429: seconds until requests count anew."""

Params = Sequence[tuple[str, str]]


_REFUSALS: Mapping[int, tuple[type[ProviderError], str, str]] = {
    401: (
        AuthError,
        "Hugging Face does not know this token",
        f"make one at {TOKENS_PAGE} and set HF_TOKEN",
    ),
    402: (
        PaymentRequired,
        "the Hugging Face credits do not cover this: {detail}",
        "add credits: https://huggingface.co/settings/billing",
    ),
    403: (
        AccessDenied,
        "the Hugging Face token does not permit this: {detail}",
        f"give the token the right to start and manage jobs: {TOKENS_PAGE}",
    ),
    404: (NotThere, "Hugging Face did not find it: {detail}", ""),
    410: (
        FinalRefusal,
        "Hugging Face answers 410: the API of this version no longer exists: {detail}",
        "update trmcloud; running jobs: https://huggingface.co/settings/jobs",
    ),
    413: (
        FinalRefusal,
        "the request is too large for Hugging Face: {detail}",
        "report it: this version sends more than the API allows",
    ),
}
"""By status: the error, its text and the next step."""


class Answer(NamedTuple):
    """``next_url`` is that of a list's next page; '' on the last."""

    data: Any
    next_url: str


class Http(PlainClient):
    """A client of the Hub at ``base``. ``token`` may be empty: prices are public."""

    title = "Hugging Face"
    refusals = _REFUSALS
    outages = _OUTAGES
    address = "HF_ENDPOINT"

    def __init__(
        self,
        base: str,
        token: str,
        *,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        budget: RequestBudget | None = None,
        log: ExchangeLog | None = None,
    ) -> None:
        if not token.isascii() or not token.isprintable():
            raise AuthError(
                "the Hugging Face token has invalid characters",
                next_step=f"copy it again from {TOKENS_PAGE} into HF_TOKEN",
            )
        super().__init__(token, now=now, sleep=sleep, budget=budget, log=log)
        self.base = base

    def once(
        self,
        method: str,
        url: str,
        body: Any = None,
        timeout_s: float = REQUEST_S,
        priority: Priority = Priority.ORDINARY,
    ) -> Answer:
        """One request.

        Raises:
            ThrottledError, NotThere, AuthError, PaymentRequired, ProviderRefused: as it answers.
            TransientError: no answer, or 5xx. ProviderError: an answer that is not JSON.
        """
        where = self.where(method, url)
        if not url.startswith(f"{self.base}/"):
            raise ProviderError(f"a page of its list is at another host: {url:.100}", where=where)
        text, stated = self._exchange(method, url, body, timeout_s, priority)
        try:
            data = json.loads(text) if text.strip() else None
        except (ValueError, RecursionError):
            said = self.clean(text[:200].decode("utf-8", "replace"))
            raise ProviderError(
                f"Hugging Face's answer is not JSON: {said!r}",
                where=where,
                next_step="try again; if this happens again, a proxy changes the answer",
            ) from None
        return Answer(data, _next_of(stated.get("Link")))

    def read(
        self,
        url: str,
        params: Params = (),
        *,
        bound_s: float | None = None,
        priority: Priority = Priority.ORDINARY,
    ) -> Answer:
        """A GET, asked again while that can help.

        Raises:
            as ``once``: the last error, once ``bound_s`` does not allow another try.
        """
        asked = f"{url}?{urlencode(list(params))}" if params else url
        return self._repeat(
            lambda timeout_s: self.once("GET", asked, timeout_s=timeout_s, priority=priority),
            bound_s,
        )

    def read_events(self, url: str, params: Params = ()) -> list[dict[str, Any]]:
        """The JSON objects of an event stream up to now, read for ``STREAM_S`` at most.

        Raises:
            as ``once``.
        """
        where = self.where("GET", url)
        asked = f"{url}?{urlencode(list(params))}" if params else url
        self._wait_turn(Priority.ORDINARY, STREAM_S, where)
        received, ends_at = bytearray(), time.monotonic() + STREAM_S
        try:
            with send(self._request("GET", asked, None), STREAM_S) as answer:
                while len(received) < STREAM_BYTES and time.monotonic() < ends_at:
                    piece = answer.read1(1 << 16)
                    if not piece:
                        break
                    received += piece
        except urllib.error.HTTPError as error:
            raise self._refusal(error, where) from None
        except (OSError, HTTPException) as error:
            if not received and not isinstance(error, TimeoutError):
                raise self._no_answer(error, where) from None
        if self._log is not None:
            self._log.record("GET", asked, status=200, answer=bytes(received))
        found = []
        for line in bytes(received).decode("utf-8", "replace").splitlines():
            if line.startswith("data: {"):
                try:
                    event = json.loads(line[len("data: ") :])
                except (ValueError, RecursionError):
                    continue  # the last one may be cut off
                found.append(event)
        return found

    # -- how -------------------------------------------------------------------------------------

    def _no_answer(self, error: Exception, where: str) -> TransientError:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(cause, TimeoutError):
            return TransientError(
                "Hugging Face did not answer in time", where=where, next_step=_OUTAGES
            )
        # The address is not known, or takes no connection: nothing was sent.
        unsent = isinstance(cause, ConnectionRefusedError) or type(cause).__name__ in (
            "gaierror",
            "SSLCertVerificationError",
        )
        return TransientError(
            f"Hugging Face cannot be reached: {self.clean(str(cause) or type(cause).__name__)}",
            where=where,
            sent=not unsent,
            next_step="check the network, and any proxy that is set",
        )

    def _refusal(self, error: urllib.error.HTTPError, where: str) -> ProviderError:
        """The error that an answer other than 2xx stands for."""
        stated = error.headers
        try:
            detail = self._detail(error.read(1 << 16), stated.get("X-Error-Message") or "")
        except (OSError, HTTPException):
            detail = "(no text)"
        wait_s = retry_after_s(stated.get("Retry-After"))
        if wait_s is None and (resets := _RESETS_IN.search(stated.get("RateLimit") or "")):
            wait_s = float(min(int(resets.group(1)), LONGEST_RETRY_AFTER_S))
        if error.code == 429:
            self._hold(wait_s)
        return self.error_of(error.code, detail, where, wait_s)

    def _detail(self, text: bytes, header: str) -> str:
        """An error's text in one line: the Hub sends it as ``error``, and in a header."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            data = None
        said = ""
        if isinstance(data, dict):
            said = str(data.get("error") or data.get("message") or "")
        elif text.lstrip()[:1] == b"<":
            said = header or "a web page instead of an API answer"
        return self.clean(said or header or text.decode("utf-8", "replace")) or "(no text)"


def _next_of(links: str | None) -> str:
    """The URL of the page that follows, by the ``Link`` header (RFC 8288)."""
    for part in (links or "").split(","):
        url, _, relation = part.partition(";")
        if 'rel="next"' in relation.replace(" ", ""):
            return url.strip().removeprefix("<").removesuffix(">")
    return ""
