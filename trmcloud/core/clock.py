"""Instants and observations: what is known, since when, and until when something may go on."""

from __future__ import annotations

import datetime as dt
from functools import lru_cache
from typing import Generic, TypeVar

from trmcloud.core.values import Value

T = TypeVar("T")


@lru_cache(maxsize=4096)
def utc_month(at: float) -> str:
    """The UTC month of an instant: ``2026-11``."""
    return f"{_utc(at):%Y-%m}"


@lru_cache(maxsize=4096)
def utc_day(at: float) -> str:
    """The UTC day of an instant: ``2026-11-27``."""
    return f"{_utc(at):%Y-%m-%d}"


def utc_minute(at: float) -> str:
    """``2026-11-27 09:30 UTC``."""
    return f"{_utc(at):%Y-%m-%d %H:%M} UTC"


def utc_second(at: float) -> str:
    """``2026-11-27 09:30:15 UTC``."""
    return f"{_utc(at):%Y-%m-%d %H:%M:%S} UTC"


def rfc3339(at: float) -> str:
    """``2026-11-27T09:30:15Z``."""
    return f"{_utc(at):%Y-%m-%dT%H:%M:%SZ}"


def _utc(at: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(at, dt.timezone.utc)


class Instant(Value):
    """One reading of both clocks: ``wall`` epoch seconds, ``boot`` seconds since boot.

    The boot clock counts suspended time and cannot be set; ``boot_id`` tells two boots apart.
    """

    wall: float
    boot: float
    boot_id: str = ""

    def since(self, earlier: Instant) -> float:
        """Seconds since another reading: by the clock that nobody sets, where it is the same."""
        if self.boot_id and self.boot_id == earlier.boot_id:
            return self.boot - earlier.boot
        return self.wall - earlier.wall


class Anchor(Value):
    """A deadline, and the ``left_s`` that it allowed when both clocks said ``seen``, so that no
    later clock change extends it."""

    deadline_at: float
    seen: Instant
    left_s: float

    def seconds_left(self, now: Instant) -> float:
        """Seconds until the deadline by the clock that says it comes sooner."""
        allowed = max(0.0, self.left_s)
        by_wall = min(self.deadline_at - now.wall, allowed)
        if now.boot_id != self.seen.boot_id:
            # A restart: what has passed since is known by the wall clock alone.
            return min(by_wall, allowed - max(0.0, now.wall - self.seen.wall))
        return min(by_wall, allowed - (now.boot - self.seen.boot))


class DatedFact(Value, Generic[T]):
    """A fact, and when it was observed (epoch seconds)."""

    value: T
    at: float


class UnknownSince(Value):
    """Nothing is known since ``since`` (epoch seconds). Unknown is never zero and never gone."""

    since: float
    why: str = ""


Maybe = DatedFact[T] | UnknownSince
