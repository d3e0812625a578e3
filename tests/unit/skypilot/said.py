"""A ``sky`` whose words are written down beforehand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from trmcloud.core.text import strip_control
from trmcloud.providers.skypilot.command import Sky


class SaidSky(Sky):
    """Ends with ``code``, prints ``out`` and complains of ``said``; ``by_words`` comes first: what
    it prints and complains of where these words are among those that it is asked."""

    def __init__(self, out: Any = "", said: str = "", code: int = 0) -> None:
        super().__init__("sky", {"PATH": "/usr/bin:/bin"}, None)
        self.out, self.said, self.code = out, said, code
        self.by_words: dict[tuple[str, ...], tuple[int, Any, str]] = {}
        self.asked: list[tuple[str, ...]] = []
        self.waited_s: list[float] = []

    def _done(self, words: Sequence[str], timeout_s: float) -> tuple[int, str, str]:
        self.asked.append(tuple(words))
        self.waited_s.append(timeout_s)
        code, out, said = self.code, self.out, self.said
        for some, answer in self.by_words.items():
            if set(some) <= set(words):
                code, out, said = answer
        text = out if isinstance(out, str) else json.dumps(out)
        return code, strip_control(text), strip_control(said)
