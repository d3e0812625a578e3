"""Doing again what may pass: a few times, each pause twice as long as the one before."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def pause_s(failures: int, first_s: float, longest_s: float) -> float:
    """How long to wait after so many failures in a row, the first of them counted as 0."""
    return min(longest_s, first_s * 2.0 ** min(failures, 32))


def patiently(
    act: Callable[[], T],
    is_final: Callable[[Exception], bool],
    *,
    tries: int,
    first_s: float,
    longest_s: float,
    sleep: Callable[[float], object],
) -> T:
    """What ``act`` returns; its error is raised where it is final, or came ``tries`` times."""
    for failures in range(tries - 1):
        try:
            return act()
        except Exception as error:
            if is_final(error):
                raise
        sleep(pause_s(failures, first_s, longest_s))
    return act()
