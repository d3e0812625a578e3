"""Adding people, their passwords and their tokens; who shows a token."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import threading
from collections.abc import Callable, Mapping
from typing import Any

from trmcloud.core.control.grants import is_principal
from trmcloud.core.errors import AuthError, NotFoundError, UsageError
from trmcloud.core.values import dataclass, replace
from trmcloud.ports.team import Act, Person, Role, Team, Token

SCRYPT_N, SCRYPT_R, SCRYPT_P = 1 << 17, 8, 1
"""scrypt's cost as OWASP's Password Storage Cheat Sheet states it: 128 MiB for each guess."""
_SCRYPT_BYTES = 192 << 20
LEAST_PASSWORD = 12
_MOST_PASSWORD = 1024
LOGIN_S = 30 * 86_400.0
"""A login's token is valid for so long."""
PREFIX = "trmc_"
_TOKEN_BYTES = 32
MOST_FAILURES, FAILURES_S = 10, 300.0
"""So many wrong passwords of one name within so long; then none is looked at."""
_ONE_AT_A_TIME = threading.Semaphore(2)
"""Passwords that are hashed at once: each takes 128 MiB."""


@dataclass(frozen=True)
class Session:
    """A person who has shown a token; ``token`` is its id, empty where a proxy vouches."""

    person: Person
    token: str
    address: str = ""


def hash_password(password: str, salt: bytes) -> str:
    """``scrypt$N$r$p$salt$hash``, by scrypt (RFC 7914)."""
    made = _scrypt(password, salt, SCRYPT_N, SCRYPT_R, SCRYPT_P)
    parts = (str(SCRYPT_N), str(SCRYPT_R), str(SCRYPT_P), _text(salt), _text(made))
    return "$".join(("scrypt", *parts))


def is_password(password: str, kept: str) -> bool:
    """Whether it is the one; where none is kept, the time of a comparison is taken all the same."""
    if not kept:
        _scrypt(password, b"\0" * 16, SCRYPT_N, SCRYPT_R, SCRYPT_P)
        return False
    _, n, r, p, salt, digest = kept.split("$")
    made = _scrypt(password, base64.b64decode(salt), int(n), int(r), int(p))
    return hmac.compare_digest(made, base64.b64decode(digest))


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    with _ONE_AT_A_TIME:
        return hashlib.scrypt(
            password.encode(), salt=salt, n=n, r=r, p=p, maxmem=_SCRYPT_BYTES, dklen=32
        )


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def digest_of(token: str) -> str:
    """A token holds 256 random bits: one round of SHA-256 is enough."""
    return hashlib.sha256(token.encode()).hexdigest()


def check_password(password: str) -> None:
    """
    Raises:
        UsageError: it is too short, or too long.
    """
    if not LEAST_PASSWORD <= len(password) <= _MOST_PASSWORD:
        raise UsageError(
            f"a password has at least {LEAST_PASSWORD} characters",
            next_step="a sentence, or one of a password manager",
        )


def require_name(name: str) -> None:
    """
    Raises:
        UsageError: no principal has such a name.
    """
    if not is_principal(name):
        raise UsageError(
            f"{name[:80]!r} is no name of a person",
            next_step="up to 64 letters, digits and ._@-: ada, or ada@example.com",
        )


class People:
    """Who may use a server. ``now`` returns epoch seconds."""

    def __init__(
        self,
        team: Team,
        now: Callable[[], float],
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self.team, self.now, self._random = team, now, random_bytes
        self._failures: dict[str, list[float]] = {}
        self._lock = threading.Lock()

    def add(
        self,
        name: str,
        role: Role,
        *,
        projects: tuple[str, ...] = (),
        password: str | None = None,
        is_service: bool = False,
    ) -> Person:
        """Add a person, or change what is given of one; ``password`` None: as before.

        Raises:
            UsageError: no such name, or a password that is too short.
        """
        require_name(name)
        before = self.team.person(name)
        kept = before.password if before is not None else ""
        if password is not None:
            check_password(password)
            kept = hash_password(password, self._random(16))
        made = Person(
            name=name,
            role=role,
            projects=projects,
            password=kept,
            is_service=is_service,
            made_at=before.made_at if before is not None else self.now(),
        )
        self.team.keep_person(made)
        return made

    def disable(self, name: str) -> Person:
        """The person may do nothing any more, at once; its runs stay.

        Raises:
            NotFoundError: there is no such person.
        """
        made = replace(self.require(name), disabled_at=self.now())
        self.team.keep_person(made)
        self.team.revoke_tokens(name, "", self.now())
        self.team.free_subject(name)
        return made

    def require(self, name: str) -> Person:
        """
        Raises:
            NotFoundError: there is no such person.
        """
        found = self.team.person(name)
        if found is None:
            raise NotFoundError(
                f"there is no person {name[:64]!r}", next_step="trmcloud server people"
            )
        return found

    def make_token(
        self, name: str, *, lasts_s: float | None = None, about: str = ""
    ) -> tuple[Token, str]:
        """(the token's record, the token itself, which is kept nowhere)

        Raises:
            NotFoundError: there is no such person.
        """
        self.require(name)
        shown = PREFIX + base64.urlsafe_b64encode(self._random(_TOKEN_BYTES)).decode().rstrip("=")
        now = self.now()
        made = Token(
            id=self._random(4).hex(),
            person=name,
            digest=digest_of(shown),
            made_at=now,
            expires_at=None if lasts_s is None else now + lasts_s,
            about=about[:80],
        )
        self.team.add_token(made)
        return made, shown

    def revoke(self, name_or_id: str) -> int:
        """Revoke a token by its id, or all of a person's; how many.

        Raises:
            NotFoundError: there is neither.
        """
        ids = {token.id for token in self.team.tokens()}
        if name_or_id in ids:
            return self.team.revoke_tokens("", name_or_id, self.now())
        self.require(name_or_id)
        return self.team.revoke_tokens(name_or_id, "", self.now())

    def log_in(self, name: str, password: str) -> tuple[Token, str]:
        """As ``make_token``.

        Raises:
            AuthError: no such name and password, or too many were wrong.
        """
        failures = self._recent(name)
        if len(failures) >= MOST_FAILURES:
            raise AuthError(
                f"{MOST_FAILURES} wrong passwords within {FAILURES_S / 60:.0f} min",
                next_step="wait, or ask an administrator of the server for a token",
            )
        person = self.team.person(name) if is_principal(name) else None
        kept = person.password if person is not None and person.disabled_at is None else ""
        if len(password) > _MOST_PASSWORD or not is_password(password, kept):
            with self._lock:
                self._failures.setdefault(name, []).append(self.now())
            raise AuthError(
                "wrong name or password", next_step="ask an administrator of the server"
            )
        return self.make_token(name, lasts_s=LOGIN_S, about="login")

    def session(self, token: str, address: str) -> Session:
        """Who shows ``token``. It is looked up for each request, so that a token that is revoked
        on any server is refused from then on.

        Raises:
            AuthError: there is no such token, or it is valid no more.
        """
        found = self.team.token_of(digest_of(token)) if token else None
        person = self.team.person(found.person) if found is not None else None
        if found is None or person is None or person.disabled_at is not None:
            raise AuthError("this token is not known here", next_step="trmcloud login URL")
        if not found.is_valid(self.now()):
            why = "revoked" if found.revoked_at is not None else "too old"
            raise AuthError(f"this token is {why}", next_step="trmcloud login URL")
        return Session(person, found.id, address)

    def note(
        self, session: Session, what: str, decision: str, facts: Mapping[str, Any] | None = None
    ) -> None:
        """Write an act into the audit log."""
        self.team.add_act(
            Act(
                at=self.now(),
                person=session.person.name,
                role=session.person.role.value,
                token=session.token,
                address=session.address,
                what=what[:2000],
                decision=decision,
                facts=dict(facts or {}),
            )
        )

    def random_hex(self, size_bytes: int) -> str:
        return self._random(size_bytes).hex()

    def _recent(self, name: str) -> list[float]:
        with self._lock:
            if len(self._failures) > 10_000:
                self._failures.clear()
            since = self.now() - FAILURES_S
            kept = [at for at in self._failures.get(name, ()) if at > since]
            if kept:
                self._failures[name] = kept
            else:
                self._failures.pop(name, None)
            return list(kept)
