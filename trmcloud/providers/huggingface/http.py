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
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from trmcloud.adapters.request_budget import Priority, RequestBudget
from trmcloud.core.contract.records import whole
from trmcloud.core.errors import (
    AccessDenied,
    AuthError,
    FinalRefusal,
    PaymentRequired,
    ProviderError,
    ProviderRefused,
)
from trmcloud.core.text import one_line
from trmcloud.io.exchanges import ExchangeLog, send_recorded
from trmcloud.io.network import send
from trmcloud.io.requests import pause_s
from trmcloud.ports.compute import ThrottledError, TransientError
from trmcloud.providers.huggingface.secrets import TOKENS_PAGE

USER_AGENT = "trmcloud"
REQUEST_S = 15.0
READ_BOUND_S = 20.0
"""The time that one read may take with all its repetitions."""
MAX_BYTES = 32 << 20
STREAM_S = 3.0
STREAM_BYTES = 1 << 18
LONGEST_RETRY_AFTER_S = 86_400
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 8.0
_MAX_DETAIL = 300
_OUTAGES = "wait a minute; https://status.huggingface.co shows outages"
"""The next step where the Hub itself fails."""

_RESETS_IN = re.compile(r";\s*r\s*=\s*\d+\s*;\s*t\s*=\s*(\d{1,6})")
"""Of the header ``RateLimit`` of a 429: seconds until requests count anew."""

Params = Sequence[tuple[str, str]]


class NotThere(ProviderError):
    """404: the namespace has no such job, as far as this answer goes."""


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


class Http:
    """A client of the Hub at ``base``. ``token`` may be empty: prices are public. ``budget`` is
    shared with the other processes of this home."""

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
        self.base, self._token = base, token
        self.now, self.sleep = now, sleep
        self._budget, self._log = budget, log
        self.requests = 0

    def where(self, method: str, url: str) -> str:
        return f"Hugging Face, {method} {urlsplit(url).path}"

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
        if self._budget is not None:
            waited_s = self._budget.take(priority, min(REQUEST_S, timeout_s), where)
            timeout_s = max(1.0, timeout_s - waited_s)
        self.requests += 1
        try:
            request = self._request(method, url, body)
            text, stated = send_recorded(self._log, request, timeout_s, MAX_BYTES, self.now)
            links = stated.get("Link")
            if self._budget is not None:
                self._budget.learn(stated.get("RateLimit-Policy"), stated.get("RateLimit"))
        except urllib.error.HTTPError as error:
            raise self._refusal(error, where) from None
        except (OSError, HTTPException, ValueError) as error:
            raise self._no_answer(error, where) from None
        try:
            data = json.loads(text) if text.strip() else None
        except (ValueError, RecursionError):
            said = self.clean(text[:200].decode("utf-8", "replace"))
            raise ProviderError(
                f"Hugging Face's answer is not JSON: {said!r}",
                where=where,
                next_step="try again; if this happens again, a proxy changes the answer",
            ) from None
        return Answer(data, _next_of(links))

    def read(
        self,
        url: str,
        params: Params = (),
        *,
        bound_s: float = READ_BOUND_S,
        priority: Priority = Priority.ORDINARY,
    ) -> Answer:
        """A GET, asked again while that can help.

        Raises:
            as ``once``: the last error, once ``bound_s`` does not allow another try.
        """
        asked = f"{url}?{urlencode(list(params))}" if params else url
        began_at, failures = self.now(), 0
        while True:
            left_s = bound_s - (self.now() - began_at)
            try:
                timeout_s = max(1.0, min(REQUEST_S, left_s))
                return self.once("GET", asked, timeout_s=timeout_s, priority=priority)
            except TransientError as error:
                wait_s = pause_s(failures, _FIRST_WAIT_S, _LONGEST_WAIT_S)
                if error.retry_after_s is not None:
                    wait_s = error.retry_after_s
                if not 0 <= self.now() - began_at < bound_s - wait_s:
                    raise
            failures += 1
            self.sleep(wait_s)

    def read_events(self, url: str, params: Params = ()) -> list[dict[str, Any]]:
        """The JSON objects of an event stream up to now, read for ``STREAM_S`` at most.

        Raises:
            as ``once``.
        """
        where = self.where("GET", url)
        asked = f"{url}?{urlencode(list(params))}" if params else url
        if self._budget is not None:
            self._budget.take(Priority.ORDINARY, STREAM_S, where)
        self.requests += 1
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

    def clean(self, text: str) -> str:
        """Text of the server's, fit for one line of a terminal and free of the token."""
        text = " ".join(one_line(text).split())
        if self._token:
            text = text.replace(self._token, "***")
        return text if len(text) <= _MAX_DETAIL else text[:_MAX_DETAIL] + "…"

    # -- how -------------------------------------------------------------------------------------

    def _request(self, method: str, url: str, body: Any) -> urllib.request.Request:
        headers = {"User-Agent": USER_AGENT, "Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None
        if body is not None:
            data = json.dumps(body, separators=(",", ":")).encode("utf-8")
            headers["Content-Type"] = "application/json"
        return urllib.request.Request(url, data=data, headers=headers, method=method)

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
        code = error.code
        try:
            detail = self._detail(error.read(1 << 16), error.headers.get("X-Error-Message") or "")
        except (OSError, HTTPException):
            detail = "(no text)"
        if code in _REFUSALS:
            kind, what, next_step = _REFUSALS[code]
            return kind(what.format(detail=detail), where=where, next_step=next_step)
        if code == 429:
            wait_s = _retry_after(error.headers.get("Retry-After"), error.headers.get("RateLimit"))
            if self._budget is not None:
                self._budget.hold(wait_s)
            what = f"Hugging Face limits the rate of requests: {detail}"
            return ThrottledError(what, where=where, retry_after_s=wait_s)
        if code == 408 or code >= 500:
            return TransientError(
                f"Hugging Face answers {code}: {detail}", where=where, next_step=_OUTAGES
            )
        if 300 <= code < 400:
            return ProviderError(
                f"Hugging Face's address answers {code}: it has moved, or a proxy answers",
                where=where,
                next_step="check HF_ENDPOINT and your proxy settings",
            )
        return ProviderRefused(
            f"Hugging Face rejects the request: {detail}",
            where=where,
            next_step="trmcloud doctor checks the account",
        )

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


def _retry_after(text: str | None, limit: str | None) -> float | None:
    seconds = whole(text.strip()) if text is not None else None
    if seconds is None and (resets := _RESETS_IN.search(limit or "")):
        seconds = int(resets.group(1))
    return float(min(seconds, LONGEST_RETRY_AFTER_S)) if seconds is not None else None
