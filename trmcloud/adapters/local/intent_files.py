"""Intents as small files outside the home: its disk may be full, or not be writable.

The folders are shared with other users, who may put anything there. A file is read only where it is
a regular one, this user's own, with one name, and closed to all others; it is opened without
following links and without waiting.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from trmcloud.ports.ledger import MOST_PODS, Intent

_MOST_BYTES = 4096
_MOST_FILES = 64
_RUN = re.compile(r"r-[a-z0-9]{1,18}")
_LEDGER = re.compile(r"(?:[0-9a-f]{8})?")
_POD = re.compile(r"[a-z0-9-]{1,80}")


def intent_folders(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the folders where they may be kept, best first: memory outlives a full disk."""
    named = (environ.get("XDG_RUNTIME_DIR"), "/dev/shm", environ.get("TMPDIR"), "/tmp")
    folders = (Path(name) for name in named if name and os.path.isabs(name))
    return tuple(dict.fromkeys(folders))


class IntentFiles:
    """``Intents`` of one home, in the first of ``folders`` that takes them."""

    def __init__(self, home: Path, folders: Sequence[Path]) -> None:
        self._folders = tuple(folders)
        of_home = hashlib.sha256(os.fsencode(home.absolute())).hexdigest()[:16]
        self._prefix = f"trmcloud-ending-{os.geteuid()}-{of_home}-"

    def keep(self, intent: Intent) -> str:
        if _RUN.fullmatch(intent.run_id) is None:
            return ""
        said = {"run": intent.run_id, "ledger": intent.ledger, "at": intent.at}
        text = json.dumps(said | {"pods": list(intent.pods[:MOST_PODS])}).encode()
        for folder in self._folders:
            path = folder / self._name(intent)
            with contextlib.suppress(OSError):
                _write_new(path, text)
                return str(path)
        return ""

    def kept(self) -> Sequence[Intent]:
        found: dict[str, Intent] = {}
        for path in self._paths():
            intent = _read(path)
            if intent is None or self._name(intent) != path.name:
                continue
            known = found.get(intent.run_id)
            if known is None or intent.at > known.at:
                found[intent.run_id] = intent
        return tuple(found.values())

    def drop(self, intent: Intent) -> None:
        for folder in self._folders:
            path = folder / self._name(intent)
            with contextlib.suppress(OSError):
                if os.lstat(path).st_uid == os.geteuid():
                    path.unlink()

    def _name(self, intent: Intent) -> str:
        return f"{self._prefix}{intent.run_id}.json"

    def _paths(self) -> Iterator[Path]:
        left = _MOST_FILES
        for folder in self._folders:
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    # Others' files of such names must not use up what is read of one's own.
                    if left and entry.name.startswith(self._prefix) and _is_own(entry):
                        left -= 1
                        yield folder / entry.name


def _is_own(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.stat(follow_symlinks=False).st_uid == os.geteuid()
    except OSError:
        return False


def _write_new(path: Path, text: bytes) -> None:
    """A new file in place of one's own of that name; another user's stays, and is an error."""
    with contextlib.suppress(FileNotFoundError):
        if os.lstat(path).st_uid == os.geteuid():
            path.unlink()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(path, flags, 0o600)
    try:
        if os.write(handle, text) != len(text):
            raise OSError(f"{path}: cut short")
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(handle)


def _read(path: Path) -> Intent | None:
    """None for whatever is not such a file of this user's own."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(path, flags)
    except OSError:
        return None
    with open(handle, "rb") as file:
        about = os.fstat(handle)
        private = stat.S_ISREG(about.st_mode) and about.st_mode & 0o077 == 0
        if not private or about.st_uid != os.geteuid() or about.st_nlink != 1:
            return None
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        return None
    try:
        said = json.loads(content)
        run_id, ledger, at, pods = said["run"], said["ledger"], said["at"], said["pods"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    named = isinstance(run_id, str) and _RUN.fullmatch(run_id) is not None
    known = isinstance(ledger, str) and _LEDGER.fullmatch(ledger) is not None
    timely = type(at) in (int, float) and math.isfinite(at)
    listed = isinstance(pods, list) and len(pods) <= MOST_PODS
    if not (named and known and timely and listed):
        return None
    if not all(isinstance(pod, str) and _POD.fullmatch(pod) for pod in pods):
        return None
    return Intent(run_id, ledger, float(at), tuple(pods))
