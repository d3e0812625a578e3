"""A real server's connections from raw sockets: how many stay open, and for how long."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="the extra `ui`")

import uvicorn

from tests.standins.loopback import until
from trmcloud.io.web_connections import BoundedServer, Connections, most_connections
from trmcloud.io.web_guard import is_spare, mark_ending, mark_trusted
from trmcloud.io.web_server import listening

WITHIN_S = 30.0
ASK = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
HALF = b"GET / HTTP/1.1\r\nHost: local"


@dataclass
class Server:
    port: int
    bounds: Connections

    def connect(self, sent: bytes = b"") -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self.port), timeout=WITHIN_S)
        made.sendall(sent)
        return made

    def answer(self, sent: bytes = ASK) -> bytes:
        with self.connect(sent) as made:
            return made.recv(1000)


async def _app(scope: Any, receive: Any, send: Any) -> None:
    """``/held``: an answer that goes on until the client leaves; ``/kept``: the same, and it proved
    itself; ``/large``: much. Anything else: a word."""
    if scope["type"] != "http":
        return
    if scope["path"] in ("/kept", "/ends"):
        mark_trusted(scope)
    if scope["path"] == "/ends":
        mark_ending(scope)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if scope["path"] == "/large":
        for _ in range(200):
            body = {"type": "http.response.body", "body": b"x" * (1 << 20), "more_body": True}
            await send(body)
    if scope["path"] in ("/held", "/kept", "/ends"):
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
    word = b"spare" if is_spare(scope) else b"word"
    await send({"type": "http.response.body", "body": word})


@contextmanager
def serving(bounds: Connections) -> Iterator[Server]:
    config = uvicorn.Config(
        _app, ws="none", lifespan="off", log_config=None, log_level="critical",
        timeout_graceful_shutdown=1,
    )  # fmt: skip
    with listening("127.0.0.1", 0) as sock:
        made = BoundedServer(config, bounds)
        thread = threading.Thread(target=made.run, kwargs={"sockets": [sock]})
        thread.start()
        try:
            yield Server(sock.getsockname()[1], bounds)
        finally:
            made.should_exit = True
            thread.join(WITHIN_S)
            assert not thread.is_alive()


def is_closed(each: socket.socket) -> bool:
    """Whether the server closed it; it must not have anything else to say."""
    each.setblocking(False)
    try:
        return each.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    finally:
        each.settimeout(WITHIN_S)


def begun(server: Server, path: bytes) -> socket.socket:
    made = server.connect(ASK.replace(b" / ", b" " + path + b" "))
    told = b""
    while b"begun" not in told:
        told += made.recv(1000)
    return made


def test_the_one_that_waits_longest_gives_way() -> None:
    with serving(Connections(3)) as server, ExitStack() as stack:
        waiting: list[socket.socket] = []

        def is_full() -> bool:
            return len(server.bounds) == min(len(waiting), 3)

        for number in range(5):
            waiting.append(stack.enter_context(server.connect(HALF)))
            until(is_full)
            if number >= 3:
                until(partial(is_closed, waiting[number - 3]))
        assert server.answer().startswith(b"HTTP/1.1 200")
        assert [is_closed(each) for each in waiting[2:]] == [True, False, False]


def test_what_is_answered_stays_while_others_wait_and_what_proved_itself_longest() -> None:
    with serving(Connections(4)) as server, ExitStack() as stack:
        kept = stack.enter_context(begun(server, b"/kept"))
        held = stack.enter_context(begun(server, b"/held"))
        for _ in range(20):
            stack.enter_context(server.connect(HALF))
        assert server.answer().startswith(b"HTTP/1.1 200")
        assert not is_closed(held)
        assert not is_closed(kept)
        for _ in range(3):  # none of which waits: the oldest without proof goes
            stack.enter_context(begun(server, b"/kept"))
        until(lambda: is_closed(held))
        assert not is_closed(kept)
        with server.connect(ASK) as refused:
            until(lambda: is_closed(refused))
        assert not is_closed(kept)


def test_a_reserve_takes_in_what_may_end_something_while_all_others_are_under_way() -> None:
    bounds = Connections(2, spare=2)
    with serving(bounds) as server, ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(begun(server, b"/kept"))
        with server.connect(ASK) as one:
            told = b"".join(iter(lambda: one.recv(1000), b""))  # closed after one answer
        assert told.endswith(b"spare\r\n0\r\n\r\n"), told
        ends = stack.enter_context(begun(server, b"/ends"))
        for _ in range(20):
            stack.enter_context(server.connect(HALF))
        with server.connect(ASK) as one:
            assert b"spare" in b"".join(iter(lambda: one.recv(1000), b""))
        assert not is_closed(ends), "what ends something gives way to nothing"
        assert len(bounds) <= 4
        waiting = stack.enter_context(server.connect(HALF))
        began = time.monotonic()
        until(lambda: is_closed(waiting))
        assert time.monotonic() - began < 8, "it waits less long there"


def test_headers_have_to_come_in_time_though_bytes_do() -> None:
    with serving(Connections(9, headers_within_s=0.4)) as server:
        with server.connect(HALF) as slow, server.connect() as silent:
            began, told = time.monotonic(), b""
            slow.settimeout(0.05)
            while not told:
                assert time.monotonic() - began < WITHIN_S
                slow.sendall(b"x")
                with suppress(TimeoutError):
                    told = slow.recv(1000)
            assert told.startswith(b"HTTP/1.1 408")
            assert time.monotonic() - began >= 0.3
            assert silent.recv(1000) == b""
        until(lambda: len(server.bounds) == 0)


def test_a_second_request_and_a_body_that_is_not_read_have_to_come_in_time_too() -> None:
    with serving(Connections(9, headers_within_s=0.4)) as server:
        endless = ASK.replace(b"\r\n\r\n", b"\r\nContent-Length: 1000000\r\n\r\n")
        for first in (ASK, endless):
            with server.connect(first) as slow:
                until(lambda: b"word" in slow.recv(1000))
                began = time.monotonic()
                while not is_closed(slow):
                    assert time.monotonic() - began < 4.0, "uvicorn's own limit is five seconds"
                    try:
                        slow.sendall(b"G")
                    except ConnectionError:
                        break
                    time.sleep(0.05)
        until(lambda: len(server.bounds) == 0)


def test_a_client_that_takes_nothing_of_its_answer_is_left() -> None:
    asked = ASK.replace(b" / ", b" /large ")
    bounds = Connections(9, written_within_s=0.3)
    with serving(bounds) as server, server.connect(asked):
        until(lambda: len(bounds) == 1)
        until(lambda: len(bounds) == 0)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03",
        b"GET / FTP/1.1\r\n\r\n",
        b"GET /" + b"a" * 20_000,
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: " + b"9" * 9000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nnot a length\r\n\r\n",
        b"\r\n" * 20_000,
        b"GET \xff HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_request_costs_no_other(sent: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    with serving(Connections(9)) as server, begun(server, b"/held") as held:
        with server.connect() as made:
            told = b""
            try:
                made.sendall(sent)
                while part := made.recv(1000):
                    told += part
                    if b"chunked" in sent:
                        break
            except ConnectionError:
                pass
        assert told[:10] in (b"HTTP/1.1 4", b"") or b"chunked" in sent, told
        assert server.answer().startswith(b"HTTP/1.1 200")
        assert not is_closed(held)
    assert "Traceback" not in capfd.readouterr().err


def test_as_many_may_be_open_as_are_wanted_within_half_of_the_files() -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
        assert (most_connections(), most_connections(300), most_connections(9999)) == (
            256, 300, 480,
        )  # fmt: skip
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        assert most_connections() == 96
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
