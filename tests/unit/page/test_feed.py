"""News for open tabs, one of which may read no more; and what clicks began."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

from trmcloud.cli.page.feed import Feed
from trmcloud.cli.page.watch import Jobs
from trmcloud.core.errors import ConflictError, NotFoundError


def test_each_tab_hears_what_concerns_it() -> None:
    async def tabs() -> None:
        feed = Feed()
        assert not feed.somebody.is_set()
        table, page = feed.listen(""), feed.listen("r1")
        assert feed.somebody.is_set()
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
        assert feed.somebody.is_set()
        feed.leave(page)
        assert not feed.somebody.is_set()
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
