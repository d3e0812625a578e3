"""The outbox of notifications in one SQLite file, and the thread that delivers them."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from trmcloud.app.notifications import Notifier
from trmcloud.core.contract.notices import Notice, is_wanted
from trmcloud.core.errors import OutboxError, TrmcloudError
from trmcloud.ports.notices import Destination, QueuedNotice

# Notifications that wait, in one SQLite file beside the ledger: ``<home>/outbox.db``.
#
# Every method is one transaction on a connection of its own, so that threads and processes may
# share the file, and one that is killed leaves what it held to the next. A notice is known by its
# id for good, and waits, once for each destination, until that has taken it.

NAME = "outbox.db"
_VERSION = 1
_BUSY_S = 5.0
_SCHEMA = """
CREATE TABLE meta(version INTEGER NOT NULL, cursor INTEGER);
CREATE TABLE known(id TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE waiting(
    number INTEGER PRIMARY KEY, id TEXT NOT NULL, destination TEXT NOT NULL, body TEXT NOT NULL,
    tries INTEGER NOT NULL, since REAL NOT NULL, next_at REAL NOT NULL, held_until REAL NOT NULL,
    why TEXT NOT NULL, UNIQUE(id, destination)
);
CREATE TABLE told(
    destination TEXT PRIMARY KEY, at REAL, gave_up TEXT NOT NULL
) WITHOUT ROWID;
"""


_QUEUED = "id, destination, body, tries, since, next_at, why"
"""The columns of a ``QueuedNotice``."""


class SqliteOutbox:
    """An ``Outbox``; made, with its folder, on first use, readable by its owner alone."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def cursor(self) -> int | None:
        with self._transaction() as conn:
            (cursor,) = conn.execute("SELECT cursor FROM meta").fetchone()
        return cursor if cursor is None else int(cursor)

    def known(self, prefix: str) -> int:
        with self._transaction() as conn:
            rows = conn.execute(
                "SELECT COUNT(*) FROM known WHERE substr(id, 1, ?) = ?", (len(prefix), prefix)
            )
            return int(rows.fetchone()[0])

    def take(
        self,
        notices: Sequence[tuple[Notice, str]],
        destinations: Sequence[Destination],
        cursor: int,
        at: float,
    ) -> int:
        new = 0
        with self._transaction() as conn:
            for notice, body in notices:
                made = conn.execute("INSERT OR IGNORE INTO known VALUES (?, ?)", (notice.id, at))
                if not made.rowcount:
                    continue
                new += 1
                for each in destinations:
                    if is_wanted(notice, each.only):
                        conn.execute(
                            "INSERT OR IGNORE INTO waiting(id, destination, body, tries, since,"
                            " next_at, held_until, why) VALUES (?, ?, ?, 0, ?, ?, 0, '')",
                            (notice.id, each.name, body, at, at),
                        )
            conn.execute("UPDATE meta SET cursor = ?", (cursor,))
        return new

    def due(self, destination: str, now: float, hold_s: float) -> QueuedNotice | None:
        with self._transaction() as conn:
            # A clock that was set back must not hold anything for ever.
            row = conn.execute(
                f"SELECT {_QUEUED}, number FROM waiting"
                " WHERE destination = ? AND (next_at <= ? OR next_at > ?)"
                " AND (held_until <= ? OR held_until > ?) ORDER BY number LIMIT 1",
                (destination, now, now + _LONGEST_S, now, now + _LONGEST_S),
            ).fetchone()
            if row is None:
                return None
            conn.execute(
                "UPDATE waiting SET held_until = ? WHERE number = ?", (now + hold_s, row[-1])
            )
        return QueuedNotice(*row[:-1])

    def done(self, waiting: QueuedNotice, at: float) -> None:
        with self._transaction() as conn:
            self._drop(conn, waiting)
            conn.execute(
                "INSERT INTO told VALUES (?, ?, '')"
                " ON CONFLICT(destination) DO UPDATE SET at = excluded.at, gave_up = ''",
                (waiting.destination, at),
            )

    def put_off(self, waiting: QueuedNotice, next_at: float, why: str) -> None:
        with self._transaction() as conn:
            conn.execute(
                "UPDATE waiting SET tries = tries + 1, next_at = ?, held_until = 0, why = ?"
                " WHERE id = ? AND destination = ?",
                (next_at, why, waiting.notice_id, waiting.destination),
            )

    def give_up(self, waiting: QueuedNotice, why: str) -> None:
        with self._transaction() as conn:
            self._drop(conn, waiting)
            conn.execute(
                "INSERT INTO told VALUES (?, NULL, ?)"
                " ON CONFLICT(destination) DO UPDATE SET gave_up = excluded.gave_up",
                (waiting.destination, f"{waiting.notice_id}: {why}"),
            )

    def waiting(self) -> Sequence[QueuedNotice]:
        with self._transaction() as conn:
            rows = conn.execute(f"SELECT {_QUEUED} FROM waiting ORDER BY number").fetchall()
        return [QueuedNotice(*row) for row in rows]

    def last_told(self, destination: str) -> tuple[float | None, str]:
        with self._transaction() as conn:
            row = conn.execute(
                "SELECT at, gave_up FROM told WHERE destination = ?", (destination,)
            ).fetchone()
        return (None, "") if row is None else (row[0], row[1])

    def forget(self, destination: str) -> None:
        with self._transaction() as conn:
            conn.execute("DELETE FROM waiting WHERE destination = ?", (destination,))
            conn.execute("DELETE FROM told WHERE destination = ?", (destination,))

    def _drop(self, conn: sqlite3.Connection, waiting: QueuedNotice) -> None:
        conn.execute(
            "DELETE FROM waiting WHERE id = ? AND destination = ?",
            (waiting.notice_id, waiting.destination),
        )

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            conn = self._open()
            try:
                conn.execute("BEGIN IMMEDIATE")
                self._ready(conn)
                yield conn
                conn.execute("COMMIT")
            finally:
                conn.close()
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            raise OutboxError(
                f"the outbox cannot be used: {error}",
                where=str(self._path),
                next_step=f"free some disk space, or remove {self._path}: the notifications "
                "in it are lost",
            ) from None

    def _open(self) -> sqlite3.Connection:
        if not self._path.exists():
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Made here, since SQLite would leave who may read it to the umask.
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))
        conn = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None)
        conn.execute("PRAGMA synchronous = FULL")
        return conn

    def _ready(self, conn: sqlite3.Connection) -> None:
        tables = conn.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]
        if not tables:
            for statement in _SCHEMA.strip().split(";\n"):
                conn.execute(statement)
            conn.execute("INSERT INTO meta VALUES (?, NULL)", (_VERSION,))
            return
        (version,) = conn.execute("SELECT version FROM meta").fetchone()
        if version != _VERSION:
            raise sqlite3.DatabaseError(
                f"its format is {version}, but this version knows {_VERSION}"
            )


_LONGEST_S = 7 * 86_400.0
"""Nothing is put off or held for longer."""


# The thread that delivers while others control: no command waits for it beyond a deadline.

_EVERY_S = 2.0


class NotificationThread:
    """Derives every few seconds; each destination has a thread of its own, so that one which never
    answers delays no other. All of them are daemons: no process waits for them to end."""

    def __init__(self, teller: Notifier, every_s: float = _EVERY_S) -> None:
        self._teller, self._every_s = teller, every_s
        self._leave = threading.Event()
        self._workers: dict[str, threading.Thread] = {}
        self._loop = threading.Thread(target=self._run, name="telling", daemon=True)
        self.trouble: Exception | None = None
        """The error that kept the last look from being put into the outbox."""

    def start(self) -> None:
        self._loop.start()

    def finish(self, within_s: float) -> bool:
        """Look once more and tell what is due, for at most so long; whether all of it was tried.
        What is left waits in the outbox."""
        deadline = time.monotonic() + within_s
        self._leave.set()
        self._loop.join(max(0.0, deadline - time.monotonic()))
        for worker in list(self._workers.values()):
            worker.join(max(0.0, deadline - time.monotonic()))
        threads = [self._loop, *self._workers.values()]
        return not any(thread.is_alive() for thread in threads)

    def _run(self) -> None:
        while True:
            leaving = self._leave.is_set()
            self._look()
            if leaving:
                return
            self._leave.wait(self._every_s)

    def _look(self) -> None:
        try:
            self._teller.derive()
            self.trouble = None
        except Exception as error:  # a ledger that is locked, a disk that is full: looked at again
            self.trouble = error
        for destination in self._teller.destinations:
            worker = self._workers.get(destination.name)
            if worker is None or not worker.is_alive():
                worker = threading.Thread(target=self._tell, args=(destination,), daemon=True)
                self._workers[destination.name] = worker
                worker.start()

    def _tell(self, destination: Destination) -> None:
        try:
            while self._teller.deliver(destination):
                pass
        except TrmcloudError as error:
            self.trouble = error
