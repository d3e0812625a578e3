"""One way to ask RunPod anything: bearer key, time limits, and reads that are tried again.

Only what can be asked twice is asked twice. A read (GET, DELETE, a GraphQL query) is repeated after
429, 5xx and lost connections, as long as ``bound_s`` allows. Whatever makes something is sent once.
No answer is followed elsewhere: a redirect would carry the key to wherever it points.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import httpx2 as httpx

from trmcloud.adapters.request_budget import Priority, RequestBudget
from trmcloud.core.errors import (
    AccessDenied,
    AuthError,
    FinalRefusal,
    PaymentRequired,
    ProviderError,
    ProviderRefused,
)
from trmcloud.io.exchanges import ExchangeLog
from trmcloud.io.network import wrong_setting
from trmcloud.ports.compute import TransientError
from trmcloud.providers.client import (
    READ_BOUND_S,
    REQUEST_S,
    USER_AGENT,
    ApiClient,
    NotThere,
    retry_after_s,
)

CONNECT_S = 5.0
STREAM_IDLE_S = 1.5
STREAM_S = 2.0
STREAM_BYTES = 1 << 18
_MAX_VIOLATION, _MOST_VIOLATIONS = 100, 3
_OUTAGES = "wait a minute; https://uptime.runpod.io shows outages"
"""The next step where RunPod itself fails."""


class ApiRetired(FinalRefusal):
    """410: this API has been retired."""


_REFUSALS: Mapping[int, tuple[type[ProviderError], str, str]] = {
    401: (
        AuthError,
        "RunPod does not know this key",
        "make one under Settings → API Keys and set RUNPOD_API_KEY",
    ),
    402: (
        PaymentRequired,
        "the RunPod balance does not cover this: {detail}",
        "add credit: RunPod requires the price of one hour in advance",
    ),
    403: (
        AccessDenied,
        "the RunPod key does not permit this: {detail}",
        "give the key read and write access to pods, volumes and billing",
    ),
    404: (NotThere, "RunPod did not find it: {detail}", ""),
    409: (
        ProviderRefused,
        "RunPod: not possible in this state: {detail}",
        "check again: trmcloud status",
    ),
    410: (
        ApiRetired,
        "RunPod answers 410: the API of this version no longer exists: {detail}",
        "update trmcloud; the console shows and ends running pods",
    ),
    413: (
        FinalRefusal,
        "the request is too large for RunPod: {detail}",
        "report it: this version sends more than RunPod's API allows",
    ),
    422: (
        FinalRefusal,
        "RunPod's API contract was broken: {detail}",
        "report it: this version and RunPod's API disagree",
    ),
}
"""By status: the error, its text and the next step."""


class Http(ApiClient):
    """A client of one RunPod server. ``skew_s`` is this machine's clock minus the server's, by its
    last answer (None before one)."""

    title = "RunPod"
    refusals = _REFUSALS
    outages = _OUTAGES
    rejected = "see its message; trmcloud doctor checks the account"
    address = "TRMCLOUD_RUNPOD_API"

    def __init__(
        self,
        key: str,
        *,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        transport: httpx.BaseTransport | None = None,
        bound_s: float = READ_BOUND_S,
        budget: RequestBudget | None = None,
        log: ExchangeLog | None = None,
    ) -> None:
        headers = {"User-Agent": USER_AGENT, "Accept": "application/json"}
        try:
            headers["Authorization"] = f"Bearer {key.encode('ascii').decode('ascii')}"
        except UnicodeEncodeError:
            raise AuthError(
                "the RunPod key has invalid characters",
                next_step="copy it again from the console's settings into RUNPOD_API_KEY",
            ) from None
        super().__init__(key, now=now, sleep=sleep, bound_s=bound_s, budget=budget, log=log)
        try:
            self._client = httpx.Client(
                headers=headers,
                timeout=httpx.Timeout(REQUEST_S, connect=CONNECT_S),
                transport=transport,
                follow_redirects=False,
            )
        except (ImportError, OSError, ValueError) as error:  # it reads proxies and CAs at once
            wrong = wrong_setting()
            raise ProviderRefused(
                f"RunPod cannot be reached: {wrong.what if wrong else error}",
                where=wrong.name if wrong else "",
                next_step=wrong.next_step if wrong else "check SSL_CERT_FILE and HTTPS_PROXY",
            ) from None
        self.skew_s: float | None = None

    def close(self) -> None:
        self._client.close()

    def send(
        self,
        method: str,
        url: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        timeout_s: float = REQUEST_S,
        priority: Priority = Priority.ORDINARY,
    ) -> httpx.Response:
        """One request, one answer, whatever it is.

        Raises:
            httpx.HTTPError: no answer came.
            ThrottledError: nothing was sent: the requests of this account are used up.
        """
        timeout_s = self._wait_turn(priority, timeout_s, self.where(method, url))
        began = self.now()
        try:
            response = self._client.request(
                method,
                url,
                params=dict(params) if params else None,
                json=body,
                timeout=httpx.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s)),
            )
        except httpx.HTTPError as error:
            if self._log is not None:
                asked = str(httpx.URL(url, params=dict(params or {})))
                took_s = self.now() - began
                self._log.record(method, asked, body=body, error=error, took_s=took_s)
            raise
        if self._log is not None:
            self._log.record(
                method,
                str(response.request.url),
                body=body,
                status=response.status_code,
                headers=response.headers,
                answer=response.content,
                took_s=self.now() - began,
            )
        date = response.headers.get("Date")
        if date:
            try:
                self.skew_s = self.now() - parsedate_to_datetime(date).timestamp()
            except (ValueError, TypeError):
                self.skew_s = None
        self._hold_after_429(response)
        if self._budget is not None and response.is_success and "/v2/" in url:
            stated = response.headers
            self._budget.learn(stated.get("RateLimit-Policy"), stated.get("RateLimit"))
        return response

    def _hold_after_429(self, response: httpx.Response) -> None:
        if self._budget is not None and response.status_code == 429:
            self._budget.hold(retry_after_s(response.headers.get("Retry-After")))

    def read(
        self,
        method: str,
        url: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        bound_s: float | None = None,
        priority: Priority = Priority.ORDINARY,
    ) -> httpx.Response:
        """An answer of 2xx, asked for again while that can help.

        Raises:
            NotThere: 404.
            AuthError, AccessDenied, PaymentRequired, ProviderRefused: as ``refusal`` says.
            ProviderError: no usable answer within ``bound_s``.
        """
        where = self.where(method, url)

        def attempt(timeout_s: float) -> httpx.Response:
            try:
                response = self.send(
                    method, url, params=params, body=body, timeout_s=timeout_s, priority=priority
                )
            except httpx.TimeoutException:
                raise TransientError(
                    "RunPod did not answer in time", where=where, next_step=_OUTAGES
                ) from None
            except httpx.TransportError as error:
                raise TransientError(
                    f"RunPod cannot be reached: {error}",
                    where=where,
                    next_step="check the network, and any proxy that is set",
                ) from None
            except httpx.HTTPError as error:
                raise ProviderError(f"RunPod's answer: {error}", where=where) from None
            if not response.is_success:
                raise self.refusal(response, where)
            return response

        return self._repeat(attempt, bound_s)

    def read_stream(self, url: str, params: Mapping[str, str]) -> list[str]:
        """The lines of an event stream up to now: until it falls silent for ``STREAM_IDLE_S``, and
        no longer than ``STREAM_S`` nor more than ``STREAM_BYTES``. Asked for once.

        Raises:
            ProviderError: there is none, as ``refusal`` says, or no answer came.
        """
        where = self.where("GET", url)
        self._wait_turn(Priority.ORDINARY, STREAM_S, where)
        ends_at = time.monotonic() + STREAM_S
        received = bytearray()
        try:
            with self._client.stream(
                "GET",
                url,
                params=dict(params),
                headers={"Accept": "text/event-stream"},
                timeout=httpx.Timeout(STREAM_IDLE_S, connect=CONNECT_S),
            ) as response:
                if not response.is_success:
                    response.read()
                    self._hold_after_429(response)
                    raise self.refusal(response, where)
                for chunk in response.iter_bytes():
                    received += chunk
                    if time.monotonic() >= ends_at or len(received) >= STREAM_BYTES:
                        break
        except httpx.ReadTimeout:
            pass  # as such a stream ends for who does not wait for more
        except httpx.HTTPError as error:
            raise TransientError(
                f"RunPod's log cannot be read: {error}", where=where, next_step=_OUTAGES
            ) from None
        if self._log is not None:
            asked = str(httpx.URL(url, params=dict(params)))
            self._log.record("GET", asked, status=200, answer=bytes(received[:STREAM_BYTES]))
        text = bytes(received[:STREAM_BYTES]).decode("utf-8", "replace")
        return re.split(r"\r\n|\n|\r", text)

    def json(self, response: httpx.Response, where: str) -> dict[str, Any]:
        """The JSON object of an answer.

        Raises:
            ProviderError: it is something else.
        """
        try:
            data = response.json()
        except (ValueError, RecursionError):
            data = None
        if not isinstance(data, dict):
            raise ProviderError(
                f"RunPod's answer does not match its API contract: {self.clean(response.text)!r}",
                where=where,
                next_step="try again; if this happens again, RunPod's API or a proxy has changed",
            )
        return data

    def detail(self, response: httpx.Response) -> str:
        """Return an error's text in one line: RFC 9457's ``detail`` and the listed violations."""
        try:
            data = response.json()
        except (ValueError, RecursionError):
            data = None
        if not isinstance(data, dict):
            if response.text.lstrip()[:1] == "<":
                return "a web page instead of an API answer"
            return self.clean(response.text) or "(no text)"
        said = [str(data.get("detail") or data.get("title") or data.get("error") or "")]
        errors = data.get("errors")
        if isinstance(errors, list):
            said += [str(error)[:_MAX_VIOLATION] for error in errors[:_MOST_VIOLATIONS]]
            if len(errors) > _MOST_VIOLATIONS:
                said.append(f"and {len(errors) - _MOST_VIOLATIONS} more")
        return self.clean("; ".join(part for part in said if part)) or "(no text)"

    def refusal(self, response: httpx.Response, where: str) -> ProviderError:
        """The error that an answer other than 2xx stands for."""
        wait_s = retry_after_s(response.headers.get("Retry-After"))
        return self.error_of(response.status_code, self.detail(response), where, wait_s)


def compact(record: Any) -> str:
    return json.dumps(record, separators=(",", ":"), sort_keys=True)
