"""The ledger in one SQLite file, ``<home>/ledger.db``.

``file`` opens, locks and syncs it; ``records`` reads and writes its content.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from trmcloud.adapters.ledger.backups import require_whole_pages
from trmcloud.adapters.ledger.file import LedgerFile
from trmcloud.adapters.ledger.records import FullReadNeeded, LedgerRecords, VerifiedLedger
from trmcloud.core.control import bookkeeping
from trmcloud.core.control import events as ev
from trmcloud.core.control.budget import LedgerState
from trmcloud.core.control.ledger_facts import LostRecord
from trmcloud.core.control.ledger_records import Link
from trmcloud.core.errors import LedgerDamaged, LedgerError, LedgerOlder
from trmcloud.core.money import Usd
from trmcloud.ports.ledger import Backup, ControllerId, Driver, Restoration

if TYPE_CHECKING:
    import sqlite3

BUSY_TIMEOUT_S = 5.0
_Answer = TypeVar("_Answer")


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
        wall: Callable[[], float] | None = None,
        on_restored: Callable[[Restoration], None] = lambda restoration: None,
    ) -> None:
        """With ``wall``, a file that cannot be read any more is replaced by its newest backup;
        ``on_restored`` is given what was done."""
        self._file = LedgerFile(path, busy_timeout_s, random_bytes)
        self._records = LedgerRecords(self._file.path)
        self._known: VerifiedLedger | None = None
        self._wall = wall
        self._on_restored = on_restored

    @property
    def ledger_id(self) -> str:
        return self.read().ledger_id

    def read(self) -> LedgerState:
        return self._refreshed().state

    def records(self, run_id: str | None = None) -> Sequence[ev.Record]:
        records = self._refreshed().records
        return tuple(r for r in records if run_id is None or r.run_id == run_id)

    def links(self) -> Sequence[Link]:
        self._known = None
        return self._refreshed().links

    def driver(self, run_id: str) -> Driver | None:
        def ask() -> Driver | None:
            with self._file.connection(write=False) as conn:
                return self._records.driver(conn, run_id)

        return self._with_restore(ask)

    def open_run(
        self, run_id: str, planned: ev.RunPlanned, amount: Usd, who: ControllerId, at: float
    ) -> int:
        def write(into: _Write) -> int:
            bookkeeping.require_new(into.state, run_id, planned)
            epoch = into.drive(run_id, who, at)
            into.add(run_id, epoch, (planned, ev.Reserved(amount)), at)
            return epoch

        return self._written(write)

    def reopen_run(
        self, run_id: str, reopened: ev.Reopened, amount: Usd, who: ControllerId, at: float
    ) -> int:
        def write(into: _Write) -> int:
            bookkeeping.require_unused(into.state, reopened.key)
            bookkeeping.require_closed(into.state, run_id)
            epoch = into.drive(run_id, who, at)
            into.add(run_id, epoch, (reopened, ev.Reserved(amount)), at)
            return epoch

        return self._written(write)

    def take_over(self, run_id: str, who: ControllerId, at: float) -> int:
        def write(into: _Write) -> int:
            bookkeeping.require_run(into.state, run_id)
            return into.drive(run_id, who, at)

        return self._written(write)

    def release(self, run_id: str, epoch: int) -> None:
        """A controller that was taken over has nothing to release: no error, no effect."""

        def write() -> None:
            with self._file.connection(write=True) as conn:
                driver = self._records.driver(conn, run_id)
                if driver is not None and driver.epoch == epoch:
                    self._records.put_driver(conn, run_id, replace(driver, controller=None))

        self._committed(write)

    def beat(self, run_id: str, epoch: int, at: float) -> None:
        def write() -> None:
            with self._file.connection(write=True) as conn:
                driver = self._records.driver(conn, run_id)
                bookkeeping.require_epoch(run_id, epoch, driver.epoch if driver else 0)
                if driver is not None:
                    self._records.put_driver(conn, run_id, replace(driver, beat_at=at))

        self._committed(write)

    def append(self, run_id: str, epoch: int, events: Sequence[ev.RunEvent], at: float) -> None:
        def write(into: _Write) -> None:
            bookkeeping.require_run(into.state, run_id)
            bookkeeping.require_epoch(run_id, epoch, into.newest_epoch(run_id))
            into.add(run_id, epoch, events, at)

        self._written(write)
        if any(isinstance(event, ev.Closed) for event in events):
            self.back_up()
        elif any(isinstance(event, ev.PodIntended | ev.PodUp) for event in events):
            self.back_up(for_pod=True)

    def request(self, run_id: str, event: ev.RunEvent, at: float) -> None:
        bookkeeping.require_wish(event)

        def write(into: _Write) -> None:
            run = bookkeeping.require_run(into.state, run_id)
            into.add(run_id, run.epoch, (event,), at)

        self._written(write)

    def set_cap(self, event: ev.CapSet, at: float) -> None:
        self._written(lambda into: into.add_by(bookkeeping.add_cap, event, at))

    def set_grant(self, event: ev.GrantEvent, at: float) -> None:
        self._written(lambda into: into.add_by(bookkeeping.add_grant, event, at))

    def verify_layer(self, event: ev.LayerVerified, at: float) -> None:
        self._written(lambda into: into.add_by(bookkeeping.add_verified, event, at))

    def note(self, event: ev.Note, at: float) -> None:
        self._written(lambda into: into.add_by(bookkeeping.add_note, event, at))

    def accept_restored(self, at: float) -> bool:
        head = self._file.read_head()
        with self._file.connection(write=True) as conn:
            fetched = self._records.fetch(conn, None, head)
            if head is None or head.seq is None:
                return False
            try:
                self._records.verify(fetched, head)
                return False
            except LedgerOlder:
                known = self._records.verify(fetched, None)
            write = _Write(self._records, conn, known)
            # A copy that went on by itself has records of its own: what it shares is not known.
            last = -1 if known.seq < head.seq else 0
            since = known.records[last].at if known.records else 0.0
            write.add_by(bookkeeping.add_note, ev.LedgerRestored(since), at)
        self._known = write.known
        self._file.write_head(write.known.seq, write.known.chain)
        return True

    def back_up(self, *, for_pod: bool = False) -> Backup | None:
        """Copy the file as it stands. None where that failed: ``backup_trouble`` says so later, and
        no command fails for it."""
        try:
            return self._file.backups.make(for_pod=for_pod)
        except (LedgerError, OSError):
            return None

    def backups(self) -> Sequence[Backup]:
        """The newest first, each read in full."""
        return self._file.backups.listed()

    def backup_trouble(self) -> str:
        """Why a loss of the file would lose a run that has ended, or a pod; empty where it would
        not."""
        records, live = self.records(), {r.run_id for r in self.read().runs.values() if r.live}
        backed = self._file.backups.newest_seq() or 0
        behind = sum(r.seq > backed for r in records if isinstance(r.event, ev.Closed))
        runs = "1 run that has" if behind == 1 else f"{behind} runs that have"
        lost = [f"{runs} ended"] if behind else []
        lost += sorted(
            f"the pod of {r.run_id}"
            for r in {r.run_id: r for r in records if isinstance(r.event, ev.PodIntended)}.values()
            if r.seq > backed and r.run_id in live
        )
        if not lost:
            return ""
        return f"no backup in {self._file.backups.folder} holds {', '.join(lost)}"

    def check(self) -> tuple[LostRecord, ...]:
        """Read all of the file anew, and name the records that are not what was written.

        Raises:
            LedgerDamaged: more than single records is damaged.
        """
        self._known = None
        lost = self._refreshed().lost
        self._require_whole_pages()
        return lost

    def mend(self) -> tuple[LostRecord, ...]:
        """Put damaged records back from backups, where their hashes prove that they are the same.
        Returns those that were."""
        lost = self.check()
        mended = []
        with self._file.connection(write=True) as conn:
            for each in lost:
                (chain,) = conn.execute(
                    "SELECT chain FROM events WHERE seq = ?", (each.seq,)
                ).fetchone()
                row = self._file.backups.find_record(each.seq, str(chain))
                if row is not None:
                    conn.execute("DELETE FROM events WHERE seq = ?", (each.seq,))
                    conn.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
                    mended.append(each)
        self._known = None
        self._refreshed()
        return tuple(mended)

    def restore(self, at: float, why: str, number: int | None = None) -> Restoration | None:
        """Put a backup in the file's place, whatever is there; see ``LedgerBackups.restore``."""
        return self._restored(at, why, lambda: True, number)

    def _restored(
        self, at: float, why: str, is_damaged: Callable[[], bool], number: int | None = None
    ) -> Restoration | None:
        head = self._file.read_head()
        newest = (head.seq, head.chain) if head is not None and head.seq is not None else None
        done = self._file.backups.restore(at, why, newest, is_damaged, number)
        if done is not None:
            self._known = None
            with self._file.connection(write=False) as conn:
                known = self._records.verify(self._records.fetch(conn, None, None), None)
            self._file.write_head(known.seq, known.chain)
        return done

    def _with_restore(
        self, use: Callable[[], _Answer], has_damage: Callable[[], bool] | None = None
    ) -> _Answer:
        """Return the result of ``use``; once more where the file is damaged and a backup took its
        place. With ``has_damage`` an error alone does not prove that the file is damaged."""
        try:
            return use()
        except LedgerOlder:
            raise  # a person put that there: it is theirs to accept
        except LedgerDamaged as error:
            if self._wall is None or (has_damage is not None and not has_damage()):
                raise
            is_damaged = has_damage or (lambda: _is_damaged(use))
            try:
                done = self._restored(self._wall(), error.what, is_damaged)
            except (LedgerError, OSError):
                done = None
            if done is not None:
                self._on_restored(done)
            elif is_damaged():
                raise
        return use()

    def _committed(self, use: Callable[[], _Answer]) -> _Answer:
        """Return the result of ``use``, a write; it is rolled back where it raises, and repeated
        where it met a damaged page and a backup took the file's place."""
        return self._with_restore(use, lambda: _is_damaged(self._require_whole_pages))

    def _require_whole_pages(self) -> None:
        with self._file.connection(write=False) as conn:
            require_whole_pages(conn, self._file.path)

    def _refreshed(self) -> VerifiedLedger:
        return self._with_restore(self._read_new)

    def _read_new(self) -> VerifiedLedger:
        head = self._file.read_head()
        try:
            with self._file.connection(write=False) as conn:
                fetched = self._records.fetch(conn, self._known, head)
            self._known = self._records.verify(fetched, head)
        except FullReadNeeded:
            with self._file.connection(write=False) as conn:
                fetched = self._records.fetch(conn, None, head)
            self._known = self._records.verify(fetched, head)
        return self._known

    def _written(self, write: Callable[[_Write], _Answer]) -> _Answer:
        """Return the result of ``write``, committed."""

        def use() -> _Answer:
            with self._writing() as into:
                return write(into)

        return self._committed(use)

    @contextmanager
    def _writing(self) -> Iterator[_Write]:
        """Hold the write lock over everything the ledger says; commit unless something raises."""
        self._refreshed()  # The long read, while others may write; a lost file is restored here.
        head = self._file.read_head()
        with self._file.connection(write=True) as conn:
            try:
                known = self._records.verify(self._records.fetch(conn, self._known, head), head)
            except FullReadNeeded:
                known = self._records.verify(self._records.fetch(conn, None, head), head)
            write = _Write(self._records, conn, known)
            yield write
        self._known = write.known
        if write.known.seq > known.seq:
            self._file.write_head(write.known.seq, write.known.chain)


def _is_damaged(use: Callable[[], object]) -> bool:
    try:
        use()
    except LedgerOlder:
        return False
    except LedgerDamaged:
        return True
    except LedgerError:
        return False
    return False


class _Write:
    """One transaction's view: ``known`` moves on with what is added."""

    def __init__(
        self, records: LedgerRecords, conn: sqlite3.Connection, known: VerifiedLedger
    ) -> None:
        self._records = records
        self._conn = conn
        self.known = known

    @property
    def state(self) -> LedgerState:
        return self.known.state

    def add(self, run_id: str, epoch: int, events: Sequence[ev.RunEvent], at: float) -> None:
        _, records = bookkeeping.add_events(self.state, self.known.seq, run_id, epoch, events, at)
        self.known = self._records.insert(self._conn, self.known, records)

    def add_by(
        self, add: Callable[..., tuple[LedgerState, ev.Record]], event: object, at: float
    ) -> None:
        """Add an event that is no run's; ``add`` is its function in ``bookkeeping``."""
        _, record = add(self.state, self.known.seq, event, at)
        self.known = self._records.insert(self._conn, self.known, (record,))

    def newest_epoch(self, run_id: str) -> int:
        driver = self._records.driver(self._conn, run_id)
        run = self.state.runs.get(run_id)
        recorded = run.epoch if run is not None else 0
        return max(driver.epoch if driver is not None else 0, recorded)

    def drive(self, run_id: str, who: ControllerId, at: float) -> int:
        """Make ``who`` the run's driver, under the next epoch."""
        epoch = self.newest_epoch(run_id) + 1 if run_id in self.state.runs else 1
        self._records.put_driver(self._conn, run_id, Driver(epoch, who, at))
        return epoch
