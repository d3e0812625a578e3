"""The stand-in on a loopback port."""

from __future__ import annotations

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.standins.runpod.control import Control
from tests.standins.runpod.gateway import Gateway
from tests.standins.runpod.http_types import Answer, Asked, problem

MOST_BODY = 16 << 20


class Server:
    """Answers on 127.0.0.1 from ``start`` to ``close``."""

    def __init__(self, gateway: Gateway, control: Control, port: int = 0) -> None:
        handler = type("Handler", (_Handler,), {"gateway": gateway, "control": control})
        self._http = ThreadingHTTPServer(("127.0.0.1", port), handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def port(self) -> int:
        return int(self._http.server_address[1])

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(5)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    gateway: Gateway
    control: Control

    def _serve(self) -> None:
        url = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        if length > MOST_BODY:
            self._write(problem(413, "body too large"))
            self.close_connection = True
            return
        asked = Asked(
            self.command,
            unquote(url.path),
            dict(parse_qsl(url.query, keep_blank_values=True)),
            {name.lower(): value for name, value in self.headers.items()},
            self.rfile.read(length),
        )
        if asked.path == "/_control":
            self._write(self.control.answer(asked))
        else:
            self._write(self.gateway.answer(asked))

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
