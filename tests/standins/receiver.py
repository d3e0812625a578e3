"""Whoever is told, over HTTP on loopback: takes, refuses, is slow, or drops the line after it has
taken, as it is bidden. It keeps the ids that it has seen, as a real receiver should."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.standins.loopback import Handler, serving_at

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

    class Taking(Handler):
        protocol_version = "HTTP/1.0"

        def do_POST(self) -> None:
            headers = {key.lower(): value for key, value in self.headers.items()}
            made.got.append((self.path, headers, self.read_body()))
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
            else:
                code, more = (200, {}) if isinstance(act, str) else act
                self.answer(code, b"{}", headers=more)

        do_PUT = do_GET = do_POST

    with serving_at(Taking, made.port) as made.port:
        try:
            yield made
        finally:
            made.released.set()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A server that takes notifications by webhook."""
    with receiving() as made:
        yield made
