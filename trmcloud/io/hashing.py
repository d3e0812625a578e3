"""SHA-256 of files, block by block: what every checkpoint, shard and upload is held to."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from trmcloud.io.files import open_regular

_BLOCK_BYTES = 1 << 20


def file_sha256(path: Path, start: int = 0, size: int | None = None) -> str:
    """In hex, of ``size`` bytes from ``start`` on: of all of them where no size is given.

    Raises:
        OSError: it cannot be read.
    """
    digest, left = hashlib.sha256(), 1 << 62 if size is None else size
    with open_regular(path) as file:
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
