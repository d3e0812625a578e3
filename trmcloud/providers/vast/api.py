"""vast.ai's REST API: one way to ask, its refusals as our errors, and the records that are read.

    what vast.ai answers to a create            what it means here
    200, success and new_contract               the instance
    404 or 410, or no_such_ask                  NoCapacity: the next ask, then the next candidate
    any other 400 or 409, success false         ProviderRefused: the next candidate
    401, 402, 403, insufficient credit          AuthError, AccessDenied, PaymentRequired
    429                                         ThrottledError: nothing was made
    5xx, 408, silence, a lost line,
    2xx that cannot be read                     AmbiguousCreate: an instance may exist, and cost
    no connection at all                        ProviderError: nothing was asked

A create is sent once and never again: its result is looked for by its label. Reads and deletes are
repeated while that can help. vast.ai limits each endpoint by itself and sends no ``Retry-After``
(api-reference/rate-limits-and-errors), so the pauses are ours; where one is sent it is kept. No
answer is followed elsewhere: a redirect would carry the key to wherever it points.
"""

from __future__ import annotations

import json
import math
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.parse import quote_plus, urlsplit

from trmcloud.adapters.request_budget import Priority, RequestBudget
from trmcloud.core.contract.records import whole
from trmcloud.core.errors import (
    AccessDenied,
    AmbiguousCreate,
    AuthError,
    NoCapacity,
    PaymentRequired,
    ProviderError,
    ProviderRefused,
)
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.text import one_line
from trmcloud.io.exchanges import ExchangeLog, send_recorded
from trmcloud.io.requests import pause_s
from trmcloud.ports.compute import ThrottledError, TransientError
from trmcloud.providers.vast.secrets import ENV_KEY

USER_AGENT = "trmcloud"
REQUEST_S = 15.0
READ_BOUND_S = 20.0
"""The time that one read may take with all its repetitions."""
CREATE_S = 60.0
PAGE = 25
"""Instances in a page: the most that vast.ai gives."""
MOST_PAGES = 40
CHARGES_PAGE = 500
MAX_BYTES = 32 << 20
MAX_LOG_BYTES = 1 << 18
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 8.0
_MAX_DETAIL = 300
_GONE = ("no_such_ask", "not available", "no longer available")
_CREDIT = ("insufficient_credit", "lacks credit", "insufficient credit")
_NEVER_SENT = (ConnectionRefusedError, socket.gaierror)


class NotThere(ProviderError):
    """404: this account has no such thing, as far as this answer goes."""


class Instance(NamedTuple):
    """A row of the list. ``rate`` is USD/h without disks, ``disk_rate`` that of its disk; None:
    it was not said."""

    id: str
    name: str
    """Its label."""
    actual: str
    """"" while it is provisioned."""
    intended: str
    state: str
    rate: Usd | None
    disk_rate: Usd | None
    disk_gb: int
    made_at: float | None
    address: tuple[str, int] | None
    message: str
    country: str
    gpu: str
    gpus: int


class Charge(NamedTuple):
    """The charge of one instance, all kinds together."""

    instance: str
    amount: Usd
    ends_at: float


class VastApi:
    """``base`` is the URL before ``/api``. ``budget`` is shared with the other processes of this
    home."""

    def __init__(
        self,
        key: str,
        base: str,
        *,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        bound_s: float = READ_BOUND_S,
        budget: RequestBudget | None = None,
        log: ExchangeLog | None = None,
    ) -> None:
        if not key.isascii() or not key.isprintable() or " " in key:
            raise AuthError(
                "the vast.ai key has invalid characters",
                next_step=f"copy it again from the console's Keys page into {ENV_KEY}",
            )
        self._key, self._base = key, base.rstrip("/")
        self.now, self.sleep, self._bound_s = now, sleep, bound_s
        self._budget, self._log = budget, log

    @property
    def key(self) -> str:
        """The account's key, to make sure that it is in no create."""
        return self._key

    # -- offers ----------------------------------------------------------------------------------

    def search(
        self, query: Mapping[str, Any], bound_s: float | None = None
    ) -> list[dict[str, Any]]:
        """``POST /api/v0/bundles/``: rows of offers, as they are.

        Raises:
            AuthError, ThrottledError, ProviderError
        """
        data = self._read("POST", "/api/v0/bundles/", body=query, bound_s=bound_s)
        rows = data.get("offers")
        if not isinstance(rows, list):
            raise self._odd("POST", "/api/v0/bundles/", "offers")
        return [row for row in rows if isinstance(row, dict)]

    # -- instances -------------------------------------------------------------------------------

    def instances(self) -> list[Instance]:
        """All instances of the account, whatever their state.

        Raises:
            AuthError, ThrottledError, ProviderError
        """
        path, found, token = "/api/v1/instances/", list[Instance](), ""
        for _ in range(MOST_PAGES):
            params: dict[str, Any] = {
                "select_filters": {},
                "order_by": [{"col": "id", "dir": "asc"}],
                "limit": PAGE,
            }
            if token:
                params["after_token"] = token
            data = self._read("GET", path, params=params, priority=Priority.LIST)
            rows = data.get("instances")
            if not isinstance(rows, list):
                raise self._odd("GET", path, "instances")
            found += [self._instance(row) for row in rows]
            following = data.get("next_token")
            if not following:
                return found
            if following == token or not isinstance(following, str):
                break
            token = following
        raise self._odd("GET", path, "next_token")

    def instance(self, instance_id: str) -> Instance | None:
        """One instance by its id; None where the account has no such one (any more): vast.ai then
        answers ``{"instances": null}`` (vastai 1.9.1, ``show_instance``), or 404.

        Raises:
            AuthError, ThrottledError, ProviderError
        """
        path = f"/api/v0/instances/{instance_id}/"
        try:
            data = self._read("GET", path, params={"owner": "me"}, priority=Priority.LIST)
        except NotThere:
            return None
        if data.get("instances", "") is None:
            return None
        found = self._instance(data.get("instances"))
        if found.id != instance_id:
            raise self._odd("GET", path, "instances")
        return found

    def create(self, ask_id: int, body: Mapping[str, Any]) -> str:
        """Accept the offer ``ask_id``; returns the new instance's id.

        Raises:
            NoCapacity, ProviderRefused, AuthError, PaymentRequired, ThrottledError,
            AmbiguousCreate, ProviderError: as the table above says.
        """
        path = f"/api/v0/asks/{ask_id}/"
        try:
            data = self._send("PUT", path, body=body, timeout_s=CREATE_S)
        except NotThere as error:
            raise self._no_capacity(error.what, error.where) from None
        except ThrottledError:
            raise
        except TransientError as error:
            if not error.sent:
                raise ProviderError(
                    error.what, where=error.where, next_step=error.next_step
                ) from None
            raise self._ambiguous(error.what, error.where) from None
        made = data.get("new_contract")
        if data.get("success") is True and _is_id(made):
            return str(made)
        if data.get("success") is False:
            raise self._refusal(400, data, self._where("PUT", path))
        raise self._ambiguous("its answer has no instance", self._where("PUT", path))

    def destroy(self, instance_id: str) -> bool:
        """Whether vast.ai took it; False where it knows no such instance.

        Raises:
            AuthError, ThrottledError, ProviderError
        """
        path = f"/api/v0/instances/{instance_id}/"
        try:
            data = self._read("DELETE", path, body={}, priority=Priority.END)
        except NotThere:
            return False
        if data.get("success") is False:
            raise self._refusal(400, data, self._where("DELETE", path))
        return True

    def log(self, instance_id: str, tail: int, *, daemon: bool = False) -> str:
        """The end of an instance's log: of its container, or of its host's daemon.

        Raises:
            ProviderError: there is none (yet).
        """
        body = {"tail": str(tail)} | ({"daemon_logs": "true"} if daemon else {})
        data = self._read("PUT", f"/api/v0/instances/request_logs/{instance_id}/", body=body)
        url = data.get("result_url")
        if not isinstance(url, str) or urlsplit(url).scheme not in ("https", "http"):
            raise ProviderError("vast.ai gives no address for this log", next_step="ask again")
        request = urllib.request.Request(url, headers={"User-Agent": USER_AGENT})
        try:  # it lies in a bucket: our key is not sent there
            content, _ = send_recorded(self._log, request, REQUEST_S, MAX_LOG_BYTES, self.now)
            return content.decode("utf-8", "replace")
        except (OSError, ValueError, HTTPException) as error:
            raise ProviderError(f"the log is not available yet: {self.clean(str(error))}") from None

    # -- money -----------------------------------------------------------------------------------

    def credit(self, bound_s: float | None = None) -> Usd | None:
        """Return the prepaid credit that is left, in USD, below zero where more was used; None:
        it was not said.

        Raises:
            AuthError, ThrottledError, ProviderError
        """
        data = self._read("GET", "/api/v0/users/current/", bound_s=bound_s)
        # ``credit`` is what was paid in and is left; ``balance`` alone is published.
        credit, balance = number(data, "credit"), number(data, "balance")
        told = credit if credit is not None else balance
        return usd(told) if told is not None else None

    def charges(self, since: float, until: float) -> list[Charge]:
        """Return the charges of instances between two instants (epoch s), GPUs, disks and traffic.

        Raises:
            AuthError, ThrottledError, ProviderError
        """
        path, found, token = "/api/v0/charges/", list[Charge](), ""
        for _ in range(MOST_PAGES):
            params: dict[str, Any] = {
                "select_filters": {
                    "day": {"gte": int(since), "lte": math.ceil(until)},
                    "type": {"in": ["instance"]},
                },
                "latest_first": True,
                "limit": CHARGES_PAGE,
            }
            if token:
                params["after_token"] = token
            data = self._read("GET", path, params=params)
            rows = data.get("results")
            if not isinstance(rows, list):
                raise self._odd("GET", path, "results")
            found += [charge for row in rows if (charge := _charge(row)) is not None]
            following = data.get("next_token")
            if not following:
                return found
            if following == token or not isinstance(following, str):
                break
            token = following
        raise self._odd("GET", path, "next_token")

    # -- one request -----------------------------------------------------------------------------

    def _read(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        bound_s: float | None = None,
        priority: Priority = Priority.ORDINARY,
    ) -> dict[str, Any]:
        """An answer, asked for again while that can help and ``bound_s`` allows."""
        bound, began = self._bound_s if bound_s is None else bound_s, self.now()
        failures = 0
        while True:
            left_s = bound - (self.now() - began)
            try:
                return self._send(
                    method, path, params=params, body=body,
                    timeout_s=max(1.0, min(REQUEST_S, left_s)), priority=priority,
                )  # fmt: skip
            except TransientError as error:
                wait_s = pause_s(failures, _FIRST_WAIT_S, _LONGEST_WAIT_S)
                if error.retry_after_s is not None:
                    wait_s = error.retry_after_s
                if wait_s >= bound - (self.now() - began):
                    raise
                self.sleep(wait_s)
                failures += 1

    def _send(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        timeout_s: float,
        priority: Priority = Priority.ORDINARY,
    ) -> dict[str, Any]:
        """One request, one answer: its JSON."""
        where, url = self._where(method, path), self._base + path
        if self._budget is not None:
            waited_s = self._budget.take(priority, min(REQUEST_S, timeout_s), where)
            timeout_s = max(1.0, timeout_s - waited_s)
        if params:
            url += "?" + "&".join(
                f"{name}={quote_plus(each if isinstance(each, str) else json.dumps(each))}"
                for name, each in params.items()
            )
        headers = {"User-Agent": USER_AGENT, "Accept": "application/json"}
        headers["Authorization"] = f"Bearer {self._key}"
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        request = urllib.request.Request(url, data=data, headers=headers, method=method)
        try:
            content, _ = send_recorded(self._log, request, timeout_s, MAX_BYTES, self.now)
            if self._budget is not None:
                self._budget.learn(None, None)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(error, where) from None
        except (OSError, ValueError, HTTPException) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            sent = not isinstance(reason, _NEVER_SENT)
            what = f"vast.ai cannot be reached: {self.clean(str(reason)) or type(reason).__name__}"
            raise TransientError(what, where=where, sent=sent) from None
        try:
            told = json.loads(content)
        except (ValueError, RecursionError):
            told = None
        if not isinstance(told, dict):
            text = self.clean(content[:_MAX_DETAIL].decode("utf-8", "replace"))
            raise TransientError(f"vast.ai's answer is not a JSON object: {text!r}", where=where)
        return told

    def _refused(self, error: urllib.error.HTTPError, where: str) -> ProviderError:
        try:
            content = error.read(1 << 16)
        except (OSError, HTTPException):
            content = b""
        try:
            data = json.loads(content)
        except (ValueError, RecursionError):
            data = None
        if not isinstance(data, dict):
            text = content.decode("utf-8", "replace").lstrip()
            data = {"msg": "a web page instead of an API answer" if text[:1] == "<" else text}
        return self._refusal(error.code, data, where, error.headers.get("Retry-After"))

    def _refusal(
        self, code: int, data: Mapping[str, Any], where: str, retry_after: str | None = None
    ) -> ProviderError:
        """The error that a refusal stands for."""
        said = " ".join(str(data.get(name) or "") for name in ("error", "msg", "detail"))
        text = self.clean(str(data.get("msg") or data.get("detail") or data.get("error") or ""))
        text, low = text or "(no text)", said.casefold()
        if code == 429:
            seconds = whole(retry_after.strip()) if retry_after else None
            wait_s = float(min(seconds, 86_400)) if seconds is not None else None
            if self._budget is not None:
                self._budget.hold(wait_s)
            what = f"vast.ai limits the rate of requests: {text}"
            return ThrottledError(what, where=where, retry_after_s=wait_s)
        if code == 402 or any(words in low for words in _CREDIT):
            return PaymentRequired(
                f"the vast.ai credit does not cover this: {text}",
                where=where,
                next_step="add credit: vast.ai console → Billing",
            )
        if code == 401 or "invalid user key" in low or "auth_error" in low:
            return AuthError(
                f"vast.ai does not know this key: {text}",
                where=where,
                next_step=f"make one under console → Keys and set {ENV_KEY}",
            )
        if code == 403:
            return AccessDenied(
                f"the vast.ai key does not permit this: {text}",
                where=where,
                next_step="give the key read and write access to instances, read to billing",
            )
        if any(words in low for words in _GONE) and "asks" in where:
            return self._no_capacity(text, where)
        if code in (404, 410):
            return NotThere(f"vast.ai did not find it: {text}", where=where)
        if code == 408 or code >= 500:
            return TransientError(f"vast.ai answers {code}: {text}", where=where)
        if 300 <= code < 400:
            return ProviderError(
                f"vast.ai's address answers {code}: it has moved, or a proxy answers",
                where=where,
                next_step="check TRMCLOUD_VAST_API and your proxy settings",
            )
        return ProviderRefused(
            f"vast.ai rejects the request: {text}",
            where=where,
            next_step="trmcloud doctor checks the account",
        )

    def _no_capacity(self, text: str, where: str) -> NoCapacity:
        what = f"the offer was rented or withdrawn: {text.removeprefix('vast.ai ')}"
        return NoCapacity(
            what, where=where, next_step="run trmcloud launch again to take another offer"
        )

    def _ambiguous(self, text: str, where: str) -> AmbiguousCreate:
        return AmbiguousCreate(
            f"it is not known whether an instance was made: {text}",
            where=where,
            next_step="it will be found by its label: trmcloud status",
        )

    def _odd(self, method: str, path: str, what: str) -> ProviderError:
        return ProviderError(
            f"vast.ai's answer does not match its documentation: {what}",
            where=self._where(method, path),
            next_step="try again; if this happens again, check for a newer trmcloud",
        )

    def _where(self, method: str, path: str) -> str:
        return f"vast.ai, {method} {path}"

    def clean(self, text: str) -> str:
        """Text of the server's, fit for one line of a terminal and free of the key."""
        text = " ".join(one_line(text).split()).replace(self._key, "***")
        return text if len(text) <= _MAX_DETAIL else text[:_MAX_DETAIL] + "…"

    def _instance(self, row: Any) -> Instance:
        """
        Raises:
            ProviderError: it cannot be told apart from others, and could be one of ours.
        """
        if not isinstance(row, dict) or not _is_id(row.get("id")):
            raise self._odd("GET", "/api/v1/instances/", "id")
        base, whole_rate = number(row, "dph_base"), number(row, "dph_total")
        base = base if base is not None else whole_rate
        disk = whole_rate - base if whole_rate is not None and base is not None else None
        return Instance(
            id=str(row["id"]),
            name=text_of(row, "label"),
            actual=text_of(row, "actual_status"),
            intended=text_of(row, "intended_status"),
            state=text_of(row, "cur_state"),
            rate=usd(base) if base is not None and base >= 0 else None,
            disk_rate=usd(max(0.0, disk)) if disk is not None else None,
            disk_gb=math.ceil(number(row, "disk_space") or 0),
            made_at=number(row, "start_date"),
            address=_address(row),
            message=self.clean(text_of(row, "status_msg")),
            country=country_of(text_of(row, "geolocation")),
            gpu=text_of(row, "gpu_name"),
            gpus=int(number(row, "num_gpus") or 0),
        )


# -- what rows hold ------------------------------------------------------------------------------
_HOST = re.compile(r"[A-Za-z0-9.:-]{1,253}")
_COUNTRY = re.compile(r"\b([A-Z]{2})$")
SSH_PORT = "22/tcp"


def number(row: Mapping[str, Any], name: str) -> float | None:
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value) if abs(value) < 1e15 else None


def text_of(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    return value.strip() if isinstance(value, str) else ""


def usd(amount: float) -> Usd:
    """Rounded up to a micro-dollar."""
    return Usd.rounded_up(Decimal(repr(amount))) if amount else ZERO


def country_of(place: str) -> str:
    """``"Quebec, CA"`` → ``CA``; empty where it names no country by two letters."""
    found = _COUNTRY.search(place.strip())
    return found.group(1) if found else ""


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 60


def _address(row: Mapping[str, Any]) -> tuple[str, int] | None:
    """(host, port) at which the container's own port 22 is published; None until it is."""
    host, ports = text_of(row, "public_ipaddr"), row.get("ports")
    published = ports.get(SSH_PORT) if isinstance(ports, dict) else None
    if not _HOST.fullmatch(host) or not isinstance(published, list):
        return None
    for each in published:
        told = each.get("HostPort") if isinstance(each, dict) else None
        port = whole(str(told)) if isinstance(told, str | int) else None
        if port is not None and 0 < port < 65_536:
            return host, port
    return None


def _charge(row: Any) -> Charge | None:
    if not isinstance(row, dict):
        return None
    kind, _, instance = text_of(row, "source").partition("-")
    amount = number(row, "amount")
    if kind != "instance" or not instance or amount is None:
        return None
    return Charge(instance, usd(max(0.0, amount)), number(row, "end") or 0.0)


def labelled(instances: Sequence[Instance], label: str) -> list[Instance]:
    return [each for each in instances if each.name == label]
