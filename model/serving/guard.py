"""The access control of the model. Pure ASGI, in front of every route.

At loopback every program of this machine is let in, and no page that a browser has from elsewhere;
at any other address a request needs the token, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from model.serving.openai_messages import error_object
from trmcloud.io.web_guard import (
    AllowedHosts,
    Refusal,
    headers_of,
    refusal_of_origin,
    refusal_of_token,
)

OPEN = frozenset({"/", "/health", "/docs", "/openapi.json"})
"""They hold nothing of the model: no token is needed."""
_OPENAI = "/v1/"
_HEADERS: Mapping[str, str] = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
_ALLOWED_SITES = ("same-origin", "none")


class Guard:
    """``app`` behind these checks. ``token``: empty where none is needed."""

    def __init__(self, app: Any, names: AllowedHosts, token: str = "") -> None:
        self._app, self._names, self._token = app, names, token

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refused = self._why_not(scope, headers_of(scope))
        if refused is not None:
            await _refuse(scope, send, *refused)
            return

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *_raw(_HEADERS)]}
            await send(message)

        await self._app(scope, receive, with_headers)

    def _why_not(self, scope: Any, headers: Mapping[str, str]) -> Refusal | None:
        refused = self._names.refusal(headers.get("host", "")) or refusal_of_origin(headers)
        if refused is not None:
            return refused
        opened = scope["method"] == "GET" and headers.get("sec-fetch-mode") == "navigate"
        if headers.get("sec-fetch-site", "none") not in _ALLOWED_SITES and not opened:
            return 403, "the request comes from another site"
        if self._token and scope["path"] not in OPEN:
            return refusal_of_token(headers, self._token)
        return None


async def _refuse(scope: Any, send: Any, status: int, why: str) -> None:
    if scope["path"].startswith(_OPENAI):
        code = "invalid_api_key" if status == 401 else None
        body = error_object(status, why, code=code).model_dump_json().encode()
    else:
        body = json.dumps({"error": why}).encode()
    headers = {
        **_HEADERS, "content-type": "application/json", "content-length": str(len(body)),
    }  # fmt: skip
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    await send({"type": "http.response.start", "status": status, "headers": _raw(headers)})
    await send({"type": "http.response.body", "body": body})


def _raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), text.encode()) for name, text in headers.items()]
