"""Copies of the ledger's file: made for each pod and after each closed run, verified, and put back
where the file is lost.

They lie in ``backups`` beside the ledger, numbered; five are kept, see ``_spare``. A copy is made
by SQLite's online backup, read in full and held to its hashes before it gets its name.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trmcloud.adapters.ledger.records import FullReadNeeded, LedgerRecords, VerifiedLedger, damaged
from trmcloud.core.control import bookkeeping
from trmcloud.core.control import events as ev
from trmcloud.core.control.run_book import newest_runs, present_runs
from trmcloud.core.errors import LedgerError, LedgerLocked
from trmcloud.io.files import sync_folder
from trmcloud.io.locks import locked
from trmcloud.ports.ledger import Backup, Driver, Restoration

if TYPE_CHECKING:
    import sqlite3

KEPT = 5
_NEWEST = 2
"""So many of the newest are kept whatever they were made for."""
_NAME = re.compile(r"ledger-([0-9]{6,12})(-pod)?\.db")
_LEFT = "new-"
_LOCK_WAIT_S = 5.0


class LedgerBackups:
    """The copies of the ledger at ``path``."""

    def __init__(self, path: str, random_bytes: Callable[[int], bytes] = os.urandom) -> None:
        self._path = path
        self.folder = Path(path).parent / "backups"
        self._random_bytes = random_bytes

    def exist(self) -> bool:
        return bool(self._named())

    def listed(self) -> list[Backup]:
        """All of them, the newest first, each read in full."""
        return [self._read(number, path) for number, path in reversed(self._named())]

    def newest_seq(self) -> int | None:
        """Return the last record of the newest backup that can be opened; it is not verified
        again."""
        for _, path in reversed(self._named()):
            with suppress(LedgerError, OSError), connected(str(path), "ro") as conn:
                row = conn.execute("SELECT max(seq) FROM events").fetchone()
                return int(row[0] or 0)
        return None

    def make(
        self,
        *,
        for_pod: bool = False,
        copy: Callable[[Path], None] | None = None,
        verified: VerifiedLedger | None = None,
    ) -> Backup:
        """Copy the ledger as it stands; ``for_pod``: since a pod is on record, and no run ended.
        ``copy`` fills a file with a ledger that is kept elsewhere. Of a ledger that is kept in part
        the copy's pages are checked, and the records after ``verified`` held to their hashes.

        Raises:
            LedgerError, OSError: nothing was kept; what was there before is as it was.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._locked():
            for name in os.listdir(self.folder):
                if name.startswith(_LEFT):  # by a process that was killed
                    os.unlink(self.folder / name)
            temporary = self.folder / f"{_LEFT}{self._random_bytes(8).hex()}"
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            try:
                (copy or self._copy)(temporary)
                known = self._known(temporary, verified)
                named = self._named()
                number = named[-1][0] + 1 if named else 1
                path = self.folder / f"ledger-{number:06}{'-pod' if for_pod else ''}.db"
                _sync(temporary)
                os.replace(temporary, path)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(temporary)
                with suppress(FileNotFoundError):
                    os.unlink(f"{temporary}-journal")
            sync_folder(self.folder)
            for old in _spare([path for _, path in self._named()]):
                os.unlink(old)
        return Backup(path, number, known.seq, _last_at(known))

    def restore(
        self,
        at: float,
        why: str,
        newest: tuple[int, str] | None,
        is_damaged: Callable[[], bool],
        number: int | None = None,
    ) -> Restoration | None:
        """Put the newest backup that is whole, or the one of that ``number``, in the ledger's
        place; the damaged file is kept aside. None where nothing was done: there is none, or
        another process was quicker.

        ``newest``: the newest record that is known to have been committed. Unless the backup ends
        with it, the copy notes that it was restored, so that nothing is reserved until its pods
        are found.
        """
        if not self.exist():
            return None
        with self._locked():
            if not is_damaged():
                return None
            usable = [b for b in self.listed() if not b.why and number in (None, b.number)]
            if not usable:
                return None
            backup = usable[0]
            temporary = f"{self._path}.new-{self._random_bytes(8).hex()}"
            try:
                self.prepare(backup, temporary, at, newest)
                aside = self._put_aside(at)
                os.replace(temporary, self._path)
            finally:
                for left in (temporary, f"{temporary}-journal"):
                    with suppress(FileNotFoundError):
                        os.unlink(left)
            sync_folder(Path(self._path).parent)
        return Restoration(backup, at, aside, newest[0] if newest is not None else None, why)

    def prepare(
        self, backup: Backup, temporary: str, at: float, newest: tuple[int, str] | None
    ) -> None:
        """Make the file ``temporary`` what the ledger is to be after ``backup`` was restored; see
        ``restore``."""
        with open(temporary, "xb") as target:
            os.fchmod(target.fileno(), 0o600)
            with open(backup.path, "rb") as source:
                shutil.copyfileobj(source, target)
        known = self._known(Path(temporary))
        if newest != (known.seq, known.chain):
            self._note(temporary, known, at)
        _fence(temporary, known, at)
        _sync(Path(temporary))

    def find_record(self, seq: int, chain: str) -> tuple[object, ...] | None:
        """Record ``seq`` as a backup has it, if its hash is ``chain``."""
        for _, path in reversed(self._named()):
            with suppress(LedgerError, OSError), connected(str(path), "ro") as conn:
                known = LedgerRecords(str(path))
                if known.verify(known.fetch(conn, None, None), None).lost:
                    continue
                row = conn.execute("SELECT * FROM events WHERE seq = ?", (seq,)).fetchone()
                if row is not None and row[7] == chain:
                    return tuple(row)
        return None

    def _copy(self, to: Path) -> None:
        with connected(self._path, "ro") as source, connected(str(to), "rw") as target:
            source.backup(target)

    def _note(self, path: str, known: VerifiedLedger, at: float) -> None:
        records = LedgerRecords(path)
        _, record = bookkeeping.add_note(
            known.state, known.seq, ev.LedgerRestored(_last_at(known)), at
        )
        with connected(path, "rw") as conn:
            conn.execute("BEGIN IMMEDIATE")
            records.insert(conn, known, (record,))
            conn.execute("COMMIT")

    def _put_aside(self, at: float) -> Path | None:
        """Give the damaged file, and a journal that is left of it, another name."""
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(at))
        aside = Path(f"{self._path}.damaged-{stamp}")
        while os.path.lexists(aside):
            aside = aside.with_name(f"{aside.name}-{self._random_bytes(2).hex()}")
        # The journal first: in the place of the restored file it would be rolled back into it.
        with suppress(FileNotFoundError):
            os.rename(f"{self._path}-journal", f"{aside}-journal")
        try:
            os.rename(self._path, aside)
        except FileNotFoundError:
            return None
        return aside

    def _read(self, number: int, path: Path) -> Backup:
        try:
            known = self._known(path)
        except (LedgerError, OSError) as error:
            return Backup(path, number, why=str(error))
        return Backup(path, number, known.seq, _last_at(known))

    def _known(self, path: Path, verified: VerifiedLedger | None = None) -> VerifiedLedger:
        records = LedgerRecords(str(path))
        start = verified if verified is not None and verified.base is not None else None
        with connected(str(path), "ro") as conn:
            try:
                known = records.verify(records.fetch(conn, start, None), None)
            except FullReadNeeded:
                raise damaged(str(path), "a new record is damaged") from None
            if known.lost:
                raise damaged(str(path), f"record {known.lost[0].seq} is damaged")
            for run in present_runs(known.state.runs):
                records.driver(conn, run.run_id)
            require_whole_pages(conn, str(path))
        return known

    def _named(self) -> list[tuple[int, Path]]:
        try:
            names = os.listdir(self.folder)
        except OSError:
            return []
        found = ((_NAME.fullmatch(name), name) for name in names)
        return sorted((int(match[1]), self.folder / name) for match, name in found if match)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with ExitStack() as held:
            try:
                held.enter_context(locked(self.folder / "lock", _LOCK_WAIT_S))
            except TimeoutError:
                raise LedgerLocked(
                    f"another process has locked the backups for {_LOCK_WAIT_S:g} s",
                    where=str(self.folder),
                    next_step="try again; if this happens again, look for a trmcloud process "
                    "that hangs",
                ) from None
            yield


def _fence(path: str, known: VerifiedLedger, at: float) -> None:
    """Let no run have a driver, and its next one an epoch beyond all that were: the lost file may
    have named later drivers than the backup does, of whom one may still live."""
    records = LedgerRecords(path)
    with connected(path, "rw") as conn:
        conn.execute("BEGIN IMMEDIATE")
        for run_id, run in known.state.runs.items():
            driver = records.driver(conn, run_id)
            if driver is not None and run.live:
                epoch = max(driver.epoch + 1, int(at))
                records.put_driver(conn, run_id, Driver(epoch, None, driver.beat_at))
        conn.execute("COMMIT")


def _spare(paths: Sequence[Path]) -> list[Path]:
    """Which of the backups, the oldest first, are beyond ``KEPT``: of those that were made for a
    pod the oldest, the newest two of all excepted; where there is none, the oldest of all. So the
    pods of one run that is often mended push out no copy made after a run ended."""
    kept, spare = list(paths), []
    while len(kept) > KEPT:
        for_pods = [path for path in kept[:-_NEWEST] if path.stem.endswith("-pod")]
        gone = for_pods[0] if for_pods else kept[0]
        kept.remove(gone)
        spare.append(gone)
    return spare


def require_whole_pages(conn: sqlite3.Connection, path: str) -> None:
    """Pages that no read needs are read too: a write would meet them.

    Raises:
        LedgerDamaged: a page is not what was written.
    """
    if conn.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",):
        raise damaged(path, "its pages are damaged")


def as_text(raw: bytes) -> str:
    """Text with damaged bytes in it is read as text that no record's hash is of."""
    return raw.decode("utf-8", "surrogateescape")


def uri(path: str, mode: str = "rw") -> str:
    """``mode=rw`` makes SQLite fail, rather than create, where the file has just vanished."""
    escaped = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    return f"file:{escaped}?mode={mode}"


@contextmanager
def connected(path: str, mode: str) -> Iterator[sqlite3.Connection]:
    import sqlite3

    try:
        with closing(
            sqlite3.connect(uri(path, mode), uri=True, isolation_level=None, timeout=5.0)
        ) as conn:
            conn.text_factory = as_text
            conn.execute("PRAGMA cell_size_check = ON")
            conn.execute("PRAGMA trusted_schema = OFF")
            yield conn
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise damaged(path, str(error)) from None


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _last_at(known: VerifiedLedger) -> float:
    """The time of the newest record; of a ledger that is kept in part, of its newest one that was
    read now, or of its newest run's."""
    if known.records:
        return known.records[-1].at
    return max((run.updated_at for run in newest_runs(known.state.runs, 1)), default=0.0)
