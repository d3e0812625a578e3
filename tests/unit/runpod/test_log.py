"""The log stream of a RunPod pod: the time limit of a read, and invalid answers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace

import httpx2 as httpx
import pytest

from tests.unit.runpod.conftest import Answer, Scripted, problem
from trmcloud.ports.compute import TransientError
from trmcloud.providers.client import NotThere
from trmcloud.providers.runpod import http as http_module
from trmcloud.providers.runpod.http import STREAM_BYTES, STREAM_S


def streamed(*chunks: bytes | Exception, given: list[bytes] | None = None) -> httpx.Response:
    """An answer that comes in ``chunks``; those that were asked for are added to ``given``."""

    def each() -> Iterator[bytes]:
        for chunk in chunks:
            if isinstance(chunk, Exception):
                raise chunk
            (given if given is not None else []).append(chunk)
            yield chunk

    return httpx.Response(200, content=each())


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ((b"data: a\r\n", b"\ndata: b\rdata: \xff"), ["data: a", "", "data: b", "data: \ufffd"]),
        ((b"data: a\n", httpx.ReadTimeout("silent")), ["data: a", ""]),
        ((), [""]),
    ],
    ids=["ends", "falls silent", "empty"],
)
def test_a_log_is_read_until_it_ends_or_falls_silent(
    runpod: Scripted, chunks: tuple[bytes | Exception, ...], lines: list[str]
) -> None:
    runpod.answers = [streamed(*chunks)]
    api = runpod.api()
    assert api.log_text("abc", 200) == lines
    assert (len(runpod.asked), api.http.requests) == (1, 1)
    assert str(runpod.asked[0].url) == "https://api.runpod.test/v2/pods/abc/logs?tail=200"
    assert runpod.asked[0].headers["accept"] == "text/event-stream"


@pytest.mark.parametrize(
    ("size", "step_s", "read"),
    [
        (10, 0.0, 9),
        (10, STREAM_S / 2, 2),
        (10, STREAM_S / 2 + 0.1, 2),
        (STREAM_BYTES // 2, 0.0, 2),
        (STREAM_BYTES // 2 + 1, 0.0, 2),
        (STREAM_BYTES - 1, 0.0, 2),
    ],
)
def test_of_a_log_without_an_end_so_much_is_read(
    runpod: Scripted, monkeypatch: pytest.MonkeyPatch, size: int, step_s: float, read: int
) -> None:
    instants = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: 100.0 + step_s * next(instants))
    monkeypatch.setattr(http_module, "time", clock)
    given: list[bytes] = []
    runpod.answers = [streamed(*[b"x" * size] * 9, given=given)]
    (line,) = runpod.api().log_text("abc", 200)
    assert len(given) == read
    assert line == "x" * min(size * read, STREAM_BYTES)


@pytest.mark.parametrize(
    ("answer", "error", "why"),
    [
        (problem(404, "no such pod"), NotThere, "no such pod"),
        (httpx.Response(404, content=iter([b'{"detail": "gone"}'])), NotThere, "gone"),
        (httpx.ConnectError("no route"), TransientError, "log cannot be read: no route"),
    ],
)
def test_a_log_that_is_not_given_is_asked_for_once(
    runpod: Scripted, answer: Answer, error: type[Exception], why: str
) -> None:
    runpod.answers = [answer]
    with pytest.raises(error, match=why):
        runpod.api().log_text("abc", 200)
    assert len(runpod.asked) == 1
