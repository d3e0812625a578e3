"""Who may ask: whoever knows the token, from this very page. Pure ASGI, in front of everything.

A browser sends requests for other sites' pages, too; so a request has to name this server as its
host (no other name can be made to point here), come from this origin, and carry the token in a
header, which no form and no image can. The checks are those of ``trmcloud.io.web_guard``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trmcloud.io.web_guard import (
    OF_LOOPBACK,
    Names,
    Refusal,
    headers_of,
    keep,
    refusal_of_origin,
    refusal_of_token,
)

API = "/api/"
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
    """``app`` behind these checks. ``names``: the hosts by which it may be called."""

    def __init__(self, app: Any, token: str, *, names: Names = OF_LOOPBACK) -> None:
        self._app, self._token, self._names = app, token, names

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refused = self._why_not(scope, headers_of(scope))
        if refused is not None:
            await _refuse(send, *refused)
            return
        if scope["path"].startswith(API):
            keep(scope)

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                more = [(name.encode(), text.encode()) for name, text in HEADERS.items()]
                if scope["path"].startswith(API):
                    more.append((b"cache-control", b"no-store"))
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        await self._app(scope, receive, with_headers)

    def _why_not(self, scope: Any, headers: Mapping[str, str]) -> Refusal | None:
        refused = self._names.refusal(headers.get("host", "")) or refusal_of_origin(headers)
        if refused is not None or not scope["path"].startswith(API):
            return refused
        if headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return 403, "asked from another site"
        refused = refusal_of_token(headers, self._token)
        if refused is None and scope["method"] == "POST":
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                return 415, "say that it is JSON: Content-Type: application/json"
        return refused


async def _refuse(send: Any, status: int, why: str) -> None:
    body = json.dumps({"error": why}).encode()
    headers = {**HEADERS, "content-type": "application/json", "cache-control": "no-store"}
    headers |= {"content-length": str(len(body))}
    raw = [(name.encode(), text.encode()) for name, text in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
