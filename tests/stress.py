"""Tests of real processes, again and again, beside processes that keep every core busy.

    python -m tests.stress --rounds 10 [TEST…]

Each round is one run of pytest by eight workers. The page counts the failures of each test; one
failure is a failure.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from tests.sim.soak import code_hash

TESTS = ("tests/e2e", "tests/crash", "tests/contract", "tests/unit/pod", "tests/model")
WORKERS = 8


def _burn() -> NoReturn:
    while True:
        pass


@contextlib.contextmanager
def load(cores: int) -> Iterator[None]:
    """One process per core that only computes."""
    burners = [multiprocessing.Process(target=_burn, daemon=True) for _ in range(cores)]
    for burner in burners:
        burner.start()
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()


def outcomes(report: str) -> tuple[Counter[str], int]:
    """(how often each test failed, how many tests ran) by a JUnit report."""
    failed: Counter[str] = Counter()
    ran = 0
    for case in ElementTree.fromstring(report).iter("testcase"):
        ran += case.find("skipped") is None
        if case.find("failure") is not None or case.find("error") is not None:
            failed[f"{case.get('classname')}::{case.get('name')}"] += 1
    return failed, ran


def page(
    failed: Mapping[str, int],
    ran: int,
    rounds: int,
    *,
    of: Sequence[str],
    date: str,
    wall_s: float,
) -> str:
    """The page that docs/soak keeps."""
    asked = [f"ROUNDS={rounds}", *([f'TESTS="{" ".join(of)}"'] if tuple(of) != TESTS else [])]
    rows = [
        f"| {count} | `{test}` |" for test, count in sorted(failed.items(), key=lambda x: -x[1])
    ]
    return "\n".join([
        "# Stress: tests of real processes under load",
        "",
        f"Each round runs the tests by {WORKERS} workers, beside one process per core that only",
        "computes. A test that fails in any round is unsteady.",
        "",
        f"- date: {date}",
        f"- command: `make stress {' '.join(asked)}`",
        f"- source: `{code_hash()[:16]}`",
        f"- tests of real processes in: {', '.join(f'`{each}`' for each in of)}",
        f"- rounds: **{rounds}**, {ran:,} tests in all",
        f"- {wall_s / 60:.0f} min on {os.cpu_count()} cores",
        f"- failures: **{sum(failed.values())}**, of {len(failed)} tests",
        *(["", "| failures | test |", "|---:|---|", *rows] if rows else []),
        "",
    ])  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="stress", description=__doc__)
    parser.add_argument("tests", nargs="*", default=TESTS)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--date", default="")
    given = parser.parse_args()
    failed: Counter[str] = Counter()
    ran, began = 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder, load(os.cpu_count() or 1):
        report = Path(folder) / "report.xml"
        words = ("-q", "-n", str(WORKERS), "-m", "processes", f"--junitxml={report}")
        for number in range(1, given.rounds + 1):
            report.unlink(missing_ok=True)
            done = subprocess.run([sys.executable, "-m", "pytest", *words, *given.tests])
            if not report.exists():
                print(f"round {number}: pytest ended with {done.returncode} and no report")
                return 2
            of_round, ran_in_round = outcomes(report.read_text(encoding="utf-8"))
            failed, ran = failed + of_round, ran + ran_in_round
            print(f"round {number}: {ran_in_round} tests, {sum(of_round.values())} failures")
            if given.page is not None:
                wall_s = time.monotonic() - began
                text = page(failed, ran, number, of=given.tests, date=given.date, wall_s=wall_s)
                given.page.write_text(text, encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
