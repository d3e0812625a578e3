"""The ledger in one SQLite file, ``<home>/ledger.db``.

``ledger_file`` opens, locks and syncs it; ``ledger_records`` knows what is inside.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from trmcloud.adapters.ledger.file import LedgerFile
from trmcloud.adapters.ledger.records import LedgerRecords, Verified, damaged, links_in
from trmcloud.core.control import bookkeeping
from trmcloud.core.control import events as ev
from trmcloud.core.control.budget import LedgerState
from trmcloud.core.control.chain import Link
from trmcloud.core.money import Usd
from trmcloud.ports.ledger import ControllerId, Driver

if TYPE_CHECKING:
    import sqlite3

BUSY_TIMEOUT_S = 5.0


class SqliteLedger:
    """A ``Ledger`` on one file; created, with its folder, on first use.

    Any number of processes and threads may hold one on the same file. Every write happens under
    SQLite's write lock: read what is new, judge, append, commit. What was verified once is kept,
    so that a long-lived controller pays for new records only.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._file = LedgerFile(path, busy_timeout_s, random_bytes)
        self._records = LedgerRecords(self._file.path)
        self._known: Verified | None = None

    @property
    def ledger_id(self) -> str:
        return self.read().ledger_id

    def read(self) -> LedgerState:
        return self._refreshed().state

    def records(self, run_id: str | None = None) -> Sequence[ev.Record]:
        records = self._refreshed().records
        return tuple(r for r in records if run_id is None or r.run_id == run_id)

    def links(self) -> Sequence[Link]:
        head = self._file.read_head()
        with self._file.connection(write=False) as conn:
            fetched = self._records.fetch(conn, None, head)
        self._records.verify(fetched, head)
        return links_in(fetched)

    def driver(self, run_id: str) -> Driver | None:
        with self._file.connection(write=False) as conn:
            return self._records.driver(conn, run_id)

    def open_run(
        self, run_id: str, planned: ev.RunPlanned, amount: Usd, who: ControllerId, at: float
    ) -> int:
        with self._writing() as write:
            bookkeeping.require_new(write.state, run_id)
            epoch = write.drive(run_id, who, at)
            write.add(run_id, epoch, (planned, ev.Reserved(amount)), at)
        return epoch

    def reopen_run(
        self, run_id: str, reopened: ev.Reopened, amount: Usd, who: ControllerId, at: float
    ) -> int:
        with self._writing() as write:
            bookkeeping.require_closed(write.state, run_id)
            epoch = write.drive(run_id, who, at)
            write.add(run_id, epoch, (reopened, ev.Reserved(amount)), at)
        return epoch

    def take_over(self, run_id: str, who: ControllerId, at: float) -> int:
        with self._writing() as write:
            bookkeeping.require_run(write.state, run_id)
            return write.drive(run_id, who, at)

    def release(self, run_id: str, epoch: int) -> None:
        """A controller that was taken over has nothing to release: no error, no effect."""
        with self._file.connection(write=True) as conn:
            driver = self._records.driver(conn, run_id)
            if driver is not None and driver.epoch == epoch:
                self._records.put_driver(conn, run_id, replace(driver, controller=None))

    def beat(self, run_id: str, epoch: int, at: float) -> None:
        with self._file.connection(write=True) as conn:
            driver = self._records.driver(conn, run_id)
            bookkeeping.require_epoch(run_id, epoch, driver.epoch if driver else 0)
            if driver is not None:
                self._records.put_driver(conn, run_id, replace(driver, beat_at=at))

    def append(self, run_id: str, epoch: int, events: Sequence[ev.RunEvent], at: float) -> None:
        with self._writing() as write:
            bookkeeping.require_run(write.state, run_id)
            bookkeeping.require_epoch(run_id, epoch, write.newest_epoch(run_id))
            write.add(run_id, epoch, events, at)

    def request(self, run_id: str, event: ev.RunEvent, at: float) -> None:
        bookkeeping.require_wish(event)
        with self._writing() as write:
            run = bookkeeping.require_run(write.state, run_id)
            write.add(run_id, run.epoch, (event,), at)

    def set_cap(self, event: ev.CapSet, at: float) -> None:
        with self._writing() as write:
            write.add_cap(event, at)

    def verify_layer(self, event: ev.LayerVerified, at: float) -> None:
        with self._writing() as write:
            write.add_verified(event, at)

    def note(self, event: ev.Note, at: float) -> None:
        with self._writing() as write:
            write.add_note(event, at)

    def accept_restored(self, at: float) -> bool:
        head = self._file.read_head()
        with self._file.connection(write=True) as conn:
            fetched = self._records.fetch(conn, None, head)
            if head is None or fetched.chain_at_head == head[1]:
                return False
            known = self._records.verify(fetched, None)
            write = _Write(self._file.path, self._records, conn, known)
            # A copy that went on by itself has records of its own: what it shares is not known.
            last = -1 if known.seq < head[0] else 0
            since = known.records[last].at if known.records else 0.0
            write.add_note(ev.LedgerRestored(since), at)
        self._known = write.known
        self._file.write_head(write.known.seq, write.known.chain)
        return True

    def _refreshed(self) -> Verified:
        head = self._file.read_head()
        with self._file.connection(write=False) as conn:
            fetched = self._records.fetch(conn, self._known, head)
        self._known = self._records.verify(fetched, head)
        return self._known

    @contextmanager
    def _writing(self) -> Iterator[_Write]:
        """Hold the write lock over everything the ledger says; commit unless something raises."""
        if self._known is None:
            self._refreshed()  # The long read, once, while others may still write.
        head = self._file.read_head()
        with self._file.connection(write=True) as conn:
            known = self._records.verify(self._records.fetch(conn, self._known, head), head)
            write = _Write(self._file.path, self._records, conn, known)
            yield write
        self._known = write.known
        if write.known.seq > known.seq:
            self._file.write_head(write.known.seq, write.known.chain)


class _Write:
    """One transaction's view: ``known`` moves on with what is added."""

    def __init__(
        self, path: str, records: LedgerRecords, conn: sqlite3.Connection, known: Verified
    ) -> None:
        self._path = path
        self._records = records
        self._conn = conn
        self.known = known

    @property
    def state(self) -> LedgerState:
        return self.known.state

    def add(self, run_id: str, epoch: int, events: Sequence[ev.RunEvent], at: float) -> None:
        _, records = bookkeeping.add_events(self.state, self.known.seq, run_id, epoch, events, at)
        self.known = self._records.insert(self._conn, self.known, records)

    def add_cap(self, event: ev.CapSet, at: float) -> None:
        _, record = bookkeeping.add_cap(self.state, self.known.seq, event, at)
        self.known = self._records.insert(self._conn, self.known, (record,))

    def add_verified(self, event: ev.LayerVerified, at: float) -> None:
        _, record = bookkeeping.add_verified(self.state, self.known.seq, event, at)
        self.known = self._records.insert(self._conn, self.known, (record,))

    def add_note(self, event: ev.Note | ev.LedgerRestored, at: float) -> None:
        _, record = bookkeeping.add_note(self.state, self.known.seq, event, at)
        self.known = self._records.insert(self._conn, self.known, (record,))

    def newest_epoch(self, run_id: str) -> int:
        driver = self._records.driver(self._conn, run_id)
        run = self.state.runs.get(run_id)
        recorded = run.epoch if run is not None else 0
        if driver is None or driver.epoch < recorded:
            raise damaged(self._path, f"it does not know who drives {run_id}")
        return driver.epoch

    def drive(self, run_id: str, who: ControllerId, at: float) -> int:
        """Make ``who`` the run's driver, under the next epoch."""
        epoch = self.newest_epoch(run_id) + 1 if run_id in self.state.runs else 1
        self._records.put_driver(self._conn, run_id, Driver(epoch, who, at))
        return epoch
