"""Clients and controllers of one ledger in PostgreSQL, as real processes, under ``kill -9``, cut
connections and restarts of the server; ``history`` judges what they leave.

    python -m tests.crash.postgres_torture --runs 10000 --seconds 540
    python -m tests.crash.postgres_torture --folder /var/tmp/torture

With a folder it is played in parts: the next command continues the same ledger, and each part is
judged together with those before it.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from tests.crash.history import read_rows, violations
from tests.plans import plan_json
from tests.postgres import PostgresServer, Proxy
from trmcloud.adapters.ledger.postgres import PostgresLedger
from trmcloud.core.control import events as ev
from trmcloud.core.control.run_book import present_runs
from trmcloud.core.control.run_state import IllegalTransition
from trmcloud.core.errors import BudgetRefused, LedgerError, StaleEpoch
from trmcloud.core.money import Usd
from trmcloud.ports.ledger import ControllerId

AT = 1_790_000_000.0
STALE_S = 4.0
CAPS = {("account", ""): 300, ("project", "p0"): 60, ("project", "p1"): 80}
_ACTS = {"kill": 2.0, "terminate": 9.0, "drop": 13.0, "cut": 3.0, "restart": 60.0}
"""Each fault, and the mean seconds between two of its kind."""
_STATE = "state.json"
RESERVED, SETTLED = Usd(2), Usd("0.01")
LIFE: tuple[tuple[ev.RunEvent, ...], ...] = (
    (
        ev.PodIntended(1, "pod-1", "local", "c", Usd(1), AT, AT),
        ev.ActionStarted("r/g1/create/1", "create"),
        ev.ActionFinished("r/g1/create/1", "create"),
        ev.PodUp(1, "id-1", Usd(1)),
        ev.AgentUp(1),
    ),
    (
        ev.ResultKnown("finished"),
        ev.PodGone(1, AT),
        ev.Settled(1, SETTLED, SETTLED),
        ev.Closed("finished"),
    ),
)
KINDS = (
    *("RunPlanned", "Reserved"),
    *(type(event).__name__ for step in LIFE for event in step),
)


class Log:
    """A file of one process's acknowledged records, a line each, which outlives the process."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def acknowledged(self, run_id: str, *kinds: str) -> None:
        os.write(self._handle, "".join(f"{run_id} {kind}\n" for kind in kinds).encode())

    def refused(self) -> None:
        os.write(self._handle, b"- refused\n")


class Torture:
    def __init__(
        self,
        runs: int,
        seconds: float,
        seed: int,
        clients: int,
        controllers: int,
        folder: Path | None = None,
    ) -> None:
        self._is_kept = folder is not None
        self._folder = folder or Path(tempfile.mkdtemp(prefix="trmc-torture-"))
        self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        before, has_server = self._before(), (self._folder / "server" / "data").exists()
        self._rng = random.Random(f"{seed}/{before.get('parts', 0)}")
        self._runs, self._seconds = runs, seconds
        self._clients, self._controllers = clients, controllers
        self._server = PostgresServer(
            durable=True, folder=self._folder / "server" if folder is not None else None
        )
        self._proxy = Proxy(self._server)
        database = self._server.url("db1") if has_server else self._server.new_database()
        (self._folder / "closing").unlink(missing_ok=True)
        self._direct = database
        self._url = self._proxy.url(database.partition("@/")[2].partition("?")[0])
        self._known = PostgresLedger(database, self._folder / "home")
        self._children: dict[int, str] = {}
        # By their files, since a part may have been killed.
        logs = (path.name.partition("-")[2] for path in self._folder.glob("log-*"))
        self._number = max(map(int, logs), default=0)
        self.did: Counter[str] = Counter(
            {name: before.get(name, 0) for name in (*_ACTS, "cuts", "seconds", "parts")}
        )

    def _before(self) -> dict[str, int]:
        """Results of the earlier parts; empty for the first."""
        try:
            told: dict[str, int] = json.loads((self._folder / _STATE).read_text(encoding="ascii"))
        except FileNotFoundError:
            return {}
        return told

    def play(self) -> list[str]:
        """Play it, and return the violations."""
        try:
            return self._play()
        finally:
            for pid in self._children:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for pid in self._children:
                with suppress(ChildProcessError):
                    os.waitpid(pid, 0)
            self._proxy.close()
            if self._is_kept:
                self._server.stop("fast")
            else:
                self._server.remove()
                shutil.rmtree(self._folder, ignore_errors=True)

    def _play(self) -> list[str]:
        for (level, key), cap in CAPS.items():
            self._known.set_cap(ev.CapSet(level, key, Usd(cap)), AT)
        for number in range(self._clients):
            self._start(f"client {number}")
        for number in range(self._controllers):
            self._start(f"controller {number}")
        begun = time.monotonic()
        due = {act: begun + every for act, every in _ACTS.items()}
        runs = 0
        while (left := begun + self._seconds - time.monotonic()) > 0 and runs < self._runs:
            act = min(due, key=lambda name: due[name])
            time.sleep(min(left, max(0.0, due[act] - time.monotonic())))
            with suppress(Exception):  # the server may be down: that is what is played
                self._do(act)
                self.did[act] += 1
            due[act] = time.monotonic() + _ACTS[act] * self._rng.uniform(0.5, 1.5)
            with suppress(LedgerError):
                runs = len(self._known.read().runs)
        (self._folder / "closing").touch()  # clients ask for nothing more
        self._wait_for_the_end()
        self.did["seconds"] += int(time.monotonic() - begun)
        self.did["parts"] += 1
        return self._judge()

    def _do(self, act: str) -> None:
        if act == "kill":
            pid = self._rng.choice(list(self._children))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self._start(self._children.pop(pid))
        elif act == "terminate":
            self._server.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'trmcloud' AND random() < 0.5"
            )
        elif act == "drop":
            self._proxy.drop_all()
        elif act == "cut":
            self._proxy.cut_at_commit = self._rng.choice(["before", "after"])
        elif act == "restart":
            self._server.restart()

    def _wait_for_the_end(self) -> None:
        """Until every run is closed, or two minutes are over: what is open then is open."""
        until = time.monotonic() + 120.0
        while time.monotonic() < until:
            with suppress(LedgerError):
                if not any(run.live for run in present_runs(self._known.read().runs)):
                    return
            time.sleep(1.0)

    def _judge(self) -> list[str]:
        acknowledged: Counter[tuple[str, str]] = Counter()
        for path in self._folder.glob("log-*"):
            for line in path.read_text(encoding="ascii").splitlines():
                run_id, _, kind = line.partition(" ")
                if run_id == "-":
                    self.did[kind] += 1
                else:
                    acknowledged[run_id, kind] += 1
        ledger_id, rows = read_rows(self._direct)
        self.did["records"] = len(rows)
        self.did["acknowledged"] = sum(acknowledged.values())
        self.did["runs"] = sum(row.kind == "RunPlanned" for row in rows)
        self.did["closed"] = sum(row.kind == "Closed" for row in rows)
        self.did["taken over"] = sum(row.epoch > 2 for row in rows if row.kind == "Closed")
        self.did["cuts"] += self._proxy.cuts
        (self._folder / _STATE).write_text(json.dumps(self.did), encoding="ascii")
        return violations(ledger_id, rows, KINDS, acknowledged)

    def _start(self, name: str) -> None:
        """Fork a process; it inherits what the parent knows of the ledger, as far as that goes."""
        self._number += 1
        number = self._number
        gc.collect()
        gc.freeze()
        pid = os.fork()
        if pid:
            self._children[pid] = name
            return
        code = 1
        try:
            rng = random.Random(number)
            ledger = PostgresLedger(
                self._url if rng.random() < 0.3 else self._direct,
                self._folder / "homes" / name.replace(" ", "-"),
                wall=lambda: AT + time.monotonic(),
                patience_s=60.0,
            )
            ledger.know(self._known)
            log = Log(self._folder / f"log-{number}")
            who = ControllerId(name, os.getpid(), str(number))
            skew_s = rng.uniform(-600, 600)
            worker = Worker(ledger, log, rng, who, skew_s, self._folder / "closing")
            (worker.reserve if name.startswith("client") else worker.control)()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)


@dataclass
class Worker:
    """One process of the torture; the clocks of its machines are ``skew_s`` apart."""

    ledger: PostgresLedger
    log: Log
    rng: random.Random
    who: ControllerId
    skew_s: float
    closing: Path

    def reserve(self) -> None:
        """Reserve money for one run after another, and leave each to the controllers."""
        for number in count(1):
            if self.closing.exists():
                break
            run_id = f"r-{self.who.pid_started}-{number}"
            planned = ev.RunPlanned(plan_json(), Usd(2), f"p{self.rng.randrange(4)}")
            try:
                epoch = self.ledger.open_run(run_id, planned, RESERVED, self.who, self.now())
                self.log.acknowledged(run_id, "RunPlanned", "Reserved")
                self.ledger.release(run_id, epoch)
            except BudgetRefused:
                self.log.refused()
                time.sleep(self.rng.uniform(3.0, 8.0))
            except LedgerError:
                time.sleep(0.2)
        while True:
            time.sleep(1.0)

    def control(self) -> None:
        """Drive runs that have no driver, or whose driver's lease is over, to their end."""
        live: list[str] = []
        while True:
            try:
                live = [run.run_id for run in present_runs(self.ledger.read().runs) if run.live]
                self.rng.shuffle(live)
                for run_id in live[:20]:
                    self._drive(run_id)
            except (LedgerError, IllegalTransition):
                time.sleep(0.1)
            if not live:
                time.sleep(0.2)

    def _drive(self, run_id: str) -> None:
        driver = self.ledger.driver(run_id)
        if driver is None:
            return
        age_s = AT + time.monotonic() - driver.beat_at
        if driver.controller is not None and age_s < STALE_S:
            return
        epoch = self.ledger.take_over(run_id, self.who, self.now())
        done, steps = len(self.ledger.records(run_id)) - 2, 0
        for events in LIFE:
            steps += len(events)
            if steps <= done:
                continue
            try:
                self.ledger.append(run_id, epoch, events, self.now())
            except StaleEpoch:
                return
            self.log.acknowledged(run_id, *(type(event).__name__ for event in events))
            if self.rng.random() < 0.2:
                self.ledger.beat(run_id, epoch, self.now())
        self.ledger.release(run_id, epoch)

    def now(self) -> float:
        return AT + time.monotonic() % 1e6 + self.skew_s


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--controllers", type=int, default=4)
    parser.add_argument("--folder", type=Path, help="kept, for the next part")
    given = parser.parse_args()
    torture = Torture(
        given.runs, given.seconds, given.seed, given.clients, given.controllers, given.folder
    )
    found = torture.play()
    print(json.dumps(dict(sorted(torture.did.items()))))
    for line in found[:20]:
        print(line)
    print(f"{len(found)} violations")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
