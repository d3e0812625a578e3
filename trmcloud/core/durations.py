"""The one form of durations in messages. Pure."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Return ``42 s``, ``3 min 10 s``, ``4 h 58 min`` or ``3 d 2 h``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest_s = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest_s:02d} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    return f"{hours // 24} d {hours % 24} h"
