"""Checks of a request before anything reads it: the name it asked for, the site it comes from, and
the token. The page of ``trmcloud ui`` and ``trmcloud serve`` share them.

A browser also sends requests that pages of other sites make. A page elsewhere can point its own
name at this machine (DNS rebinding), and the browser then takes this server for that site. So a
request has to name this server as its host, and its origin, where a browser states one, has to
be this server's.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

LOOPBACK = ("127.0.0.1", "localhost", "::1")
ANY_ADDRESS = ("0.0.0.0", "::")
_LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})
KEEP = "trmcloud.keep"
"""Key of a request's scope: called without arguments, its connection is not closed for others."""

SPARE = "trmcloud.spare"
"""Key of a request's scope: whether its connection is one of the reserve, where only a request is
answered that ends something."""
ENDS = "trmcloud.ends"
"""Key of a request's scope: called without arguments, it is such a request."""
BUSY = 503, "too many requests are under way: only what ends a run is answered now"

Refusal = tuple[int, str]
"""A status, and why in one line."""


@dataclass(frozen=True)
class AllowedHosts:
    """The hosts by which a server may be called: loopback's, ``more``, and any address of numbers
    where ``any_address``, since only names can be pointed elsewhere."""

    more: frozenset[str] = frozenset()
    any_address: bool = False

    def refusal(self, host: str) -> Refusal | None:
        """Why a request with this ``Host`` is refused."""
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        name = name.lower()
        if name in _LOOPBACK_NAMES or name in self.more or (self.any_address and _is_address(name)):
            return None
        return 421, "this server does not have that name: use the address that it printed"


OF_LOOPBACK = AllowedHosts()


def names_of(host: str) -> AllowedHosts:
    """The names of a server that listens at ``host``."""
    if host in LOOPBACK:
        return OF_LOOPBACK
    if host in ANY_ADDRESS:
        own = socket.gethostname(), socket.getfqdn()
        return AllowedHosts(frozenset(name.lower() for name in own), any_address=True)
    return AllowedHosts(frozenset({host.lower(), f"[{host}]".lower()}), any_address=True)


def headers_of(scope: Any) -> Mapping[str, str]:
    """An ASGI request's headers by their names in lower case."""
    return {name.decode("latin-1"): text.decode("latin-1") for name, text in scope["headers"]}


def refusal_of_origin(headers: Mapping[str, str]) -> Refusal | None:
    """Why a request from this ``Origin`` is refused. Programs other than browsers send none."""
    origin = headers.get("origin")
    if origin is not None and origin.lower() != f"http://{headers.get('host', '')}".lower():
        return 403, "the request comes from another site"
    return None


def refusal_of_token(headers: Mapping[str, str], token: str) -> Refusal | None:
    """Why a request with this ``Authorization`` is refused."""
    given = headers.get("authorization", "").removeprefix("Bearer ").encode()
    if hmac.compare_digest(given, token.encode()):
        return None
    return 401, "wrong token: use the token that this server printed at its start"


class BodyRefused(Exception):
    """A body that is not read to its end: it is answered with ``status`` and one line."""

    def __init__(self, status: int, what: str) -> None:
        super().__init__(what)
        self.status, self.what = status, what


async def read_body(parts: AsyncIterator[bytes], most_bytes: int, within_s: float) -> bytes:
    """A request's whole body.

    Raises:
        BodyRefused: it is larger than ``most_bytes``, or was not here in time.
    """

    async def read() -> bytes:
        body = bytearray()
        async for part in parts:
            body += part
            if len(body) > most_bytes:
                raise BodyRefused(413, f"a body may have at most {most_bytes:,} bytes")
        return bytes(body)

    try:
        return await asyncio.wait_for(read(), within_s)
    except asyncio.TimeoutError:
        raise BodyRefused(408, f"the body did not arrive within {within_s:.0f} s") from None


async def send_json(
    send: Any, status: int, document: Mapping[str, Any], headers: Mapping[str, str]
) -> None:
    """Answer an ASGI request with a document."""
    body = json.dumps(document).encode()
    told = {**headers, "content-type": "application/json", "content-length": str(len(body))}
    raw = [(name.encode(), text.encode()) for name, text in told.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def mark_trusted(scope: Any) -> None:
    """This request proved that it may be here: its connection gives way to no other."""
    if KEEP in scope:
        scope[KEEP]()


def is_spare(scope: Any) -> bool:
    return bool(scope.get(SPARE))


def mark_ending(scope: Any) -> None:
    """This request ends something: in the reserve, its connection gives way to no other."""
    if ENDS in scope:
        scope[ENDS]()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
