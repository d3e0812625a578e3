"""A ledger in a file, and what is done to it by hand."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from tests.plans import plan_json
from tests.present import present
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.core.control import events as ev
from trmcloud.core.control.events import ActionKey
from trmcloud.core.money import Usd
from trmcloud.ports.ledger import ControllerId

WHO = ControllerId("laptop", 101, "boot-1")
AT = 1_790_000_000.0


def ledger_at(path: Path, busy_timeout_s: float = 5.0) -> SqliteLedger:
    return SqliteLedger(path, busy_timeout_s=busy_timeout_s)


def open_run(path: Path, run_id: str = "r1") -> int:
    planned = ev.RunPlanned({**plan_json(), "text": "é" * 300}, Usd(10), "thesis")
    return ledger_at(path).open_run(run_id, planned, Usd(1), WHO, AT)


def append(path: Path, *names: str) -> None:
    ledger = ledger_at(path)
    driver = present(ledger.driver("r1"))
    for name in names:
        ledger.append("r1", driver.epoch, [begun(name)], AT + 1)


def begun(name: str) -> ev.ActionStarted:
    """An action that ``begun_in`` finds again by its name."""
    return ev.ActionStarted(str(ActionKey("r1", 1, "pull", 1, name)), "pull")


def begun_in(ledger: SqliteLedger) -> set[str]:
    return {key.item for key in ledger.read().runs["r1"].actions}


def edit(path: Path, *statements: str) -> None:
    with sqlite3.connect(path) as conn:
        for statement in statements:
            conn.execute(statement)
    conn.close()


def head_of(path: Path) -> Path:
    return path.with_name("ledger.head")


def edit_database(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """Likewise, in the tables of a ledger in PostgreSQL; the rows of the last statement."""
    import psycopg

    with psycopg.connect(url) as conn:
        cursor = conn.execute("SET search_path = trmcloud")
        for statement in statements:
            cursor = conn.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []
