"""A provider that answers what a diagnostic bundle recorded: ``trmcloud doctor --bundle``.

Requests are told apart by method, path and parameters. Each gets the recorded answers in their
order, the last one again and again. A request that was never recorded is answered with 404 and kept
in ``unknown``.
"""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.standins.loopback import Handler, serving_at

Key = tuple[str, str, tuple[tuple[str, str], ...]]


class Replay:
    """``url`` is the provider's address; ``unknown`` what was asked and not recorded."""

    def __init__(self, exchanges: Sequence[Mapping[str, Any]]) -> None:
        self._answers: dict[Key, deque[Mapping[str, Any]]] = defaultdict(deque)
        for each in exchanges:
            if each["status"] and "answer" in each:
                self._answers[_key(each["method"], each["url"])].append(each)
        self.unknown: list[str] = []
        self.url = ""

    def answer(self, method: str, path: str) -> tuple[int, bytes, Mapping[str, str]]:
        found = self._answers.get(_key(method, path))
        if not found:
            self.unknown.append(f"{method} {path}")
            return 404, b'{"title": "not recorded", "status": 404}', {}
        told = found.popleft() if len(found) > 1 else found[0]
        content = told["answer"]
        body = content if isinstance(content, str) else json.dumps(content)
        stated = {
            name.title(): text
            for name, text in told.get("headers", {}).items()
            if name in ("retry-after", "ratelimit", "ratelimit-policy", "link")
        }
        return int(told["status"]), body.encode(), stated


def _key(method: str, path: str) -> Key:
    parts = urlsplit(path)
    return method, parts.path, tuple(sorted(parse_qsl(parts.query, keep_blank_values=True)))


@contextlib.contextmanager
def replaying(exchanges: Sequence[Mapping[str, Any]]) -> Iterator[Replay]:
    replay = Replay(exchanges)

    class Answering(Handler):
        def do_GET(self) -> None:
            self.read_body()
            status, body, headers = replay.answer(self.command, self.path)
            self.answer(status, body, "application/json", headers)

        do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    with serving_at(Answering) as port:
        replay.url = f"http://127.0.0.1:{port}"
        yield replay
