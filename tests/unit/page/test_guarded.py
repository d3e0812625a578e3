"""Who may ask the page's server, request by request."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from trmcloud.cli.page.server import HEADERS, Guarded
from trmcloud.io.web_guard import Names

TOKEN = "a-token"
OWN = {"host": "127.0.0.1:8765", "authorization": f"Bearer {TOKEN}"}


async def _app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"yes"})


def answer(
    path: str, headers: dict[str, str], method: str = "GET", guarded: Guarded | None = None
) -> tuple[int, dict[str, str]]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    raw = [(name.encode(), text.encode("latin-1")) for name, text in headers.items()]
    scope = {"type": "http", "path": path, "method": method, "headers": raw}
    asyncio.run((guarded or Guarded(_app, TOKEN))(scope, None, send))
    told = {name.decode(): text.decode() for name, text in sent[0]["headers"]}
    return sent[0]["status"], told


def test_its_own_page_may() -> None:
    assert answer("/api/runs", OWN)[0] == 200
    own = {**OWN, "origin": "http://127.0.0.1:8765", "sec-fetch-site": "same-origin"}
    own |= {"content-type": "application/json; charset=utf-8"}
    assert answer("/api/runs/r1/do", own, "POST")[0] == 200
    for host in ("localhost:1", "[::1]:8765", "[::1]", "127.0.0.1"):
        assert answer("/api/runs", {**OWN, "host": host})[0] == 200


def test_the_page_itself_needs_no_token_and_holds_none() -> None:
    assert answer("/", {"host": "127.0.0.1:8765"})[0] == 200


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"host": "evil.example:8765"}, 421),
        ({"host": "127.0.0.1.evil.example"}, 421),
        ({"host": "192.168.1.9:8765"}, 421),
        ({"host": ""}, 421),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "https://127.0.0.1:8765"}, 403),
        ({"origin": "http://127.0.0.1:8766"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "none"}, 403),
        ({"authorization": ""}, 401),
        ({"authorization": "Bearer a-toke"}, 401),
        ({"authorization": "Bearer a-token "}, 401),
        ({"authorization": "Bearer \xe4"}, 401),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": ""}, 415),
    ],
)
def test_nobody_else_may(change: dict[str, str], status: int) -> None:
    headers = {**OWN, "content-type": "application/json", **change}
    got, told = answer("/api/runs/r1/do", headers, "POST")
    assert got == status
    assert set(HEADERS) <= set(told)


def test_every_answer_tells_browsers_what_it_may_load() -> None:
    for path in ("/", "/api/runs"):
        _, told = answer(path, OWN)
        assert "default-src 'none'" in told["content-security-policy"]
        assert "script-src 'self';" in told["content-security-policy"]
        assert "unsafe" not in told["content-security-policy"]
        assert told["x-content-type-options"] == "nosniff"
    assert answer("/api/runs", OWN)[1]["cache-control"] == "no-store"


def test_told_to_listen_anywhere_it_goes_by_addresses_and_its_own_name() -> None:
    names = Names(frozenset({"host.lan"}), any_address=True)
    guarded = Guarded(_app, TOKEN, names=names)
    for host, status in (
        ("192.168.1.9:8765", 200),
        ("[fe80::1]:8765", 200),
        ("host.lan:8765", 200),
        ("evil.example:8765", 421),
        ("999.1.1.1", 421),
    ):
        assert answer("/api/runs", {**OWN, "host": host}, guarded=guarded)[0] == status
