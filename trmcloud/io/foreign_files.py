"""Files of another author, which may be links, pipes or cut short. Apart from ``io.files``, of
which each byte is sent to every pod before anything else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO


def open_unlinked(path: str | Path) -> BinaryIO:
    """Open a file of another author's to be read, unless it is a link; a pipe is not waited for.

    Raises:
        OSError: it cannot be opened.
    """
    return open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")


def read_part(path: str | Path, most_bytes: int, at: int = 0) -> bytes:
    """Return bytes of such a file from ``at``; empty where it cannot be read."""
    try:
        with open_unlinked(path) as file:
            file.seek(at)
            return file.read(most_bytes)
    except OSError:
        return b""
