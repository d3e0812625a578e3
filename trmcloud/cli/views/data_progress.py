"""How far data is that is made ready here: on stderr, one line that replaces itself on terminals,
one line a stage elsewhere."""

from __future__ import annotations

import sys

from trmcloud.cli.views.streams import draw
from trmcloud.core.plain_text import one_line


class DataProgress:
    """Told (stage, done, total), total 0 where that is not known."""

    def __init__(self) -> None:
        self._said: list[str] = []

    def __call__(self, stage: str, done: int, total: int) -> None:
        if not sys.stderr.isatty():
            if stage not in self._said and stage not in ("ready", "done"):
                self._said.append(stage)
                print(f"data: {stage}", file=sys.stderr)
            return
        if " " in stage and not total:  # a sentence of its own stays on the screen
            if stage not in self._said:
                self._said.append(stage)
                draw(f"\r\x1b[K  data: {one_line(stage)}\n")
            return
        share = f" {100 * done / total:3.0f} %" if total else ""
        draw(f"\r\x1b[K  data: {one_line(stage)}{share}")
        if stage == "done":
            draw("\r\x1b[K")
