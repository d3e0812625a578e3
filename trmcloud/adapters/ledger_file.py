"""The file under ``SqliteLedger``: its schema, its hash chain, and what damage looks like.

One SQLite file with a rollback journal; every record's hash covers the record before it, so that
a changed, missing or reordered record is seen. Beside it lies ``ledger.head``: the number and
hash of the newest record, written after each commit. It may lag behind the ledger, after a crash;
a ledger that lags behind *it* was restored from a backup, and has forgotten what was spent since.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trmcloud.core import events as ev
from trmcloud.core.budget import LedgerState, extend_ledger
from trmcloud.core.errors import LedgerDamaged, LedgerError, LedgerLocked, LedgerTooNew
from trmcloud.core.run_state import IllegalTransition
from trmcloud.ports import ControllerId, Driver

if TYPE_CHECKING:
    import sqlite3

VERSION = 1
_SCHEMA = """
CREATE TABLE meta(version INTEGER NOT NULL, ledger_id TEXT NOT NULL);
CREATE TABLE events(
    seq INTEGER PRIMARY KEY, run_id TEXT NOT NULL, n INTEGER NOT NULL, epoch INTEGER NOT NULL,
    at REAL NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL, chain TEXT NOT NULL
);
CREATE TABLE drivers(
    run_id TEXT PRIMARY KEY, epoch INTEGER NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL,
    pid_started TEXT NOT NULL, beat_at REAL NOT NULL, released INTEGER NOT NULL
) WITHOUT ROWID;
"""
_ROW_TYPES = (int, str, int, int, float, str, str, str)
_DRIVER_TYPES = (int, str, int, str, float, int)
_LEDGER_ID = re.compile(r"[0-9a-f]{8}")
_HEAD = re.compile(rb"([0-9]{1,18}) ([0-9a-f]{64})\n")
_BUSY, _LOCKED = 5, 6
_UNUSABLE = {
    3: "permission was denied",
    7: "memory ran out",
    8: "it cannot be written to",
    10: "the disk failed to read or write it",
    13: "the disk is full",
    14: "it cannot be opened",
}


@dataclass(frozen=True)
class Verified:
    """What the ledger says up to record ``seq``; every hash up to there was checked."""

    state: LedgerState
    seq: int
    chain: str
    counts: Mapping[str, int]
    """Records of each run."""


@dataclass(frozen=True)
class Rows:
    """What one snapshot of the file holds beyond what was verified before."""

    known: Verified
    rows: list[tuple[Any, ...]]
    chain_at_head: str | None


class LedgerFile:
    """Opens, creates and checks the file. A connection lives for one operation only, so that
    nothing is shared with forked or parallel work."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        busy_timeout_s: float,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self.path = os.path.abspath(path)
        self.head_path = os.path.join(os.path.dirname(self.path), "ledger.head")
        self._busy_timeout_s = busy_timeout_s
        self._random_bytes = random_bytes

    @contextmanager
    def connection(self, *, write: bool) -> Iterator[sqlite3.Connection]:
        """One transaction: committed where ``write`` and nothing was raised, else rolled back.

        Raises:
            LedgerLocked, LedgerDamaged, LedgerError: in place of every error of SQLite.
        """
        import sqlite3

        try:
            conn = self._open()
            try:
                conn.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                yield conn
                conn.execute("COMMIT" if write else "ROLLBACK")
            finally:
                conn.close()
        except sqlite3.Error as error:
            raise self._told(error) from None

    def read_head(self) -> tuple[int, str] | None:
        """(number, hash) of the newest record known to have been committed. To be read *before*
        the ledger, since others may go on writing both."""
        try:
            with open(self.head_path, "rb") as file:
                text = file.read(200)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable(error.strerror or str(error)) from None
        # The head is not synced to disk: after a power cut it may be empty, which proves nothing.
        if not text.strip(b"\0"):
            return None
        match = _HEAD.fullmatch(text)
        if match is None:
            raise LedgerDamaged(
                "the ledger's side file is damaged",
                where=self.head_path,
                next_step=f"if you know of no restored backup, remove {self.head_path}",
            )
        return int(match[1]), match[2].decode()

    def write_head(self, seq: int, chain: str) -> None:
        """Note the newest record. A failure is harmless: the record itself is committed."""
        folder, prefix = os.path.dirname(self.head_path), os.path.basename(self.head_path) + "."
        temporary = f"{self.head_path}.{self._random_bytes(8).hex()}"
        with suppress(OSError):
            # What a killed process left, or a living one is about to rename: either may go.
            for name in os.listdir(folder):
                if name.startswith(prefix):
                    os.unlink(os.path.join(folder, name))
            with open(temporary, "xb") as file:
                file.write(f"{seq} {chain}\n".encode())
            os.replace(temporary, self.head_path)

    def fetch(
        self, conn: sqlite3.Connection, known: Verified | None, head: tuple[int, str] | None
    ) -> Rows:
        """Everything after ``known``, in one snapshot; to be checked by ``verify``."""
        ledger_id = self._meta(conn)
        start = Verified(LedgerState(ledger_id), 0, _genesis(ledger_id), {})
        if known is not None and known.state.ledger_id == ledger_id and known.seq > 0:
            found = conn.execute("SELECT chain FROM events WHERE seq = ?", (known.seq,)).fetchone()
            # Where the record is another one, the file was replaced: start over.
            if found is not None and found[0] == known.chain:
                start = known
        rows = conn.execute(
            "SELECT seq, run_id, n, epoch, at, kind, body, chain FROM events"
            " WHERE seq > ? ORDER BY seq",
            (start.seq,),
        ).fetchall()
        chain_at_head = None
        if head is not None and head[0] == 0:
            chain_at_head = _genesis(ledger_id)
        elif head is not None:
            found = conn.execute("SELECT chain FROM events WHERE seq = ?", (head[0],)).fetchone()
            chain_at_head = found[0] if found is not None else None
        return Rows(start, rows, chain_at_head)

    def verify(
        self, fetched: Rows, head: tuple[int, str] | None
    ) -> tuple[Verified, tuple[ev.Record, ...]]:
        """The ledger's content, and the records that ``fetched`` added to it.

        Raises:
            LedgerDamaged: a record that is not what was written, or an older ledger than before.
        """
        seq, chain = fetched.known.seq, fetched.known.chain
        counts = dict(fetched.known.counts)
        records: list[ev.Record] = []
        for row in fetched.rows:
            record = self._record(row, seq, chain, counts)
            seq, chain = record.seq, row[7]
            counts[record.run_id] = row[2]
            records.append(record)
        if head is not None and fetched.chain_at_head != head[1]:
            raise LedgerDamaged(
                "the ledger lacks records it once had: it was restored from a backup, or replaced",
                where=self.path,
                next_step="look for pods at your provider, end those you do not want, put the"
                f" newest ledger back, or accept this one by removing {self.head_path}",
            )
        try:
            state = extend_ledger(fetched.known.state, records) if records else fetched.known.state
        except (IllegalTransition, ValueError, TypeError, AttributeError) as error:
            raise self.damaged(f"its records contradict one another: {error}") from None
        return Verified(state, seq, chain, counts), tuple(records)

    def insert(
        self, conn: sqlite3.Connection, before: Verified, records: tuple[ev.Record, ...]
    ) -> Verified:
        """Store ``records`` after ``before``, and say what the file holds then.

        The state is folded from what will be read back, not from what was passed in.
        """
        chain, counts = before.chain, dict(before.counts)
        stored: list[ev.Record] = []
        for record in records:
            kind = type(record.event).__name__
            body = json.dumps(ev.event_to_json(record.event), allow_nan=False)
            n = counts[record.run_id] = counts.get(record.run_id, 0) + 1
            at = float(record.at)
            if not abs(at) < 1e300:
                raise ValueError(f"{at} is no instant")
            chain = _link(chain, record.seq, record.run_id, n, record.epoch, at, kind, body)
            conn.execute(
                "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (record.seq, record.run_id, n, record.epoch, at, kind, body, chain),
            )
            event = ev.event_from_json(kind, json.loads(body))
            stored.append(ev.Record(record.seq, record.run_id, record.epoch, at, event))
        seq = records[-1].seq if records else before.seq
        return Verified(extend_ledger(before.state, stored), seq, chain, counts)

    def driver(self, conn: sqlite3.Connection, run_id: str) -> Driver | None:
        found = conn.execute(
            "SELECT epoch, host, pid, pid_started, beat_at, released FROM drivers WHERE run_id = ?",
            (run_id,),
        ).fetchone()
        if found is None:
            return None
        if tuple(map(type, found)) != _DRIVER_TYPES or found[0] < 1:
            raise self.damaged(f"its driver of {run_id} is not what was written")
        epoch, host, pid, pid_started, beat_at, released = found
        who = None if released else ControllerId(host, pid, pid_started)
        return Driver(epoch, who, beat_at)

    def damaged(self, why: str) -> LedgerDamaged:
        return LedgerDamaged(
            f"the ledger is damaged: {why}",
            where=self.path,
            next_step=f"put {self.path} back from a backup; nothing was changed",
        )

    def _record(
        self, row: tuple[Any, ...], seq: int, chain: str, counts: Mapping[str, int]
    ) -> ev.Record:
        if tuple(map(type, row)) != _ROW_TYPES:
            raise self.damaged(f"record {seq + 1} is not what was written")
        number, run_id, n, epoch, at, kind, body, link = row
        if number != seq + 1 or n != counts.get(run_id, 0) + 1:
            raise self.damaged(f"a record is missing after number {seq}")
        if link != _link(chain, *row[:7]):
            raise self.damaged(f"record {number} was changed after it was written")
        try:
            event = ev.event_from_json(kind, json.loads(body))
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise self.damaged(f"record {number} cannot be read: {error}") from None
        return ev.Record(number, run_id, epoch, at, event)

    def _meta(self, conn: sqlite3.Connection) -> str:
        found = conn.execute("SELECT version, ledger_id FROM meta").fetchall()
        version, ledger_id = found[0] if len(found) == 1 else (None, None)
        if isinstance(version, int) and version > VERSION:
            raise LedgerTooNew(
                f"a newer trmcloud wrote this ledger: its format is {version}, and {VERSION} is"
                " the newest known here",
                where=self.path,
                next_step="pip install --upgrade trmcloud",
            )
        if version != VERSION or not isinstance(ledger_id, str):
            raise self.damaged("its first page is not what was written")
        if not _LEDGER_ID.fullmatch(ledger_id):
            raise self.damaged("its id is not what was written")
        return ledger_id

    def _open(self) -> sqlite3.Connection:
        import sqlite3

        try:
            size_bytes = os.stat(self.path).st_size
        except FileNotFoundError:
            self._create()
        except OSError as error:
            raise self._unusable(error.strerror or str(error)) from None
        else:
            # SQLite would take an empty file for a new ledger, in which nothing was ever spent.
            if size_bytes == 0:
                raise self.damaged("it is empty")
        conn = sqlite3.connect(
            _uri(self.path),
            timeout=self._busy_timeout_s,
            isolation_level=None,
            check_same_thread=False,
            uri=True,
        )
        try:
            conn.execute("PRAGMA journal_mode = DELETE")
            # FULL, and the folder is synced too once the journal is gone: else a power cut could
            # bring the journal back and undo a commit that was already acknowledged.
            conn.execute("PRAGMA synchronous = EXTRA")
            conn.execute("PRAGMA cell_size_check = ON")
            conn.execute("PRAGMA trusted_schema = OFF")
        except BaseException:
            conn.close()
            raise
        return conn

    def _create(self) -> None:
        """Make an empty ledger under another name, then link it into place: whoever looks sees
        a whole ledger or none, and of two creators one wins."""
        import sqlite3

        if os.path.lexists(self.head_path):
            raise LedgerDamaged(
                "the ledger is missing, though one was here",
                where=self.path,
                next_step="put it back from a backup, or look for pods at your provider and start"
                f" anew by removing {self.head_path}",
            )
        folder = os.path.dirname(self.path)
        temporary = f"{self.path}.new-{self._random_bytes(8).hex()}"
        ledger_id = self._random_bytes(4).hex()
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            try:
                conn = sqlite3.connect(temporary, isolation_level=None)
                try:
                    conn.execute("PRAGMA journal_mode = MEMORY")
                    conn.executescript(f"BEGIN; {_SCHEMA}")
                    conn.execute("INSERT INTO meta VALUES (?, ?)", (VERSION, ledger_id))
                    conn.execute("COMMIT")
                finally:
                    conn.close()
                os.link(temporary, self.path)
            finally:
                os.unlink(temporary)
            _sync_folder(folder)
        except FileExistsError:
            return
        except OSError as error:
            raise self._unusable(f"it cannot be created: {error.strerror or error}") from None
        self.write_head(0, _genesis(ledger_id))

    def _told(self, error: sqlite3.Error) -> LedgerError:
        code = getattr(error, "sqlite_errorcode", -1) & 0xFF
        if code in (_BUSY, _LOCKED):
            return LedgerLocked(
                f"another process has held the ledger for {self._busy_timeout_s:g} s",
                where=self.path,
                next_step="try again; if it stays so, look for a stopped trmcloud process",
            )
        if code in _UNUSABLE:
            return self._unusable(_UNUSABLE[code])
        return self.damaged(str(error))

    def _unusable(self, why: str) -> LedgerError:
        return LedgerError(
            f"the ledger cannot be used: {why}",
            where=self.path,
            next_step="check the folder's permissions and free space",
        )


def _genesis(ledger_id: str) -> str:
    from hashlib import sha256

    return sha256(f"trmcloud ledger {ledger_id}".encode()).hexdigest()


def _link(
    chain: str, seq: int, run_id: str, n: int, epoch: int, at: float, kind: str, body: str
) -> str:
    """The hash of a record: it covers the one before it and every field."""
    from hashlib import sha256

    # JSON on one line holds no newline, so no two records have the same text.
    header = json.dumps([chain, seq, run_id, n, epoch, at, kind])
    return sha256(f"{header}\n{body}".encode()).hexdigest()


def _uri(path: str) -> str:
    """``mode=rw`` makes SQLite fail, rather than create, where the file has just vanished."""
    escaped = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    return f"file:{escaped}?mode=rw"


def _sync_folder(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
