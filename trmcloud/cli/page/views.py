"""The views beside runs, as the page asks for them: spending and comparison."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from trmcloud.api import Home
from trmcloud.app.spending import month_spending
from trmcloud.cli.page.compare import compare_json
from trmcloud.cli.page.encoding import page_json

PATHS = ("/spend", "/compare")
FILES = {
    "compare.js": "text/javascript",
    "spend.js": "text/javascript",
    "views.css": "text/css",
}


class Views:
    """``look`` opens a home that asks no provider."""

    def __init__(self, look: Callable[[], Home]) -> None:
        self._home = look()
        self._lock = threading.Lock()

    def spent(self, month: str, by: str) -> dict[str, Any]:
        with self._lock:
            context = self._home.context
            ledger, now = context.ledger.read(), context.wall()
        spent: dict[str, Any] = page_json(month_spending(ledger, now, month=month, by=by))
        return spent

    def compared(self, runs: str) -> dict[str, Any]:
        with self._lock:
            return compare_json(self._home.context, runs.split(","))
