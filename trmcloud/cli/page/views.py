"""The views beside runs, as the page asks for them: spending, comparison, saved plans."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trmcloud.api import Home
from trmcloud.cli.page.compare import compare_json
from trmcloud.cli.page.plans import Launches, foreseen_json, plans_json
from trmcloud.cli.page.spend import spend_json
from trmcloud.cli.page.watch import Jobs

PATHS = ("/spend", "/compare", "/plans")
FILES = {
    "compare.js": "text/javascript",
    "plans.js": "text/javascript",
    "spend.js": "text/javascript",
    "views.css": "text/css",
}


class Views:
    """``look`` opens a home that asks no provider; ``act`` one that may ask them all. ``home`` is
    its folder, None for the user's own; ``folder`` is where commands are started."""

    def __init__(
        self,
        look: Callable[[], Home],
        act: Callable[[], Home],
        jobs: Jobs,
        home: Path | None,
        folder: Path,
    ) -> None:
        self._home, self._act = look(), act
        self._lock = threading.Lock()
        self._launches = Launches(jobs, home, folder)

    def spent(self, month: str, by: str) -> dict[str, Any]:
        with self._lock:
            context = self._home.context
            ledger, now = context.ledger.read(), context.wall()
        return spend_json(ledger, now, month=month, by=by)

    def compared(self, runs: str) -> dict[str, Any]:
        with self._lock:
            return compare_json(self._home.context, runs.split(","))

    def saved_plans(self) -> dict[str, Any]:
        with self._lock:
            return plans_json(self._home.context)

    def foreseen(self, plan_id: str) -> dict[str, Any]:
        return foreseen_json(self._act().context, plan_id)

    def launch(self, plan_id: str, wish: dict[str, str]) -> dict[str, Any]:
        return self._launches.start(self._act(), plan_id, wish)

    def launched(self, key: str) -> dict[str, Any]:
        with self._lock:
            return self._launches.state(self._home, key)
