"""Writers of one real ledger, killed at random instants and at each write, and what must hold.

A run's life is written over and over, step by step. After each kill the ledger is opened anew:
its chain must hold, every acknowledged step must be there, at most one more, and none by halves.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

from tests.crash.killing import Child, pause
from tests.plans import plan_json
from tests.postgres import PostgresServer
from trmcloud.adapters.ledger.fold_file import VerifiedLost
from trmcloud.adapters.ledger.postgres import PostgresLedger
from trmcloud.adapters.ledger.recorded import RecordedLedger
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.core.control import events as ev
from trmcloud.core.control.budget import fold_ledger
from trmcloud.core.money import Usd
from trmcloud.ports.ledger import ControllerId

WHO = ControllerId("laptop", 101, "boot-1")
AT = 1_790_000_000.0
PATIENCE_S = 60.0
CAP = Usd(1_000_000)
STEPS_TO_SWEEP = 12
"""Of a run's life, each written from nothing in a sweep over every write."""
STEPS_PER_LEDGER = 240
"""Before another one is begun, so that checking stays quick."""


class Violation(AssertionError):
    """Something that must always hold did not."""


Opener = Callable[[Path], RecordedLedger]


KEPT_AT = 5
"""So often what the ledger adds up to is kept beside it, that kills meet that, too."""


def in_file(path: Path) -> RecordedLedger:
    ledger = SqliteLedger(path, busy_timeout_s=PATIENCE_S)
    ledger.kept_at = KEPT_AT
    return ledger


class InPostgres:
    """Opens a ledger in a database for each path."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._urls: dict[Path, str] = {}

    def __call__(self, path: Path) -> RecordedLedger:
        if path not in self._urls:
            self._urls[path] = self._server.new_database()
        ledger = PostgresLedger(self._urls[path], path.parent, lock_timeout_s=PATIENCE_S)
        ledger.kept_at = KEPT_AT
        return ledger


def events_of(number: int) -> tuple[ev.RunEvent, ...]:
    """What the ``number``-th step (from 0 on) of a run's life leaves in the ledger."""
    lap, stage = divmod(number, 9)
    g = lap + 1
    return _stage(lap, stage, g)


def _stage(lap: int, stage: int, g: int) -> tuple[ev.RunEvent, ...]:
    opened = ev.RunPlanned(plan_json(), CAP, "thesis") if lap == 0 else ev.Reopened(CAP)
    create, name = f"r/g{g}/create/1", f"pod-{g}"
    return (
        (opened, ev.Reserved(Usd(2))),
        (ev.PodIntended(g, name, "local", "c", Usd(1), AT, AT), ev.ActionStarted(create, "create")),
        (ev.ActionFinished(create, "create"),),
        (ev.PodUp(g, name, Usd(1)),),
        (ev.AgentUp(g),),
        (
            ev.PhaseEnded(g, "fast", "finished", 5, 1.5, {"training": 1.0}),
            ev.GateJudged(g, "fast", True, {"passed": True}),
        ),
        (ev.ResultKnown("finished"),),
        (ev.PodGone(g, AT), ev.Settled(g, Usd("0.5"), Usd("0.5"))),
        (ev.Closed("finished"),),
    )[stage]


def write(
    ledger: RecordedLedger, run_id: str, start: int, told: Callable[[], None]
) -> Iterator[int]:
    """Take the run over and live on from step ``start``; a word for each thing that is written."""
    epoch = 0
    if start > 0:
        epoch = ledger.take_over(run_id, WHO, AT)
        told()
    for number in count(start):
        events = events_of(number)
        if isinstance(events[0], ev.RunPlanned):
            epoch = ledger.open_run(run_id, events[0], Usd(2), WHO, AT)
        elif isinstance(events[0], ev.Reopened):
            epoch = ledger.reopen_run(run_id, events[0], Usd(2), WHO, AT)
        else:
            ledger.append(run_id, epoch, events, AT)
        told()
        if number % 4 == 3:
            ledger.beat(run_id, epoch, AT + number)
        yield number


def steps_found(ledger: RecordedLedger, run_id: str) -> int:
    """How many whole steps of the run's life the ledger holds.

    Raises:
        Violation: half of one, or something that nobody wrote.
    """
    found = [record.event for record in ledger.records(run_id)]
    steps = 0
    while found:
        expected = events_of(steps)
        if tuple(found[: len(expected)]) != expected:
            raise Violation(f"{run_id}: step {steps} is not what was written: {found[:3]}")
        del found[: len(expected)]
        steps += 1
    return steps


def check(path: Path, run_id: str, before: int, acknowledged: int, opened: Opener = in_file) -> int:
    """How many steps there are, having read everything anew; ``before`` were there at the start.

    Raises:
        Violation: an acknowledged step is missing, or more than one came besides.
    """
    with suppress(VerifiedLost):  # the other writer may remove what it finds unusable: read again
        return _check(path, run_id, before, acknowledged, opened)
    return _check(path, run_id, before, acknowledged, opened)


def _check(path: Path, run_id: str, before: int, acknowledged: int, opened: Opener) -> int:
    ledger = opened(path)
    known = ledger._refreshed()  # the state with its record's number: the other writer may live
    state, records = known.state, ledger.records()
    if fold_ledger(state.ledger_id, records[: known.seq]) != state:
        raise Violation("what was kept of the ledger is not what its records add up to")
    numbers = [record.seq for record in records]
    if numbers != list(range(1, len(numbers) + 1)):
        raise Violation(f"records are missing: {numbers[:5]}…")
    steps = steps_found(ledger, run_id)
    told = max(0, acknowledged - (1 if before else 0))  # the first word is that of the take-over
    if not before + told <= steps <= before + told + 1:
        raise Violation(f"{run_id}: {before} + {told} steps acknowledged, {steps} found")
    driver = ledger.driver(run_id)
    if (driver is not None) != (run_id in state.runs):
        raise Violation(f"{run_id}: a run without a driver, or a driver without a run")
    for run in state.runs.values():
        if driver is not None and run.run_id == run_id and driver.epoch < run.epoch:
            raise Violation(f"{run_id}: epoch {run.epoch} wrote after {driver.epoch} drove")
        if run.settled + run.reserved > run.cap:
            raise Violation(f"{run.run_id}: {run.settled} + {run.reserved} > {run.cap}")
    return steps


class AtRandom:
    """One ledger, two writers at a time, each killed at a random instant."""

    kills_per_round = 2

    def __init__(self, folder: Path, rng: random.Random, opened: Opener = in_file) -> None:
        self._folder = folder
        self._rng = rng
        self._opened = opened
        self._ledgers = 0
        self._begin()

    def _begin(self) -> None:
        shutil.rmtree(self._folder / f"random-{self._ledgers}", ignore_errors=True)
        self._ledgers += 1
        self._path = self._folder / f"random-{self._ledgers}" / "ledger.db"
        self._steps = {"r0": 0, "r1": 0}
        self._opened(self._path).set_cap(ev.CapSet("account", "", CAP), AT)

    def round(self) -> int:
        """Kills that came while a writer was at work."""
        if sum(self._steps.values()) > STEPS_PER_LEDGER:
            self._begin()
        # The children inherit what it has verified, so that they soon come to writing.
        known = self._opened(self._path)
        known.read()
        children = {}
        for run_id, start in self._steps.items():

            def work(told: Callable[[], None], run_id: str = run_id, start: int = start) -> None:
                for _ in write(known, run_id, start, told):
                    pass

            children[run_id] = Child(work)
        kills = 0
        for run_id, child in children.items():
            if self._rng.random() < 0.7:
                child.wait_for_first()
            pause(self._rng.uniform(0, self._rng.choice((0.0001, 0.001, 0.01))))
            kills += child.kill()
            before = self._steps[run_id]
            told = child.acknowledged
            self._steps[run_id] = check(self._path, run_id, before, told, self._opened)
        return kills


class AtEachWrite:
    """A ledger from nothing, killed as it is about to write for the n-th time; n goes up by one
    until the writer comes to its end, and then begins anew."""

    kills_per_round = 1

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self._folder = folder
        self._number = 0
        self.writes = 0
        """How many writes the whole takes, once that is known."""

    def round(self) -> int:
        folder = self._folder / "each"
        shutil.rmtree(folder, ignore_errors=True)
        path = folder / "ledger.db"
        self._number += 1
        child = Child(lambda told: self._live(path, 0, told), traced=True)
        killed = child.kill_at_write(self._number)
        steps = check(path, "r0", 0, child.acknowledged)
        # Another process goes on where that one was killed, and comes to the same end.
        self._live(path, steps, lambda: None)
        if check(path, "r0", STEPS_TO_SWEEP - 1, 0) != STEPS_TO_SWEEP:
            raise Violation("the next writer did not come to the end")
        in_file(path).set_cap(ev.CapSet("account", "", CAP), AT)
        left = {entry.name for entry in folder.iterdir() if ".new-" not in entry.name}
        if left != {"ledger.db", "ledger.head", "backups", "ledger.fold"}:
            raise Violation(f"files are left over: {sorted(left)}")
        if not killed:
            self.writes, self._number = self._number - 1, 0
        return int(killed)

    @staticmethod
    def _live(path: Path, start: int, told: Callable[[], None]) -> None:
        if start < STEPS_TO_SWEEP:
            ledger = in_file(path)
            for number in write(ledger, "r0", start, told):
                if number + 1 == STEPS_TO_SWEEP:
                    return
