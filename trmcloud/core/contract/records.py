"""Records of frozen dataclasses as JSON, read strictly: what is read may be hostile.

``parse`` bounds what any text may hold, whoever wrote it: its length, the digits of a number, how
deep it nests, how much a list or an object holds. ``record_of`` then gives each field the type
that is declared for it; ``Label``, ``Sha256``, ``Instant`` and the like say what more must hold.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

MAX_JSON_BYTES = 1 << 20
MAX_TEXT = 1 << 14
"""Characters of one text: a message, a path, a name."""
MAX_LINE_BYTES = 1 << 16
MAX_ITEMS = 1 << 12
MAX_DEPTH = 32
MAX_DIGITS = 19
_MAX_FLOAT_CHARS = 40
MAX_WHOLE = (1 << 63) - 1
_LATEST_AT = 1e11
"""Epoch seconds that calendars still know."""
_HUGE = 1e300
_HALVES = re.compile(r"\\u[dD][89a-fA-F]")

_Record = TypeVar("_Record")


class ContractError(ValueError):
    """Text from the other side that is not what the contract says."""


# -- what a field may be declared as, beside plain types ---------------------------------------
def formed(pattern: str) -> Callable[[str], bool]:
    return re.compile(pattern, re.ASCII).fullmatch  # type: ignore[return-value]


def within(low: float, high: float) -> Callable[[float], bool]:
    return lambda value: low <= value <= high


Label = Annotated[str, formed(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")]
"""A name that can be part of a path, an id or a line, and steers none of them."""
Sha256 = Annotated[str, formed(r"[0-9a-f]{64}")]
Instant = Annotated[float, within(0.0, _LATEST_AT)]
Step = Annotated[int, within(0, 99_999_999)]
Asks = Annotated[int, within(0, 1_000_000)]
"""How often something was asked for."""
Restarts = Annotated[int, within(-1, 1_000)]
"""How often a trainer may be started again; -1: not even after a try that came to nothing."""


# -- text -------------------------------------------------------------------------------------
def whole(text: str | bytes, most: int = MAX_WHOLE) -> int | None:
    """A whole number written in ASCII digits; None where it is anything else, or above ``most``."""
    if len(text) > MAX_DIGITS or not text.isascii() or not text.isdigit():
        return None
    number = int(text)
    return number if number <= most else None


def instant(value: Any) -> float | None:
    """Epoch seconds, where a value that somebody else gave can be any."""
    number = type(value) in (int, float)
    return float(value) if number and 0 <= value <= _LATEST_AT else None


def parse(text: str | bytes, most: int = MAX_JSON_BYTES, items: int = MAX_ITEMS) -> Any:
    """What JSON text holds. ``most``: its length; ``items``: of one list or object.

    Raises:
        ContractError: it is no JSON in UTF-8, or more of anything than a real one has.
    """
    if len(text) > most:
        raise ContractError("larger than any real one")
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        value = _DECODER.decode(text)
        if _HALVES.search(text):  # half a character is none, and could be written nowhere
            whole_text = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
            value = _DECODER.decode(whole_text.decode("utf-8"))
    except RecursionError:
        raise ContractError("nested deeper than any real one") from None
    except ValueError as error:
        raise ContractError(f"no JSON: {error}") from None
    _bound(value, MAX_DEPTH, items)
    return value


def parse_lines(lines: Iterable[bytes]) -> Iterable[dict[str, Any]]:
    """The JSON objects among lines; whatever else stands there is passed over."""
    for line in lines:
        try:
            value = parse(line, MAX_LINE_BYTES)
        except ContractError:
            continue
        if isinstance(value, dict):
            yield value


def dump(record: Any) -> str:
    """A record as one line of JSON; NaN and infinity become null."""
    return json.dumps(finite(record), sort_keys=True, allow_nan=False)


def load(
    kind: type[_Record],
    version: int,
    text: str | bytes,
    *,
    most: int = MAX_JSON_BYTES,
    items: int = MAX_ITEMS,
    **convert: Callable[[Any], Any],
) -> _Record:
    """A record of ``version`` from text; ``convert``: what makes a field of what JSON has for it.

    Raises:
        ContractError: more than any real one, no JSON, another version, or a field that is not of
            its type.
    """
    try:
        data = parse(text, most, items)
        if not isinstance(data, dict):
            raise ContractError("no object")
        if data.get("version") != version:
            raise ContractError(f"version {data.get('version')!r:.20} is not {version}")
        for key, function in convert.items():
            if key in data:
                data[key] = function(data[key])
    except (ValueError, TypeError) as error:
        raise ContractError(f"{kind.__name__}: {error}") from None
    return record_of(kind, data)


def record_of(kind: type[_Record], data: Any) -> _Record:
    """A record from its fields, each of the type that is declared; what is unknown is left out,
    since a newer version may say more.

    Raises:
        ContractError: a field is missing, or is not what it should be.
    """
    if not isinstance(data, Mapping):
        raise ContractError(f"{kind.__name__} is no object")
    declared = _declared(kind)  # type: ignore[arg-type]
    values = {}
    for key, value in data.items():
        if key in declared:
            try:
                values[key] = _typed(value, declared[key])
            except ContractError as error:
                raise ContractError(f"{kind.__name__}: {key} {error}") from None
    try:
        return kind(**values)
    except TypeError as error:
        raise ContractError(f"{kind.__name__}: {error}") from None


@lru_cache
def _field_names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()


@lru_cache
def _declared(kind: type[Any]) -> Mapping[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _typed(value: Any, declared: Any) -> Any:
    """``value``, read from JSON, as its declared type."""
    origin, inner = get_origin(declared), get_args(declared)
    if origin is Annotated and inner[0] is int:  # its rules say whether it may be below zero
        fits = type(value) is int and all(rule(value) for rule in inner[1:])
    elif origin is Annotated:
        value = _typed(value, inner[0])
        fits = all(rule(value) for rule in inner[1:])
    elif isinstance(declared, type) and is_dataclass(declared):
        return record_of(declared, value)
    elif isinstance(declared, type) and issubclass(declared, Enum):
        fits = value in declared.__members__.values()
        value = declared(value) if fits else value
    elif origin is Mapping:
        if fits := isinstance(value, dict):
            return {key: _typed(item, inner[1]) for key, item in value.items()}
    elif origin is tuple:
        if fits := isinstance(value, (list, tuple)):
            return tuple(_typed(item, inner[0]) for item in value)
    elif inner:  # a type or None
        return None if value is None else _typed(value, inner[0])
    elif declared is Any:
        fits = bool(finite(value) == value)
    elif declared is int:
        fits = type(value) is int and 0 <= value <= MAX_WHOLE
    elif declared is float:
        fits = isinstance(value, (int, float)) and type(value) is not bool and abs(value) < _HUGE
    else:
        fits = isinstance(value, declared)
    if not fits:
        raise ContractError("is not what it should be")
    return value


def finite(value: Any) -> Any:
    """``value`` as JSON can hold it: records in it are objects, floats that are not finite null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    if names := _field_names(type(value)):  # type: ignore[arg-type]
        return {name: finite(getattr(value, name)) for name in names}
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


# -- bounds -----------------------------------------------------------------------------------
def _bound(value: Any, depth: int, items: int) -> None:
    if isinstance(value, str):
        if len(value) > MAX_TEXT:
            raise ContractError("a text is longer than any real one")
    elif isinstance(value, (dict, list)):
        if not depth or len(value) > items:
            raise ContractError("deeper or longer than any real one")
        for item in value:
            _bound(item, depth - 1, items)
        if isinstance(value, dict):
            for item in value.values():
                _bound(item, depth - 1, items)


def _int(text: str) -> int:
    number = whole(text.removeprefix("-"))
    if number is None:
        raise ContractError("a number is longer than any real one")
    return -number if text[0] == "-" else number


def _float(text: str) -> float:
    number = float(text) if len(text) <= _MAX_FLOAT_CHARS else math.inf
    if not math.isfinite(number):
        raise ContractError("a number is not one that can be")
    return number


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ContractError("a key stands there twice")
    return made


_DECODER = json.JSONDecoder(
    parse_int=_int, parse_float=_float, parse_constant=_float, object_pairs_hook=_once
)
