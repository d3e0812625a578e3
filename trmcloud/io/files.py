"""Small files that are whole or absent, and SHA-256 of files."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

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


def read_small(path: Path, limit_bytes: int = SMALL_BYTES) -> str | None:
    """The text of a small file that may be hostile; None where there is none.

    Raises:
        ValueError: larger than ``limit_bytes``, a link, or not UTF-8.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
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


# SHA-256 of files, block by block: what every checkpoint, shard and upload is held to.

_BLOCK_BYTES = 1 << 20


def file_sha256(path: Path, start: int = 0, size: int | None = None) -> str:
    """In hex, of ``size`` bytes from ``start`` on: of all of them where no size is given.

    Raises:
        OSError: it cannot be read.
    """
    digest, left = hashlib.sha256(), 1 << 62 if size is None else size
    with open(path, "rb") as file:
        file.seek(start)
        while left and (block := file.read(min(_BLOCK_BYTES, left))):
            digest.update(block)
            left -= len(block)
    return digest.hexdigest()


def matches_hash(path: Path, size_bytes: int, sha256: str) -> bool:
    """Whether ``path`` is a file, no link, of that size and content."""
    try:
        about = os.lstat(path)
        if not stat.S_ISREG(about.st_mode) or about.st_size != size_bytes:
            return False
        return file_sha256(path) == sha256
    except OSError:
        return False


def tree_sha256(folder: Path, suffixes: tuple[str, ...]) -> str:
    """In hex, of what the files below ``folder`` that end so are called and of what is in them:
    the same wherever the folder lies. Hidden files and folders are left out.

    Raises:
        OSError: one cannot be read.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).as_posix()):
        name = path.relative_to(folder)
        hidden = any(part.startswith((".", "__pycache__")) for part in name.parts)
        if path.suffix in suffixes and path.is_file() and not hidden:
            digest.update(f"{file_sha256(path)}  {name.as_posix()}\n".encode())
    return digest.hexdigest()
