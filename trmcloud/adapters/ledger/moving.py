"""A ledger moved from a home's file to a database, and back: every record, hash and driver.

The copy is made, read back and compared while it is marked as not in use; then the source is
marked as moved, and the copy's mark is taken off. So at each instant at most one of the two can be
written to, and a move that was interrupted is finished by the same command.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trmcloud.adapters.ledger.backups import connected
from trmcloud.adapters.ledger.database import PostgresSession
from trmcloud.adapters.ledger.file import LedgerFile
from trmcloud.adapters.ledger.place import ENV_LEDGER, FILE, here, keep_url, ledger_url, open_ledger
from trmcloud.adapters.ledger.postgres import PostgresLedger, PostgresRecords, load, store
from trmcloud.adapters.ledger.records import (
    MOVED_VERSION,
    VERSION,
    LedgerRecords,
    Session,
    VerifiedLedger,
    damaged,
    moved,
    moved_to,
)
from trmcloud.core.errors import ConflictError, LedgerError, UsageError
from trmcloud.core.values import Value
from trmcloud.io.files import sync_folder

_ON_THE_WAY = "its new place, and the move was interrupted: repeat trmcloud admin ledger move"


class LedgerMove(Value):
    """A ledger was moved; ``records`` of them were compared in its new place. ``source`` is empty
    where the home had none, and uses from now on what was there."""

    ledger_id: str
    records: int
    source: str
    target: str


def move_to(place: str, home: Path, environ: Mapping[str, str]) -> LedgerMove:
    """Move the home's ledger to its file (``sqlite``), or to the database at a URL: ``place``, else
    that of ``TRMCLOUD_LEDGER``.

    Raises:
        UsageError: no such place. ConflictError, LedgerError, MissingExtra: see below.
    """
    if place == "sqlite":
        return move_to_file(home, environ)
    url = place or environ.get(ENV_LEDGER, "")
    if not url:
        raise UsageError(
            "the place to move the ledger to is missing",
            next_step="trmcloud admin ledger move --to postgresql://HOST/DATABASE",
        )
    return move_to_database(home, url)


def migrate(home: Path, environ: Mapping[str, str]) -> tuple[int, int]:
    """Bring the tables of the home's database to this version: (version before, version now).

    Raises:
        UsageError: the ledger is a file, which needs no migration.
    """
    ledger = open_ledger(home, environ)
    if not isinstance(ledger, PostgresLedger):
        raise UsageError("the ledger is a file, and needs no migration", where=str(home))
    return ledger.migrate()


def move_to_database(
    home: Path, url: str, random_bytes: Callable[[int], bytes] = os.urandom
) -> LedgerMove:
    """Move the ledger in the home's file to the database at ``url``, which the home uses from then
    on. A home without records uses what is there.

    Raises:
        UsageError: no URL.
        ConflictError: the database holds another ledger, or a newer copy of this one.
        LedgerError: one of the two cannot be used, or records are damaged.
    """
    path = home / FILE
    ledger = PostgresLedger(url, home)
    if not path.exists():
        state = ledger.read()
        keep_url(home, url)
        return LedgerMove(state.ledger_id, len(ledger.records()), "", ledger.where)
    file = LedgerFile(str(path), 5.0, random_bytes)
    head = file.read_head()
    with file.connection(write=True) as source:
        place = _place_of_file(source)
        if place not in ("", ledger.where):
            raise moved(str(path), place)
        known = _known(LedgerRecords(file.path), source, head, str(path), even_moved=True)
        if known.seq == 0:
            joined = ledger.read()
            _mark_file(source, ledger.where)
            keep_url(home, url)
            return LedgerMove(joined.ledger_id, len(ledger.records()), "", ledger.where)
        drivers = _drivers(source)
        ledger.database.write(
            lambda session: _fill(session, path, known, drivers, ledger.where, is_moved=bool(place))
        )
        if not place:
            _mark_file(source, ledger.where)
    ledger.database.write(lambda session: _unmark(session, known))
    keep_url(home, url)
    return LedgerMove(known.state.ledger_id, known.seq, str(path), ledger.where)


def move_to_file(
    home: Path, environ: Mapping[str, str], random_bytes: Callable[[int], bytes] = os.urandom
) -> LedgerMove:
    """Move the ledger from its database to the home's file; others who used it there are refused
    from then on.

    Raises:
        UsageError: the home's ledger is in its file.
        ConflictError: the home's file is another ledger.
        LedgerError: one of the two cannot be used, or records are damaged.
    """
    url = ledger_url(home, environ)
    if not url:
        raise UsageError("this home's ledger is in its file", where=str(home / FILE))
    ledger, path = PostgresLedger(url, home), home / FILE
    label = f"{here()}:{path}"

    def copy(session: Session) -> VerifiedLedger:
        assert isinstance(session, PostgresSession)
        assert session.meta is not None
        place = session.meta[3]
        if place not in ("", label):
            raise moved(ledger.where, place)
        known = _known(AnyPlace(ledger.where), session, None, ledger.where)
        if place == label:
            _require_copy(path, known, ledger.where)
            return known
        if path.exists():
            _require_given_up(path, known.state.ledger_id, ledger.where)
        temporary = f"{path}.new-{random_bytes(8).hex()}"
        try:
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            store(session, Path(temporary), known.state.ledger_id)
            with connected(temporary, "rw") as file:
                copied = _known(LedgerRecords(temporary), file, None, temporary)
                _require_same(copied, known, _drivers(file), _drivers(session))
                file.execute("BEGIN IMMEDIATE")
                _mark_file(file, ledger.where)
                file.execute("COMMIT")
            _sync(temporary)
            os.replace(temporary, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
        sync_folder(home)
        session.set_meta(VERSION, known.state.ledger_id, label)
        return known

    known = ledger.database.write(copy)
    with connected(str(path), "rw") as file:
        file.execute("BEGIN IMMEDIATE")
        is_marked = bool(_place_of_file(file))
        if is_marked:
            file.execute("UPDATE meta SET version = ?", (VERSION,))
            file.execute("DELETE FROM moved")
        file.execute("COMMIT")
    if is_marked:
        LedgerFile(str(path), 5.0, random_bytes).write_head(known.seq, known.chain)
    keep_url(home, "")
    return LedgerMove(known.state.ledger_id, known.seq, ledger.where, str(path))


class AnyPlace(PostgresRecords):
    """Records of a database that may be marked as moved."""

    allows_moved = True


def _known(
    records: LedgerRecords, session: Session, head: Any, where: str, *, even_moved: bool = False
) -> VerifiedLedger:
    records.allows_moved = records.allows_moved or even_moved
    known = records.verify(records.fetch(session, None, head), head)
    if known.lost:
        raise damaged(where, f"record {known.lost[0].seq} is damaged")
    return known


def _fill(
    session: Session,
    source: Path,
    known: VerifiedLedger,
    drivers: list[Any],
    where: str,
    *,
    is_moved: bool,
) -> None:
    """Load the file's records, unless they are there; compare them, and leave them marked. One that
    was moved before, and is in use, is left as it is."""
    assert isinstance(session, PostgresSession)
    assert session.meta is not None
    _, ledger_id, _, place, _ = session.meta
    newest = session.execute("SELECT seq, chain FROM events ORDER BY seq DESC LIMIT 1").fetchone()
    is_there = newest is not None and tuple(newest) == (known.seq, known.chain)
    if newest is not None and ledger_id != known.state.ledger_id:
        raise ConflictError(
            f"the database holds ledger {ledger_id} already, and this one is "
            f"{known.state.ledger_id}",
            where=where,
            next_step="name an empty database",
        )
    if is_moved and not place and newest is not None:
        return
    if newest is not None and not place and not is_there:
        raise ConflictError(
            "the database holds a copy of this ledger that was written to since",
            where=where,
            next_step="use it by TRMCLOUD_LEDGER=URL in an empty home, or name an empty database",
        )
    if place or not is_there:
        session.execute("DELETE FROM events")
        session.execute("DELETE FROM drivers")
        load(source, session)
    copied = _known(AnyPlace(where), session, None, where)
    _require_same(copied, known, _drivers(session), drivers)
    session.set_meta(VERSION, known.state.ledger_id, _ON_THE_WAY)


def _unmark(session: Session, known: VerifiedLedger) -> None:
    session.execute(
        "UPDATE meta SET moved_to = '' WHERE ledger_id = ? AND moved_to = ?",
        (known.state.ledger_id, _ON_THE_WAY),
    )


def _require_same(
    copied: VerifiedLedger, known: VerifiedLedger, there: list[Any], here: list[Any]
) -> None:
    end, expected = (copied.seq, copied.chain), (known.seq, known.chain)
    if end != expected or copied.state != known.state or there != here:
        raise LedgerError(
            f"the copy is not the same: it ends with record {copied.seq}, the ledger with "
            f"{known.seq}",
            next_step="nothing was changed; try again",
        )


def _require_given_up(path: Path, ledger_id: str, where: str) -> None:
    """The file that a move replaces is one that was moved away before: of the same ledger."""
    with connected(str(path), "ro") as file:
        version, own = file.execute("SELECT version, ledger_id FROM meta").fetchone()
        has_records = file.execute("SELECT 1 FROM events LIMIT 1").fetchone() is not None
    if version != MOVED_VERSION or (own != ledger_id and has_records):
        raise ConflictError(
            "this home has another ledger in its file",
            where=str(path),
            next_step=f"move {where} to another home: TRMCLOUD_HOME=FOLDER trmcloud admin "
            "ledger move",
        )


def _require_copy(path: Path, known: VerifiedLedger, where: str) -> None:
    """The file is what an earlier try has moved here; it may have been written to since."""
    with connected(str(path), "ro") as file:
        copied = _known(LedgerRecords(str(path)), file, None, str(path), even_moved=True)
        end = file.execute("SELECT chain FROM events WHERE seq = ?", (known.seq,)).fetchone()
    if copied.state.ledger_id != known.state.ledger_id or end != (known.chain,):
        raise moved(where, str(path))


def _place_of_file(session: Session) -> str:
    row = session.execute("SELECT version FROM meta").fetchone()
    return moved_to(session) if row is not None and row[0] == MOVED_VERSION else ""


def _mark_file(session: Session, place: str) -> None:
    session.execute("CREATE TABLE IF NOT EXISTS moved(place TEXT NOT NULL)")
    session.execute("DELETE FROM moved")
    session.execute("INSERT INTO moved VALUES (?)", (place,))
    session.execute("UPDATE meta SET version = ?", (MOVED_VERSION,))


def _drivers(session: Session) -> list[Any]:
    rows = session.execute(
        "SELECT run_id, epoch, host, pid, pid_started, beat_at, released, seal FROM drivers"
    ).fetchall()
    return sorted(map(tuple, rows))


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
