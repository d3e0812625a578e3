"""The ledger's short timeouts for ending a pod, and which modules may resolve a run's name."""

from __future__ import annotations

import ast
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.contract.ledger_file import AT, ledger_at, open_run
from trmcloud.adapters.ledger.hurried import HurriedLedger
from trmcloud.core.control import events as ev
from trmcloud.core.errors import LedgerError, LedgerLocked, NotFoundError, StaleEpoch
from trmcloud.core.money import Usd

ROOT = Path(__file__).resolve().parents[2]


class Slow:
    """A ledger whose reads answer, and whose writes wait for ``free``."""

    ledger_id = "abcd1234"

    def __init__(self) -> None:
        self.free, self.asked, self.written = threading.Event(), 0, threading.Event()

    def read(self) -> str:
        return "state"

    def append(self, *_: Any) -> None:
        raise StaleEpoch("another one drives it")

    def records(self, run_id: str) -> None:
        raise NotFoundError("none")

    def request(self, *_: Any) -> None:
        self.asked += 1
        self.free.wait(30)
        self.written.set()


def test_it_is_waited_for_once_and_may_be_read_still() -> None:
    slow = Slow()
    ledger: Any = HurriedLedger(slow, within_s=0.2)  # type: ignore[arg-type]
    began = time.monotonic()
    for _ in range(50):
        with pytest.raises(LedgerLocked, match=r"did not answer within 0\.2 s"):
            ledger.request("r-1", None, 0.0)
        assert (ledger.read(), ledger.ledger_id) == ("state", "abcd1234")
    assert time.monotonic() - began < 5
    assert slow.asked == 1
    slow.free.set()
    assert slow.written.wait(30), "what was late is written after all"


def test_errors_that_are_about_one_run_are_no_trouble_of_the_ledger() -> None:
    slow = Slow()
    slow.free.set()
    ledger: Any = HurriedLedger(slow, within_s=5)  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(StaleEpoch):
            ledger.append("r-1", 1, (), 0.0)
        with pytest.raises(NotFoundError):
            ledger.records("r-1")
    ledger.request("r-1", None, 0.0)
    assert slow.asked == 1


def test_it_reads_and_writes_what_the_ledger_does(path: Path) -> None:
    open_run(path)
    ledger: Any = HurriedLedger(ledger_at(path), within_s=30)
    assert set(ledger.read().runs) == {"r1"}
    assert ledger.ledger_id == ledger_at(path).ledger_id
    ledger.set_cap(ev.CapSet("account", "", Usd(1)), AT)
    assert ledger_at(path).last_seq() == ledger.last_seq()


def test_one_that_cannot_be_read_is_asked_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    ledger: Any = HurriedLedger(ledger_at(tmp_path / "file" / "ledger.db"), within_s=30)
    for use in (ledger.read, lambda: ledger.request("r-1", None, 0.0)):
        with pytest.raises(LedgerError, match="cannot be used"):
            use()


AT_THE_DOORS = ("trmcloud/cli/", "trmcloud/sim/", "trmcloud/api.py")
OPTIONS_WITH_NAMES = {
    "trmcloud/operations/context.py",  # where it is found
    "trmcloud/operations/money/grants.py",  # and judged
    "trmcloud/operations/launch/launch.py", "trmcloud/operations/plans/preparing.py",  # --from
    # A file, a folder or a run, to be read.
    "trmcloud/operations/money/receipts.py", "trmcloud/operations/runs/scoring.py",
}  # fmt: skip


def test_a_name_becomes_a_run_at_the_doors_alone() -> None:
    """Operations on a run take its id, because a name may resolve to a different run."""
    found = set()
    for path in (ROOT / "trmcloud").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("find_run"):
                found.add(path.relative_to(ROOT).as_posix())
    inside = {name for name in found if not name.startswith(AT_THE_DOORS)}
    assert inside <= OPTIONS_WITH_NAMES, inside
