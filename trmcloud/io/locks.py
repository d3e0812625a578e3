"""A file that locks out other processes, and is waited for no longer than is said."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_AGAIN_S = 0.02


@contextmanager
def locked(path: Path, within_s: float) -> Iterator[None]:
    """Hold the lock of ``path``, which is made where it is missing. A process that is stopped may
    hold it for ever: so it is not waited for longer than ``within_s`` seconds.

    Raises:
        TimeoutError: another process holds it. OSError: the file cannot be opened.
    """
    handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        give_up_at = time.monotonic() + within_s
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if time.monotonic() > give_up_at:
                raise TimeoutError
            time.sleep(_AGAIN_S)
        yield
    finally:
        os.close(handle)
