"""The ledger in a PostgreSQL database, which a team shares.

The rows and their hashes are those of ``SqliteLedger``. What a home keeps beside it: its backups,
and a head for each database, ``ledger-<hash>.head``, so that a database that was restored from an
older copy is found out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from trmcloud.adapters.ledger.backups import LedgerBackups, connected
from trmcloud.adapters.ledger.database import (
    LOCK_TIMEOUT_S,
    MIGRATIONS,
    PATIENCE_S,
    LedgerDatabase,
    PostgresSession,
    parse_address,
    schema_too_new,
    schema_too_old,
)
from trmcloud.adapters.ledger.recorded import LedgerWrite, RecordedLedger
from trmcloud.adapters.ledger.records import SCHEMA as FILE_SCHEMA
from trmcloud.adapters.ledger.records import (
    VERSION,
    FullReadNeeded,
    Head,
    LedgerRecords,
    LedgerSnapshot,
    Session,
    VerifiedLedger,
    damaged,
    moved,
    too_new,
)
from trmcloud.core.errors import LedgerError, LedgerOlder
from trmcloud.core.values import Value, replace
from trmcloud.ports.ledger import Backup, Driver, Restoration

_EVENTS = "seq, run_id, n, epoch, at, kind, body, chain"
_DRIVERS = "run_id, epoch, host, pid, pid_started, beat_at, released, seal"
_PLACES = "?, ?, ?, ?, ?, ?, ?, ?"
_ROWS_AT_ONCE = 5_000
_HEAD_CHARS = 160
_Answer = TypeVar("_Answer")


class SeenHead(Value):
    """The newest record that this home has seen, and when an older copy was last accepted then."""

    ledger_id: str
    seq: int
    chain: str
    restored_at: float

    @property
    def head(self) -> Head:
        return Head(self.seq, self.chain, f"{self.seq} {self.chain}\n".encode())


class HeadFile:
    """``<home>/ledger-<hash of the address>.head``. Losing it loses the comparison alone."""

    def __init__(self, home: Path, display: str) -> None:
        name = sha256(display.encode()).hexdigest()[:12]
        self.path = home / f"ledger-{name}.head"

    def read(self) -> SeenHead | None:
        """To be read *before* the ledger, since others may write both."""
        try:
            line, _, check = self.path.read_text(encoding="ascii").rpartition(" ")
            ledger_id, seq, chain, restored_at = line.split()
            head = SeenHead(ledger_id, int(seq), chain, float(restored_at))
        except (OSError, ValueError):
            return None
        # One that was written by halves, in a crash, proves nothing.
        return head if check == _check(line) else None

    def write(self, known: VerifiedLedger) -> None:
        """A failure is harmless: the record itself is committed. Written in place: to rename a
        file takes as long as a commit."""
        restored_at = known.state.restored.at if known.state.restored is not None else 0.0
        line = f"{known.state.ledger_id} {known.seq} {known.chain} {restored_at!r}".ljust(
            _HEAD_CHARS
        )
        with suppress(OSError):
            try:
                handle = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
            except FileNotFoundError:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                handle = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.pwrite(handle, f"{line} {_check(line)}".encode(), 0)
            finally:
                os.close(handle)


def _check(line: str) -> str:
    return sha256(line.encode()).hexdigest()[:16]


class PostgresRecords(LedgerRecords):
    """Records in the tables of ``database.MIGRATIONS``."""

    tells_users_apart = True
    touch = ", touched_at = extract(epoch FROM clock_timestamp())"

    def user(self, conn: Session) -> str:
        """Return the role that logged in to the database."""
        return str(conn.execute("SELECT session_user::text").fetchone()[0])

    def fetch(
        self, conn: Session, known: VerifiedLedger | None, head: Head | None, most: int = 0
    ) -> LedgerSnapshot:
        """Likewise, by statements that are sent together."""
        if known is None or known.lost or known.seq == 0 or head is None or not head.seq:
            return super().fetch(conn, known, head, most)
        limit = f" LIMIT {most}" if most else ""
        new = conn.execute(
            f"SELECT {_EVENTS} FROM events WHERE seq > ? ORDER BY seq{limit}", (known.seq,)
        )
        marked = conn.execute(
            "SELECT seq, chain FROM events WHERE seq IN (?, ?)", (known.seq, head.seq)
        )
        chains = dict(marked.fetchall())
        same = self._meta(conn) == known.state.ledger_id
        if not same or chains.get(known.seq) != known.chain or chains.get(head.seq) != head.chain:
            return super().fetch(conn, known, head, most)
        rows = new.fetchall()
        return LedgerSnapshot(known, rows, head.chain, (), not most or len(rows) < most)

    def _meta(self, conn: Session) -> str:
        assert isinstance(conn, PostgresSession)
        if conn.meta is None:
            raise damaged(self.path, "it has no id")
        version, ledger_id, schema_version, moved_to, _ = conn.meta
        if schema_version > len(MIGRATIONS):
            raise schema_too_new(self.path, schema_version)
        if schema_version < len(MIGRATIONS):
            raise schema_too_old(self.path, schema_version)
        if moved_to and not self.allows_moved:
            raise moved(self.path, moved_to)
        if version > VERSION:
            raise too_new(self.path, f"its format is {version}, but {VERSION} is the newest known")
        if version >= 1 and len(ledger_id) == 8:
            return str(ledger_id)
        return super()._meta(conn)

    def _driver_row(self, conn: Session, run_id: str) -> tuple[tuple[Any, ...] | None, int | None]:
        found = conn.execute(
            "SELECT epoch, host, pid, pid_started, beat_at, released, seal FROM drivers"
            " WHERE run_id = ?",
            (run_id,),
        )
        newest = conn.execute("SELECT max(epoch) FROM events WHERE run_id = ?", (run_id,))
        row = found.fetchone()
        self._meta(conn)
        return row, newest.fetchone()[0]

    def _stamp(self, conn: Session, ledger_id: str) -> None:
        assert isinstance(conn, PostgresSession)
        if conn.meta is not None and conn.meta[:2] != (VERSION, ledger_id):
            conn.set_meta(VERSION, ledger_id, conn.meta[3])


class PostgresLedger(RecordedLedger):
    """A ``Ledger`` in the database at ``url``; its tables are made on first use.

    With ``wall``, the time of a driver's last heartbeat is told by that clock from its age by the
    database's: clocks of machines may be minutes apart.
    """

    def __init__(
        self,
        url: str,
        home: Path,
        *,
        wall: Callable[[], float] | None = None,
        lock_timeout_s: float = LOCK_TIMEOUT_S,
        patience_s: float = PATIENCE_S,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        address = parse_address(url)
        self.database = LedgerDatabase(
            address,
            lock_timeout_s=lock_timeout_s,
            patience_s=patience_s,
            monotonic=monotonic,
            sleep=sleep,
            random_bytes=random_bytes,
        )
        self.where = address.display
        self._wall = wall
        self._home, self._random_bytes = home, random_bytes
        self._heads = HeadFile(home, address.display)
        self._records = PostgresRecords(address.display, str(self._heads.path))
        self._backups = LedgerBackups(str(home / "ledger.db"), random_bytes)

    def close(self) -> None:
        self.database.close()

    def know(self, other: PostgresLedger) -> None:
        """Start from what ``other`` has verified of the same database, and keep it there."""
        self._known, self._home = other._known, other._home

    def driver(self, run_id: str) -> Driver | None:
        def ask(session: Session) -> Driver | None:
            driver = self._records.driver(session, run_id)
            if driver is None or driver.controller is None or self._wall is None:
                return driver
            (age_s,) = session.execute(
                "SELECT (extract(epoch FROM clock_timestamp()) - touched_at)::float8"
                " FROM drivers WHERE run_id = ?",
                (run_id,),
            ).fetchone()
            return replace(driver, beat_at=self._wall() - max(0.0, age_s))

        return self._answered(ask)

    def accept_restored(self, at: float) -> bool:
        seen = self._heads.read()

        def use(session: Session) -> VerifiedLedger | None:
            if seen is None:
                return None
            try:
                self._verified(session, None, seen)
                return None
            except LedgerOlder:
                fetched = self._records.fetch(session, None, None)
                write = LedgerWrite(self._records, session, self._records.verify(fetched, None))
            write.accept_restored(seen.seq, at)
            return write.known

        known = self.database.write(use)
        if known is None:
            return False
        self._known = known
        self._heads.write(known)
        return True

    def back_up(self, *, for_pod: bool = False) -> Backup | None:
        """Export the chain to a file of SQLite in this home. Made when it is asked for: the
        database has backups of its own."""
        return self._tried_backup(lambda: self._backups.make(for_pod=for_pod, copy=self.export))

    def backup_trouble(self) -> str:
        """Empty: no loss of this home loses a record."""
        return ""

    def restore(self, at: float, why: str, number: int | None = None) -> Restoration | None:
        """Put a backup in the tables' place; the damaged tables are kept under other names."""
        usable = [b for b in self.backups() if not b.why and number in (None, b.number)]
        if not usable:
            return None
        backup, seen = usable[0], self._heads.read()
        newest = (seen.seq, seen.chain) if seen is not None else None
        temporary = f"{self._heads.path}.new-{self._random_bytes(8).hex()}"
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(at))
        try:
            self._backups.prepare(backup, temporary, at, newest)

            def use(session: Session) -> None:
                self._require_its_own(session, Path(temporary))
                for table in ("events", "drivers"):
                    session.execute(f"ALTER TABLE {table} RENAME TO {table}_damaged_{stamp}")
                    session.execute(
                        f"CREATE TABLE {table} (LIKE {table}_damaged_{stamp} INCLUDING ALL)"
                    )
                load(Path(temporary), session)

            self.database.write(use)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
        self._known = None
        self._heads.path.unlink(missing_ok=True)
        self._refreshed()
        aside = Path(f"events_damaged_{stamp}")
        return Restoration(backup, at, aside, newest[0] if newest else None, why)

    def migrate(self) -> tuple[int, int]:
        """Bring the tables to this version's: (version before, version now)."""
        return self.database.migrate()

    def export(self, to: Path) -> None:
        """Write all records and drivers into the empty file ``to``, as a ledger of SQLite."""

        def use(session: Session) -> None:
            ledger_id = self._records.fetch(session, self._known, None).known.state.ledger_id
            store(session, to, ledger_id)

        self.database.read(use)

    def _answered(self, ask: Callable[[Session], _Answer]) -> _Answer:
        return self.database.read(ask)

    def _changed(self, run_id: str, change: Callable[[Session], None]) -> None:
        def use(session: Session) -> None:
            session.execute("SELECT 1 FROM drivers WHERE run_id = ? FOR UPDATE", (run_id,))
            change(session)

        self.database.write(use, lock=False)

    def _mended(self, put_back: Callable[[Session], None]) -> None:
        self.database.write(put_back)

    def _refreshed(self) -> VerifiedLedger:
        return self._read_on(self._read_part)

    def _read_part(self) -> tuple[VerifiedLedger, bool]:
        seen, before = self._heads.read(), self._known

        def use(session: Session) -> tuple[VerifiedLedger, bool]:
            return self._verified(session, before or self._loaded(session), seen, self.read_at_once)

        known, is_whole = self.database.read(use)
        if is_whole and known.seq and (seen is None or seen.seq < known.seq):
            self._heads.write(known)
        return known, is_whole

    def _read_all(self) -> VerifiedLedger:
        seen = self._heads.read()
        known, _ = self.database.read(lambda session: self._verified(session, None, seen))
        if known.lost:
            self._fold_file(known.state.ledger_id).remove()
        return known

    def _asked(self, ask: Callable[[Session], _Answer]) -> _Answer:
        return self.database.read(ask)

    def _written(self, write: Callable[[LedgerWrite], _Answer]) -> _Answer:
        begun: list[tuple[VerifiedLedger, LedgerWrite]] = []

        def attempt() -> _Answer:
            if self._known is None:
                self._refreshed()  # the long read, while others may write
            seen, start = self._heads.read(), self._known

            def use(session: Session) -> _Answer:
                known, _ = self._verified(session, start, seen)
                begun[:] = [(known, LedgerWrite(self._records, session, known))]
                return write(begun[0][1])

            return self.database.write(use, has_landed)

        def has_landed(session: Session) -> bool:
            known, into = begun[0]
            if into.known.seq == known.seq:
                drivers = into.driven.items()
                return all(self._records.driver(session, name) == made for name, made in drivers)
            row = session.execute(
                "SELECT chain FROM events WHERE seq = ?", (into.known.seq,)
            ).fetchone()
            return row is not None and row[0] == into.known.chain

        answer = self._despite_loss(attempt)
        known, into = begun[0]
        self._keep(into.known)
        if into.known.seq > known.seq:
            self._heads.write(into.known)
        return answer

    def _verified(
        self,
        session: Session,
        start: VerifiedLedger | None,
        seen: SeenHead | None,
        most: int = 0,
    ) -> tuple[VerifiedLedger, bool]:
        """(what the ledger holds, held to what this home has seen of it; whether that is all): with
        ``most`` no more than so many records beyond ``start``.

        Raises:
            LedgerOlder: it lacks what this home has seen, and nobody has accepted that since.
        """
        head = seen.head if seen is not None else None
        try:
            try:
                fetched = self._records.fetch(session, start, head, most)
                self._require_same(fetched.known.state.ledger_id, seen)
                return self._records.verify(fetched, head), fetched.is_whole
            except FullReadNeeded:
                known = self._records.verify(self._records.fetch(session, None, head), head)
                if known.lost:
                    self._fold_file(known.state.ledger_id).remove()
                return known, True
        except LedgerOlder:
            known = self._records.verify(self._records.fetch(session, None, None), None)
            restored = known.state.restored
            if seen is not None and restored is not None and restored.at > seen.restored_at:
                return known, True  # another home has accepted the older copy
            raise

    def _require_its_own(self, session: Session, backup: Path) -> None:
        """A database that holds another ledger is not overwritten."""
        with connected(str(backup), "ro") as file:
            (own,) = file.execute("SELECT ledger_id FROM meta").fetchone()
        (there,) = session.execute("SELECT ledger_id FROM meta").fetchone()
        if own != there and session.execute("SELECT 1 FROM events LIMIT 1").fetchone():
            raise LedgerError(
                f"the backup is of ledger {own}, and the database holds ledger {there}",
                where=self.where,
                next_step="name an empty database in TRMCLOUD_LEDGER",
            )

    def _require_same(self, ledger_id: str, seen: SeenHead | None) -> None:
        if seen is not None and seen.ledger_id != ledger_id:
            raise LedgerError(
                f"the database holds ledger {ledger_id}, but this home has used {seen.ledger_id} "
                "there",
                where=self.where,
                next_step=f"restore the earlier one; or, if it was given up, remove "
                f"{self._heads.path}",
            )


def store(session: Session, to: Path, ledger_id: str) -> None:
    """Write what ``session`` reads into the empty file ``to``, as a ledger of SQLite."""
    with connected(str(to), "rw") as file:
        file.execute("PRAGMA journal_mode = MEMORY")
        file.executescript(f"BEGIN; {FILE_SCHEMA}")
        file.execute("INSERT INTO meta VALUES (?, ?)", (VERSION, ledger_id))
        first = 0
        while rows := session.execute(
            f"SELECT {_EVENTS} FROM events WHERE seq > ? ORDER BY seq LIMIT {_ROWS_AT_ONCE}",
            (first,),
        ).fetchall():
            file.executemany(f"INSERT INTO events VALUES ({_PLACES})", rows)
            first = rows[-1][0]
        rows = session.execute(f"SELECT {_DRIVERS} FROM drivers").fetchall()
        file.executemany(f"INSERT INTO drivers VALUES ({_PLACES})", rows)
        file.execute("COMMIT")


def load(source: Path, session: Session) -> None:
    """Write the ledger in the file ``source`` into empty tables."""
    assert isinstance(session, PostgresSession)
    with connected(str(source), "ro") as file:
        (ledger_id,) = file.execute("SELECT ledger_id FROM meta").fetchone()
        session.set_meta(VERSION, ledger_id, session.meta[3] if session.meta is not None else "")
        for table, columns in (("events", _EVENTS), ("drivers", _DRIVERS)):
            cursor = file.execute(f"SELECT {columns} FROM {table}")
            while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                session.execute_many(f"INSERT INTO {table}({columns}) VALUES ({_PLACES})", rows)
