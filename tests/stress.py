"""Tests of real processes, again and again, beside processes that keep every core busy.

    python -m tests.stress --state build/stress.json --rounds 10 [TEST…]

Each round runs every file once, some at a time by eight workers. The page counts the failures of
each test; one failure is a failure. One that was interrupted goes on from its state, on the same
code.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tests.drawn import tenth
from tests.kept_state import read_state, write_state
from tests.sim.soak import code_hash

TESTS = ("tests/e2e", "tests/crash", "tests/contract", "tests/unit/pod", "tests/model")
WORKERS = 8
AT_ONCE = 12
"""Files of one run of pytest: enough for the workers, and minutes."""


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


def page(state: Mapping[str, Any], *, of: Sequence[str], date: str) -> str:
    """The page that docs/soak keeps."""
    rounds, failed = state["rounds"], state["failed"]
    asked = [f"ROUNDS={rounds}", *([f'TESTS="{" ".join(of)}"'] if tuple(of) != TESTS else [])]
    rows = [f"| {count} | `{test}` |" for test, count in Counter(failed).most_common()]
    return "\n".join([
        "# Stress: tests of real processes under load",
        "",
        f"Each round runs the tests by {WORKERS} workers, beside one process per core that only",
        "computes. A test that fails in any round is unsteady.",
        "",
        f"- date: {date}",
        f"- command: `make stress {' '.join(asked)}`",
        f"- source: `{state['code'][:16]}`",
        f"- tests of real processes in: {', '.join(f'`{each}`' for each in of)}",
        f"- rounds: **{rounds}**, {state['ran']:,} tests in all",
        f"- {state['wall_s'] / 60:.0f} min on {os.cpu_count()} cores",
        f"- failures: **{sum(failed.values())}**, of {len(failed)} tests",
        *(["", "| failures | test |", "|---:|---|", *rows] if rows else []),
        "",
    ])  # fmt: skip


def batches(tests: Sequence[str], number: int) -> list[list[str]]:
    """Return a round's files by ``AT_ONCE``, mixed: each round they have others beside them."""
    files = sorted(
        str(path)
        for each in map(Path, tests)
        for path in ([each] if each.is_file() else each.rglob("test_*.py"))
    )
    random.Random(number).shuffle(files)
    return [files[at : at + AT_ONCE] for at in range(0, len(files), AT_ONCE)]


def play(batch: Sequence[str], folder: Path) -> tuple[Counter[str], int]:
    """Run one batch and return its ``outcomes``."""
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    words = ("-q", "-n", str(WORKERS), "-m", "processes", f"--junitxml={report}")
    done = subprocess.run([sys.executable, "-m", "pytest", *words, *batch])
    if not report.exists():
        raise SystemExit(f"pytest ended with {done.returncode} and no report")
    return outcomes(report.read_text(encoding="utf-8"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="stress", description=__doc__)
    parser.add_argument("tests", nargs="*", default=TESTS)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--tenth", action="store_true", help="a drawn tenth of the batches")
    parser.add_argument("--state", type=Path, required=True, help="JSON: what was done so far")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--date", default="")
    given = parser.parse_args()
    asked = {"code": code_hash(), "tests": list(given.tests)}
    state = read_state(given.state, asked, done=[], failed={}, ran=0, wall_s=0.0)
    state["rounds"] = given.rounds
    every = [
        (f"{number}.{at}", batch)
        for number in range(1, given.rounds + 1)
        for at, batch in enumerate(batches(given.tests, number))
    ]
    chosen = tenth(every) if given.tenth else every
    with tempfile.TemporaryDirectory() as folder, load(os.cpu_count() or 1):
        for name, batch in chosen:
            if name in state["done"]:
                continue
            began = time.monotonic()
            failed, ran = play(batch, Path(folder))
            print(f"batch {name}: {ran} tests, {sum(failed.values())} failures", flush=True)
            state["done"].append(name)
            state["failed"] = dict(Counter(state["failed"]) + failed)
            state["ran"] += ran
            state["wall_s"] += time.monotonic() - began
            write_state(given.state, state)
            if given.page is not None:
                given.page.write_text(page(state, of=given.tests, date=given.date), "utf-8")
    print(f"{len(chosen)} batches, {state['ran']} tests, {sum(state['failed'].values())} failures")
    return 1 if state["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
