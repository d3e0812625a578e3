"""Small files that are whole or not there: write, flush, rename."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from trmcloud.core.pod_contract import MAX_JSON_BYTES, MAX_METRICS_BYTES
from trmcloud.core.records import MAX_LINE_BYTES, parse_lines

_MOST_LINES = 1 << 16
"""Of a file's beginning, and of its end."""


def write_atomic(path: Path, text: str, *, durable: bool = True, mode: int = 0o666) -> None:
    """Replace ``path`` by ``text`` so that a reader, or a crash, sees the old or the new.

    ``mode``: of a new file, less the umask; a secret's is 0o600 from its first byte.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags, mode)

    with open(temporary, "w", encoding="utf-8", opener=opener) as file:
        file.write(text)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    os.replace(temporary, path)
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames inside ``folder`` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_small(path: Path, limit_bytes: int = MAX_JSON_BYTES) -> str | None:
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


def read_metrics(path: Path) -> Sequence[Mapping[str, Any]]:
    """The objects in a file of JSON lines that may be hostile: its first ones, and its last where
    there are more than anybody reads."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            lines = _lines(file)
            first = list(islice(lines, _MOST_LINES))
            return list(parse_lines([*first, *deque(lines, _MOST_LINES)]))
    except OSError:
        return []


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines of the part that is read; one that is too long is cut, and is none then."""
    left = MAX_METRICS_BYTES
    while left > 0 and (line := file.readline(min(left, MAX_LINE_BYTES + 1))):
        left -= len(line)
        yield line
