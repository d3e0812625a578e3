"""A hundred kills of the ledger's and the checkpoints' writers; the soak has thousands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.__main__ import ROOT, source_hash
from tests.crash.killing import can_trace
from tests.crash.ledger_writer import Violation, check, events_of, write
from tests.crash.user import scratch
from trmcloud.adapters.ledger.sqlite import SqliteLedger


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
    soak(state, 20)
    before = json.loads(state.read_text())
    said = soak(state, 100)
    after = json.loads(state.read_text())
    assert after["source"] == before["source"] == source_hash()
    assert len(after["seeds"]) == 2
    assert sum(after["kills"].values()) >= 100
    assert all(after["kills"][kind] >= count for kind, count in before["kills"].items())
    assert len(after["kills"]) == (5 if can_trace() else 3)
    assert "0 violations" in said


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
