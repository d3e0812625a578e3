"""A user whose commands are killed, stopped, and short of room."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.e2e.user import SMALL, User
from tests.waiting import until
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.core.control.run_state import RunState
from trmcloud.core.money import ZERO, Usd
from trmcloud.pod.machine import processes

BUDGET = Usd("1")
#: Twenty steps, and then it has finished.
SHORT = (
    *("launch", "local", *SMALL, "--phase", "fast"),
    *("--steps", "20", "--budget", BUDGET.plain(), "-y"),
)


def scratch() -> Path | None:
    """Where files live in memory, for what is killed and never loses power; None: anywhere."""
    shared = Path("/dev/shm")
    return shared if os.access(shared, os.W_OK) else None


class CrashUser(User):
    """Besides commands, ``tests.crash.command`` with its own options before them."""

    def start_with(self, options: tuple[str, ...], *arguments: str) -> subprocess.Popen[str]:
        return replace(self, program=("-m", "tests.crash.command", *options)).start(*arguments)

    def runs_on_disk(self) -> bool:
        """Whether the ledger is there, and has a run: looking must not make one."""
        return (self.home / "ledger.db").exists() and bool(self.ledger().runs)

    def driver_pid(self) -> int:
        """The process that drives the only run; 0 for none."""
        driver = SqliteLedger(self.home / "ledger.db").driver(self.only_run().run_id)
        return driver.controller.pid if driver is not None and driver.controller else 0

    def drives_on(self, pid: int) -> None:
        """Wait until ``pid`` drives the only run for good.

        Before it does, it brings every run up to date, a step each: it drives the run then too,
        lets it go, and whoever comes just then may take it. A step beats once, so more than two
        beats (one is the taking over) of one epoch are another kind of drive.
        """
        beats: dict[int, set[float]] = {}

        def drives() -> bool:
            driver = SqliteLedger(self.home / "ledger.db").driver(self.only_run().run_id)
            if driver is None or driver.controller is None or driver.controller.pid != pid:
                return False
            beats.setdefault(driver.epoch, set()).add(driver.beat_at)
            return len(beats[driver.epoch]) > 2

        until(drives, what=f"{pid} drives the run")

    def settled(self) -> RunState:
        """The only run, once whatever lives of it has ended by itself and a command has looked."""
        until(lambda: not self.live_pods(), what="the pod ends by itself")
        time.sleep(1.1)  # how long a pod may take to appear after it was asked for
        self.run("status")
        run = self.only_run()
        self.check_money_and_pods(run)
        assert not run.live
        assert run.reserved == ZERO
        return run

    def check_money_and_pods(self, run: RunState) -> None:
        """Never over the budget, at most one pod for each generation, and none that nobody owns."""
        assert run.settled + run.reserved <= run.cap
        names = [pod.name for pod in self.pods()]
        assert len(names) == len(set(names))
        assert set(names) <= {generation.pod_name for generation in run.generations}
        if not run.live:
            for name in names:
                assert processes.of_pod(name) == [], "something of it still runs"
            billed = [g.billed for g in run.generations if g.not_made is None]
            assert None not in billed, "a pod whose bill nobody asked for"


def stop_at_rest(process: subprocess.Popen[Any], ledger: Path) -> None:
    """Stop a command while it neither writes nor reads the ledger: nobody else could write."""

    def is_at_rest() -> bool:
        stop_process(process)
        with contextlib.closing(sqlite3.connect(ledger, timeout=0.1)) as other:
            try:
                other.execute("BEGIN EXCLUSIVE")
                other.rollback()
            except sqlite3.OperationalError:
                process.send_signal(signal.SIGCONT)
                return False
            return True

    until(is_at_rest, within_s=30.0, what="it holds the ledger whenever it is looked at")


def stop_process(process: subprocess.Popen[Any]) -> None:
    """SIGSTOP, and wait until it has stopped."""
    process.send_signal(signal.SIGSTOP)
    stat = Path(f"/proc/{process.pid}/stat")
    until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", what="it stops")
