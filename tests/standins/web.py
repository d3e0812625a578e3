"""What the stand-ins of sellers that speak HTTP share: a request and its answer, faults that strike
between the two, a log of both, a clock that a test moves, and a server on a loopback port.

A stand-in answers an ``Asked`` with an ``Answer`` and knows nothing of sockets or of faults that
any seller may show. Those are put on its ``Faults``: each says which requests it strikes and what
becomes of them, and counts how often it did. What a seller alone does wrong (a market that is
bought empty, a time-out that is ignored) stays a knob of its stand-in.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

MOST_BODY = 16 << 20
SETTLE_S = 0.02


class GivenClock:
    """A clock that moves when it is told to; epoch s."""

    def __init__(self, at: float = 1_790_000_000.0) -> None:
        self._at = at

    def __call__(self) -> float:
        return self._at

    def advance(self, seconds: float) -> None:
        self._at += seconds


@dataclass(frozen=True)
class Asked:
    """``pairs`` is the query in order, ``headers`` have names in lower case; ``who`` is for the
    stand-in: whose key it is, "" for nobody known."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    who: str = ""
    pairs: tuple[tuple[str, str], ...] = ()

    def json(self) -> Any:
        """The body; None where it is none."""
        try:
            return json.loads(self.body) if self.body else None
        except ValueError:
            return None

    @property
    def key(self) -> str:
        """The key of the Authorization header, else of the query's ``api_key``."""
        word, _, key = self.headers.get("authorization", "").partition(" ")
        return key.strip() if word.lower() == "bearer" else self.query.get("api_key", "")


@dataclass
class Answer:
    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    stream: Callable[[], Iterator[bytes]] | None = None
    drop: bool = False
    """Close the connection without a word."""
    forced: bool = False
    """A knob gave it, whatever was asked: the contract is no judge of it."""


CarryOut = Callable[[], Answer]


@dataclass
class Fault:
    """Strikes the next ``times`` requests whose "METHOD /path" ``pattern`` matches in full, after
    ``spare`` of them. ``strike`` gives the answer; it carries the request out, or does not."""

    pattern: str
    strike: Callable[[Asked, CarryOut], Answer]
    times: float = 1
    spare: int = 0
    struck: int = 0

    def is_due(self, asked: Asked) -> bool:
        if re.fullmatch(self.pattern, f"{asked.method} {asked.path}") is None:
            return False
        if self.spare > 0:
            self.spare -= 1
            return False
        return self.struck < self.times


class Faults:
    """Faults between the wire and a stand-in, and the log of what came over the wire."""

    def __init__(self) -> None:
        self._put: list[Fault] = []
        self.log: list[tuple[Asked, Answer]] = []

    def put(self, fault: Fault) -> Fault:
        self._put.append(fault)
        return fault

    def lift(self) -> None:
        """No fault strikes any more."""
        self._put.clear()

    def answer(self, asked: Asked, carry_out: CarryOut) -> Answer:
        fault = next((fault for fault in self._put if fault.is_due(asked)), None)
        if fault is not None:
            fault.struck += 1
        answer = carry_out() if fault is None else fault.strike(asked, carry_out)
        self.log.append((asked, answer))
        return answer

    def asked(self, pattern: str) -> list[Asked]:
        """The requests whose "METHOD /path" the pattern matches in full."""
        return [each for each, _ in self.log if re.fullmatch(pattern, f"{each.method} {each.path}")]


def answered(
    status: int, body: bytes | str = b"", kind: str = "application/json", **headers: str
) -> Callable[[Asked, CarryOut], Answer]:
    """Answer so, and carry nothing out."""
    content = body.encode() if isinstance(body, str) else body
    told = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda asked, carry_out: Answer(status, content, kind, dict(told))


def after_it_was_done(
    spoil: Callable[[Answer], Answer],
) -> Callable[[Asked, CarryOut], Answer]:
    """Carry it out, and answer with what ``spoil`` makes of the answer."""
    return lambda asked, carry_out: spoil(carry_out())


def lost(asked: Asked, carry_out: CarryOut) -> Answer:
    """Carry it out and close the connection without a word."""
    carry_out()
    return Answer(0, drop=True)


def changed(change: Callable[[Any], Any]) -> Callable[[Asked, CarryOut], Answer]:
    """Carry it out, and answer with what ``change`` makes of the answer's JSON."""

    def strike(asked: Asked, carry_out: CarryOut) -> Answer:
        answer = carry_out()
        answer.body = json.dumps(change(json.loads(answer.body))).encode()
        return answer

    return strike


class Handler(BaseHTTPRequestHandler):
    """Reads a request, has it answered and writes the answer."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    respond: Callable[[Asked], Answer]

    def _serve(self) -> None:
        url = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        if length > MOST_BODY:
            self._write(Answer(413, b"body too large", "text/plain"))
            self.close_connection = True
            return
        pairs = tuple(parse_qsl(url.query, keep_blank_values=True))
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(length)
        asked = Asked(self.command, unquote(url.path), dict(pairs), headers, body, pairs=pairs)
        self._write(type(self).respond(asked))

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _serve

    def _write(self, answer: Answer) -> None:
        if answer.drop:
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(2)
            return
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.send_response_only(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if answer.stream is not None:
                self._stream(answer)
                return
            if answer.status != 204:
                self.send_header("Content-Type", answer.content_type)
                self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)
            self.wfile.flush()

    def _stream(self, answer: Answer) -> None:
        assert answer.stream is not None
        self.close_connection = True
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.flush()
        for piece in answer.stream():
            self.wfile.write(piece)
            self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    """Answers on 127.0.0.1 from ``start`` to ``close``. ``unplug`` ends what is open and lets
    nobody in any more, as where a network is gone."""

    daemon_threads = True

    def __init__(self, respond: Callable[[Asked], Answer], port: int = 0) -> None:
        handler = type("Served", (Handler,), {"respond": staticmethod(respond)})
        super().__init__(("127.0.0.1", port), handler)
        self._open: set[Any] = set()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self._closed = False

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._thread.start()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def unplug(self) -> None:
        self.close()
        for request in list(self._open):
            with contextlib.suppress(OSError):
                request.shutdown(2)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.shutdown()
            self.server_close()
            self._thread.join(5)


@contextlib.contextmanager
def settling(settle: Callable[[], object], lock: threading.RLock) -> Iterator[None]:
    """What is due happens though nobody asks, until the block ends."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(SETTLE_S):
            with lock:
                settle()

    settler = threading.Thread(target=run, daemon=True)
    settler.start()
    try:
        yield
    finally:
        over.set()
        settler.join()
