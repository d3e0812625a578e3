"""The page's server: who may ask it, and the news that it sends."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from trmcloud.cli.page.feed import Feed
from trmcloud.cli.page.server import HEADERS, GuardedApp
from trmcloud.cli.page.watch import Jobs
from trmcloud.core.errors import ConflictError, NotFoundError
from trmcloud.io.web_guard import AllowedHosts

# -- News for open tabs, one of which may read no more; and what clicks began -------------------


def test_each_tab_hears_what_concerns_it() -> None:
    async def tabs() -> None:
        feed = Feed()
        assert not feed.has_listeners.is_set()
        table, page = feed.listen(""), feed.listen("r1")
        assert feed.has_listeners.is_set()
        assert feed.watched == {"r1"}
        feed.tell("row", {"id": "r2"})
        feed.tell("run", {"id": "r1"}, "r1")
        feed.tell("run", {"id": "r2"}, "r2")
        heard = []
        for listener, count in ((table, 2), (page, 3)):
            messages = listener.messages()
            heard.append([await anext(messages) for _ in range(count)])
        assert [m.split("\n")[0] for m in heard[0]] == ["event: hello", "event: row"]
        assert [m.split("\n")[0] for m in heard[1]] == ["event: hello", "event: row", "event: run"]
        feed.leave(table)
        assert feed.has_listeners.is_set()
        feed.leave(page)
        assert not feed.has_listeners.is_set()
        feed.tell("row", {})

    asyncio.run(tabs())


def test_a_tab_that_reads_no_more_is_told_to_ask_anew() -> None:
    async def tab() -> None:
        feed = Feed()
        listener = feed.listen("")
        for number in range(1000):
            feed.tell("row", number)
        await asyncio.sleep(0)
        messages = listener.messages()
        first = [await anext(messages) for _ in range(2)]
        assert first[1].startswith("event: anew\n")

    asyncio.run(tab())


def test_an_event_is_one_block_whatever_is_in_it() -> None:
    async def tab() -> None:
        feed = Feed()
        listener = feed.listen("")
        feed.tell("row", {"name": "a\n\nevent: evil\ndata: {}"})
        messages = listener.messages()
        await anext(messages)
        text = await anext(messages)
        assert text.count("\n\n") == 1
        assert json.loads(text.split("data: ", 1)[1])["name"].endswith("data: {}")

    asyncio.run(tab())


def ended(jobs: Jobs, number: int) -> dict[str, object]:
    """Once it is."""
    threads = [each for each in threading.enumerate() if each is not threading.current_thread()]
    for thread in threads:
        if thread.name.startswith("Thread-") and "_carry" in thread.name:
            thread.join(10)
    return next(job for job in jobs.to_json() if job["number"] == number)


def test_what_came_of_a_click_is_told() -> None:
    jobs = Jobs(Feed())
    good = ended(jobs, jobs.start("save", "r1", lambda progress: "it has saved"))
    assert (good["state"], good["text"]) == ("done", "it has saved")

    def fails(progress: object) -> str:
        raise NotFoundError("no such\x1b[31m run", next_step="trmcloud status")

    bad = ended(jobs, jobs.start("save", "r1", fails))
    assert (bad["state"], bad["next"]) == ("failed", "trmcloud status")
    assert "\x1b" not in str(bad["text"])

    def breaks(progress: object) -> str:
        raise RuntimeError("oh")

    assert "unexpected RuntimeError: oh" in str(ended(jobs, jobs.start("save", "r1", breaks)))


def test_the_same_is_not_begun_twice() -> None:
    jobs, go = Jobs(Feed()), threading.Event()

    def waits(progress: object) -> str:
        go.wait(10)
        return "done"

    number = jobs.start("fetch", "r1", waits)
    with pytest.raises(ConflictError, match="under way already"):
        jobs.start("fetch", "r1", waits)
    other = jobs.start("fetch", "r2", lambda progress: "beside it")
    go.set()
    assert ended(jobs, number)["state"] == ended(jobs, other)["state"] == "done"
    jobs.start("fetch", "r1", lambda progress: "again")


# -- Who may ask the page's server, request by request ------------------------------------------


TOKEN = "a-token"
OWN = {"host": "127.0.0.1:8765", "authorization": f"Bearer {TOKEN}"}


async def _app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"yes"})


def answer(
    path: str, headers: dict[str, str], method: str = "GET", guarded: GuardedApp | None = None
) -> tuple[int, dict[str, str]]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    raw = [(name.encode(), text.encode("latin-1")) for name, text in headers.items()]
    scope = {"type": "http", "path": path, "method": method, "headers": raw}
    asyncio.run((guarded or GuardedApp(_app, TOKEN))(scope, None, send))
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
    names = AllowedHosts(frozenset({"host.lan"}), any_address=True)
    guarded = GuardedApp(_app, TOKEN, names=names)
    for host, status in (
        ("192.168.1.9:8765", 200),
        ("[fe80::1]:8765", 200),
        ("host.lan:8765", 200),
        ("evil.example:8765", 421),
        ("999.1.1.1", 421),
    ):
        assert answer("/api/runs", {**OWN, "host": host}, guarded=guarded)[0] == status
