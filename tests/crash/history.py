"""A judge of a PostgreSQL ledger's history: it reads the rows of ``events`` and nothing else.

It shares no code with the ledger: hashes, sums and orders are computed here anew, from the JSON
that was stored.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

WISHES = ("StopRequested", "SaveRequested", "Fetched")


class Row(NamedTuple):
    seq: int
    run_id: str
    n: int
    epoch: int
    at: float
    kind: str
    body: str
    chain: str


def read_rows(url: str) -> tuple[str, list[Row]]:
    """(the ledger's id, its rows in their order)"""
    import psycopg

    with psycopg.connect(url) as conn:
        meta = conn.execute("SELECT ledger_id FROM trmcloud.meta").fetchone()
        assert meta is not None
        rows = conn.execute(
            "SELECT seq, run_id, n, epoch, at, kind, body, chain FROM trmcloud.events ORDER BY seq"
        ).fetchall()
    return str(meta[0]), [Row(*row) for row in rows]


def violations(
    ledger_id: str,
    rows: Sequence[Row],
    life: Sequence[str],
    acknowledged: Mapping[tuple[str, str], int],
) -> list[str]:
    """Return the faults of a history of runs that each follow ``life``, a sequence of kinds.

    ``acknowledged`` counts, by (run, kind), what writers were told is written.
    """
    found = [*_chain(ledger_id, rows), *_orders(rows), *_lives(rows, life), *_caps(rows)]
    stored = Counter((row.run_id, row.kind) for row in rows)
    for key, count in acknowledged.items():
        if stored[key] < count:
            found.append(f"lost: {key[1]} of {key[0]} was acknowledged {count} times, and is "
                         f"stored {stored[key]} times")  # fmt: skip
    return found


def _chain(ledger_id: str, rows: Iterable[Row]) -> list[str]:
    before = hashlib.sha256(f"trmcloud ledger {ledger_id}".encode()).hexdigest()
    for number, row in enumerate(rows, 1):
        if row.seq != number:
            return [f"record {number} is missing"]
        head = json.dumps([before, row.seq, row.run_id, row.n, row.epoch, row.at, row.kind])
        own = hashlib.sha256(f"{head}\n{row.body}".encode()).hexdigest()
        if own != row.chain:
            return [f"record {number} does not have its hash"]
        before = own
    return []


def _orders(rows: Iterable[Row]) -> list[str]:
    found: list[str] = []
    numbers: dict[str, int] = defaultdict(int)
    epochs: dict[str, int] = defaultdict(int)
    for row in rows:
        numbers[row.run_id] += 1
        if row.n != numbers[row.run_id]:
            found.append(f"record {row.seq} is number {row.n} of {row.run_id}, not "
                         f"{numbers[row.run_id]}")  # fmt: skip
        if row.run_id and row.kind not in WISHES:
            if row.epoch < epochs[row.run_id]:
                found.append(f"epoch {row.epoch} of {row.run_id} wrote after a newer one")
            epochs[row.run_id] = max(row.epoch, epochs[row.run_id])
    return found


def _lives(rows: Iterable[Row], life: Sequence[str]) -> list[str]:
    """Each run's records are a beginning of ``life``: nothing doubled, left out or out of order."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        if row.run_id and row.kind not in WISHES:
            kinds[row.run_id].append(row.kind)
    return [
        f"the records of {run_id} are {', '.join(seen)}"
        for run_id, seen in kinds.items()
        if tuple(seen) != tuple(life[: len(seen)])
    ]


def _caps(rows: Iterable[Row]) -> list[str]:
    """After each record settled + reserved ≤ cap, at every level with a cap. A run counts in the
    month in which its money was reserved."""
    caps: dict[tuple[str, str], Decimal] = {}
    used: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
    levels: dict[str, list[tuple[str, str]]] = {}
    held: dict[str, Decimal] = defaultdict(Decimal)
    projects: dict[str, str] = {}
    for row in rows:
        body: dict[str, Any] = json.loads(row.body)
        if row.kind == "CapSet":
            caps[body["level"], body["key"]] = Decimal(body["cap"])
            continue
        if row.kind == "RunPlanned":
            projects[row.run_id] = body["project"]
            caps["run", row.run_id] = Decimal(body["cap"])
            continue
        if row.kind == "Reserved":
            month = dt.datetime.fromtimestamp(row.at, dt.timezone.utc).strftime("%Y-%m")
            levels[row.run_id] = [
                ("account", ""), ("month", month), ("project", projects[row.run_id]),
                ("run", row.run_id),
            ]  # fmt: skip
            change = Decimal(body["amount"])
            held[row.run_id] = change
        elif row.kind == "Settled":
            if row.run_id not in held:
                return [f"record {row.seq} settles what nothing was reserved for"]
            change = Decimal(body["amount"]) - held.pop(row.run_id)
        else:
            continue
        for level in levels[row.run_id]:
            used[level] += change
            cap = caps.get(level)
            if cap is not None and used[level] > cap and change > 0:
                return [f"record {row.seq}: {used[level]} of {cap} are used of {level}"]
    return []
