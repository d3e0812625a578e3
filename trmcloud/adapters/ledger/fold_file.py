"""What a home has verified of a long ledger, so that the next command reads what is new.

``<home>/ledger.fold/<ledger id>-<format>.db`` holds, up to one record: which records each run has,
with a hash of each; terms by which runs are found; and the sums of all budgets. It holds no state
of a run: that is folded from the run's own records, which are read from the ledger and held to
these hashes whenever it is asked for. So nothing but the ledger says what a run is, and a file
that is lost, damaged or of other code is made anew from the ledger.
"""

from __future__ import annotations

import json
import os
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trmcloud.adapters.ledger.records import LedgerRecords, Mark, Session, VerifiedLedger, mark_of
from trmcloud.core.control import events as ev
from trmcloud.core.control.budget import LedgerState, RunSums, extend_ledger, summed
from trmcloud.core.control.run_book import POD, RunBook, is_at_rest, terms_of
from trmcloud.core.control.run_state import IllegalTransition, RunState
from trmcloud.core.errors import LedgerDamaged, LedgerError
from trmcloud.core.money import Usd
from trmcloud.core.values import Value, replace

if TYPE_CHECKING:
    import sqlite3

FOLDER = "ledger.fold"
_SCHEMA = """
CREATE TABLE head(uid TEXT NOT NULL, seq INTEGER NOT NULL, text TEXT NOT NULL, seal TEXT NOT NULL);
CREATE TABLE runs(
    number INTEGER PRIMARY KEY, run_id TEXT NOT NULL UNIQUE, marks BLOB NOT NULL,
    seal BLOB NOT NULL
);
CREATE TABLE terms(
    kind TEXT NOT NULL, term TEXT NOT NULL, number INTEGER NOT NULL,
    PRIMARY KEY (kind, term, number)
) WITHOUT ROWID;
"""
_MARK = struct.Struct("<Q16s")
_ROWS_AT_ONCE = 400
_WAIT_S = 5.0
_KEPT = 2
_Answer = TypeVar("_Answer")
Ask = Callable[[Callable[[Session], Any]], Any]


class VerifiedLost(LedgerError):
    """What this home had verified was removed by another process: it is to be read anew."""


class _Unusable(Exception):
    """The file is not one that this home and this code have made of this ledger."""


class _Head(Value):
    """How far the file goes. ``uid`` is drawn where a file is made: sums and numbers of one file
    say nothing of another's."""

    uid: str
    ledger_id: str
    seq: int
    chain: str
    runs: int
    open: tuple[str, ...]
    sums: Mapping[tuple[str, str], RunSums]


class FoldedRuns:
    """The runs up to a file's record ``head.seq``: an archive for ``RunBook``.

    ``ask`` reads from the ledger, in one snapshot.

    Raises, in each method:
        LedgerError: the file was replaced, or a record is not what was verified. ``on_lost`` was
            called: the ledger is to be read anew.
    """

    def __init__(
        self, file: FoldFile, head: _Head, records: LedgerRecords, ask: Ask,
        on_lost: Callable[[], None],
    ) -> None:  # fmt: skip
        self._file = file
        self.head = head
        self._records = records
        self._ask = ask
        self._on_lost = on_lost
        self._common: list[ev.Record] | None = None
        self._there: dict[str, bool] = {}
        self._opened: tuple[int, sqlite3.Connection] | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self.head.runs

    def __contains__(self, run_id: object) -> bool:
        if not isinstance(run_id, str) or not run_id:
            return False
        there = self._there.get(run_id)
        if there is None:
            row = self._one("SELECT number FROM runs WHERE run_id = ?", run_id)
            there = self._there[run_id] = row is not None and 0 < row[0] <= self.head.runs
        return there

    def ids(self) -> Sequence[str]:
        rows = self._all(
            "SELECT run_id FROM runs WHERE number BETWEEN 1 AND ? ORDER BY number", self.head.runs
        )
        if len(rows) != self.head.runs:
            raise self._lost()
        return [run_id for (run_id,) in rows]

    def newest(self, count: int) -> Sequence[str]:
        rows = self._all(
            "SELECT run_id FROM runs WHERE number BETWEEN ? AND ? ORDER BY number",
            max(1, self.head.runs - count + 1),
            self.head.runs,
        )
        return [run_id for (run_id,) in rows]

    def find(self, kind: str, term: str) -> Sequence[str]:
        rows = self._all(
            "SELECT run_id FROM terms JOIN runs USING (number)"
            " WHERE kind = ? AND term = ? AND number <= ? ORDER BY number",
            kind, term, self.head.runs,
        )  # fmt: skip
        return [run_id for (run_id,) in rows]

    def terms(self, kind: str) -> Sequence[str]:
        return [
            term for (term,) in self._all("SELECT DISTINCT term FROM terms WHERE kind = ?", kind)
        ]

    def sums(self, level: str, key: str) -> tuple[int, int, int, int]:
        found = self.head.sums.get((level, key))
        if found is None:
            return 0, 0, 0, 0
        micros = (found.settled.micros, found.reserved.micros, found.unproven.micros)
        return *micros, found.renting_volumes

    def read(self, run_ids: Sequence[str]) -> Mapping[str, RunState]:
        if not run_ids:
            return {}
        wanted = list(run_ids)
        found = [*self.common(), *self.records_of(wanted)]
        state = _folded(self.head.ledger_id, sorted(found, key=lambda record: record.seq))
        if state is None or any(run_id not in state.runs for run_id in wanted):
            raise self._lost()
        return {run_id: state.runs[run_id] for run_id in wanted}

    def count(self, run_id: str) -> int:
        """Return the number of a run's records, or of those that are no run's."""
        return len(self._marks([run_id]))

    def common(self) -> list[ev.Record]:
        """The records that are no run's."""
        if self._common is None:
            self._common = self.records_of([""])
        return self._common

    def records_of(self, run_ids: Sequence[str]) -> list[ev.Record]:
        """The records of these runs, or of none (''), in their order."""
        marks = self._marks(run_ids)
        try:
            found: list[ev.Record] = self._ask(
                lambda session: _verified(self._records, session, marks)
            )
        except _Unusable as error:
            raise self._lost(str(error)) from None
        return found

    def _marks(self, run_ids: Sequence[str]) -> list[Mark]:
        return [
            mark
            for run_id, (_, marks) in self._used(lambda conn: _marked(conn, self.head, run_ids))
            for mark in marks
            if mark.seq <= self.head.seq
        ]

    def _one(self, sql: str, *parameters: Any) -> Any:
        rows = self._all(sql, *parameters)
        return rows[0] if rows else None

    def _all(self, sql: str, *parameters: Any) -> list[Any]:
        found: list[Any] = self._used(lambda conn: conn.execute(sql, parameters).fetchall())
        return found

    def _used(self, use: Callable[[sqlite3.Connection], _Answer]) -> _Answer:
        try:
            with self._lock, self._file.reading(self._connection) as conn:
                rows = conn.execute("SELECT uid, seq FROM head").fetchall()
                if len(rows) != 1 or rows[0][0] != self.head.uid or rows[0][1] < self.head.seq:
                    raise _Unusable
                return use(conn)
        except _Unusable:
            raise self._lost() from None

    def _connection(self) -> sqlite3.Connection:
        """One for all questions of this process; a forked child makes its own. A reservation asks
        under the ledger's lock."""
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), self._file.connected("ro")
        return self._opened[1]

    def _lost(self, why: str = "") -> LedgerError:
        self._file.remove()
        self._on_lost()
        if why:
            return LedgerDamaged(
                f"the ledger is damaged: {why}",
                where=self._records.path,
                next_step="trmcloud admin ledger check",
            )
        return VerifiedLost(
            "what was verified of the ledger was removed meanwhile",
            where=str(self._file.path),
            next_step="try again: it is read from its first record",
        )


class FoldFile:
    """The file of one ledger; made by ``moved_on``."""

    def __init__(self, home: Path, ledger_id: str, random_bytes: Callable[[int], bytes]) -> None:
        self._folder = home / FOLDER
        self._ledger_id = ledger_id
        self._random_bytes = random_bytes

    @property
    def path(self) -> Path:
        return self._folder / f"{self._ledger_id}-{fold_format()}.db"

    def exists(self) -> bool:
        # The format is a hash of files, which a home without a long ledger needs not compute.
        return self._folder.exists() and self.path.exists()

    def remove(self) -> None:
        """A failure is harmless: a file that is not the ledger's is found out again."""
        for suffix in ("", "-journal"):
            with suppress(OSError):
                os.unlink(f"{self.path}{suffix}")

    def load(
        self, session: Session, records: LedgerRecords, ask: Ask, on_lost: Callable[[], None]
    ) -> VerifiedLedger | None:
        """What the file has of the ledger, with all runs that are not at rest; None where there is
        none that fits what ``session`` reads. Such a one is removed."""
        if not self.exists():
            return None
        try:
            with self.reading() as conn:
                head = _head_of(conn)
                if head.ledger_id != self._ledger_id:
                    raise _Unusable
                marked = _marked(conn, head, ["", *head.open])
            newest = session.execute(
                "SELECT chain FROM events WHERE seq = ?", (head.seq,)
            ).fetchone()
            if newest is None or newest[0] != head.chain:
                raise _Unusable
            marks = [mark for _, (_, marks) in marked for mark in marks]
            state = _folded(head.ledger_id, _verified(records, session, marks))
            if state is None or set(state.runs) != set(head.open):
                raise _Unusable
        except _Unusable:
            self.remove()
            return None
        runs = FoldedRuns(self, head, records, ask, on_lost)
        return _beginning(state, runs)

    def moved_on(
        self,
        known: VerifiedLedger,
        records: LedgerRecords,
        ask: Ask,
        on_lost: Callable[[], None],
    ) -> VerifiedLedger | None:
        """``known`` as the file has it then; None where another process has moved the file on, or
        removed it: it is to be loaded, or the ledger to be read anew.

        Raises:
            OSError: it could not be written.
        """
        import sqlite3

        base = known.base.head if isinstance(known.base, FoldedRuns) else None
        try:
            if base is None:
                self._make()
            with closing(self.connected("rw")) as conn:
                conn.execute("BEGIN IMMEDIATE")
                head = _head_of(conn)
                if base is not None and (head.uid, head.seq) != (base.uid, base.seq):
                    return None
                if base is None and head.seq:
                    return None
                state, after = self._write(conn, known, head)
                conn.execute("COMMIT")
        except FileNotFoundError:
            return None
        except _Unusable:
            self.remove()
            return None
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise OSError(str(error)) from None
        archive = FoldedRuns(self, after, records, ask, on_lost)
        return _beginning(state, archive, known.state.runs)

    @contextmanager
    def reading(
        self, opened: Callable[[], sqlite3.Connection] | None = None
    ) -> Iterator[sqlite3.Connection]:
        """A connection that is ``opened``, or one for this use.

        Raises:
            _Unusable: the file is no more, or damaged.
        """
        import sqlite3

        try:
            if opened is not None:
                yield opened()
                return
            with closing(self.connected("ro")) as conn:
                yield conn
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            raise _Unusable(str(error)) from None

    def _write(
        self, conn: sqlite3.Connection, known: VerifiedLedger, head: _Head
    ) -> tuple[LedgerState, _Head]:
        runs, at = known.state.runs, known.records[-1].at
        new = [mark_of(row) for row in known.rows]
        touched = list(dict.fromkeys(mark.run_id for mark in new))
        book = runs if isinstance(runs, RunBook) else None
        before = {each: book.before(each) if book is not None else None for each in touched if each}
        before_marks = dict(_marked(conn, head, touched))
        added: dict[str, list[Mark]] = {}
        for mark in new:
            added.setdefault(mark.run_id, []).append(mark)
        count = head.runs
        for run_id, marks in added.items():
            number, earlier = before_marks.get(run_id, (None, ()))
            if number is None:
                number = 0 if not run_id else (count := count + 1)
            blob = b"".join(_MARK.pack(mark.seq, mark.digest) for mark in (*earlier, *marks))
            conn.execute(
                "INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?)",
                (number, run_id, blob, _seal_of(head.uid, number, run_id, blob)),
            )
            if run_id:
                conn.executemany(
                    "INSERT OR IGNORE INTO terms VALUES (?, ?, ?)",
                    [(kind, term, number) for kind, term in terms_of(runs[run_id])],
                )
        present = {run_id: runs[run_id] for run_id in (*head.open, *touched) if run_id}
        charged = _charged_pods(known)
        for pod_id in charged:
            present |= {run.run_id: run for run in _owners(conn, runs, pod_id)}
        kept = {
            run_id: run
            for run_id, run in present.items()
            if not is_at_rest(run, at) or any(g.pod_id in charged for g in run.generations)
        }
        sums = summed(head.sums, [(before[run_id], runs[run_id]) for run_id in touched if run_id])
        after = _Head(
            head.uid, head.ledger_id, known.seq, known.chain, count, tuple(kept), sums
        )  # fmt: skip
        _write_head(conn, after)
        return replace(known.state, runs=kept), after

    def _make(self) -> None:
        """An empty one, unless there is one already; others of this ledger's, but for the newest,
        are removed."""
        if self.path.exists():
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        mine = list(self._folder.glob(f"{self._ledger_id}-*.db"))
        mine.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        for path in mine[_KEPT - 1 :]:
            with suppress(OSError):
                os.unlink(path)
        temporary = self._folder / f"new-{self._random_bytes(8).hex()}"
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        try:
            with closing(self.connected("rw", temporary)) as conn:
                conn.executescript(f"BEGIN; {_SCHEMA}")
                uid = self._random_bytes(8).hex()
                _write_head(conn, _Head(uid, self._ledger_id, 0, "", 0, (), {}))
                conn.execute("COMMIT")
            with suppress(FileExistsError):
                os.link(temporary, self.path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)

    def connected(self, mode: str, path: Path | None = None) -> sqlite3.Connection:
        import sqlite3

        from trmcloud.adapters.ledger.backups import uri

        at = path or self.path
        if not at.exists():
            raise FileNotFoundError(at)
        return sqlite3.connect(
            uri(str(at), mode),
            uri=True,
            isolation_level=None,
            timeout=_WAIT_S,
            check_same_thread=False,
        )


@lru_cache(maxsize=1)
def fold_format() -> str:
    """A hash of the code that makes states and sums of records: what other code has summed is not
    used."""
    package = Path(__file__).parents[2]
    folders = (package / "core" / "control", package / "core" / "spec")
    files = sorted(path for folder in folders for path in folder.glob("*.py"))
    found = sha256()
    for path in (*files, package / "core" / "money.py", Path(__file__)):
        found.update(path.read_bytes())
    return found.hexdigest()[:12]


def _beginning(
    state: LedgerState, archive: FoldedRuns, before: Mapping[str, RunState] | None = None
) -> VerifiedLedger:
    head = archive.head
    if isinstance(before, RunBook):
        book = before.begun_anew(archive, state.runs)
    else:
        book = RunBook(archive, state.runs)
    return VerifiedLedger(replace(state, runs=book), (), head.seq, head.chain, {}, base=archive)


def _folded(ledger_id: str, records: Iterable[ev.Record]) -> LedgerState | None:
    try:
        return extend_ledger(LedgerState(ledger_id), records)
    except (IllegalTransition, ValueError, TypeError, AttributeError):
        return None


def _verified(records: LedgerRecords, session: Session, marks: Iterable[Mark]) -> list[ev.Record]:
    """The records that ``marks`` name, in their order.

    Raises:
        _Unusable: one is not what it was.
    """
    wanted = sorted(marks, key=lambda mark: mark.seq)
    found = []
    for first in range(0, len(wanted), _ROWS_AT_ONCE):
        part = wanted[first : first + _ROWS_AT_ONCE]
        places = ", ".join("?" * len(part))
        rows = session.execute(
            "SELECT seq, run_id, n, epoch, at, kind, body, chain FROM events"
            f" WHERE seq IN ({places}) ORDER BY seq",
            [mark.seq for mark in part],
        ).fetchall()
        by_seq = {row[0]: row for row in rows}
        for mark in part:
            record = records.marked_record(by_seq.get(mark.seq), mark)
            if record is None:
                raise _Unusable(f"record {mark.seq} is not what was verified")
            found.append(record)
    return found


def _marked(
    conn: sqlite3.Connection, head: _Head, run_ids: Sequence[str]
) -> list[tuple[str, tuple[int, tuple[Mark, ...]]]]:
    """(run, (its number, its marks)) of each run that is there."""
    found = []
    for first in range(0, len(run_ids), _ROWS_AT_ONCE):
        part = list(run_ids[first : first + _ROWS_AT_ONCE])
        places = ", ".join("?" * len(part))
        rows = conn.execute(
            f"SELECT number, run_id, marks, seal FROM runs WHERE run_id IN ({places})", part
        ).fetchall()
        for number, run_id, blob, seal in rows:
            if seal != _seal_of(head.uid, number, run_id, blob) or len(blob) % _MARK.size:
                raise _Unusable
            marks = tuple(Mark(seq, run_id, digest) for seq, digest in _MARK.iter_unpack(blob))
            found.append((run_id, (number, marks)))
    return found


def _charged_pods(known: VerifiedLedger) -> set[str]:
    """Pods that were charged while no run owned them. Their owners are kept in memory, since the
    fold of a charge depends on them."""
    earlier = known.base.common() if isinstance(known.base, FoldedRuns) else ()
    return {
        record.event.pod_id
        for record in (*earlier, *known.records)
        if isinstance(record.event, ev.StrayCharged | ev.StrayBilled)
    }


def _owners(conn: sqlite3.Connection, runs: Mapping[str, RunState], pod_id: str) -> list[RunState]:
    rows = conn.execute(
        "SELECT run_id FROM terms JOIN runs USING (number) WHERE kind = ? AND term = ?",
        (POD, pod_id),
    ).fetchall()
    return [runs[run_id] for (run_id,) in rows]


def _head_of(conn: sqlite3.Connection) -> _Head:
    rows = conn.execute("SELECT text, seal FROM head").fetchall()
    try:
        ((text, seal),) = rows
        if seal != sha256(text.encode()).hexdigest():
            raise _Unusable
        told = json.loads(text)
        micros = Usd.from_micros
        sums = {
            (level, key): RunSums(micros(settled), micros(reserved), micros(unproven), renting)
            for level, key, settled, reserved, unproven, renting in told["sums"]
        }
        return _Head(
            told["uid"], told["ledger_id"], told["seq"], told["chain"], told["runs"],
            tuple(told["open"]), sums,
        )  # fmt: skip
    except (ValueError, TypeError, KeyError):
        raise _Unusable from None


def _write_head(conn: sqlite3.Connection, head: _Head) -> None:
    sums = [
        (*key, each.settled.micros, each.reserved.micros, each.unproven.micros,
         each.renting_volumes)
        for key, each in head.sums.items()
    ]  # fmt: skip
    told = {
        "uid": head.uid, "ledger_id": head.ledger_id, "seq": head.seq, "chain": head.chain,
        "runs": head.runs, "open": head.open, "sums": sums,
    }  # fmt: skip
    text = json.dumps(told)
    conn.execute("DELETE FROM head")
    seal = sha256(text.encode()).hexdigest()
    conn.execute("INSERT INTO head VALUES (?, ?, ?, ?)", (head.uid, head.seq, text, seal))


def _seal_of(uid: str, number: int, run_id: str, blob: bytes) -> bytes:
    return sha256(f"{uid}/{number}/{run_id}/".encode() + blob).digest()[:16]
