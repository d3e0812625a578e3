"""A provider's API on loopback, which answers what it is told to and notes what it was asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from tests.standins.loopback import Handler, serving_at


class Provider:
    """A scripted API: what to answer by (method, path), and what was asked."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], tuple[int, str, dict[str, str]]] = {}
        self.asked: list[tuple[str, str, Mapping[str, str], Any]] = []
        self.otherwise: tuple[int, str, dict[str, str]] = (404, '{"title": "Not Found"}', {})
        provider = self

        class Scripted(Handler):
            def do_GET(self) -> None:
                body = _read(self.read_body())
                provider.asked.append((self.command, self.path, dict(self.headers), body))
                key = (self.command, self.path)
                code, text, headers = provider.answers.get(key, provider.otherwise)
                self.answer(code, b"" if code == 204 else text.encode(), headers=headers)

            do_POST = do_PUT = do_DELETE = do_GET

        with ExitStack() as stack:
            self.url = f"http://127.0.0.1:{stack.enter_context(serving_at(Scripted))}"
            self.close = stack.pop_all().close

    def answer(self, method: str, path: str, code: int, text: str = "", **headers: str) -> None:
        self.answers[method, path] = (code, text, headers)

    def points_to(self, url: str, code: int) -> None:
        """Everything that no answer was given for is said to lie there."""
        self.otherwise = (code, "", {"Location": url})


def _read(content: bytes) -> Any:
    """JSON as what it says, nothing as None, and the rest as it came."""
    try:
        return json.loads(content) if content else None
    except ValueError:
        return content
