"""A server's secrets as files that are of no use without a key from elsewhere.

Each secret is a variable of the environment, in a file of its own, sealed by Fernet of the package
``cryptography`` (AES-128-CBC and HMAC-SHA256). The key comes from systemd's credentials, a file or
a variable, and never from the folder that it opens: a backup of the home, or a copy of its disk
where systemd keeps the credential encrypted, holds nothing that can be read.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trmcloud.core.errors import AuthError, ConflictError, DataError, NotFoundError, UsageError
from trmcloud.io.files import write_atomic

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet

ENV_KEY = "TRMCLOUD_SECRETS_KEY"
CREDENTIAL = "trmcloud-key"
"""The name of systemd's credential that holds the key."""
_FOLDER = "secrets"
_NEEDED_BEFORE = (ENV_KEY, "TRMCLOUD_HOME", "TRMCLOUD_LEDGER", "HOME", "PATH")
_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_MOST_BYTES = 1 << 16
_NEW_KEY = "trmcloud server key > FILE, outside of the home"


def new_key() -> str:
    """A key of 256 random bits, as text."""
    return base64.urlsafe_b64encode(os.urandom(32)).decode()


class SealedSecrets:
    """The secrets below ``home``. ``keys``: the first seals, each of them opens."""

    def __init__(self, home: Path, keys: Sequence[str]) -> None:
        self._folder = home / "server" / _FOLDER
        self._fernet = _fernet(keys)

    def put(self, name: str, value: str) -> None:
        """Seal a secret, in the place of one of that name.

        Raises:
            UsageError: no name of a variable, or an empty value.
        """
        if name in _NEEDED_BEFORE:
            raise UsageError(
                f"{name} is needed by commands that have no key",
                next_step="keep a password of the database in ~/.pgpass",
            )
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name[:64]!r} is no name of a secret", next_step="a variable: RUNPOD_API_KEY"
            )
        if not value or len(value.encode()) > _MOST_BYTES or "\0" in value:
            raise UsageError(f"the value of {name} is empty, or is no text of a variable")
        content = json.dumps({"name": name, "value": value}).encode()
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(self._folder / name, self._fernet.encrypt(content), mode=0o600)

    def remove(self, name: str) -> None:
        """
        Raises:
            NotFoundError: there is none of that name.
        """
        if name not in names_of(self._folder.parent.parent):
            raise NotFoundError(
                f"there is no secret {name[:64]!r}", next_step="trmcloud server secrets"
            )
        (self._folder / name).unlink(missing_ok=True)

    def all(self) -> Mapping[str, str]:
        """Every secret, by its name.

        Raises:
            AuthError: the key opens none, or not this one. DataError: a file is another's.
        """
        return {name: self._open(name) for name in names_of(self._folder.parent.parent)}

    def rotate(self) -> int:
        """Seal every secret by the first key; how many. Then the other keys can be thrown away.

        Raises:
            AuthError, DataError: as ``all``; nothing is written then.
        """
        found = self.all()
        for name, value in found.items():
            self.put(name, value)
        return len(found)

    def _open(self, name: str) -> str:
        from cryptography.fernet import InvalidToken

        path = self._folder / name
        try:
            told = json.loads(self._fernet.decrypt(path.read_bytes()))
            sealed_as, value = str(told["name"]), str(told["value"])
        except InvalidToken:
            raise AuthError(
                f"the secret {name} does not open with this key, or is damaged",
                where=str(path),
                next_step=f"give the key that sealed it, or seal it again: trmcloud server secret "
                f"{name} --from FILE",
            ) from None
        except (OSError, ValueError, KeyError, TypeError):
            raise DataError(f"the secret {name} cannot be read", where=str(path)) from None
        if sealed_as != name:
            raise DataError(f"the file of {name} holds another secret", where=str(path))
        return value


def names_of(home: Path) -> tuple[str, ...]:
    """The names of a home's secrets; no key is needed."""
    try:
        found = [path.name for path in (home / "server" / _FOLDER).iterdir()]
    except OSError:
        return ()
    return tuple(sorted(name for name in found if _NAME.fullmatch(name)))


def find_keys(home: Path, key_file: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The keys: those of ``key_file``, one a line; else of systemd's credential; else of the
    variable. Empty where there are none.

    Raises:
        UsageError: a file that cannot be read, or that lies where others, or a backup, find it.
    """
    at = key_file or _credential(environ)
    if not at:
        return tuple(environ.get(ENV_KEY, "").split())
    path = Path(at).expanduser()
    try:
        mode, text = path.stat().st_mode, path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        raise UsageError(f"the key cannot be read from {at}", next_step=_NEW_KEY) from None
    if path.resolve().is_relative_to(home.resolve()):
        raise UsageError(
            f"the key in {at} is in the home that it opens: each copy would hold both",
            next_step="move it out of the home",
        )
    if mode & 0o077:
        raise UsageError(f"others can read the key in {at}", next_step=f"chmod 600 {at}")
    return tuple(text.split())


def unseal(home: Path, keys: Sequence[str], environ: Mapping[str, str]) -> Mapping[str, str]:
    """The secrets of ``home``; none where it has none.

    Raises:
        AuthError: no key, or not the one that opens them. ConflictError: the environment has
            another value of one.
    """
    names = names_of(home)
    if not names:
        return {}
    if not keys:
        raise AuthError(
            f"{len(names)} secrets are sealed, and no key is given",
            where=str(home / "server" / _FOLDER),
            next_step=f"--key-file FILE, systemd's credential {CREDENTIAL}, or {ENV_KEY}",
        )
    found = SealedSecrets(home, keys).all()
    for name, value in found.items():
        if environ.get(name, value) != value:
            raise ConflictError(
                f"{name} is in the environment, and is another one among the sealed secrets",
                next_step=f"unset {name}, or trmcloud server secret {name} --remove",
            )
    return found


def _credential(environ: Mapping[str, str]) -> str:
    folder = environ.get("CREDENTIALS_DIRECTORY", "")
    path = Path(folder) / CREDENTIAL
    return str(path) if folder and path.is_file() else ""


def _fernet(keys: Sequence[str]) -> MultiFernet:
    """
    Raises:
        UsageError: there is no key, or one that is none.
    """
    from cryptography.fernet import Fernet, MultiFernet

    if not keys:
        raise UsageError("there is no key to seal secrets with", next_step=_NEW_KEY)
    try:
        return MultiFernet([Fernet(key) for key in keys])
    except (ValueError, binascii.Error):
        raise UsageError("a key is no 32 bytes in URL-safe base64", next_step=_NEW_KEY) from None
