"""The file under ``SqliteLedger``: how it is made, opened, locked and synced.

One SQLite file with a rollback journal. Beside it lies ``ledger.head``: the number and hash of
the newest record, written after each commit. It may lag behind the ledger, after a crash; a
ledger that lags behind *it* was restored from a backup, and has forgotten what was spent since.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trmcloud.adapters.ledger.backups import LedgerBackups, as_text, uri
from trmcloud.adapters.ledger.records import SCHEMA, VERSION, Head, damaged
from trmcloud.core.control.ledger_records import genesis
from trmcloud.core.errors import LedgerDamaged, LedgerError, LedgerLocked
from trmcloud.io.files import sync_folder

if TYPE_CHECKING:
    import sqlite3

_HEAD = re.compile(rb"([0-9]{1,18}) ([0-9a-f]{64})\n")
_BUSY, _LOCKED = 5, 6
_UNUSABLE = {
    3: "permission was denied",
    7: "there is not enough memory",
    8: "it cannot be written to",
    10: "the disk reported an error",
    13: "the disk is full",
    14: "it cannot be opened",
}


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
        self.backups = LedgerBackups(self.path, random_bytes)
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
            conn = self._open(write=write)
            try:
                conn.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                yield conn
                conn.execute("COMMIT" if write else "ROLLBACK")
            finally:
                conn.close()
        except sqlite3.Error as error:
            raise self._explain(error) from None
        except UnicodeDecodeError as error:  # SQLite quotes damaged names as they are.
            raise damaged(self.path, str(error)) from None

    def read_head(self) -> Head | None:
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
            return Head(None, "", text)
        return Head(int(match[1]), match[2].decode(), text)

    def write_head(self, seq: int, chain: str) -> None:
        """Note the newest record. A failure is harmless: the record itself is committed."""
        folder, prefix = os.path.dirname(self.head_path), os.path.basename(self.head_path) + "."
        temporary = f"{self.head_path}.{self._random_bytes(8).hex()}"
        with suppress(OSError):
            # A killed process left it, or a living one is about to rename it: either may go.
            for name in os.listdir(folder):
                if name.startswith(prefix):
                    os.unlink(os.path.join(folder, name))
            with open(temporary, "xb") as file:
                file.write(f"{seq} {chain}\n".encode())
            os.replace(temporary, self.head_path)

    def _open(self, *, write: bool) -> sqlite3.Connection:
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
                raise damaged(self.path, "it is empty")
        conn = sqlite3.connect(
            uri(self.path),
            timeout=self._busy_timeout_s,
            isolation_level=None,
            check_same_thread=False,
            uri=True,
        )
        conn.text_factory = as_text
        try:
            if write:
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
        """Make an empty ledger under another name, then link it into place: a reader sees
        a whole ledger or none, and of two creators one wins."""
        import sqlite3

        if os.path.lexists(self.head_path) or self.backups.exist():
            # The ledger is made before its head: look again, for somebody may just have done so.
            if os.path.lexists(self.path):
                return
            raise LedgerDamaged(
                "the ledger is missing, but one existed here",
                where=self.path,
                next_step="trmcloud admin ledger restore; or check your provider for pods, and "
                f"start again in another home, without {self.head_path}",
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
                    conn.executescript(f"BEGIN; {SCHEMA}")
                    conn.execute("INSERT INTO meta VALUES (?, ?)", (VERSION, ledger_id))
                    conn.execute("COMMIT")
                finally:
                    conn.close()
                _put(temporary, self.path)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(temporary)
            sync_folder(Path(folder))
        except FileExistsError:
            return
        except OSError as error:
            raise self._unusable(f"it cannot be created: {error.strerror or error}") from None
        self.write_head(0, genesis(ledger_id))

    def _explain(self, error: sqlite3.Error) -> LedgerError:
        code = getattr(error, "sqlite_errorcode", -1) & 0xFF
        if code in (_BUSY, _LOCKED):
            return LedgerLocked(
                f"another process has locked the ledger for {self._busy_timeout_s:g} s",
                where=self.path,
                next_step="try again; if this happens again, look for a trmcloud process "
                "that hangs",
            )
        if code in _UNUSABLE:
            return self._unusable(_UNUSABLE[code])
        return damaged(self.path, str(error))

    def _unusable(self, why: str) -> LedgerError:
        return LedgerError(
            f"the ledger cannot be used: {why}",
            where=self.path,
            next_step="check the folder's permissions and free space",
        )


def _put(temporary: str, path: str) -> None:
    """Give the file its name, unless somebody was quicker.

    Raises:
        FileExistsError: somebody was.
    """
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:
        # No hard links on this file system. Two creators at the same moment could now replace
        # one another's ledger; the head would tell.
        if os.path.lexists(path):
            raise FileExistsError(path) from None
        os.rename(temporary, path)
