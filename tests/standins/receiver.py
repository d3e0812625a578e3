"""Whoever is told, over HTTP on loopback: takes, refuses, is slow, or drops the line after it has
taken, as it is bidden. It keeps the ids that it has seen, as a real receiver should."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TAKES = "takes"
LOSES = "loses the answer"
DRIPS = "drips"
HANGS = "hangs"


@dataclass
class Receiver:
    """``answers``: what it does with the next ones: one of those above, or (code, headers)."""

    answers: list[str | tuple[int, dict[str, str]]] = field(default_factory=list)
    always: str | tuple[int, dict[str, str]] = TAKES
    got: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    """(path, headers in lower case, body) of each request that came whole."""
    port: int = 0
    released: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ids(self) -> list[str]:
        return [headers["webhook-id"] for _, headers, _ in self.got]

    @property
    def notices(self) -> list[dict[str, Any]]:
        """What it takes for news: each id once."""
        return list({json.loads(body)["id"]: json.loads(body) for _, _, body in self.got}.values())


@contextlib.contextmanager
def receiving(receiver: Receiver | None = None) -> Iterator[Receiver]:
    made = receiver or Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {key.lower(): value for key, value in self.headers.items()}
            made.got.append((self.path, headers, body))
            act = made.answers.pop(0) if made.answers else made.always
            if act == LOSES:
                self.connection.shutdown(socket.SHUT_RDWR)
            elif act == HANGS:
                made.released.wait(60)
            elif act == DRIPS:
                with contextlib.suppress(OSError):
                    for char in b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + b"." * 100:
                        self.connection.sendall(bytes([char]))
                        if made.released.wait(0.3):
                            return
            elif act == TAKES:
                self._answer(200, {})
            else:
                assert not isinstance(act, str)
                self._answer(*act)

        do_PUT = do_GET = do_POST

        def _answer(self, code: int, headers: dict[str, str]) -> None:
            self.send_response(code)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", "2")
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(b"{}")

        def log_message(self, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", made.port), Handler)
    server.daemon_threads = True
    made.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield made
    finally:
        made.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def until(condition: Any, within_s: float = 30.0) -> None:
    """Poll until it holds; fails at the deadline."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s} s"
        time.sleep(0.02)
