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
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                provider.asked.append((self.command, self.path, dict(self.headers), body))
                default = (404, '{"title": "Not Found"}', {})
                code, text, headers = provider.answers.get((self.command, self.path), default)
                self.send_response(code)
                for name, value in headers.items():
                    self.send_header(name, value)
                content = b"" if code == 204 else text.encode()
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_DELETE = answer

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def answer(self, method: str, path: str, code: int, text: str = "", **headers: str) -> None:
        self.answers[method, path] = (code, text, headers)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
