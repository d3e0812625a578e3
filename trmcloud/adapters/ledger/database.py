"""The PostgreSQL database under ``PostgresLedger``: its schema, connections and transactions.

Tables stand in the schema ``trmcloud``. A write locks the one row of ``meta`` first and rows of
``drivers`` after it; a heartbeat locks its row of ``drivers`` alone. In this order no two
transactions wait for one another.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from trmcloud.adapters.ledger.records import VERSION, Rows, Session, damaged
from trmcloud.core.errors import LedgerError, LedgerLocked, LedgerTooNew, MissingExtra, UsageError
from trmcloud.core.text import one_line
from trmcloud.core.values import Value
from trmcloud.io.installation import install_command, update_command

if TYPE_CHECKING:
    import psycopg

SCHEMES = ("postgresql://", "postgres://")
OLDEST_SERVER = 13
SCHEMA = "trmcloud"
MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE meta(
        version bigint NOT NULL, ledger_id text NOT NULL,
        schema_version integer NOT NULL, moved_to text NOT NULL
    );
    CREATE TABLE events(
        seq bigint PRIMARY KEY, run_id text NOT NULL, n bigint NOT NULL, epoch bigint NOT NULL,
        at double precision NOT NULL, kind text NOT NULL, body text NOT NULL, chain text NOT NULL
    );
    CREATE UNIQUE INDEX events_of_run ON events(run_id, n);
    CREATE TABLE drivers(
        run_id text PRIMARY KEY, epoch bigint NOT NULL, host text NOT NULL, pid bigint NOT NULL,
        pid_started text NOT NULL, beat_at double precision NOT NULL, released bigint NOT NULL,
        seal text NOT NULL,
        touched_at double precision NOT NULL DEFAULT extract(epoch FROM clock_timestamp())
    );
    """,
)
"""The n-th brings the schema from version n - 1 to n. One that was released is never changed."""

PATIENCE_S = 30.0
"""A connection that is lost while a command works is made again for so long."""
LOCK_TIMEOUT_S = 30.0
_IDLE_S = 20
"""A client that is stopped in mid-transaction loses its lock after so long: sooner than others
give up."""
_CONNECT_S = 10
_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"
_WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE"
_META = "SELECT version, ledger_id, schema_version, moved_to, '' FROM meta"
_LOCKED_META = (
    "SELECT version, ledger_id, schema_version, moved_to, pg_current_xact_id()::text"
    " FROM meta FOR UPDATE"
)
_CREATE_LOCK = 0x74726D63
"""The advisory lock of those who create or migrate the tables."""
_FIRST_DELAY_S = 0.05
_LONGEST_DELAY_S = 2.0
_REASON_CHARS = 240
_CUT = ("08", "57P01", "57P02", "57P03", "25P03")
_AGAIN = ("40001", "40P01")
_Answer = TypeVar("_Answer")


class Cut(Exception):
    """The connection was lost, and what was written over it was not committed. ``__cause__`` is the
    driver's error; ``is_new`` where none could be made at all."""

    def __init__(self, *, is_new: bool) -> None:
        super().__init__()
        self.is_new = is_new


class _NeverGiven(Exception):
    """A server that has crashed since knows no transaction of that number: it was lost."""


class PostgresSession:
    """A transaction on one connection, with parameters as ``?``. Statements are sent at once; an
    answer is waited for where it is fetched, and an error may be raised there."""

    def __init__(self, conn: psycopg.Connection[Any], meta: psycopg.Cursor[Any]) -> None:
        self._conn = conn
        self._meta = meta
        self._meta_row: tuple[Any, ...] | None = None

    @property
    def meta(self) -> tuple[Any, ...] | None:
        """(version, ledger id, schema's version, where it was moved to, transaction's id, which is
        empty in one that does not hold the lock); None without such a row."""
        if self._meta_row is None:
            rows = self._meta.fetchmany(2)
            self._meta_row = rows[0] if len(rows) == 1 else None
        return self._meta_row

    def set_meta(self, version: int, ledger_id: str, moved_to: str) -> None:
        assert self.meta is not None
        self.execute(
            "UPDATE meta SET version = ?, ledger_id = ?, moved_to = ?",
            (version, ledger_id, moved_to),
        )
        self._meta_row = (version, ledger_id, self.meta[2], moved_to, self.meta[4])

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Rows:
        return self._conn.execute(sql.replace("?", "%s").encode(), parameters)

    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        with self._conn.cursor() as cursor:
            cursor.executemany(sql.replace("?", "%s").encode(), rows)


class LedgerAddress(Value):
    """Where the ledger is. ``conninfo`` holds the password: it is never printed."""

    conninfo: str
    password: str
    display: str

    def scrub(self, text: str) -> str:
        return text.replace(self.password, "***") if self.password else text


def parse_address(url: str) -> LedgerAddress:
    """
    Raises:
        MissingExtra: psycopg is not installed.
        UsageError: no URL of a database. It is not quoted: it may hold a password.
    """
    psycopg = import_psycopg()
    try:
        parts = psycopg.conninfo.conninfo_to_dict(url) if url.startswith(SCHEMES) else None
    except psycopg.Error:
        parts = None
    if not parts:
        raise UsageError(
            "the ledger's URL cannot be read",
            next_step="write it as postgresql://USER@HOST:5432/DATABASE, with %40 for an @ in a "
            "password",
        )
    user, port = parts.get("user"), parts.get("port")
    host = str(parts.get("host") or parts.get("hostaddr") or "")
    socket = host if host.startswith("/") else ""
    place = f"{user}@" if user else ""
    place += "" if socket else host
    place += f":{port}" if port else ""
    display = f"postgresql://{place}/{parts.get('dbname') or ''}"
    display += f"?host={socket}" if socket else ""
    password = str(parts.get("password") or "")
    return LedgerAddress(url, password, one_line(display))


def import_psycopg() -> Any:
    """
    Raises:
        MissingExtra: it is not installed.
    """
    try:
        import psycopg
        import psycopg.conninfo
    except ImportError:
        raise MissingExtra(
            "a ledger in PostgreSQL", "postgres", install_command("postgres")
        ) from None
    # Its warnings of a lost connection, which is made again, would go to the user's terminal.
    logging.getLogger("psycopg").addHandler(logging.NullHandler())
    return psycopg


class LedgerDatabase:
    """Connections to the ledger's database; one for each thread that uses it at the same time."""

    def __init__(
        self,
        address: LedgerAddress,
        *,
        lock_timeout_s: float = LOCK_TIMEOUT_S,
        patience_s: float = PATIENCE_S,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.address = address
        self._psycopg = import_psycopg()
        self._lock_timeout_s = lock_timeout_s
        self._patience_s = patience_s
        self._monotonic, self._sleep = monotonic, sleep
        self._random_bytes = random_bytes
        self._idle = _Idle()
        self._was_connected = False
        weakref.finalize(self, self._idle.close)

    def close(self) -> None:
        self._idle.close()

    def read(self, use: Callable[[Session], _Answer]) -> _Answer:
        """Return the answer of ``use``, in one snapshot.

        Raises:
            LedgerError: in place of every error of the database.
        """
        return self._patiently(lambda: self._used(use, _READ, _META))

    def write(
        self,
        use: Callable[[Session], _Answer],
        landed: Callable[[Session], bool] | None = None,
        *,
        lock: bool = True,
    ) -> _Answer:
        """Return the result of ``use``, committed; it is called again where the connection was lost
        before that. With ``lock`` under the lock on the whole ledger.

        ``landed`` looks for what was committed, where the answer to the commit was lost.
        """
        meta = _LOCKED_META if lock else _META
        return self._patiently(lambda: self._used(use, _WRITE, meta, landed))

    def migrate(self) -> tuple[int, int]:
        """Bring the tables to the newest version: (version before, version now)."""
        return self._patiently(self._migrated)

    def _used(
        self,
        use: Callable[[Session], _Answer],
        begin: str,
        meta: str,
        landed: Callable[[Session], bool] | None = None,
    ) -> _Answer:
        conn = self._taken()
        xid, is_committing = "", False
        try:
            with conn.pipeline():
                session = self._begin(conn, begin, meta)
                answer = use(session)
                xid = session.meta[4] if session.meta is not None else ""
                is_committing = True
                ended = conn.execute("COMMIT")
        except BaseException as error:
            self._leave(conn)
            if not isinstance(error, self._psycopg.Error):
                raise
            translated = self._translated(error)
            is_open = is_committing and xid and isinstance(translated, Cut)
            if is_open and self._has_landed(xid, landed):
                return answer
            raise translated from error
        self._idle.put(conn)
        if ended.statusmessage != "COMMIT":
            raise self._unusable("the transaction was rolled back")
        return answer

    def _begin(self, conn: psycopg.Connection[Any], begin: str, meta: str) -> PostgresSession:
        # Settings are the transaction's own, so that a pooler may stand between.
        settings = {
            "search_path": SCHEMA,
            "lock_timeout": f"{self._lock_timeout_s * 1000:.0f}",
            "idle_in_transaction_session_timeout": f"{_IDLE_S * 1000}",
            "extra_float_digits": "1",
        }
        conn.execute(begin.encode())
        words = ", ".join(
            f"set_config('{name}', '{value}', true)" for name, value in settings.items()
        )
        conn.execute(f"SELECT {words}".encode())
        return PostgresSession(conn, conn.execute(meta.encode()))

    def _has_landed(self, xid: str, landed: Callable[[Session], bool] | None) -> bool:
        """Whether transaction ``xid`` was committed, of which the answer was lost."""

        def ask(session: Session) -> bool | None:
            status = session.execute("SELECT pg_xact_status((?::text)::xid8)", (xid,))
            try:
                (told,) = status.fetchone()
            except self._psycopg.errors.InvalidParameterValue:
                raise _NeverGiven from None
            if told == "in progress":
                return None
            # After a crash, or on a server that took over, the number may be another's.
            return landed(session) if landed is not None else told == "committed"

        give_up_at = self._monotonic() + self._patience_s
        while True:
            try:
                answer = self.read(ask)
            except _NeverGiven:
                return False
            except LedgerError as error:
                raise self._unknown(error.what) from None
            if answer is not None:
                return answer
            if self._monotonic() > give_up_at:
                raise self._unknown("the transaction is still in progress")
            self._sleep(_FIRST_DELAY_S)

    def _patiently(self, attempt: Callable[[], _Answer]) -> _Answer:
        """Return the result of ``attempt``, made again while the connection is lost: for
        ``patience_s`` where there has been one."""
        give_up_at = self._monotonic() + self._patience_s
        delay_s = _FIRST_DELAY_S
        while True:
            try:
                return attempt()
            except Cut as cut:
                cause = cut.__cause__
                hopeless = cut.is_new and not self._was_connected and not _is_starting(cause)
                if hopeless or self._monotonic() + delay_s > give_up_at:
                    raise self._unreachable(cause) from None
            self._sleep(delay_s)
            delay_s = min(2 * delay_s, _LONGEST_DELAY_S)

    def _taken(self) -> psycopg.Connection[Any]:
        """A connection that nobody else uses, to a database that has the tables."""
        while (conn := self._idle.take()) is not None:
            if not conn.closed:
                return conn
        conn = self._connected()
        try:
            if not self._has_tables(conn):
                self._migrate(conn)
        except BaseException as error:
            self._leave(conn)
            if isinstance(error, self._psycopg.Error):
                raise self._translated(error) from error
            raise
        self._was_connected = True
        return conn

    def _connected(self) -> psycopg.Connection[Any]:
        """
        Raises:
            Cut, LedgerError: the server cannot be reached, or is none that can keep a ledger.
        """
        settings = {
            "connect_timeout": _CONNECT_S,
            "application_name": "trmcloud",
            "client_encoding": "UTF8",
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 4,
            "tcp_user_timeout": 30_000,
        }
        given = self._psycopg.conninfo.conninfo_to_dict(self.address.conninfo)
        settings = {name: value for name, value in settings.items() if name not in given}
        try:
            conn: psycopg.Connection[Any] = self._psycopg.connect(
                self.address.conninfo, autocommit=True, prepare_threshold=None, **settings
            )
        except self._psycopg.Error as error:
            raise Cut(is_new=True) from error
        version = conn.info.server_version // 10_000
        if version < OLDEST_SERVER:
            conn.close()
            raise self._unusable(
                f"the server is PostgreSQL {version}", f"use PostgreSQL {OLDEST_SERVER} or newer"
            )
        return conn

    def _has_tables(self, conn: psycopg.Connection[Any]) -> bool:
        """Whether the tables are there. A server that loses what it has committed keeps none.

        Raises:
            LedgerError: it takes no writes.
        """
        row = conn.execute(
            "SELECT pg_is_in_recovery(), current_setting('synchronous_commit'),"
            f" to_regclass('{SCHEMA}.meta') IS NOT NULL".encode()
        ).fetchone()
        assert row is not None
        in_recovery, synchronous, has_tables = row
        if in_recovery:
            raise self._read_only()
        if synchronous == "off":
            conn.execute("SET synchronous_commit = on")
        return bool(has_tables)

    def _migrated(self) -> tuple[int, int]:
        conn = self._connected()
        try:
            self._has_tables(conn)
            return self._migrate(conn)
        except self._psycopg.Error as error:
            raise self._translated(error) from error
        finally:
            self._leave(conn)

    def _migrate(self, conn: psycopg.Connection[Any]) -> tuple[int, int]:
        """Create the tables, or bring them to the newest version; all or nothing."""
        with conn.transaction():
            conn.execute("SET LOCAL lock_timeout = '30s'")
            conn.execute("SELECT pg_advisory_xact_lock(%s)", (_CREATE_LOCK,))
            conn.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}".encode())
            conn.execute(f"SET LOCAL search_path = {SCHEMA}".encode())
            there = conn.execute("SELECT to_regclass('meta') IS NOT NULL").fetchone()
            before = 0
            if there is not None and there[0]:
                row = conn.execute("SELECT schema_version FROM meta FOR UPDATE").fetchone()
                before = int(row[0]) if row is not None else 0
            newest = len(MIGRATIONS)
            if before > newest:
                raise schema_too_new(self.address.display, before)
            for statements in MIGRATIONS[before:]:
                conn.execute(statements.encode())
            if before == 0:
                conn.execute(
                    "INSERT INTO meta VALUES (%s, %s, %s, '')",
                    (VERSION, self._random_bytes(4).hex(), newest),
                )
            else:
                conn.execute("UPDATE meta SET schema_version = %s", (newest,))
        return before, newest

    def _leave(self, conn: psycopg.Connection[Any]) -> None:
        """Give the connection back after an error, if it can be used again."""
        with suppress(self._psycopg.Error):
            if not conn.closed and conn.info.transaction_status.name != "ACTIVE":
                conn.execute("ROLLBACK")
                self._idle.put(conn)
                return
        with suppress(self._psycopg.Error):
            conn.close()

    def _translated(self, error: Exception) -> Exception:
        """Return ours for an error of the driver; ``Cut`` for one that a new try may not meet."""
        state = getattr(error, "sqlstate", None) or ""
        lost = isinstance(error, self._psycopg.OperationalError) and not state
        if lost or state.startswith(_CUT):
            self._idle.close()  # the others are of the same server
            return Cut(is_new=False)
        if state in _AGAIN:
            return Cut(is_new=False)
        why = self._reason(error)
        if state == "55P03":
            return LedgerLocked(
                f"another client has locked the ledger for {self._lock_timeout_s:g} s",
                where=self.address.display,
                next_step="try again; if this happens again, look for it in pg_stat_activity",
            )
        if state == "25006":
            return self._read_only()
        if state.startswith("53"):
            full = state == "53100"
            return self._unusable(
                "its disk is full" if full else why,
                "free space on the database's disk; nothing was written"
                if full
                else "free what the server lacks, then try again; nothing was written",
            )
        if state == "42501":
            return self._unusable(
                why, f"grant the user SELECT, INSERT, UPDATE, DELETE in schema {SCHEMA}"
            )
        if state in ("42P01", "42703", "3F000", "XX001", "XX002", "23505"):
            return damaged(self.address.display, why)
        return self._unusable(why, "see the database's log; nothing was written")

    def _reason(self, error: BaseException | None) -> str:
        text = " ".join(one_line(str(error)).split())
        text = self.address.scrub(text)
        return text if len(text) <= _REASON_CHARS else text[:_REASON_CHARS] + "…"

    def _unreachable(self, cause: BaseException | None) -> LedgerError:
        why = (
            self._reason(cause)
            .removeprefix("connection failed: ")
            .removeprefix("connection is bad: ")
        )
        return self._unusable(
            f"the database does not answer: {why}",
            "start it, or correct the address; pods that run end themselves at their hard stop",
        )

    def _unknown(self, why: str) -> LedgerError:
        return LedgerError(
            f"it is not known whether the last record was written: {why}",
            where=self.address.display,
            next_step="see trmcloud status once the database answers again",
        )

    def _read_only(self) -> LedgerError:
        return self._unusable(
            "the database is read-only",
            "name the primary server in the URL, or end what made it read-only",
        )

    def _unusable(self, why: str, next_step: str = "try again") -> LedgerError:
        return LedgerError(
            f"the ledger cannot be used: {why}", where=self.address.display, next_step=next_step
        )


class _Idle:
    """Connections that are not in use, of this process alone: a forked child makes its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._connections: list[psycopg.Connection[Any]] = []
        self._inherited: list[Any] = []

    def take(self) -> psycopg.Connection[Any] | None:
        with self._lock:
            self._part()
            return self._connections.pop() if self._connections else None

    def put(self, conn: psycopg.Connection[Any]) -> None:
        with self._lock:
            self._part()
            self._connections.append(conn)

    def close(self) -> None:
        with self._lock:
            self._part()
            closing, self._connections = self._connections, []
        for conn in closing:
            with suppress(Exception):
                conn.close()

    def _part(self) -> None:
        if self._pid != os.getpid():
            # Closing them here would end the parent's sessions.
            self._inherited += self._connections
            self._connections, self._pid = [], os.getpid()


def schema_too_new(display: str, version: int) -> LedgerTooNew:
    return LedgerTooNew(
        f"the ledger's tables are of version {version}, but {len(MIGRATIONS)} is the newest known "
        "to this version of trmcloud",
        where=display,
        next_step=update_command(),
    )


def schema_too_old(display: str, version: int) -> LedgerError:
    return LedgerError(
        f"the ledger's tables are of version {version}, but this version of trmcloud needs "
        f"{len(MIGRATIONS)}",
        where=display,
        next_step="trmcloud admin ledger migrate; clients of earlier versions are refused after it",
    )


def _is_starting(cause: BaseException | None) -> bool:
    text = str(cause)
    return any(f"the database system is {word}" in text for word in ("starting", "shutting", "in "))
