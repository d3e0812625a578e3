"""People, tokens and the audit log, in a file beside the ledger's, or in the ledger's database.

Both databases refuse changes of the audit log by triggers, and each of its records covers the hash
of the one before.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from trmcloud.adapters.ledger.database import LedgerDatabase
from trmcloud.adapters.ledger.records import Session
from trmcloud.core.errors import LedgerDamaged, LedgerError, LedgerTooNew
from trmcloud.core.values import dataclass
from trmcloud.ports.team import (
    Act,
    AuditRecord,
    Person,
    Raise,
    Role,
    Ticket,
    Token,
    act_to_text,
    chained,
)

VERSION = 1
_COLUMNS = {
    "team_meta": ("version integer NOT NULL",),
    "team_people": (
        "name text PRIMARY KEY", "role text NOT NULL", "projects text NOT NULL",
        "password text NOT NULL", "is_service integer NOT NULL",
        "made_at double precision NOT NULL", "disabled_at double precision",
    ),
    "team_tokens": (
        "id text PRIMARY KEY", "person text NOT NULL", "digest text NOT NULL UNIQUE",
        "made_at double precision NOT NULL", "expires_at double precision",
        "revoked_at double precision", "about text NOT NULL",
    ),
    "team_audit": ("seq bigint PRIMARY KEY", "body text NOT NULL", "chain text NOT NULL"),
    "team_raises": (
        "id text PRIMARY KEY", "asked_by text NOT NULL", "words text NOT NULL",
        "usd text NOT NULL", "asked_at double precision NOT NULL", "answered_by text NOT NULL",
        "answered_at double precision", "approved integer NOT NULL",
    ),
    "team_tickets": (
        "id text PRIMARY KEY", "expires_at double precision NOT NULL", "facts text NOT NULL",
    ),
    "team_subjects": (
        "person text PRIMARY KEY", "issuer text NOT NULL", "subject text NOT NULL",
    ),
}  # fmt: skip
_TABLES = tuple(
    f"CREATE TABLE IF NOT EXISTS {name}({', '.join(columns)})" for name, columns in _COLUMNS.items()
)
_FILE_GUARDS = tuple(
    f"CREATE TRIGGER IF NOT EXISTS team_audit_no_{verb} BEFORE {verb} ON team_audit"
    " BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END"
    for verb in ("update", "delete")
)
_DATABASE_GUARDS = (
    "CREATE OR REPLACE FUNCTION team_audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS"
    " $$ BEGIN RAISE EXCEPTION 'the audit log is append-only'; END $$",
    "DROP TRIGGER IF EXISTS team_audit_guard ON team_audit",
    "CREATE TRIGGER team_audit_guard BEFORE UPDATE OR DELETE OR TRUNCATE ON team_audit"
    " FOR EACH STATEMENT EXECUTE FUNCTION team_audit_is_append_only()",
)
_MOST_TICKETS = 10_000
_PERSON = "name, role, projects, password, is_service, made_at, disabled_at"
_TOKEN = "id, person, digest, made_at, expires_at, revoked_at, about"
_RAISE = "id, asked_by, words, usd, asked_at, answered_by, answered_at, approved"
_Answer = TypeVar("_Answer")
_Use = Callable[[Session], _Answer]


@dataclass(frozen=True)
class Store:
    """How a transaction is made: one that reads, and one that alone may write."""

    read: Callable[[_Use[Any]], Any]
    write: Callable[[_Use[Any]], Any]
    guards: Sequence[str]
    where: str


def file_store(path: Path) -> Store:
    """The file ``path``, which is its owner's alone."""

    def used(begin: str, use: _Use[Any]) -> Any:
        try:
            with closing(sqlite3.connect(path, isolation_level=None, timeout=30.0)) as conn:
                conn.execute(begin)
                try:
                    answer = use(conn)
                except BaseException:
                    conn.execute("ROLLBACK")
                    raise
                conn.execute("COMMIT")
                return answer
        except sqlite3.Error as error:
            raise LedgerError(
                f"the file of people and tokens cannot be used: {error}",
                where=str(path),
                next_step="free some disk space, or check the file's owner",
            ) from None

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    return Store(
        lambda use: used("BEGIN", use),
        lambda use: used("BEGIN IMMEDIATE", use),
        _FILE_GUARDS,
        str(path),
    )


def database_store(database: LedgerDatabase) -> Store:
    """The tables beside the ledger's, under the ledger's lock."""
    return Store(database.read, database.write, _DATABASE_GUARDS, database.address.display)


class StoredTeam:
    """``Team`` in a store, whose tables are made on first use."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ready = False
        self._lock = threading.Lock()

    # -- people ------------------------------------------------------------------------------------

    def people(self) -> Sequence[Person]:
        rows = self._read(f"SELECT {_PERSON} FROM team_people ORDER BY name")
        return [_person(row) for row in rows]

    def person(self, name: str) -> Person | None:
        rows = self._read(f"SELECT {_PERSON} FROM team_people WHERE name = ?", name)
        return _person(rows[0]) if rows else None

    def keep_person(self, person: Person) -> None:
        def use(session: Session) -> None:
            session.execute("DELETE FROM team_people WHERE name = ?", (person.name,))
            session.execute(
                f"INSERT INTO team_people({_PERSON}) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    person.name, person.role.value, json.dumps(person.projects), person.password,
                    int(person.is_service), person.made_at, person.disabled_at,
                ),
            )  # fmt: skip

        self._write(use)

    # -- tokens ------------------------------------------------------------------------------------

    def tokens(self) -> Sequence[Token]:
        return [Token(*row) for row in self._read(f"SELECT {_TOKEN} FROM team_tokens")]

    def add_token(self, token: Token) -> None:
        row = (
            token.id, token.person, token.digest, token.made_at, token.expires_at,
            token.revoked_at, token.about,
        )  # fmt: skip
        self._write(
            lambda session: session.execute(
                f"INSERT INTO team_tokens({_TOKEN}) VALUES (?, ?, ?, ?, ?, ?, ?)", row
            )
        )

    def token_of(self, digest: str) -> Token | None:
        rows = self._read(f"SELECT {_TOKEN} FROM team_tokens WHERE digest = ?", digest)
        return Token(*rows[0]) if rows else None

    def revoke_tokens(self, person: str, token_id: str, at: float) -> int:
        def use(session: Session) -> int:
            which = "id = ?" if token_id else "person = ?"
            key = (token_id or person,)
            found = session.execute(
                f"SELECT id FROM team_tokens WHERE {which} AND revoked_at IS NULL", key
            ).fetchall()
            session.execute(
                f"UPDATE team_tokens SET revoked_at = ? WHERE {which} AND revoked_at IS NULL",
                (at, *key),
            )
            return len(found)

        return int(self._write(use))

    # -- logins at an identity provider ------------------------------------------------------------

    def keep_ticket(self, ticket: Ticket, now: float) -> None:
        def use(session: Session) -> None:
            session.execute(
                "DELETE FROM team_tickets WHERE expires_at <= ? OR id = ? OR id IN"
                " (SELECT id FROM team_tickets ORDER BY expires_at DESC LIMIT 10 OFFSET ?)",
                (now, ticket.id, _MOST_TICKETS),
            )
            row = (ticket.id, ticket.expires_at, json.dumps(dict(ticket.facts)))
            session.execute("INSERT INTO team_tickets(id, expires_at, facts) VALUES (?, ?, ?)", row)

        self._write(use)

    def ticket(self, ticket_id: str, now: float) -> Ticket | None:
        rows = self._read(
            "SELECT id, expires_at, facts FROM team_tickets WHERE id = ? AND expires_at > ?",
            ticket_id, now,
        )  # fmt: skip
        return Ticket(rows[0][0], rows[0][1], json.loads(rows[0][2])) if rows else None

    def take_ticket(self, ticket_id: str, now: float) -> Ticket | None:
        def use(session: Session) -> list[Any]:
            rows = session.execute(
                "SELECT id, expires_at, facts FROM team_tickets WHERE id = ? AND expires_at > ?",
                (ticket_id, now),
            ).fetchall()
            session.execute("DELETE FROM team_tickets WHERE id = ?", (ticket_id,))
            return list(rows)

        rows = self._write(use)
        return Ticket(rows[0][0], rows[0][1], json.loads(rows[0][2])) if rows else None

    def bind_subject(self, person: str, issuer: str, subject: str) -> bool:
        def use(session: Session) -> bool:
            rows = session.execute(
                "SELECT issuer, subject FROM team_subjects WHERE person = ?", (person,)
            ).fetchall()
            if not rows:
                session.execute(
                    "INSERT INTO team_subjects(person, issuer, subject) VALUES (?, ?, ?)",
                    (person, issuer, subject),
                )
            return not rows or tuple(rows[0]) == (issuer, subject)

        return bool(self._write(use))

    def free_subject(self, person: str) -> None:
        self._write(
            lambda session: session.execute("DELETE FROM team_subjects WHERE person = ?", (person,))
        )

    # -- the audit log -----------------------------------------------------------------------------

    def add_act(self, act: Act) -> AuditRecord:
        def use(session: Session) -> AuditRecord:
            last = session.execute(
                "SELECT seq, chain FROM team_audit ORDER BY seq DESC LIMIT 1"
            ).fetchall()
            seq, before = last[0] if last else (0, "")
            body = act_to_text(act)
            chain = chained(before, seq + 1, body)
            session.execute("INSERT INTO team_audit VALUES (?, ?, ?)", (seq + 1, body, chain))
            return AuditRecord(seq + 1, act, chain)

        made: AuditRecord = self._write(use)
        return made

    def acts(self, after: int = 0) -> Sequence[AuditRecord]:
        rows = self._read(
            "SELECT seq, body, chain FROM team_audit WHERE seq > ? ORDER BY seq", after
        )
        try:
            return [AuditRecord(seq, Act(**json.loads(body)), chain) for seq, body, chain in rows]
        except (ValueError, TypeError):
            raise LedgerDamaged(
                "a record of the audit log cannot be read", where=self._store.where
            ) from None

    # -- what waits for a second person ------------------------------------------------------------

    def raises(self) -> Sequence[Raise]:
        rows = self._read(f"SELECT {_RAISE} FROM team_raises ORDER BY asked_at, id")
        return [
            Raise(
                id_, asked_by, tuple(json.loads(words)), usd, asked_at, by, at, bool(approved)
            )
            for id_, asked_by, words, usd, asked_at, by, at, approved in rows
        ]  # fmt: skip

    def add_raise(self, one: Raise) -> None:
        row = (
            one.id, one.asked_by, json.dumps(one.words), one.usd, one.asked_at,
            one.answered_by, one.answered_at, int(one.approved),
        )  # fmt: skip
        self._write(
            lambda session: session.execute(
                f"INSERT INTO team_raises({_RAISE}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row
            )
        )

    def answer_raise(self, raise_id: str, by: str, at: float, *, approved: bool) -> bool:
        def use(session: Session) -> bool:
            found = session.execute(
                "SELECT id FROM team_raises WHERE id = ? AND answered_at IS NULL", (raise_id,)
            ).fetchall()
            session.execute(
                "UPDATE team_raises SET answered_by = ?, answered_at = ?, approved = ?"
                " WHERE id = ? AND answered_at IS NULL",
                (by, at, int(approved), raise_id),
            )
            return bool(found)

        return bool(self._write(use))

    # -- own ---------------------------------------------------------------------------------------

    def _read(self, sql: str, *parameters: Any) -> list[Any]:
        self._prepare()
        rows: list[Any] = self._store.read(
            lambda session: session.execute(sql, parameters).fetchall()
        )
        return rows

    def _write(self, use: _Use[Any]) -> Any:
        self._prepare()
        return self._store.write(use)

    def _prepare(self) -> None:
        """
        Raises:
            LedgerTooNew: the tables are a later version's.
        """
        with self._lock:
            if self._ready:
                return

            def use(session: Session) -> int:
                for statement in (*_TABLES, *self._store.guards):
                    session.execute(statement)
                rows = session.execute("SELECT version FROM team_meta").fetchall()
                if not rows:
                    session.execute("INSERT INTO team_meta VALUES (?)", (VERSION,))
                return int(rows[0][0]) if rows else VERSION

            found = self._store.write(use)
            if found > VERSION:
                raise LedgerTooNew(
                    f"its people and tokens are of version {found}, and this program reads "
                    f"version {VERSION}",
                    where=self._store.where,
                    next_step="install the version that the other servers run",
                )
            self._ready = True


def _person(row: Sequence[Any]) -> Person:
    name, role, projects, password, is_service, made_at, disabled_at = row
    return Person(
        name, Role(role), tuple(json.loads(projects)), password, bool(is_service), made_at,
        disabled_at,
    )  # fmt: skip
