"""Twenty kills of the ledger's and the checkpoints' writers; the soak has thousands."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.crash.__main__ import ROOT, source_hash
from tests.crash.history import Row, read_rows, violations
from tests.crash.killing import can_trace
from tests.crash.ledger_writer import WHO, AtRandom, InPostgres, Violation, check, events_of, write
from tests.crash.postgres_torture import KINDS, LIFE, Torture
from tests.crash.user import scratch
from tests.plans import plan_json
from tests.postgres import PostgresServer, require_postgres
from trmcloud.adapters.ledger.postgres import PostgresLedger
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.core.control import events as ev
from trmcloud.core.control.ledger_records import genesis, link_hash
from trmcloud.core.money import Usd


def soak(state: Path, kills: int) -> str:
    folder = ("--folder", str(scratch())) if scratch() else ()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.crash", "--kills", str(kills)),
            *("--state", str(state), *folder),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_killed_writers_lose_nothing_and_leave_nothing_by_halves(tmp_path: Path) -> None:
    """And a soak that was interrupted goes on where it was."""
    state = tmp_path / "state.json"
    soak(state, 10)
    before = json.loads(state.read_text())
    said = soak(state, 20)
    after = json.loads(state.read_text())
    assert after["source"] == before["source"] == source_hash()
    assert len(after["seeds"]) == 2
    assert sum(after["kills"].values()) >= 20
    assert all(after["kills"][kind] >= count for kind, count in before["kills"].items())
    assert len(after["kills"]) == (5 if can_trace() else 3)
    assert "0 violations" in said


def test_killed_writers_of_a_database_lose_nothing(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    rng = random.Random(7)
    writers = AtRandom(tmp_path, rng, InPostgres(postgres_server))
    assert sum(writers.round() for _ in range(6)) >= 6


def live(path: Path, steps: int) -> None:
    for number in write(SqliteLedger(path), "r0", 0, lambda: None):
        if number + 1 == steps:
            return


def test_the_check_notices_what_is_missing_and_what_is_too_much(tmp_path: Path) -> None:
    """Else a soak without violations would prove nothing."""
    path = tmp_path / "ledger.db"
    live(path, 5)
    assert check(path, "r0", 0, 5) == 5
    assert check(path, "r0", 0, 4) == 5, "one more than was acknowledged may be there"
    assert check(path, "r0", 3, 3) == 5
    for before, acknowledged in ((0, 6), (0, 3), (2, 5), (2, 2)):
        with pytest.raises(Violation, match="acknowledged"):
            check(path, "r0", before, acknowledged)


def test_the_check_notices_half_a_step(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    live(path, 1)
    ledger = SqliteLedger(path)
    ledger.append("r0", 1, events_of(1)[:1], 1.0)
    with pytest.raises(Violation, match="step 1 is not what was written"):
        check(path, "r0", 0, 2)


# -- the judge of a history in a database ---------------------------------------------------------


def a_history(url: str, home: Path) -> tuple[str, list[Row]]:
    ledger = PostgresLedger(url, home)
    ledger.set_cap(ev.CapSet("account", "", Usd(3)), 1.0)
    planned = ev.RunPlanned(plan_json(), Usd(2), "p")
    epoch = ledger.open_run("r1", planned, Usd(2), WHO, 1.0)
    for events in LIFE:
        ledger.append("r1", epoch, events, 2.0)
    ledger.open_run("r2", planned, Usd(2), WHO, 3.0)
    return read_rows(url)


def chained(ledger_id: str, rows: Sequence[Row]) -> list[Row]:
    """The rows, numbered anew and with their right hashes."""
    before, made, counts = genesis(ledger_id), list[Row](), Counter[str]()
    for seq, row in enumerate(rows, 1):
        counts[row.run_id] += 1
        row = row._replace(seq=seq, n=counts[row.run_id])
        before = link_hash(before, *row[:7])
        made.append(row._replace(chain=before))
    return made


def test_the_judge_notices_each_kind_of_violation(postgres_url: str, tmp_path: Path) -> None:
    ledger_id, rows = a_history(postgres_url, tmp_path)
    told = {("r1", "Settled"): 1}
    assert violations(ledger_id, rows, KINDS, told) == []
    assert chained(ledger_id, rows) == rows

    def judged(changed: Sequence[Row]) -> str:
        return "; ".join(violations(ledger_id, chained(ledger_id, changed), KINDS, told))

    assert "lost: Settled of r1" in judged([r for r in rows if r.kind != "Settled"])
    assert "the records of r1 are" in judged([*rows[:4], rows[3], *rows[4:]])
    assert "wrote after a newer one" in judged(
        [rows[0], rows[1], rows[2]._replace(epoch=9), *rows[3:]]
    )
    late = [*rows[:3], *rows[-2:], *rows[3:-2]]
    assert "are used of ('account', '')" in judged(late)
    assert "record 3 is missing" in violations(ledger_id, [*rows[:2], *rows[3:]], KINDS, told)[0]
    other = rows[4]._replace(body=rows[4].body.replace(": ", ":  ", 1))
    changed = [*rows[:4], other, *rows[5:]]
    assert "does not have its hash" in violations(ledger_id, changed, KINDS, told)[0]


def test_a_short_torture_of_a_database_ends_without_a_violation() -> None:
    require_postgres()
    torture = Torture(runs=60, seconds=8.0, seed=1, clients=4, controllers=2)
    assert torture.play() == []
    assert torture.did["runs"] > 0
    assert torture.did["acknowledged"] > 0
