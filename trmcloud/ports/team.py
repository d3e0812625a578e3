"""The people who share a server: their roles, their tokens, and the record of what they did."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Protocol

from trmcloud.core.values import dataclass


class Role(str, Enum):
    """A person's rights; each role has all rights of those before it."""

    VIEWER = "viewer"
    MEMBER = "member"
    LEAD = "lead"
    ADMINISTRATOR = "administrator"

    @property
    def rank(self) -> int:
        return list(Role).index(self)

    def includes(self, other: Role) -> bool:
        return self.rank >= other.rank


@dataclass(frozen=True)
class Person:
    """A person, or a service such as a CI job: a principal of the ledger, by its name."""

    name: str
    role: Role = Role.VIEWER
    projects: tuple[str, ...] = ()
    """Those whose runs it sees and starts; empty: all."""
    password: str = ""
    """A salted hash; empty: it logs in by a token, or at an identity provider."""
    is_service: bool = False
    made_at: float = 0.0
    disabled_at: float | None = None


@dataclass(frozen=True)
class Token:
    """A token by its digest: the token itself is shown once, and kept nowhere. Instants are epoch
    seconds."""

    id: str
    person: str
    digest: str
    made_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    about: str = ""

    def is_valid(self, at: float) -> bool:
        expired = self.expires_at is not None and at >= self.expires_at
        return self.revoked_at is None and not expired


@dataclass(frozen=True)
class Act:
    """A request and the person who made it. ``decision``: allowed, refused, waits, approved,
    denied, or done with the exit code among ``facts``."""

    at: float
    person: str
    role: str
    token: str
    """Its id; empty: at the server's own machine."""
    address: str
    what: str
    decision: str
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class AuditRecord:
    """An act with its place in the log's chain of hashes."""

    seq: int
    act: Act
    chain: str


@dataclass(frozen=True)
class Raise:
    """A command above the sum that one person may decide on: it waits for a second person."""

    id: str
    asked_by: str
    words: tuple[str, ...]
    usd: str
    asked_at: float
    answered_by: str = ""
    answered_at: float | None = None
    approved: bool = False


@dataclass(frozen=True)
class Ticket:
    """What a server remembers between two requests of a login, for all servers: by the digest of
    what its holder shows. It is used once, and not after ``expires_at``."""

    id: str
    expires_at: float
    facts: Mapping[str, str]


class Team(Protocol):
    """People, tokens and the audit log of a ledger, shared by all servers of that ledger."""

    def people(self) -> Sequence[Person]: ...

    def person(self, name: str) -> Person | None: ...

    def keep_person(self, person: Person) -> None:
        """Add the person, or replace it."""

    def tokens(self) -> Sequence[Token]: ...

    def add_token(self, token: Token) -> None: ...

    def token_of(self, digest: str) -> Token | None: ...

    def revoke_tokens(self, person: str, token_id: str, at: float) -> int:
        """Revoke the token, or all of the person's where ``token_id`` is empty; how many."""

    def add_act(self, act: Act) -> AuditRecord: ...

    def keep_ticket(self, ticket: Ticket, now: float) -> None:
        """Keep it, in the place of one with its id. Those that have expired are dropped, and the
        oldest where there are too many."""

    def ticket(self, ticket_id: str, now: float) -> Ticket | None:
        """None where there is none, or it has expired."""

    def take_ticket(self, ticket_id: str, now: float) -> Ticket | None:
        """As ``ticket``; it is used up: of several who take it at once, one gets it."""

    def bind_subject(self, person: str, issuer: str, subject: str) -> bool:
        """Bind a person to an account of an identity provider, unless it is bound already; whether
        it is bound to this one now."""

    def free_subject(self, person: str) -> None:
        """Bind the person to no account any more."""

    def acts(self, after: int = 0) -> Sequence[AuditRecord]: ...

    def raises(self) -> Sequence[Raise]: ...

    def add_raise(self, one: Raise) -> None: ...

    def answer_raise(self, raise_id: str, by: str, at: float, *, approved: bool) -> bool:
        """False where it was answered before, or there is none."""


def chained(before: str, seq: int, body: str) -> str:
    """The hash of a record of the audit log, which covers all records before it."""
    return hashlib.sha256(f"{before}\n{seq}\n{body}".encode()).hexdigest()


def act_to_text(act: Act) -> str:
    return json.dumps({**vars(act), "facts": dict(act.facts)}, sort_keys=True)


def broken_at(records: Iterable[AuditRecord]) -> int | None:
    """The number of the first record of a whole log that does not follow from those before it."""
    chain = ""
    for seq, record in enumerate(records, 1):
        chain = chained(chain, seq, act_to_text(record.act))
        if record.seq != seq or record.chain != chain:
            return seq
    return None
