"""Reservations a second in a PostgreSQL ledger, over bare transactions that take the same lock,
store rows of the same size and commit alike; both by one connection, in turns.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.row import Row
from tests.plans import plan_json
from tests.postgres import MISSING, PostgresServer, postgres_bin
from trmcloud.adapters.ledger.postgres import PostgresLedger
from trmcloud.adapters.ledger.records import Session
from trmcloud.core.control import events as ev
from trmcloud.core.control.ledger_records import event_to_json
from trmcloud.core.money import Usd
from trmcloud.ports.ledger import ControllerId

_ROUNDS, _AT_ONCE = 12, 50
_LEAST_RATIO = 0.5
_AT = 1_790_000_000.0


def run() -> list[Row]:
    if postgres_bin() is None:
        print(MISSING)
        return []
    server = PostgresServer(durable=True)
    folder = Path(tempfile.mkdtemp())
    try:
        return [_reservations(server.new_database(), folder)]
    finally:
        server.remove()
        shutil.rmtree(folder)


def _reservations(url: str, folder: Path) -> Row:
    ledger = PostgresLedger(url, folder)
    ledger.set_cap(ev.CapSet("account", "", Usd(1_000_000)), _AT)
    planned = ev.RunPlanned(plan_json(), Usd(10), "thesis")
    who = ControllerId("laptop", 101, "boot-1")
    bodies = [json.dumps(event_to_json(event)) for event in (planned, ev.Reserved(Usd(1)))]
    ledger.database.write(lambda session: _make_table(session))
    numbers = iter(range(10**9))

    def bare() -> None:
        def use(session: Session) -> None:
            for body in bodies:
                session.execute("INSERT INTO bare(body) VALUES (?)", (body,))

        ledger.database.write(use)

    def reserve() -> None:
        ledger.open_run(f"r{next(numbers)}", planned, Usd(1), who, _AT)

    rates: dict[str, list[float]] = {"bare": [], "reserve": []}
    for _ in range(_ROUNDS):
        rates["bare"].append(_rate(bare))
        rates["reserve"].append(_rate(reserve))
    pairs = zip(rates["reserve"], rates["bare"], strict=True)
    ratio = statistics.median(ours / theirs for ours, theirs in pairs)
    ours, theirs = (statistics.median(rates[name]) for name in ("reserve", "bare"))
    detail = f"{ours:,.0f} over {theirs:,.0f} a second, {_ROUNDS * _AT_ONCE} runs at the end"
    name = "reservations in PostgreSQL, over bare transactions"
    return Row(name, ratio, _LEAST_RATIO, "higher", "", detail)


def _make_table(session: Session) -> None:
    session.execute("CREATE TABLE bare(seq bigserial PRIMARY KEY, body text NOT NULL)")


def _rate(use: Callable[[], None]) -> float:
    begun = time.perf_counter()
    for _ in range(_AT_ONCE):
        use()
    return _AT_ONCE / (time.perf_counter() - begun)
