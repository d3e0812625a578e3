"""Who may ask: whoever knows the token, from this very page. Pure ASGI, in front of everything.

A browser sends requests for other sites' pages, too; so a request has to name this server as its
host (no other name can be made to point here), come from this origin, and carry the token in a
header, which no form and no image can.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
from collections.abc import Iterable, Mapping
from typing import Any

API = "/api/"
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
HEADERS: Mapping[str, str] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


class Guarded:
    """``app`` behind these checks. ``names``: hosts beside loopback by which it may be called;
    any address of numbers where ``anywhere``, since only names can be pointed elsewhere."""

    def __init__(
        self, app: Any, token: str, *, names: Iterable[str] = (), anywhere: bool = False
    ) -> None:
        self._app, self._token = app, token
        self._names, self._anywhere = _LOOPBACK | set(names), anywhere

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {
            name.decode("latin-1"): text.decode("latin-1") for name, text in scope["headers"]
        }
        refused = self._why_not(scope, headers)
        if refused is not None:
            await _refuse(send, *refused)
            return

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                more = [(name.encode(), text.encode()) for name, text in HEADERS.items()]
                if scope["path"].startswith(API):
                    more.append((b"cache-control", b"no-store"))
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        await self._app(scope, receive, with_headers)

    def _why_not(self, scope: Any, headers: Mapping[str, str]) -> tuple[int, str] | None:
        host = headers.get("host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if not (name in self._names or (self._anywhere and _is_address(name))):
            return 421, "this server is not called by that name: use the address it printed"
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            return 403, "asked from another site"
        if not scope["path"].startswith(API):
            return None
        if headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return 403, "asked from another site"
        given = headers.get("authorization", "").removeprefix("Bearer ").encode()
        if not hmac.compare_digest(given, self._token.encode()):
            return 401, "the token is not this server's: open the address that it printed"
        if scope["method"] == "POST":
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                return 415, "say that it is JSON: Content-Type: application/json"
        return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


async def _refuse(send: Any, status: int, why: str) -> None:
    body = json.dumps({"error": why}).encode()
    headers = {**HEADERS, "content-type": "application/json", "cache-control": "no-store"}
    headers |= {"content-length": str(len(body))}
    raw = [(name.encode(), text.encode()) for name, text in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
