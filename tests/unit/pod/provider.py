"""A provider's API on loopback, which answers what it is told to and notes what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Provider:
    """A scripted API: what to answer by (method, path), and what was asked."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], tuple[int, str, dict[str, str]]] = {}
        self.asked: list[tuple[str, str, Mapping[str, str], Any]] = []
        self.otherwise: tuple[int, str, dict[str, str]] = (404, '{"title": "Not Found"}', {})
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = _read(self.rfile.read(length))
                provider.asked.append((self.command, self.path, dict(self.headers), body))
                key = (self.command, self.path)
                code, text, headers = provider.answers.get(key, provider.otherwise)
                self.send_response(code)
                for name, value in headers.items():
                    self.send_header(name, value)
                content = b"" if code == 204 else text.encode()
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = do_DELETE = answer

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def answer(self, method: str, path: str, code: int, text: str = "", **headers: str) -> None:
        self.answers[method, path] = (code, text, headers)

    def points_to(self, url: str, code: int) -> None:
        """Everything that no answer was given for is said to lie there."""
        self.otherwise = (code, "", {"Location": url})

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _read(content: bytes) -> Any:
    """JSON as what it says, nothing as None, and the rest as it came."""
    try:
        return json.loads(content) if content else None
    except ValueError:
        return content
