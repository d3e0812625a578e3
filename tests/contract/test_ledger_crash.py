"""The ledger under real processes: raced for, killed at random instants, on a full disk."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

from trmcloud.adapters.ledger.sqlite import SqliteLedger

SCRIPT = Path(__file__).with_name("ledger_processes.py")


def run(what: str, folder: Path, rounds: int) -> dict[str, int]:
    seed = random.randrange(1 << 30)
    done = subprocess.run(
        [sys.executable, str(SCRIPT), what, str(folder), str(rounds), str(seed)],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, f"{what} with seed {seed}:\n{done.stderr}"
    counts: dict[str, int] = json.loads(done.stdout)
    return counts


def test_writers_killed_at_random_instants_lose_nothing_and_write_nothing_by_halves(
    tmp_path: Path,
) -> None:
    counts = run("kill", tmp_path, 105)
    assert counts["kills"] >= 200
    assert counts["acknowledged"] > 100, "most were killed before they wrote anything"
    records = SqliteLedger(tmp_path / "ledger.db").records()
    assert [record.seq for record in records] == list(range(1, len(records) + 1))


def test_of_two_processes_that_race_for_one_budget_one_wins(tmp_path: Path) -> None:
    counts = run("race", tmp_path, 60)
    assert counts["first_won"] + counts["second_won"] == 60


def test_processes_that_create_one_ledger_at_once_agree_on_it(tmp_path: Path) -> None:
    assert run("create", tmp_path, 40)["rounds"] == 40


def test_a_full_disk_is_an_error_in_one_line_and_keeps_what_was_acknowledged(
    tmp_path: Path,
) -> None:
    assert run("full", tmp_path, 15)["rounds"] == 15
