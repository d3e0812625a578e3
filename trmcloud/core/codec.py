"""Records of frozen dataclasses as they are kept for good: one way to write them as JSON and one to
read them again. Pure.

What pods say is read by ``contract.records``, which trusts nothing; here is read what this program
wrote, now or in an earlier version. Money is text, so that JSON cannot bend it; a field that has a
default may be missing, which is how an earlier version wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from trmcloud.core.money import Usd
from trmcloud.core.values import Value

_Record = TypeVar("_Record")
_Reader = Callable[[Any], Any]


def kept_as(name: str) -> dict[str, str]:
    """The metadata of a field whose key in JSON is ``name`` and not its own name."""
    return {"kept_as": name}


class UnknownField(ValueError):
    """A key that no field has: a newer version wrote it. Its text is the key."""


class _Field(Value):
    name: str
    key: str
    read: _Reader
    is_pairs: bool
    """(name, value) pairs, which JSON has as an object."""
    required: bool


def to_json(record: Any) -> dict[str, Any]:
    """Return the JSON object from which ``from_json`` restores the record."""
    made = {}
    for item in _layout(type(record)):  # type: ignore[arg-type]
        value = getattr(record, item.name)
        made[item.key] = dict(value) if item.is_pairs else _plain(value)
    return made


def from_json(kind: type[_Record], data: Mapping[str, Any], *, known: bool = False) -> _Record:
    """The record that ``data`` stands for.

    Args:
        known: every key must be a field's.

    Raises:
        UnknownField: one is not, and has to be.
        KeyError, TypeError, ValueError, AttributeError: it is no record of this kind.
    """
    layout = _layout(kind)  # type: ignore[arg-type]
    if known and (unknown := sorted(set(data) - {item.key for item in layout})):
        raise UnknownField(unknown[0])
    values = {}
    for item in layout:
        if item.key in data:
            values[item.name] = item.read(data[item.key])
        elif item.required:
            raise KeyError(item.key)
    return kind(**values)


@lru_cache
def _layout(kind: type[Any]) -> tuple[_Field, ...]:
    declared = get_type_hints(kind)
    return tuple(
        _Field(
            name=item.name,
            key=item.metadata.get("kept_as", item.name),
            read=_reader(declared[item.name]),
            is_pairs=_is_pairs(declared[item.name]),
            required=item.default is MISSING and item.default_factory is MISSING,
        )
        for item in fields(kind)
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Usd):
        return value.plain()
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return to_json(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _reader(declared: Any) -> _Reader:
    """Return the function that converts a field's JSON value to its declared type."""
    origin, inner = get_origin(declared), get_args(declared)
    if type(None) in inner:
        (some,) = (_reader(each) for each in inner if each is not type(None))
        return lambda value: None if value is None else some(value)
    if declared is Usd:
        return _money
    if _is_pairs(declared):
        return lambda value: tuple(value.items())
    if origin is tuple:
        each = _reader(inner[0])
        return lambda value: tuple(each(item) for item in value)
    if isinstance(declared, type) and issubclass(declared, Enum):
        return declared
    if isinstance(declared, type) and is_dataclass(declared):
        return lambda value: from_json(declared, value)
    return lambda value: value


def _is_pairs(declared: Any) -> bool:
    inner = get_args(declared)
    return get_origin(declared) is tuple and get_origin(inner[0]) is tuple


def _money(value: Any) -> Usd:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.80} is not an amount: money must be text")
    return Usd(value)
