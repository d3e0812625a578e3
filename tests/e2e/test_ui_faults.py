"""``trmcloud ui`` against clients that mean it harm or do not know better; no browser is needed."""

from __future__ import annotations

import http.client
import os
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.on_page import Serving
from tests.e2e.user import User
from tests.standins.half_open import half_open_at, no_more_files

pytest.importorskip("starlette", reason="the extra `ui`")
pytest.importorskip("uvicorn", reason="the extra `ui`")

WITHIN_S = 60.0
HALF_OPEN = 1_100


class Page(Serving):
    """``trmcloud ui`` as a process that may open 1,024 files."""

    def __init__(self, user: User) -> None:
        super().__init__(user, limit=no_more_files)

    def first_byte_s(self, path: str = "/") -> float:
        """From the beginning of a new connection to the first byte of the page."""
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", self.port), timeout=10.0) as made:
            made.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            try:
                assert made.recv(16).startswith(b"HTTP/1.1 200")
            except TimeoutError:
                return float("inf")
        return time.monotonic() - began


@contextmanager
def ui(folder: Path) -> Iterator[Page]:
    made = Page(User(folder))
    try:
        yield made
        assert made.end() == "", "it had nothing to complain of"
    finally:
        made.kill()


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with ui(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def one_page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with ui(tmp_path_factory.mktemp("user")) as made:
        yield made


def listening(page: Page) -> tuple[http.client.HTTPConnection, Callable[[], bytes]]:
    """A stream of news, and what it says next."""
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=WITHIN_S)
    connection.request("GET", "/api/stream", headers={"Authorization": f"Bearer {page.token}"})
    answer = connection.getresponse()
    assert answer.status == 200
    return connection, answer.readline


def test_half_open_connections_without_a_token_leave_the_page_reachable(
    page: Page, capsys: pytest.CaptureFixture[str]
) -> None:
    quiet_s = [page.first_byte_s() for _ in range(3)]
    stream, line = listening(page)
    assert line() == b"event: hello\n"
    with half_open_at(page.port, HALF_OPEN) as half_open:
        taken_s = [page.first_byte_s() for _ in range(3)]
        status, told = page.ask("/api/runs")
        assert (status, told["runs"]) == (200, [])
        with ThreadPoolExecutor(6) as pool:  # as a browser does
            assert set(pool.map(lambda _: page.ask("/api/runs")[0], range(60))) == {200}
        files = len(os.listdir(f"/proc/{page.process.pid}/fd"))
        assert files < 512
        assert sum(_is_open(each) for each in half_open) < 300
    with capsys.disabled():
        print(
            f"\nfirst byte of the page: {1e3 * min(quiet_s):.1f} ms; beside {HALF_OPEN:,} "
            f"half-open connections {1e3 * max(taken_s):.1f} ms, {files} files open"
        )
    assert max(taken_s) < 2.0
    assert stream.sock is not None
    assert _is_open(stream.sock), "what has the token gives way to nobody"
    stream.close()


def _is_open(each: socket.socket) -> bool:
    each.setblocking(False)
    try:
        return each.recv(100) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


DEEP = b"[" * 3_000 + b"]" * 3_000


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 16_000,
        b'{"a":' * 3_000,
        b'{"verb": "raise", "cap": ' + DEEP + b"}",
        b'{"verb": ' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"verb": "raise", "cap": NaN}',
        b'{"verb": "raise", "cap": 1e400}',
        b'{"verb": "raise", "cap": "1e400"}',
        b'{"verb": "raise", "cap": "1e-320"}',
        b'{"verb": "raise", "cap": "NaN"}',
        b'{"verb": "raise", "cap": "-1"}',
        b'{"verb": "raise", "cap": "' + b"9" * 15_000 + b'"}',
        b'{"verb": "raise", "cap": ' + b"9" * 5_000 + b"}",
        b'{"verb": "raise", "cap": true}',
        b'{"verb": "\\ud800", "cap": "\\udfff"}',
        b'{"verb": "\\u0000\\u001b[2J"}',
        b'{"\\ud800": 1}',
        b'"' + b"a" * 20_000 + b'"',
        b"\xff\xfe",
        b"",
        b"null",
    ],
)
def test_no_body_is_answered_by_a_fault_of_the_server(body: bytes, one_page: Page) -> None:
    for path in ("/api/runs/r-none/do", "/api/budgets/month"):
        status, told = one_page.ask(path, body)
        assert status in (404, 409, 413, 422), told
        line = told["error"]
        assert line
        assert line.isprintable()
