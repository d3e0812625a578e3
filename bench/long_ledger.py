"""Ledgers of many runs that have ended, written at once: each record is one that a ledger writes,
with its hash, but nothing is judged and nothing folded on the way.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from tests.crash.ledger_writer import events_of
from trmcloud.adapters.ledger.postgres import PostgresLedger, load
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.core.control import events as ev
from trmcloud.core.control.ledger_records import event_to_json, genesis, link_hash
from trmcloud.core.money import Usd
from trmcloud.core.values import replace

_STAGES = 9
_PROJECTS, _PEOPLE = 20, 30
_DAYS = 730.0
_AT_ONCE = 50_000


def fill_file(path: Path, runs: int, now: float) -> int:
    """Make the ledger at ``path`` with so many closed runs of the two years before ``now``; return
    the number of its records."""
    ledger = SqliteLedger(path)
    ledger_id = ledger.ledger_id
    if not runs:
        return 0
    seq, chain = 0, genesis(ledger_id)
    with closing(sqlite3.connect(path, isolation_level=None)) as conn:
        conn.execute("PRAGMA synchronous = OFF")
        conn.execute("BEGIN")
        rows: list[tuple[object, ...]] = []
        for number in range(runs):
            at = now - _DAYS * 86_400.0 * (runs - number) / runs
            for n, (kind, body) in enumerate(_bodies(number), 1):
                seq += 1
                fields = (seq, f"r-{number:06x}", n, 1, at + n, kind, body)
                chain = link_hash(chain, *fields)
                rows.append((*fields, chain))
            if len(rows) >= _AT_ONCE or number == runs - 1:
                conn.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
                rows.clear()
        conn.execute("COMMIT")
    (path.parent / "ledger.head").write_text(f"{seq} {chain}\n")
    _copy(path)
    return seq


def _copy(path: Path) -> None:
    """The backup that the end of the last run makes."""
    folder = path.parent / "backups"
    folder.mkdir(exist_ok=True)
    shutil.copyfile(path, folder / "ledger-000001.db")


def fill_database(url: str, source: Path, home: Path) -> None:
    """Write the ledger in the file ``source`` into the database, as ``admin ledger move`` does."""
    ledger = PostgresLedger(url, home)
    ledger.database.write(lambda session: load(source, session))
    ledger.close()


def _bodies(number: int) -> Iterator[tuple[str, str]]:
    yield "RunPlanned", _planned(number)
    yield from _LATER


def _planned(number: int) -> str:
    key = number % _PROJECTS, number % _PEOPLE
    if key not in _PLANNED:
        assert isinstance(_OPENED, ev.RunPlanned)
        person = f"person-{key[1]}" if key[1] else ""
        made = replace(_OPENED, cap=Usd(2), project=f"project-{key[0]}", principal=person)
        _PLANNED[key] = json.dumps(event_to_json(made))
    return _PLANNED[key]


_OPENED, *_EVENTS = [event for stage in range(_STAGES) for event in events_of(stage)]
_LATER = [(type(event).__name__, json.dumps(event_to_json(event))) for event in _EVENTS]
_PLANNED: dict[tuple[int, int], str] = {}
