"""The HTTP client base of all providers: retries reads, and turns refusals into errors.

A read is retried after 429, 5xx and lost connections, within a time limit; a request that creates
something is sent once. Redirects are not followed: they would carry the key to another host.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from abc import abstractmethod
from collections.abc import Callable, Mapping
from email.message import Message
from http.client import HTTPException
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

from trmcloud.adapters.request_budget import Priority, RequestBudget
from trmcloud.core.contract.records import whole
from trmcloud.core.errors import ProviderError, ProviderRefused
from trmcloud.core.text import one_line
from trmcloud.io.exchanges import ExchangeLog, send_recorded
from trmcloud.io.requests import pause_s
from trmcloud.ports.compute import ThrottledError, TransientError

USER_AGENT = "trmcloud"
"""RunPod's front refuses some libraries' default names."""
REQUEST_S = 15.0
READ_BOUND_S = 20.0
"""The time that one read may take with all its repetitions: a controller has more to look after."""
CREATE_S = 60.0
MAX_BYTES = 32 << 20
LONGEST_RETRY_AFTER_S = 86_400
_LONGEST_WAIT_S = 8.0
_MAX_DETAIL = 300

AnswerT = TypeVar("AnswerT")


class NotThere(ProviderError):
    """404: this account has no such thing, as far as this answer goes."""


class ApiClient:
    """``secret`` is the account's key, which no text of ours shows; ``bound_s`` is for each read
    with its repetitions. ``budget`` is shared with the other processes of this home. ``requests``
    counts what was sent."""

    title: ClassVar[str]
    refusals: ClassVar[Mapping[int, tuple[type[ProviderError], str, str]]]
    """By status: the error, its text and the next step."""
    outages: ClassVar[str] = ""
    """The next step where the seller itself fails."""
    rejected: ClassVar[str] = "trmcloud doctor checks the account"
    """The next step after a refusal of another status."""
    address: ClassVar[str]
    """The variable of its address."""
    first_wait_s: ClassVar[float] = 0.5

    def __init__(
        self,
        secret: str,
        *,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        bound_s: float = READ_BOUND_S,
        budget: RequestBudget | None = None,
        log: ExchangeLog | None = None,
    ) -> None:
        self._secret, self._bound_s = secret, bound_s
        self.now, self.sleep = now, sleep
        self._budget, self._log = budget, log
        self.requests = 0

    def where(self, method: str, url: str) -> str:
        return f"{self.title}, {method} {urlsplit(url).path}"

    def clean(self, text: str) -> str:
        """Text of the server's, fit for one line of a terminal and free of the key."""
        text = " ".join(one_line(text).split())
        if self._secret:
            text = text.replace(self._secret, "***")
        return text if len(text) <= _MAX_DETAIL else text[:_MAX_DETAIL] + "…"

    def error_of(
        self, code: int, detail: str, where: str, retry_after_s: float | None = None
    ) -> ProviderError:
        """Return the error that an answer other than 2xx stands for."""
        if code in self.refusals:
            kind, what, next_step = self.refusals[code]
            return kind(what.format(detail=detail), where=where, next_step=next_step)
        if code == 429:
            what = f"{self.title} limits the rate of requests: {detail}"
            return ThrottledError(what, where=where, retry_after_s=retry_after_s)
        if code == 408 or code >= 500:
            what = f"{self.title} answers {code}: {detail}"
            return TransientError(what, where=where, next_step=self.outages)
        if 300 <= code < 400:
            return ProviderError(
                f"{self.title}'s address answers {code}: it has moved, or a proxy answers",
                where=where,
                next_step=f"check {self.address} and your proxy settings",
            )
        what = f"{self.title} rejects the request: {detail}"
        return ProviderRefused(what, where=where, next_step=self.rejected)

    def _repeat(self, ask: Callable[[float], AnswerT], bound_s: float | None = None) -> AnswerT:
        """Return the answer of ``ask``, called with the seconds that it may take, and called again
        while that can help.

        Raises:
            as ``ask``: the last error, once ``bound_s`` does not allow another try.
        """
        import tenacity

        bound = self._bound_s if bound_s is None else bound_s
        began_at = self.now()

        def wait_s(state: tenacity.RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome is not None else None
            if isinstance(error, TransientError) and error.retry_after_s is not None:
                return error.retry_after_s
            return pause_s(state.attempt_number - 1, self.first_wait_s, _LONGEST_WAIT_S)

        def is_over(state: tenacity.RetryCallState) -> bool:
            return not 0 <= self.now() - began_at < bound - state.upcoming_sleep

        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(TransientError),
            wait=wait_s,
            stop=is_over,
            sleep=self.sleep,
            reraise=True,
        )
        return retrying(lambda: ask(max(1.0, min(REQUEST_S, bound - (self.now() - began_at)))))

    def _wait_turn(self, priority: Priority, timeout_s: float, where: str) -> float:
        """Wait until a request may be sent, and return the seconds that it may still take.

        Raises:
            ThrottledError: the requests of this account are used up.
        """
        if self._budget is not None:
            waited_s = self._budget.take(priority, min(REQUEST_S, timeout_s), where)
            timeout_s = max(1.0, timeout_s - waited_s)
        self.requests += 1
        return timeout_s


class PlainClient(ApiClient):
    """Requests by the standard library, so that nothing is installed to rent."""

    def _exchange(
        self, method: str, url: str, body: Any, timeout_s: float, priority: Priority
    ) -> tuple[bytes, Message]:
        """One request: the answer's content and headers."""
        where = self.where(method, url)
        timeout_s = self._wait_turn(priority, timeout_s, where)
        try:
            request = self._request(method, url, body)
            content, stated = send_recorded(self._log, request, timeout_s, MAX_BYTES, self.now)
            if self._budget is not None:
                self._budget.learn(stated.get("RateLimit-Policy"), stated.get("RateLimit"))
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(error, where) from None
        except (OSError, ValueError, HTTPException) as error:
            raise self._no_answer(error, where) from None
        return content, stated

    def _request(self, method: str, url: str, body: Any) -> urllib.request.Request:
        headers = {"User-Agent": USER_AGENT, "Accept": "application/json"}
        if self._secret:
            headers["Authorization"] = f"Bearer {self._secret}"
        data = None
        if body is not None:
            data = json.dumps(body, separators=(",", ":")).encode("utf-8")
            headers["Content-Type"] = "application/json"
        return urllib.request.Request(url, data=data, headers=headers, method=method)

    def _hold(self, retry_after_s: float | None) -> None:
        if self._budget is not None:
            self._budget.hold(retry_after_s)

    @abstractmethod
    def _refusal(self, error: urllib.error.HTTPError, where: str) -> ProviderError: ...

    @abstractmethod
    def _no_answer(self, error: Exception, where: str) -> TransientError: ...


def retry_after_s(text: str | None) -> float | None:
    """Seconds, as sellers send them. A date would need a clock that agrees."""
    seconds = whole(text.strip()) if text is not None else None
    return float(min(seconds, LONGEST_RETRY_AFTER_S)) if seconds is not None else None
