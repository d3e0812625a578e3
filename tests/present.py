"""Values whose type allows less than a test knows of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def present(value: T | None) -> T:
    """Return ``value``; fail where there is none."""
    assert value is not None
    return value


def only(kind: type[T], values: Iterable[object]) -> T:
    """Return the one value that there is; fail where there are more, or it is of another kind."""
    [value] = values
    assert isinstance(value, kind), value
    return value
