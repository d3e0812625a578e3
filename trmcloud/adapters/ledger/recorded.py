"""What the ledgers on SQLite and on PostgreSQL share: each write reads what is new, judges it by
``bookkeeping``, appends to the chain and commits, under the database's write lock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

from trmcloud.adapters.ledger.backups import LedgerBackups
from trmcloud.adapters.ledger.fold_file import FOLDER, FoldFile, VerifiedLost
from trmcloud.adapters.ledger.records import LedgerRecords, Session, VerifiedLedger
from trmcloud.core.control import bookkeeping
from trmcloud.core.control import events as ev
from trmcloud.core.control.budget import LedgerState
from trmcloud.core.control.ledger_facts import LostRecord
from trmcloud.core.control.ledger_records import Link
from trmcloud.core.control.run_book import present_runs
from trmcloud.core.errors import LedgerError
from trmcloud.core.money import Usd
from trmcloud.ports.ledger import Backup, ControllerId, Driver, Ledger, Restoration

_Answer = TypeVar("_Answer")
_TRIES = 3


class RecordedLedger(ABC):
    """A ``Ledger`` whose records are rows with a chain of hashes. Subclasses give transactions and
    backups."""

    _records: LedgerRecords
    _backups: LedgerBackups
    _home: Path
    """Where what was verified of a long ledger is kept."""
    _random_bytes: Callable[[int], bytes]
    _known: VerifiedLedger | None = None
    kept_at = 500
    """So many records are read and folded by each command; where more are new, what they add up to
    is kept in the home."""
    read_at_once = 20_000
    """So many are folded before runs that are at rest leave the memory."""

    @abstractmethod
    def _answered(self, ask: Callable[[Session], _Answer]) -> _Answer:
        """Return the answer of ``ask``, in one snapshot."""

    @abstractmethod
    def _asked(self, ask: Callable[[Session], _Answer]) -> _Answer:
        """Likewise, where nothing is to be restored."""

    @abstractmethod
    def _refreshed(self) -> VerifiedLedger:
        """All that the ledger holds now. Of a long one, what this home has verified before is not
        read again."""

    def _read_on(self, read_part: Callable[[], tuple[VerifiedLedger, bool]]) -> VerifiedLedger:
        """All that the ledger holds now: ``read_part`` returns what is known after up to
        ``read_at_once`` more records, and whether that is all."""
        lost = 0
        while True:
            known, is_whole = read_part()
            kept = self._keep(known)
            if kept is None:
                lost += 1
                if lost < _TRIES:
                    continue
                kept = self._known = known
            if is_whole:
                return kept

    @abstractmethod
    def _read_all(self) -> VerifiedLedger:
        """Likewise, with all records, each read and verified now."""

    @abstractmethod
    def _written(self, write: Callable[[LedgerWrite], _Answer]) -> _Answer:
        """Return the result of ``write``, committed, under the lock over all records."""

    def _despite_loss(self, attempt: Callable[[], _Answer]) -> _Answer:
        """Return the answer of ``attempt``, which commits last.

        It is called again where another process has removed what this home had verified of the
        ledger: nothing was committed then, and the ledger is read anew.
        """
        for _ in range(_TRIES - 1):
            with suppress(VerifiedLost):
                return attempt()
        return attempt()

    @abstractmethod
    def _changed(self, run_id: str, change: Callable[[Session], None]) -> None:
        """Commit ``change``, which writes to the run's driver alone, under a lock on it."""

    @abstractmethod
    def accept_restored(self, at: float) -> bool:
        """Accept an older copy of this ledger; False where it is none."""

    @abstractmethod
    def back_up(self, *, for_pod: bool = False) -> Backup | None:
        """Copy the ledger as it stands; None where that failed, and no command fails for it."""

    @abstractmethod
    def restore(self, at: float, why: str, number: int | None = None) -> Restoration | None:
        """Put a backup, or the one of that ``number``, in the ledger's place; None where there is
        none that is whole."""

    @property
    def ledger_id(self) -> str:
        return self.read().ledger_id

    def read(self) -> LedgerState:
        return self._refreshed().state

    def records(self, run_id: str | None = None) -> Sequence[ev.Record]:
        known = self._refreshed()
        if run_id is not None:
            return known.records_of(run_id)
        return known.records if known.base is None else self._read_all().records

    def last_seq(self) -> int:
        return self._refreshed().seq

    def records_after(self, seq: int) -> Sequence[ev.Record]:
        known = self._refreshed()
        first = known.records[0].seq if known.records else known.seq + 1
        if known.base is None or seq + 1 >= first:
            return tuple(record for record in known.records if record.seq > seq)
        rows = self._answered(
            lambda session: session.execute(
                "SELECT seq, run_id, n, epoch, at, kind, body, chain FROM events"
                " WHERE seq > ? AND seq < ? ORDER BY seq",
                (seq, first),
            ).fetchall()
        )
        earlier = (self._records.record_in(row) for row in rows)
        return (*(record for record in earlier if record is not None), *known.records)

    def links(self) -> Sequence[Link]:
        return self._read_all().links

    def driver(self, run_id: str) -> Driver | None:
        return self._answered(lambda session: self._records.driver(session, run_id))

    def open_run(
        self, run_id: str, planned: ev.RunPlanned, amount: Usd, who: ControllerId, at: float
    ) -> int:
        if self._known is None:
            # Sums over all runs, for the first time, before others wait for the lock.
            self.read().line("account", "")

        def write(into: LedgerWrite) -> int:
            bookkeeping.require_new(into.state, run_id, planned)
            epoch = into.drive(run_id, who, at)
            into.add(run_id, epoch, (planned, ev.Reserved(amount)), at)
            return epoch

        return self._written(write)

    def reopen_run(
        self, run_id: str, reopened: ev.Reopened, amount: Usd, who: ControllerId, at: float
    ) -> int:
        def write(into: LedgerWrite) -> int:
            bookkeeping.require_unused(into.state, reopened.key)
            bookkeeping.require_closed(into.state, run_id)
            epoch = into.drive(run_id, who, at)
            into.add(run_id, epoch, (reopened, ev.Reserved(amount)), at)
            return epoch

        return self._written(write)

    def take_over(self, run_id: str, who: ControllerId, at: float) -> int:
        def write(into: LedgerWrite) -> int:
            bookkeeping.require_run(into.state, run_id)
            return into.drive(run_id, who, at)

        return self._written(write)

    def release(self, run_id: str, epoch: int) -> None:
        """A controller that was taken over has nothing to release: no error, no effect."""

        def change(session: Session) -> None:
            driver = self._records.driver(session, run_id)
            if driver is not None and driver.epoch == epoch:
                self._records.put_driver(session, run_id, replace(driver, controller=None))

        self._changed(run_id, change)

    def beat(self, run_id: str, epoch: int, at: float) -> None:
        def change(session: Session) -> None:
            driver = self._records.driver(session, run_id)
            bookkeeping.require_epoch(run_id, epoch, driver.epoch if driver else 0)
            if driver is not None:
                self._records.put_driver(session, run_id, replace(driver, beat_at=at))

        self._changed(run_id, change)

    def append(self, run_id: str, epoch: int, events: Sequence[ev.RunEvent], at: float) -> None:
        def write(into: LedgerWrite) -> None:
            bookkeeping.require_run(into.state, run_id)
            bookkeeping.require_epoch(run_id, epoch, into.newest_epoch(run_id))
            into.add(run_id, epoch, events, at)

        self._written(write)

    def request(self, run_id: str, event: ev.RunEvent, at: float) -> None:
        bookkeeping.require_wish(event)

        def write(into: LedgerWrite) -> None:
            run = bookkeeping.require_run(into.state, run_id)
            into.add(run_id, run.epoch, (event,), at)

        self._written(write)

    def set_cap(self, event: ev.CapSet, at: float) -> None:
        self._written(lambda into: into.add_by(bookkeeping.add_cap, into.signed(event), at))

    def set_grant(self, event: ev.GrantEvent, at: float) -> None:
        def write(into: LedgerWrite) -> None:
            signed = into.signed(event)
            if self._records.tells_users_apart:
                bookkeeping.require_other_role(into.state, signed)
            into.add_by(bookkeeping.add_grant, signed, at)

        self._written(write)

    def verify_layer(self, event: ev.LayerVerified, at: float) -> None:
        self._written(lambda into: into.add_by(bookkeeping.add_verified, event, at))

    def note(self, event: ev.Note, at: float) -> None:
        def write(into: LedgerWrite) -> None:
            is_unsigned = isinstance(event, ev.DamageSettled | ev.VolumeDeleted) and not event.by
            into.add_by(bookkeeping.add_note, into.signed(event) if is_unsigned else event, at)

        self._written(write)

    def backups(self) -> Sequence[Backup]:
        """The newest first, each read in full."""
        return self._backups.listed()

    def hurried(self) -> Ledger:
        from trmcloud.adapters.ledger.hurried import HurriedLedger

        return cast("Ledger", HurriedLedger(self))

    def backup_trouble(self) -> str:
        """Why a loss of the ledger would lose a run that has ended, or a pod; empty where it would
        not."""
        known = self._refreshed()
        backed = self._backups.newest_seq() or 0
        (behind,) = self._answered(
            lambda session: session.execute(
                "SELECT count(*) FROM events WHERE seq > ? AND kind = 'Closed'", (backed,)
            ).fetchone()
        )
        runs = "1 run that has" if behind == 1 else f"{behind} runs that have"
        lost = [f"{runs} ended"] if behind else []
        for run in sorted(present_runs(known.state.runs), key=lambda run: run.run_id):
            records = known.records_of(run.run_id) if run.live else ()
            pods = [each.seq for each in records if isinstance(each.event, ev.PodIntended)]
            if pods and pods[-1] > backed:
                lost.append(f"the pod of {run.run_id}")
        if not lost:
            return ""
        return f"no backup in {self._backups.folder} holds {', '.join(lost)}"

    def check(self) -> tuple[LostRecord, ...]:
        """Read all of it anew, and name the records that are not what was written.

        Raises:
            LedgerDamaged: more than single records is damaged.
        """
        known = self._read_all()
        if known.lost:
            self._known = known
        return known.lost

    def mend(self) -> tuple[LostRecord, ...]:
        """Put damaged records back from backups, where their hashes prove that they are the same.
        Returns those that were."""
        lost = self.check()
        mended: list[LostRecord] = []

        def put_back(session: Session) -> None:
            mended.clear()
            for each in lost:
                (chain,) = session.execute(
                    "SELECT chain FROM events WHERE seq = ?", (each.seq,)
                ).fetchone()
                row = self._backups.find_record(each.seq, str(chain))
                if row is not None:
                    session.execute("DELETE FROM events WHERE seq = ?", (each.seq,))
                    session.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
                    mended.append(each)

        self._mended(put_back)
        self._known = None
        self._refreshed()
        return tuple(mended)

    @abstractmethod
    def _mended(self, put_back: Callable[[Session], None]) -> None:
        """Commit ``put_back`` under the lock over all records."""

    def _loaded(self, session: Session) -> VerifiedLedger | None:
        """What this home has verified of the ledger before, and still holds; None for nothing."""
        if not (self._home / FOLDER).exists():
            return None
        file = self._fold_file(self._records.ledger_id(session))
        return file.load(session, self._records, self._asked, self._forget)

    def _keep(self, known: VerifiedLedger) -> VerifiedLedger | None:
        """Keep what was read in memory; where much of it is new, in the home. None where another
        process has kept more there: it is to be loaded."""
        moved: VerifiedLedger | None = known
        if not known.lost and len(known.records) >= self.kept_at:
            file = self._fold_file(known.state.ledger_id)
            with suppress(OSError):  # then all of it stays in memory
                moved = file.moved_on(known, self._records, self._asked, self._forget)
        self._known = moved
        return moved

    def _fold_file(self, ledger_id: str) -> FoldFile:
        return FoldFile(self._home, ledger_id, self._random_bytes)

    def _forget(self) -> None:
        self._known = None

    def _tried_backup(self, make: Callable[[], Backup]) -> Backup | None:
        try:
            return make()
        except (LedgerError, OSError):
            return None


class LedgerWrite:
    """One transaction's view: ``known`` moves on with what is added."""

    def __init__(self, records: LedgerRecords, session: Session, known: VerifiedLedger) -> None:
        self._records = records
        self._session = session
        self.known = known
        self.driven: dict[str, Driver] = {}

    @property
    def state(self) -> LedgerState:
        return self.known.state

    def add(self, run_id: str, epoch: int, events: Sequence[ev.RunEvent], at: float) -> None:
        _, records = bookkeeping.add_events(self.state, self.known.seq, run_id, epoch, events, at)
        self.known = self._records.insert(self._session, self.known, records)

    def add_by(
        self, add: Callable[..., tuple[LedgerState, ev.Record]], event: object, at: float
    ) -> None:
        """Add an event that is no run's; ``add`` is its function in ``bookkeeping``."""
        _, record = add(self.state, self.known.seq, event, at)
        self.known = self._records.insert(self._session, self.known, (record,))

    def signed(self, event: Any) -> Any:
        """Return the event with ``by`` as the database or the system knows it."""
        return replace(event, by=self._records.user(self._session))

    def newest_epoch(self, run_id: str) -> int:
        driver = self._records.driver(self._session, run_id)
        run = self.state.runs.get(run_id)
        recorded = run.epoch if run is not None else 0
        return max(driver.epoch if driver is not None else 0, recorded)

    def drive(self, run_id: str, who: ControllerId, at: float) -> int:
        """Make ``who`` the run's driver, under the next epoch."""
        epoch = self.newest_epoch(run_id) + 1 if run_id in self.state.runs else 1
        self.driven[run_id] = Driver(epoch, who, at)
        self._records.put_driver(self._session, run_id, self.driven[run_id])
        return epoch

    def accept_restored(self, newest_seq: int, at: float) -> None:
        """Note that this is an older copy; ``newest_seq`` is the newest record that there was."""
        known = self.known
        # A copy that went on by itself has records of its own: what it shares is not known.
        last = -1 if known.seq < newest_seq else 0
        since = known.records[last].at if known.records else 0.0
        self.add_by(bookkeeping.add_note, ev.LedgerRestored(since), at)
