"""Waits of tests: poll until something holds, with deadlines that grow with the machine's load."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
MOST = 5.0
"""How often a deadline is extended at most: what takes longer hangs."""


def load_per_core() -> float:
    """Return the processes that wanted a core in the last minute, per core; at least 1."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def deadline_s(seconds: float) -> float:
    """Return the limit on this machine, now, of what takes ``seconds`` on a quiet one."""
    return seconds * min(MOST, load_per_core())


def until(
    condition: Callable[[], T], within_s: float = 100.0, what: str | Callable[[], object] = ""
) -> T:
    """Poll until ``condition`` is true and return what it returned; fail at the deadline.

    ``within_s`` is for a quiet machine. ``what`` is what the failure says, or is called for it.
    Where the question takes long, as a whole command does, it is asked less often: what is waited
    for needs the cores more.
    """
    began = time.monotonic()
    while True:
        asked_at = time.monotonic()
        if found := condition():
            return found
        took_s = time.monotonic() - asked_at
        if asked_at - began > (limit_s := deadline_s(within_s)):
            said = what() if callable(what) else what
            raise AssertionError(f"not within {limit_s:.0f} s: {said}")
        time.sleep(4 * took_s if took_s > 0.3 else 0.02)
