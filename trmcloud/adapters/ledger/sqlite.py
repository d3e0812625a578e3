"""The ledger in one SQLite file, ``<home>/ledger.db``.

``file`` opens, locks and syncs it; ``records`` reads and writes its content.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from trmcloud.adapters.ledger.backups import require_whole_pages
from trmcloud.adapters.ledger.file import LedgerFile
from trmcloud.adapters.ledger.recorded import LedgerWrite, RecordedLedger
from trmcloud.adapters.ledger.records import FullReadNeeded, LedgerRecords, Session, VerifiedLedger
from trmcloud.core.control import events as ev
from trmcloud.core.control.ledger_facts import LostRecord
from trmcloud.core.errors import LedgerDamaged, LedgerError, LedgerOlder
from trmcloud.ports.ledger import Backup, Restoration

BUSY_TIMEOUT_S = 5.0
_Answer = TypeVar("_Answer")


class SqliteLedger(RecordedLedger):
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
        self._home, self._random_bytes = Path(self._file.path).parent, random_bytes
        self._backups = self._file.backups
        self._records = LedgerRecords(self._file.path)
        self._wall = wall
        self._on_restored = on_restored

    def append(self, run_id: str, epoch: int, events: Sequence[ev.RunEvent], at: float) -> None:
        super().append(run_id, epoch, events, at)
        if any(isinstance(event, ev.Closed) for event in events):
            self.back_up()
        elif any(isinstance(event, ev.PodIntended | ev.PodUp) for event in events):
            self.back_up(for_pod=True)

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
            write = LedgerWrite(self._records, conn, known)
            write.accept_restored(head.seq, at)
        self._known = write.known
        self._file.write_head(write.known.seq, write.known.chain)
        return True

    def back_up(self, *, for_pod: bool = False) -> Backup | None:
        """Copy the file as it stands. None where that failed: ``backup_trouble`` says so later, and
        no command fails for it."""
        return self._tried_backup(lambda: self._backups.make(for_pod=for_pod, verified=self._known))

    def check(self) -> tuple[LostRecord, ...]:
        lost = super().check()
        self._require_whole_pages()
        return lost

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
        return self._read_on(self._read_part)

    def _read_part(self) -> tuple[VerifiedLedger, bool]:
        head = self._file.read_head()
        with self._file.connection(write=False) as conn:
            start = self._known or self._loaded(conn)
            fetched = self._records.fetch(conn, start, head, self.read_at_once)
        try:
            return self._records.verify(fetched, head), fetched.is_whole
        except FullReadNeeded:
            return self._read_anew(), True

    def _keep(self, known: VerifiedLedger) -> VerifiedLedger | None:
        """Likewise; a file that is long enough to be kept in part has an index of runs, too, which
        earlier versions of trmcloud do without."""
        kept = super()._keep(known)
        if kept is not None and kept.base is not None and kept is not known:
            with suppress(LedgerError), self._file.connection(write=True) as conn:
                conn.execute("CREATE INDEX IF NOT EXISTS events_of_run ON events(run_id, n)")
        return kept

    def _read_anew(self) -> VerifiedLedger:
        head = self._file.read_head()
        with self._file.connection(write=False) as conn:
            fetched = self._records.fetch(conn, None, head)
        known = self._records.verify(fetched, head)
        if known.lost:
            self._fold_file(known.state.ledger_id).remove()
        return known

    def _read_all(self) -> VerifiedLedger:
        return self._with_restore(self._read_anew)

    def _asked(self, ask: Callable[[Session], _Answer]) -> _Answer:
        with self._file.connection(write=False) as conn:
            return ask(conn)

    def _answered(self, ask: Callable[[Session], _Answer]) -> _Answer:
        return self._with_restore(lambda: self._asked(ask))

    def _changed(self, run_id: str, change: Callable[[Session], None]) -> None:
        def use() -> None:
            with self._file.connection(write=True) as conn:
                change(conn)

        self._committed(use)

    def _mended(self, put_back: Callable[[Session], None]) -> None:
        with self._file.connection(write=True) as conn:
            put_back(conn)

    def _written(self, write: Callable[[LedgerWrite], _Answer]) -> _Answer:
        def use() -> _Answer:
            with self._writing() as into:
                return write(into)

        return self._despite_loss(lambda: self._committed(use))

    @contextmanager
    def _writing(self) -> Iterator[LedgerWrite]:
        """Hold the write lock over everything the ledger says; commit unless something raises."""
        self._refreshed()  # The long read, while others may write; a lost file is restored here.
        head = self._file.read_head()
        with self._file.connection(write=True) as conn:
            try:
                known = self._records.verify(self._records.fetch(conn, self._known, head), head)
            except FullReadNeeded:
                known = self._records.verify(self._records.fetch(conn, None, head), head)
            write = LedgerWrite(self._records, conn, known)
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
