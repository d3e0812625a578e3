"""The content of a ledger, whatever database keeps it: its schema, its hash chain, and the signs of
damage.

Every record's hash covers the record before it, so that a changed, missing or reordered one is
seen. Who drives a run is rewritten in place, so each such row bears a hash of its own.
"""

from __future__ import annotations

import json
import os
import pwd
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from trmcloud.core.control import events as ev
from trmcloud.core.control.budget import LedgerState, extend_ledger
from trmcloud.core.control.ledger_facts import LostRecord
from trmcloud.core.control.ledger_records import (
    Contradiction,
    Link,
    UnknownEvent,
    attribute_damage,
    event_from_json,
    event_to_json,
    fold_damaged,
    genesis,
    link_hash,
    text_sha256,
)
from trmcloud.core.control.run_state import IllegalTransition
from trmcloud.core.errors import LedgerDamaged, LedgerError, LedgerOlder, LedgerTooNew
from trmcloud.core.values import Value
from trmcloud.io.installation import update_command
from trmcloud.ports.ledger import ControllerId, Driver

VERSION = 12
"""Of the file and of every event in it: raised with any new event or field, which a test holds.

1  2026-11-21  the first
2  2026-11-22  a ledger says which version wrote to it last; a missed pod by both clocks
3  2026-11-22  LateReport is what Heard was called, unreported what unheard was
4  2026-11-22  reasons are kinds with facts, where sentences were; a run that is reopened may go on
               with other settings
5  2026-11-23  a run may be stopped at once, without landing
6  2026-11-23  a run that is reopened may go on with another number of processes
7  2026-11-23  hashes of token files and revisions of data sets are pinned; a pod may be ended
               because its boot failed by the provider's log; what damaged records stand for may
               be settled by a user
8  2026-11-26  a machine that was lost may be followed by one of another provider, or by none; an
               account's balance may be low, a run may land before it ends, and a run that is
               reopened may name another policy for that; a missed pod has the date of its
               agent's last report; a pod may be ended because its provider has stopped it; a
               machine may be refused for its board, or train on another one than was planned; a
               run may wait for a machine, and a provider may say when it is to be asked again;
               another machine may stand by while one works, and the run move to it; a run may have
               a name, tags and the idempotency key of its launch; the stop of a machine may be
               lowered, and the money beyond it be free for another run
9  2026-11-27  principals have grants, and ask for approval; a run names the principal that it is
               for; a run may end because it was idle, or its grant was revoked
10 2026-11-27  a grant may have a limit for each month, and a project's month a cap
11 2026-11-28  a request for more says whose process asked
12 2026-12-01  a machine may have a limit to which its stop is moved, and more be reserved for that
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
_HASH = re.compile(r"[0-9a-f]{64}")
MOVED_VERSION = 15
"""Of a file whose ledger was moved to a database; never a format's number. Earlier versions of
trmcloud take it for a newer format, and write no more."""
_NEWEST_NEW = VERSION + 7
"""A version beyond this one is damage: no release has so many in front of another."""
_EPOCHS_APART = 1000
"""So far beyond every known epoch the next one is where a damaged row named the newest."""
_MOST_EPOCHS = 1 << 40
_NEAR = 64
"""Among so many of the newest records one is looked for that a damaged head named."""
_PROOF_BYTES = 2
"""A head that differs in no more bytes from a record's number and hash is that record's."""


class Rows(Protocol):
    """The answer to one statement."""

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...


class Session(Protocol):
    """A transaction of SQLite or of PostgreSQL; parameters stand as ``?``."""

    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> Rows: ...


class Head(Value):
    """Number and hash of the newest record that is known to have been committed; ``seq`` is None
    where ``text``, which the file holds, cannot be read as that."""

    seq: int | None
    chain: str
    text: bytes


class FullReadNeeded(Exception):
    """The new part is damaged, or depends on damage: it must be read together with all before
    it."""


class Mark(NamedTuple):
    """A record that was verified: its number, its run and 16 bytes of a hash of all its fields."""

    seq: int
    run_id: str
    digest: bytes


class VerifiedPart(Protocol):
    """What was verified before, and is not in memory."""

    def count(self, run_id: str) -> int:
        """Return the number of a run's records."""

    def records_of(self, run_ids: Sequence[str]) -> list[ev.Record]:
        """Their records, in the ledger's order."""


class VerifiedLedger(Value):
    """The ledger's content up to record ``seq``; every hash up to there was checked."""

    state: LedgerState
    records: tuple[ev.Record, ...]
    """Those that are not in ``base``."""
    seq: int
    chain: str
    counts: Mapping[str, int]
    """Records of each run that has some which are not in ``base``."""
    lost: tuple[LostRecord, ...] = ()
    """Those that are not what was written."""
    links: tuple[Link, ...] = ()
    """Of all whole records, where all were read at once."""
    base: VerifiedPart | None = None
    rows: tuple[tuple[Any, ...], ...] = ()
    """Of ``records``, as they are stored; empty where some are lost."""

    def count(self, run_id: str) -> int:
        """Return the number of a run's records."""
        known = self.counts.get(run_id)
        if known is None:
            known = self.base.count(run_id) if self.base is not None else 0
        return known

    def records_of(self, run_id: str) -> tuple[ev.Record, ...]:
        """The records of one run, or those that are no run's ('')."""
        earlier = self.base.records_of([run_id]) if self.base is not None else ()
        return (*earlier, *(record for record in self.records if record.run_id == run_id))


class LedgerSnapshot(Value):
    """A snapshot of the file, beyond the part that was verified before."""

    known: VerifiedLedger
    rows: list[tuple[Any, ...]]
    chain_at_head: str | None
    newest: tuple[tuple[int, str], ...] = ()
    """The last records' numbers and hashes."""
    is_whole: bool = True
    """Whether ``rows`` goes to the end of the ledger."""


class LedgerRecords:
    """Reads and writes within a transaction that the caller holds on the ledger at ``path``, which
    errors name; ``head_path`` is where its head is kept."""

    tells_users_apart = False
    """Whether those who write are users of their own: a file is written by its owner alone."""
    allows_moved = False
    """Whether records are read although they were moved elsewhere."""
    touch = ""
    """What else is set where a driver's row is written."""

    def __init__(self, path: str, head_path: str = "") -> None:
        self.path = path
        self._head_path = head_path or os.path.join(os.path.dirname(path), "ledger.head")

    def user(self, conn: Session) -> str:
        """Return who writes: this process's user, by its number, since any name in the environment
        can be set."""
        number = os.getuid()
        try:
            return pwd.getpwuid(number).pw_name
        except KeyError:
            return str(number)

    def fetch(
        self, conn: Session, known: VerifiedLedger | None, head: Head | None, most: int = 0
    ) -> LedgerSnapshot:
        """Everything after ``known``, in one snapshot; to be checked by ``verify``. With ``most``
        no more than so many records."""
        ledger_id = self._meta(conn)
        if known is not None and known.lost:
            known = None
        start = VerifiedLedger(LedgerState(ledger_id), (), 0, genesis(ledger_id), {})
        if known is not None and known.state.ledger_id == ledger_id and known.seq > 0:
            found = conn.execute("SELECT chain FROM events WHERE seq = ?", (known.seq,)).fetchone()
            # Where the record is another one, the file was replaced: start over.
            if found is not None and found[0] == known.chain:
                start = known
        rows = conn.execute(
            "SELECT seq, run_id, n, epoch, at, kind, body, chain FROM events"
            f" WHERE seq > ? ORDER BY seq{f' LIMIT {most}' if most else ''}",
            (start.seq,),
        ).fetchall()
        chain_at_head = None
        newest: list[tuple[int, str]] = [(0, genesis(ledger_id))]
        if head is not None and head.seq == 0:
            chain_at_head = genesis(ledger_id)
        elif head is not None:
            found = conn.execute("SELECT chain FROM events WHERE seq = ?", (head.seq,)).fetchone()
            chain_at_head = found[0] if found is not None else None
        if head is not None and chain_at_head != head.chain:
            newest += conn.execute(
                "SELECT seq, chain FROM events ORDER BY seq DESC LIMIT ?", (_NEAR,)
            ).fetchall()
        is_whole = not most or len(rows) < most
        return LedgerSnapshot(start, rows, chain_at_head, tuple(newest), is_whole)

    def verify(self, fetched: LedgerSnapshot, head: Head | None) -> VerifiedLedger:
        """The ledger's content; what is damaged of it is in ``lost``.

        Raises:
            LedgerDamaged: damage that no single record has, or an older ledger than before.
            FullReadNeeded: ``fetched`` is a part of the ledger, and what it holds is damaged.
        """
        start = fetched.known
        places = list(_placed(self.path, fetched, head))
        chain = places[-1].chain if places else start.chain
        seq = start.seq + len(places)
        if head is not None:
            self._require_head(fetched, head, {place.seq: place.chain for place in places})
        if not places:
            return start
        records: list[ev.Record] = []
        counts = dict(start.counts)
        found: list[tuple[int, str, int, str]] = []
        for place in places:
            record = self._record(place.row) if place.whole else None
            if record is None:
                found.append(_as_found(place))
                continue
            records.append(record)
            seen = counts.get(record.run_id)
            counts[record.run_id] = (start.count(record.run_id) if seen is None else seen) + 1
            if not found and place.row[2] != counts[record.run_id]:
                raise damaged(self.path, f"a record before number {record.seq} is missing")
        if not found:
            try:
                state = extend_ledger(start.state, records) if records else start.state
            except (IllegalTransition, ValueError, TypeError, AttributeError):
                pass
            else:
                every = (*start.records, *records)
                links = () if start.seq else tuple(place.link for place in places)
                rows = (*start.rows, *(place.row for place in places))
                return VerifiedLedger(
                    state, every, seq, chain, counts, links=links, base=start.base, rows=rows
                )
        if start.seq or not fetched.is_whole:
            raise FullReadNeeded
        return self._quarantined(start.state.ledger_id, places, records, found)

    def _quarantined(
        self,
        ledger_id: str,
        places: Sequence[_Place],
        records: Sequence[ev.Record],
        found: Sequence[tuple[int, str, int, str]],
    ) -> VerifiedLedger:
        """All that the file holds, where some of it is damaged."""
        numbers: dict[str, list[int]] = {}
        whole = {record.seq for record in records}
        for place in places:
            if place.seq in whole:
                seen = numbers.setdefault(place.row[1], [])
                if seen and place.row[2] <= seen[-1]:
                    raise damaged(self.path, f"record {place.seq} belongs to another ledger")
                seen.append(place.row[2])
        try:
            lost = attribute_damage(found, numbers)
        except ValueError as error:
            raise damaged(self.path, str(error)) from None
        counts = {run_id: seen[-1] for run_id, seen in numbers.items()}
        for each in lost:
            at = numbers.get(each.run_id, [0])[-1]
            after = [s for s in lost if s.run_id == each.run_id]
            if len(numbers.get(each.run_id, ())) + len(after) > at:
                counts[each.run_id] = len(numbers.get(each.run_id, ())) + len(after)
        while True:
            good = [r for r in records if r.seq not in {each.seq for each in lost}]
            try:
                state = fold_damaged(ledger_id, good, lost)
                break
            except Contradiction as error:
                kinds = {r.seq: type(r.event).__name__ for r in records}
                lost = (*lost, LostRecord(error.seq, kinds[error.seq], error.run_id))
        links = tuple(place.link for place in places if place.seq in whole)
        last = places[-1]
        return VerifiedLedger(state, tuple(good), last.seq, last.chain, counts, lost, links)

    def _require_head(self, fetched: LedgerSnapshot, head: Head, chains: Mapping[int, str]) -> None:
        if head.seq is not None and head.chain in (
            fetched.chain_at_head,
            chains.get(head.seq, ""),
        ):
            return
        proven = ((seq, chains.get(seq, chain)) for seq, chain in fetched.newest)
        if any(_is_near(head.text, seq, chain) for seq, chain in proven):
            return  # the head is damaged, and what is left of it names this record alone
        if head.seq is None:
            raise LedgerDamaged(
                "the ledger's side file is damaged",
                where=self._head_path,
                next_step="remove it, unless a backup was restored; nothing was changed",
            )
        raise LedgerOlder(
            "the ledger has lost records: it was restored from a backup, or replaced",
            where=self.path,
            next_step="put the newest ledger back; or accept this one and search for its pods: "
            "trmcloud admin reap --accept-restored --yes",
        )

    def insert(
        self, conn: Session, before: VerifiedLedger, records: tuple[ev.Record, ...]
    ) -> VerifiedLedger:
        """Store ``records`` after ``before``, and say what the file holds then.

        The state is folded from what will be read back, not from what was passed in. From here on
        the file is of this version: an older one must not take what it does not know for damage.
        """
        self._stamp(conn, before.state.ledger_id)
        chain, counts = before.chain, dict(before.counts)
        stored: list[ev.Record] = []
        rows: list[tuple[Any, ...]] = []
        for record in records:
            kind = type(record.event).__name__
            body = json.dumps(event_to_json(record.event), allow_nan=False)
            if record.run_id not in counts:
                counts[record.run_id] = before.count(record.run_id)
            n = counts[record.run_id] = counts[record.run_id] + 1
            at = float(record.at)
            if not abs(at) < 1e300:
                raise ValueError(f"{at} is not a time")
            chain = link_hash(chain, record.seq, record.run_id, n, record.epoch, at, kind, body)
            conn.execute(
                "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (record.seq, record.run_id, n, record.epoch, at, kind, body, chain),
            )
            event = event_from_json(kind, json.loads(body))
            rows.append((record.seq, record.run_id, n, record.epoch, at, kind, body))
            stored.append(ev.Record(record.seq, record.run_id, record.epoch, at, event))
        seq = records[-1].seq if records else before.seq
        state = extend_ledger(before.state, stored)
        return VerifiedLedger(
            state,
            (*before.records, *stored),
            seq,
            chain,
            counts,
            before.lost,
            base=before.base,
            rows=(*before.rows, *rows),
        )

    def driver(self, conn: Session, run_id: str) -> Driver | None:
        """Return the driver of a run. A row that is damaged or lost is not trusted: the run has no
        driver, under an epoch beyond all that are known, so that every controller is fenced."""
        row, known = self._driver_row(conn, run_id)
        if row is None and known is None:
            return None
        if (
            row is None
            or tuple(map(type, row)) != _DRIVER_TYPES
            or row[6] != _seal(run_id, *row[:6])
        ):
            told = row[0] if row is not None and isinstance(row[0], int) else 0
            newest = max(known or 0, told if told < _MOST_EPOCHS else 0)
            return Driver(min(newest, _MOST_EPOCHS) + _EPOCHS_APART, None, 0.0)
        epoch, host, pid, pid_started, beat_at, released, _ = row
        return Driver(epoch, None if released else ControllerId(host, pid, pid_started), beat_at)

    def _driver_row(self, conn: Session, run_id: str) -> tuple[tuple[Any, ...] | None, int | None]:
        """(a run's row, the newest epoch of its records)"""
        self._meta(conn)  # A newer version's drivers are none of ours to read or to rewrite.
        row = conn.execute(
            "SELECT epoch, host, pid, pid_started, beat_at, released, seal FROM drivers"
            " WHERE run_id = ?",
            (run_id,),
        ).fetchone()
        epochs = conn.execute("SELECT DISTINCT epoch FROM events WHERE run_id = ?", (run_id,))
        # SQLite keeps text in a column of numbers, where a page is damaged.
        whole = (epoch for (epoch,) in epochs.fetchall() if isinstance(epoch, int))
        return row, max(whole, default=None)

    def put_driver(self, conn: Session, run_id: str, driver: Driver) -> None:
        who = driver.controller or ControllerId("", 0, "")
        released = int(driver.controller is None)
        row = (driver.epoch, who.host, who.pid, who.pid_started, float(driver.beat_at), released)
        conn.execute(
            "INSERT INTO drivers"
            " (run_id, epoch, host, pid, pid_started, beat_at, released, seal)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (run_id) DO UPDATE SET"
            " epoch = excluded.epoch, host = excluded.host, pid = excluded.pid,"
            " pid_started = excluded.pid_started, beat_at = excluded.beat_at,"
            f" released = excluded.released, seal = excluded.seal{self.touch}",
            (run_id, *row, _seal(run_id, *row)),
        )

    def _stamp(self, conn: Session, ledger_id: str) -> None:
        """Record which version writes."""
        conn.execute("UPDATE meta SET version = ?, ledger_id = ?", (VERSION, ledger_id))

    def marked_record(self, row: tuple[Any, ...] | None, mark: Mark) -> ev.Record | None:
        """The record in ``row``; None where it is not the one that was marked."""
        if row is None or tuple(map(type, row)) != _EVENT_TYPES or mark_of(row) != mark:
            return None
        return self._record(row)

    def record_in(self, row: tuple[Any, ...]) -> ev.Record | None:
        """The record in ``row``, which nothing proves to be what was written; None where it cannot
        be read."""
        return self._record(row) if tuple(map(type, row)) == _EVENT_TYPES else None

    def _record(self, row: tuple[Any, ...]) -> ev.Record | None:
        """None where what stands there, though its hash is right, cannot be read."""
        number, run_id, _, epoch, at, kind, body, _ = row
        try:
            event = event_from_json(kind, json.loads(body))
        except UnknownEvent as error:
            # The chain holds, so it was written as it stands: by one that knows more.
            raise too_new(self.path, f"{error} is not") from None
        except (ValueError, TypeError, AttributeError, RecursionError):
            return None
        return ev.Record(number, run_id, epoch, at, event)

    def ledger_id(self, conn: Session) -> str:
        return self._meta(conn)

    def _meta(self, conn: Session) -> str:
        """The ledger's id. Where its row is damaged, the first record's hash proves what it was."""
        found = conn.execute("SELECT version, ledger_id FROM meta").fetchall()
        version, ledger_id = found[0] if len(found) == 1 else (None, None)
        if version == MOVED_VERSION and not self.allows_moved:
            raise moved(self.path, moved_to(conn))
        if version == MOVED_VERSION:
            version = VERSION
        if isinstance(version, int) and VERSION < version <= _NEWEST_NEW:
            raise too_new(self.path, f"its format is {version}, but {VERSION} is the newest known")
        if not isinstance(ledger_id, str):
            raise damaged(self.path, "its first page is damaged")
        sound = version in range(1, VERSION + 1) and _LEDGER_ID.fullmatch(ledger_id) is not None
        is_covered = self._id_test(conn)
        if sound and (is_covered is None or is_covered(ledger_id)):
            return ledger_id
        if is_covered is not None:
            for near in _nearby(ledger_id):
                if is_covered(near):
                    return near
        if sound:
            # The first record, which would prove it, is damaged itself. So does a pod's name.
            intents = conn.execute("SELECT body FROM events WHERE kind = 'PodIntended' LIMIT 1")
            intent = intents.fetchone()
            if intent is None or ledger_id in str(intent[0]):
                return ledger_id
        raise damaged(self.path, "its first page is damaged")

    def _id_test(self, conn: Session) -> Callable[[str], bool] | None:
        """Return a test whether an id is the one that the first record's hash covers; None without
        a record."""
        row = conn.execute(
            "SELECT seq, run_id, n, epoch, at, kind, body, chain FROM events ORDER BY seq LIMIT 1"
        ).fetchone()
        if row is None or tuple(map(type, row)) != _EVENT_TYPES or row[0] != 1:
            return None
        return lambda ledger_id: link_hash(genesis(ledger_id), *row[:7]) == row[7]


class _Place(Value):
    """Row ``row`` as record ``seq``: ``whole`` where its hash is right, with ``before`` and its own
    hash ``chain``; where it is not, ``chain`` is what stands there."""

    seq: int
    row: tuple[Any, ...]
    before: str
    chain: str
    whole: bool

    @property
    def link(self) -> Link:
        _, run_id, n, epoch, at, kind, body, _ = self.row
        return Link(self.seq, run_id, n, epoch, at, kind, body, self.before, self.chain)


def _placed(path: str, fetched: LedgerSnapshot, head: Head | None) -> Iterator[_Place]:
    """Each row, held to its hash. Where a row's hash itself is damaged, the hash of the next row,
    or the head, proves what it was.

    Raises:
        LedgerDamaged: the rows' numbers are not one after another.
    """
    seq, before = fetched.known.seq, fetched.known.chain
    for index, row in enumerate(fetched.rows):
        seq += 1
        if row[0] != seq:
            raise damaged(path, f"a record after number {seq - 1} is missing")
        own = _own_hash(row, before)
        if own is not None and own == row[7]:
            yield _Place(seq, row, before, own, True)
            before = own
            continue
        after = fetched.rows[index + 1] if index + 1 < len(fetched.rows) else None
        proven = own is not None and (
            (after is not None and _own_hash(after, own) == after[7])
            or (head is not None and head.seq == seq and head.chain == own)
        )
        stands = row[7] if isinstance(row[7], str) else ""
        chain = own if proven and own is not None else stands
        yield _Place(seq, row, before, chain, proven)
        before = chain


def _own_hash(row: tuple[Any, ...], before: str) -> str | None:
    """Return the row's hash, None where it is no record at all."""
    if tuple(map(type, row[:7])) != _EVENT_TYPES[:7]:
        return None
    return link_hash(before, *row[:7])


def mark_of(row: Sequence[Any]) -> Mark:
    return Mark(row[0], row[1], bytes.fromhex(link_hash("", *row[:7])[:32]))


def _as_found(place: _Place) -> tuple[int, str, int, str]:
    """(number, run id, n, kind) as a damaged row has them now."""
    _, run_id, n, _, _, kind, _, _ = place.row
    return (
        place.seq,
        run_id if isinstance(run_id, str) else "",
        n if isinstance(n, int) else 0,
        kind if isinstance(kind, str) else "",
    )


def _is_near(text: bytes, seq: int, chain: str) -> bool:
    expected = f"{seq} {chain}\n".encode()
    if len(text) != len(expected) or seq <= 0:
        return False
    return sum(a != b for a, b in zip(text, expected, strict=True)) <= _PROOF_BYTES


def _nearby(ledger_id: str) -> Iterator[str]:
    """Ids of which one character reads as it does now, or none."""
    if len(ledger_id) == 8:
        yield ledger_id
        for place in range(8):
            for digit in "0123456789abcdef":
                yield ledger_id[:place] + digit + ledger_id[place + 1 :]


def damaged(path: str, why: str) -> LedgerDamaged:
    return LedgerDamaged(
        f"the ledger is damaged: {why}",
        where=path,
        next_step="trmcloud admin ledger restore; nothing was changed",
    )


def moved_to(conn: Session) -> str:
    """Where a file that is marked so says that its ledger is."""
    row = conn.execute("SELECT place FROM moved").fetchone()
    return str(row[0]) if row is not None else "a database"


class LedgerMoved(LedgerError):
    """These records are not the ledger any more: it was moved elsewhere."""


def moved(path: str, to: str) -> LedgerMoved:
    return LedgerMoved(
        f"this ledger was moved to {to}",
        where=path,
        next_step="use it there: TRMCLOUD_LEDGER=URL; or move it back: trmcloud admin ledger move",
    )


def too_new(path: str, what: str) -> LedgerTooNew:
    return LedgerTooNew(
        f"this ledger was written by a newer version of trmcloud: {what} known to this version",
        where=path,
        next_step=update_command(),
    )


def _seal(
    run_id: str, epoch: int, host: str, pid: int, pid_started: str, beat_at: float, released: int
) -> str:
    return text_sha256(json.dumps([run_id, epoch, host, pid, pid_started, beat_at, released]))
