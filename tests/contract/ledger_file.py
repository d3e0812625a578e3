"""A ledger in a file, and what is done to it by hand."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from trmcloud.adapters.ledger_sqlite import SqliteLedger
from trmcloud.core import events as ev
from trmcloud.core.money import Usd
from trmcloud.ports.ledger import ControllerId

WHO = ControllerId("laptop", 101, "boot-1")
AT = 1_790_000_000.0


def ledger_at(path: Path, busy_timeout_s: float = 5.0) -> SqliteLedger:
    return SqliteLedger(path, busy_timeout_s=busy_timeout_s)


def open_run(path: Path, run_id: str = "r1") -> int:
    planned = ev.RunPlanned({"id": "p1", "text": "é" * 300}, Usd(10), "thesis")
    return ledger_at(path).open_run(run_id, planned, Usd(1), WHO, AT)


def append(path: Path, *names: str) -> None:
    ledger = ledger_at(path)
    driver = ledger.driver("r1")
    assert driver is not None
    for name in names:
        ledger.append("r1", driver.epoch, [ev.ActionStarted(name, "create")], AT + 1)


def edit(path: Path, *statements: str) -> None:
    with sqlite3.connect(path) as conn:
        for statement in statements:
            conn.execute(statement)
    conn.close()


def head_of(path: Path) -> Path:
    return path.with_name("ledger.head")
