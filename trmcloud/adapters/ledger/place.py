"""Where a home's ledger is: in its file, or in the database that a URL names.

The URL stands in ``TRMCLOUD_LEDGER`` or in ``<home>/ledger-url``, which ``admin ledger move``
writes. It may hold a password, so that it is never printed.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from trmcloud.adapters.ledger.backups import uri
from trmcloud.adapters.ledger.records import MOVED_VERSION
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.core.errors import ConflictError, UsageError
from trmcloud.io.files import write_atomic
from trmcloud.ports.ledger import Restoration

if TYPE_CHECKING:
    from trmcloud.adapters.ledger.recorded import RecordedLedger

ENV_LEDGER = "TRMCLOUD_LEDGER"
FILE = "ledger.db"
_URL_FILE = "ledger-url"


def ledger_url(home: Path, environ: Mapping[str, str]) -> str:
    """Return the URL of the home's database; empty where its ledger is a file.

    Raises:
        UsageError: the file of the URL cannot be read.
    """
    given = environ.get(ENV_LEDGER, "").strip()
    if given:
        return given
    path = home / _URL_FILE
    try:
        return path.read_text(encoding="utf-8").strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, UnicodeDecodeError):
        raise UsageError(
            "the URL of this home's ledger cannot be read",
            where=str(path),
            next_step=f"make it readable, or set {ENV_LEDGER}",
        ) from None


def keep_url(home: Path, url: str) -> None:
    """Note that the home's ledger is in the database at ``url``; in its own file where it is
    empty."""
    path = home / _URL_FILE
    if url:
        write_atomic(path, f"{url}\n", mode=0o600)
    else:
        path.unlink(missing_ok=True)


def has_ledger(home: Path, environ: Mapping[str, str]) -> bool:
    names = (FILE, "ledger.head", "backups", _URL_FILE)
    return bool(environ.get(ENV_LEDGER)) or any((home / name).exists() for name in names)


def open_ledger(
    home: Path,
    environ: Mapping[str, str],
    *,
    wall: Callable[[], float] | None = None,
    on_restored: Callable[[Restoration], None] = lambda restoration: None,
) -> RecordedLedger:
    """Open the home's ledger; see ``SqliteLedger`` and ``PostgresLedger``.

    Raises:
        ConflictError: the variable names a database, and the home has a ledger of its own.
        UsageError: no URL. MissingExtra: psycopg is not installed.
    """
    url = ledger_url(home, environ)
    if not url:
        return SqliteLedger(home / FILE, wall=wall, on_restored=on_restored)
    if not (home / _URL_FILE).exists() and is_in_use(home / FILE):
        raise ConflictError(
            f"{ENV_LEDGER} names a database, and this home has a ledger of its own",
            where=str(home / FILE),
            next_step="trmcloud admin ledger move; or name another home: TRMCLOUD_HOME=FOLDER",
        )
    from trmcloud.adapters.ledger.postgres import PostgresLedger

    return PostgresLedger(url, home, wall=wall)


def open_existing(home: Path, environ: Mapping[str, str]) -> RecordedLedger | None:
    """Likewise; None where the home has no ledger yet: one is not made by a look."""
    is_there = (home / FILE).exists() or ledger_url(home, environ)
    return open_ledger(home, environ) if is_there else None


def is_in_use(path: Path) -> bool:
    """Whether the file is a ledger with records that was not moved to a database."""
    if not path.exists():
        return False
    try:
        with closing(sqlite3.connect(uri(str(path), "ro"), uri=True)) as conn:
            (version,) = conn.execute("SELECT version FROM meta").fetchone()
            has_records = conn.execute("SELECT 1 FROM events LIMIT 1").fetchone() is not None
    except (sqlite3.Error, TypeError, ValueError):
        return True  # damaged: its own errors say so
    return bool(version != MOVED_VERSION and has_records)


def secrets_of_ledger(home: Path, environ: Mapping[str, str]) -> set[str]:
    """Return the URL's parts that are never to be shown."""
    from trmcloud.core.errors import TrmcloudError

    try:
        url = ledger_url(home, environ)
        if not url:
            return set()
        from trmcloud.adapters.ledger.database import parse_address

        return {url, parse_address(url).password} - {""}
    except TrmcloudError:
        return {environ.get(ENV_LEDGER, "")} - {""}


def require_no_password(home: Path, environ: Mapping[str, str]) -> None:
    """Allow a timer's file, which others can read, to hold the variable. A URL in the home's own
    file is read there by the timer's command.

    Raises:
        UsageError: the variable's URL holds a password.
    """
    given = environ.get(ENV_LEDGER, "").strip()
    if given and not secrets_of_ledger(home, environ) <= {given}:
        raise UsageError(
            f"{ENV_LEDGER} holds a password, which the timer's file would show",
            next_step=f"write the URL to {home / _URL_FILE}, or its password to ~/.pgpass",
        )


def here() -> str:
    """This machine, as a moved ledger names it."""
    return os.uname().nodename
