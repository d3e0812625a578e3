"""Two commands that reopen a run at once: the later one is told so, not that the money is spent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trmcloud.app import launching
from trmcloud.core.control.budget import Line
from trmcloud.core.errors import ConflictError
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.outcome import Outcome


class OvertakenLedger:
    """A closed run, which another command reopens right after it was first looked at, with all
    that was left of its budget reserved."""

    def __init__(self) -> None:
        self.reads = 0

    def read(self) -> Any:
        self.reads += 1
        reserved = ZERO if self.reads == 1 else Usd(3)
        run = SimpleNamespace(
            run_id="r-1", live=self.reads > 1, outcome=Outcome.STOPPED, cap=Usd(4), generation=None,
            spec=SimpleNamespace(recipe="trm"), created_at=0.0,
        )  # fmt: skip
        return SimpleNamespace(
            runs={"r-1": run}, line=lambda level, key: Line(level, key, Usd(4), Usd(1), reserved)
        )

    def driver(self, run_id: str) -> None:
        return None


def test_a_run_that_is_reopened_meanwhile_is_not_called_spent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launching, "reconcile", lambda context: None)
    monkeypatch.setattr(launching, "_rate_of", lambda run: Usd(1))
    monkeypatch.setattr(launching, "is_driven", lambda context, driver: True)
    context: Any = SimpleNamespace(ledger=OvertakenLedger(), who=None, wall=lambda: 0.0)
    with pytest.raises(ConflictError, match="is running already"):
        launching.resume(context, "r-1", cap=None)
