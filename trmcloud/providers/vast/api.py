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
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.parse import quote_plus

from trmcloud.adapters.request_budget import Priority, RequestBudget
from trmcloud.core.contract.records import whole
from trmcloud.core.errors import (
    AccessDenied,
    AmbiguousCreate,
    AuthError,
    NoCapacity,
    PaymentRequired,
    ProviderError,
)
from trmcloud.core.money import ZERO, Usd
from trmcloud.io.exchanges import ExchangeLog
from trmcloud.ports.compute import ThrottledError, TransientError
from trmcloud.providers.client import CREATE_S, READ_BOUND_S, NotThere, PlainClient, retry_after_s
from trmcloud.providers.vast.secrets import ENV_API, ENV_KEY

PAGE = 25
"""Instances in a page: the most that vast.ai gives."""
MOST_PAGES = 40
CHARGES_PAGE = 500
_MAX_DETAIL = 300
_GONE = ("no_such_ask", "not available", "no longer available")
_CREDIT = ("insufficient_credit", "lacks credit", "insufficient credit")
_NEVER_SENT = (ConnectionRefusedError, socket.gaierror)


_REFUSALS: Mapping[int, tuple[type[ProviderError], str, str]] = {
    401: (
        AuthError,
        "vast.ai does not know this key: {detail}",
        f"make one under console → Keys and set {ENV_KEY}",
    ),
    402: (
        PaymentRequired,
        "the vast.ai credit does not cover this: {detail}",
        "add credit: vast.ai console → Billing",
    ),
    403: (
        AccessDenied,
        "the vast.ai key does not permit this: {detail}",
        "give the key read and write access to instances, read to billing",
    ),
    404: (NotThere, "vast.ai did not find it: {detail}", ""),
    410: (NotThere, "vast.ai did not find it: {detail}", ""),
}


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


class VastApi(PlainClient):
    """``base`` is the URL before ``/api``."""

    title = "vast.ai"
    refusals = _REFUSALS
    address = ENV_API
    first_wait_s = 1.0

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
        super().__init__(key, now=now, sleep=sleep, bound_s=bound_s, budget=budget, log=log)
        self._base = base.rstrip("/")

    @property
    def key(self) -> str:
        """The account's key, to make sure that it is in no create."""
        return self._secret

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
        asked = {"select_filters": {}, "order_by": [{"col": "id", "dir": "asc"}], "limit": PAGE}
        rows = self._pages("/api/v1/instances/", "instances", asked, Priority.LIST)
        return [self._instance(row) for row in rows]

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
            raise self._said(400, data, self.where("PUT", path))
        raise self._ambiguous("its answer has no instance", self.where("PUT", path))

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
            raise self._said(400, data, self.where("DELETE", path))
        return True

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
        asked = {
            "select_filters": {
                "day": {"gte": int(since), "lte": math.ceil(until)},
                "type": {"in": ["instance"]},
            },
            "latest_first": True,
            "limit": CHARGES_PAGE,
        }
        rows = self._pages("/api/v0/charges/", "results", asked)
        return [charge for row in rows if (charge := _charge(row)) is not None]

    # -- one request -----------------------------------------------------------------------------

    def _pages(
        self,
        path: str,
        name: str,
        params: Mapping[str, Any],
        priority: Priority = Priority.ORDINARY,
    ) -> list[Any]:
        """The rows of a list, ``name`` in each answer, page by page."""
        found, token = list[Any](), ""
        for _ in range(MOST_PAGES):
            asked = {**params, "after_token": token} if token else params
            data = self._read("GET", path, params=asked, priority=priority)
            rows = data.get(name)
            if not isinstance(rows, list):
                raise self._odd("GET", path, name)
            found += rows
            following = data.get("next_token")
            if not following:
                return found
            if following == token or not isinstance(following, str):
                break
            token = following
        raise self._odd("GET", path, "next_token")

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
        return self._repeat(
            lambda timeout_s: self._send(
                method, path, params=params, body=body, timeout_s=timeout_s, priority=priority
            ),
            bound_s,
        )

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
        where, url = self.where(method, path), self._base + path
        if params:
            url += "?" + "&".join(
                f"{name}={quote_plus(each if isinstance(each, str) else json.dumps(each))}"
                for name, each in params.items()
            )
        content, _ = self._exchange(method, url, body, timeout_s, priority)
        try:
            told = json.loads(content)
        except (ValueError, RecursionError):
            told = None
        if not isinstance(told, dict):
            text = self.clean(content[:_MAX_DETAIL].decode("utf-8", "replace"))
            raise TransientError(f"vast.ai's answer is not a JSON object: {text!r}", where=where)
        return told

    def _no_answer(self, error: Exception, where: str) -> TransientError:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        what = f"vast.ai cannot be reached: {self.clean(str(reason)) or type(reason).__name__}"
        return TransientError(what, where=where, sent=not isinstance(reason, _NEVER_SENT))

    def _refusal(self, error: urllib.error.HTTPError, where: str) -> ProviderError:
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
        wait_s = retry_after_s(error.headers.get("Retry-After"))
        if error.code == 429:
            self._hold(wait_s)
        return self._said(error.code, data, where, wait_s)

    def _said(
        self, code: int, data: Mapping[str, Any], where: str, wait_s: float | None = None
    ) -> ProviderError:
        """The error that a refusal stands for, by its status and its own words."""
        low = " ".join(str(data.get(name) or "") for name in ("error", "msg", "detail")).casefold()
        text = self.clean(str(data.get("msg") or data.get("detail") or data.get("error") or ""))
        text = text or "(no text)"
        if code != 429 and any(each in low for each in _CREDIT):
            code = 402
        elif code not in (402, 429) and ("invalid user key" in low or "auth_error" in low):
            code = 401
        elif (
            code not in (401, 402, 403, 429)
            and "asks" in where
            and any(each in low for each in _GONE)
        ):
            return self._no_capacity(text, where)
        return self.error_of(code, text, where, wait_s)

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
            where=self.where(method, path),
            next_step="try again; if this happens again, check for a newer trmcloud",
        )

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
