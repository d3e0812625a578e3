"""How far a transfer is: one line that replaces itself, on terminals alone."""

from __future__ import annotations

import sys
import time

from trmcloud.cli.views.streams import draw
from trmcloud.cli.views.text import duration
from trmcloud.core.plain_text import one_line


class Progress:
    """Megabytes on a terminal, with their speed and what is left; silence elsewhere."""

    def __init__(self, source: str = "") -> None:
        self._source = source
        self._began: float | None = None
        self._before = 0

    def __call__(self, done: int, total: int) -> None:
        if not sys.stderr.isatty():
            return
        now = time.monotonic()
        if self._began is None:
            self._began, self._before = now, done
        words = [f"{done / 1e6:,.1f} of {total / 1e6:,.1f} MB", self._source]
        took_s = now - self._began
        if took_s > 0.5 and done > self._before:
            rate = (done - self._before) / took_s
            words += [f"{rate / 1e6:,.1f} MB/s", f"{duration((total - done) / rate)} left"]
        end = "\r\x1b[K" if done == total else ""
        text = "\r\x1b[K  " + one_line(" · ".join(filter(None, words)))
        draw(text + end)
