"""What is inside the ledger's file: its schema, its hash chain, and what damage looks like.

Every record's hash covers the record before it, so that a changed, missing or reordered one is
seen. Who drives a run is rewritten in place, so each such row bears a hash of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trmcloud.core.control import events as ev
from trmcloud.core.control.budget import LedgerState, extend_ledger
from trmcloud.core.control.chain import Link, genesis, link_hash, text_sha256
from trmcloud.core.control.event_json import UnknownEvent, event_from_json, event_to_json
from trmcloud.core.control.run_state import IllegalTransition
from trmcloud.core.errors import LedgerDamaged, LedgerTooNew
from trmcloud.core.values import dataclass
from trmcloud.ports.ledger import ControllerId, Driver

if TYPE_CHECKING:
    import sqlite3

VERSION = 7
"""Of the file and of every event in it: raised with any new event or field, which a test holds.

1  2026-11-21  the first
2  2026-11-22  a ledger says which version wrote to it last; a missed pod by both clocks
3  2026-11-22  LateReport is what Heard was called, unreported what unheard was
4  2026-11-22  reasons are kinds with facts, where sentences were; a run that is reopened may go on
               with other settings
5  2026-11-23  a run may be stopped at once, without landing
6  2026-11-23  a run that is reopened may go on with another number of processes
7  2026-11-23  hashes of token files and revisions of data sets are pinned; why a pod is ended may be
               that its boot failed by the provider's log; what damaged records stand for may be
               settled by a user
"""
SCHEMA = """
CREATE TABLE meta(version INTEGER NOT NULL, ledger_id TEXT NOT NULL);
CREATE TABLE events(
    seq INTEGER PRIMARY KEY, run_id TEXT NOT NULL, n INTEGER NOT NULL, epoch INTEGER NOT NULL,
    at REAL NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL, chain TEXT NOT NULL
);
CREATE TABLE drivers(
    run_id TEXT PRIMARY KEY, epoch INTEGER NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL,
    pid_started TEXT NOT NULL, beat_at REAL NOT NULL, released INTEGER NOT NULL, seal TEXT NOT NULL
) WITHOUT ROWID;
"""
_EVENT_TYPES = (int, str, int, int, float, str, str, str)
_DRIVER_TYPES = (int, str, int, str, float, int, str)
_LEDGER_ID = re.compile(r"[0-9a-f]{8}")

Head = tuple[int, str]
"""Number and hash of the newest record that is known to have been committed."""


@dataclass(frozen=True)
class Verified:
    """What the ledger says up to record ``seq``; every hash up to there was checked."""

    state: LedgerState
    records: tuple[ev.Record, ...]
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


class LedgerRecords:
    """Reads and writes within a transaction that somebody else holds on the file at ``path``."""

    def __init__(self, path: str) -> None:
        self._path = path

    def fetch(self, conn: sqlite3.Connection, known: Verified | None, head: Head | None) -> Rows:
        """Everything after ``known``, in one snapshot; to be checked by ``verify``."""
        ledger_id = self._meta(conn)
        start = Verified(LedgerState(ledger_id), (), 0, genesis(ledger_id), {})
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
            chain_at_head = genesis(ledger_id)
        elif head is not None:
            found = conn.execute("SELECT chain FROM events WHERE seq = ?", (head[0],)).fetchone()
            chain_at_head = found[0] if found is not None else None
        return Rows(start, rows, chain_at_head)

    def verify(self, fetched: Rows, head: Head | None) -> Verified:
        """The ledger's content.

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
                where=self._path,
                next_step="put the newest ledger back, or accept this one and have its pods found:"
                " trmcloud reap --accept-restored --yes",
            )
        try:
            state = extend_ledger(fetched.known.state, records) if records else fetched.known.state
        except (IllegalTransition, ValueError, TypeError, AttributeError) as error:
            raise damaged(self._path, f"its records contradict one another: {error}") from None
        return Verified(state, (*fetched.known.records, *records), seq, chain, counts)

    def insert(
        self, conn: sqlite3.Connection, before: Verified, records: tuple[ev.Record, ...]
    ) -> Verified:
        """Store ``records`` after ``before``, and say what the file holds then.

        The state is folded from what will be read back, not from what was passed in. From here on
        the file is of this version: an older one must not take what it does not know for damage.
        """
        conn.execute("UPDATE meta SET version = ? WHERE version < ?", (VERSION, VERSION))
        chain, counts = before.chain, dict(before.counts)
        stored: list[ev.Record] = []
        for record in records:
            kind = type(record.event).__name__
            body = json.dumps(event_to_json(record.event), allow_nan=False)
            n = counts[record.run_id] = counts.get(record.run_id, 0) + 1
            at = float(record.at)
            if not abs(at) < 1e300:
                raise ValueError(f"{at} is no instant")
            chain = link_hash(chain, record.seq, record.run_id, n, record.epoch, at, kind, body)
            conn.execute(
                "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (record.seq, record.run_id, n, record.epoch, at, kind, body, chain),
            )
            event = event_from_json(kind, json.loads(body))
            stored.append(ev.Record(record.seq, record.run_id, record.epoch, at, event))
        seq = records[-1].seq if records else before.seq
        state = extend_ledger(before.state, stored)
        return Verified(state, (*before.records, *stored), seq, chain, counts)

    def driver(self, conn: sqlite3.Connection, run_id: str) -> Driver | None:
        self._meta(conn)  # A newer version's drivers are none of ours to read or to rewrite.
        row = conn.execute(
            "SELECT epoch, host, pid, pid_started, beat_at, released, seal FROM drivers"
            " WHERE run_id = ?",
            (run_id,),
        ).fetchone()
        if row is None:
            known = conn.execute("SELECT 1 FROM events WHERE run_id = ? LIMIT 1", (run_id,))
            if known.fetchone() is not None:
                raise damaged(self._path, f"it does not know who drives {run_id}")
            return None
        if tuple(map(type, row)) != _DRIVER_TYPES or row[6] != _seal(run_id, *row[:6]):
            raise damaged(self._path, f"its driver of {run_id} is not what was written")
        epoch, host, pid, pid_started, beat_at, released, _ = row
        return Driver(epoch, None if released else ControllerId(host, pid, pid_started), beat_at)

    def put_driver(self, conn: sqlite3.Connection, run_id: str, driver: Driver) -> None:
        who = driver.controller or ControllerId("", 0, "")
        released = int(driver.controller is None)
        row = (driver.epoch, who.host, who.pid, who.pid_started, float(driver.beat_at), released)
        conn.execute(
            "INSERT OR REPLACE INTO drivers VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (run_id, *row, _seal(run_id, *row)),
        )

    def _record(
        self, row: tuple[Any, ...], seq: int, chain: str, counts: Mapping[str, int]
    ) -> ev.Record:
        if tuple(map(type, row)) != _EVENT_TYPES:
            raise damaged(self._path, f"record {seq + 1} is not what was written")
        number, run_id, n, epoch, at, kind, body, link = row
        if number != seq + 1 or n != counts.get(run_id, 0) + 1:
            raise damaged(self._path, f"a record is missing after number {seq}")
        if link != link_hash(chain, *row[:7]):
            raise damaged(self._path, f"record {number} was changed after it was written")
        try:
            event = event_from_json(kind, json.loads(body))
        except UnknownEvent as error:
            # The chain holds, so it was written as it stands: by one that knows more.
            raise too_new(self._path, f"{error} is not") from None
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise damaged(self._path, f"record {number} cannot be read: {error}") from None
        return ev.Record(number, run_id, epoch, at, event)

    def _meta(self, conn: sqlite3.Connection) -> str:
        found = conn.execute("SELECT version, ledger_id FROM meta").fetchall()
        version, ledger_id = found[0] if len(found) == 1 else (None, None)
        if isinstance(version, int) and version > VERSION:
            raise too_new(self._path, f"its format is {version}, and {VERSION} is the newest")
        if version not in range(1, VERSION + 1) or not isinstance(ledger_id, str):
            raise damaged(self._path, "its first page is not what was written")
        if not _LEDGER_ID.fullmatch(ledger_id):
            raise damaged(self._path, "its id is not what was written")
        return ledger_id


def links_in(fetched: Rows) -> tuple[Link, ...]:
    """Rows with the hash of the one before each: of all that the file holds."""
    befores = (fetched.known.chain, *(row[7] for row in fetched.rows))
    return tuple(
        Link(seq, run_id, n, epoch, at, kind, body, before, own)
        for (seq, run_id, n, epoch, at, kind, body, own), before in zip(
            fetched.rows, befores, strict=False
        )
    )


def damaged(path: str, why: str) -> LedgerDamaged:
    return LedgerDamaged(
        f"the ledger is damaged: {why}",
        where=path,
        next_step=f"put {path} back from a backup; nothing was changed",
    )


def too_new(path: str, what: str) -> LedgerTooNew:
    return LedgerTooNew(
        f"this ledger was written by a newer version of trmcloud: {what} known here",
        where=path,
        next_step="pip install --upgrade trmcloud",
    )


def _seal(
    run_id: str, epoch: int, host: str, pid: int, pid_started: str, beat_at: float, released: int
) -> str:
    return text_sha256(json.dumps([run_id, epoch, host, pid, pid_started, beat_at, released]))
