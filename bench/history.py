"""``trmcloud status`` over long ledgers, over ``status`` with an empty one: in a file, and in
PostgreSQL where it is installed. Ask for it: to write and to read the longest one for the first
time takes minutes.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from bench.long_ledger import fill_database, fill_file
from bench.row import Row, paired_ratio, seconds_of
from tests.postgres import MISSING, PostgresServer, postgres_bin

_RUNS = (5_000, 100_000)
_MOST_RATIO = 1.5
_ROUNDS = 15


def run() -> list[Row]:
    folder = Path(tempfile.mkdtemp())
    server = PostgresServer(durable=True) if postgres_bin() is not None else None
    if server is None:
        print(MISSING)
    counts = [int(word) for word in os.environ.get("TRMCLOUD_BENCH_RUNS", "").split()] or _RUNS
    try:
        empty = folder / "empty"
        fill_file(empty / "ledger.db", 0, time.time())
        rows = []
        for count in counts:
            home = folder / f"file-{count}"
            fill_file(home / "ledger.db", count, time.time())
            rows.append(_row(f"{count:,} runs in a file", _in_file(home), _in_file(empty)))
            if server is not None:
                url, bare = server.new_database(), server.new_database()
                shared = folder / f"shared-{count}"
                shared.mkdir()
                fill_database(url, home / "ledger.db", shared)
                none = folder / f"none-{count}"
                rows.append(
                    _row(f"{count:,} runs in PostgreSQL", _shared(shared, url), _shared(none, bare))
                )
            shutil.rmtree(home)
        return rows
    finally:
        if server is not None:
            server.remove()
        shutil.rmtree(folder)


def _in_file(home: Path) -> tuple[str, ...]:
    return ("env", "-u", "TRMCLOUD_LEDGER", f"TRMCLOUD_HOME={home}")


def _shared(home: Path, url: str) -> tuple[str, ...]:
    return ("env", f"TRMCLOUD_HOME={home}", f"TRMCLOUD_LEDGER={url}")


def _row(name: str, long: tuple[str, ...], empty: tuple[str, ...]) -> Row:
    status = (sys.executable, "-m", "trmcloud", "status")
    with tempfile.TemporaryDirectory() as own:
        environment = {"HOME": own, "PYTHONPATH": os.getcwd()}
        first_s = seconds_of((*long, *status), environment, own)
        ratio, ours, baseline = paired_ratio(
            (*long, *status), (*empty, *status), environment=environment, rounds=_ROUNDS
        )
    detail = (
        f"{ours * 1e3:,.0f} over {baseline * 1e3:,.0f} ms; the first time {first_s:,.1f} s; load "
        f"{os.getloadavg()[0]:.0f}"
    )
    row = Row(f"status with {name}", ratio, _MOST_RATIO, "lower", "", detail)
    print(row, flush=True)
    return row
