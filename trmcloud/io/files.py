"""Small files that are whole or not there: write, flush, rename."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TypeVar

T = TypeVar("T")

# Small files that are whole or not there: write, flush, rename.

SMALL_BYTES = 1 << 20
"""The most bytes of a small file; no larger one is written for reading whole."""


def write_atomic(
    path: Path, content: str | bytes, *, durable: bool = True, mode: int = 0o666
) -> None:
    """Replace ``path`` by ``content`` so that a reader, or a crash, sees the old or the new.

    ``mode``: of a new file, less the umask; a secret's is 0o600 from its first byte.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags, mode)

    try:
        with open(temporary, "wb", opener=opener) as file:
            file.write(content.encode() if isinstance(content, str) else content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames inside ``folder`` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_below(path: str | Path, folder: str | Path) -> bool:
    """Whether an absolute path without links is ``folder``, which is one too, or below it."""
    path, folder = str(path), str(folder)
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file to be read. A pipe that nothing writes to would be waited for.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return open(handle, "rb")


def read_small(path: Path, limit_bytes: int = SMALL_BYTES) -> str | None:
    """The text of a small file that may be hostile, a pipe that nothing writes to among others;
    None where there is none.

    Raises:
        ValueError: larger than ``limit_bytes``, a link, or not UTF-8.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    with open(handle, "rb") as file:
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise ValueError(f"{path} is larger than {limit_bytes} bytes")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text") from None


def load_small(path: Path, load: Callable[[str], T], limit_bytes: int = SMALL_BYTES) -> T | None:
    """Return ``load`` of the text of a small file; None where there is none, or none that ``load``
    accepts."""
    with contextlib.suppress(OSError, ValueError):
        text = read_small(path, limit_bytes)
        return load(text) if text is not None else None
    return None
