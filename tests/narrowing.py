"""A value that a test needs and that may be None by its type."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def not_none(value: T | None) -> T:
    """Return the value; fail where it is None."""
    assert value is not None
    return value
