"""When a run must have ended, as a person says it."""

from __future__ import annotations

from datetime import datetime, timedelta, tzinfo

from trmcloud.core.errors import UsageError

_UNITS_S = {"m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
MAX_S = 366 * 86_400.0


def parse_deadline(text: str, now: float, zone: tzinfo | None) -> float:
    """Epoch seconds of ``12h``, ``90m``, ``2d``, ``friday`` or ``2026-11-27[T18:00]``.

    A day means its end, 24:00 in ``zone`` (None: the machine's own); a weekday is the next one,
    today's included.

    Raises:
        UsageError: not a deadline, not after ``now``, or more than a year away.
    """
    cleaned = text.strip().lower()
    at = _span(cleaned, now)
    if at is None:
        at = _day(cleaned, now, zone)
    if at is None:
        at = _instant(text.strip(), zone)
    if at is None:
        raise UsageError(
            f"--deadline: {text!r} is no time",
            next_step="--deadline 12h, friday or 2026-11-27T18:00",
        )
    if not now < at:
        raise UsageError(f"--deadline: {text!r} is not in the future", next_step="--deadline 12h")
    if at > now + MAX_S:
        raise UsageError(f"--deadline: {text!r} is more than a year away")
    return at


def _span(text: str, now: float) -> float | None:
    if not text or text[-1] not in _UNITS_S:
        return None
    try:
        number = float(text[:-1])
    except ValueError:
        return None
    seconds = number * _UNITS_S[text[-1]]
    return now + seconds if 0 < seconds < float("inf") else now


def _day(text: str, now: float, zone: tzinfo | None) -> float | None:
    names = [day for day in _DAYS if len(text) >= 3 and day.startswith(text)]
    if len(names) != 1:
        return None
    today = datetime.fromtimestamp(now, zone)
    ahead = (_DAYS.index(names[0]) - today.weekday()) % 7
    end = today.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=ahead + 1)
    return end.timestamp()


def _instant(text: str, zone: tzinfo | None) -> float | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    if len(text) <= 10:
        at += timedelta(days=1)
    return (at if at.tzinfo else at.replace(tzinfo=zone)).timestamp()
