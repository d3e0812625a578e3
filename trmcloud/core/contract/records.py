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

from trmcloud.core.text import spell_bytes

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
"""The number of requests for one thing."""
Restarts = Annotated[int, within(-1, 1_000)]
"""The number of times a trainer may be restarted; -1: not even after an attempt without
progress."""


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
    """Return the value of JSON text. ``most``: its length; ``items``: of one list or object.

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
            whole_text = spell_bytes(json.dumps(value, ensure_ascii=False))
            value = _DECODER.decode(whole_text.encode("utf-8", "replace").decode("utf-8"))
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
    try:
        return _ENCODER.encode(record)
    except ValueError:  # a float that is not finite
        return _ENCODER.encode(finite(record))


def _fields_of(record: Any) -> dict[str, Any]:
    if names := _field_names(type(record)):  # type: ignore[arg-type]
        return {name: getattr(record, name) for name in names}
    raise TypeError(f"{type(record).__name__} is no record")


_ENCODER = json.JSONEncoder(sort_keys=True, allow_nan=False, default=_fields_of)


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
    readers = _readers(kind)  # type: ignore[arg-type]
    values = {}
    for key, value in data.items():
        read = readers.get(key)
        if read is not None:
            try:
                values[key] = read(value)
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
def _readers(kind: type[Any]) -> Mapping[str, Callable[[Any], Any]]:
    """By field: the function that checks a value from JSON, and makes the declared type of it."""
    return {key: _reader(each) for key, each in get_type_hints(kind, include_extras=True).items()}


def _reader(declared: Any) -> Callable[[Any], Any]:
    origin, inner = get_origin(declared), get_args(declared)
    if rules := _rules_of(declared):
        return lambda value: _ruled(value, rules)
    if origin is Annotated:
        read = _reader(inner[0])
        return lambda value: _ruled(read(value), inner[1:])
    if origin is None and is_dataclass(declared):
        return lambda value: record_of(declared, value)  # type: ignore[arg-type]
    if origin is None and isinstance(declared, type):  # an Enum
        one_of = (tuple(declared.__members__.values()).__contains__,)  # type: ignore[attr-defined]
        return lambda value: declared(_ruled(value, one_of))
    read_item = _reader(inner[1 if origin is Mapping else 0])
    if origin is Mapping:
        an_object = _rules_of(dict)
        return lambda value: {k: read_item(v) for k, v in _ruled(value, an_object).items()}
    if origin is tuple:
        a_list = (lambda value: isinstance(value, (list, tuple)),)
        return lambda value: tuple([read_item(item) for item in _ruled(value, a_list)])
    return lambda value: None if value is None else read_item(value)  # a type or None


def _rules_of(declared: Any) -> tuple[Callable[[Any], bool], ...]:
    """Return the rules for a value that is stored unchanged; none where the value is converted."""
    origin = get_origin(declared)
    if origin is Annotated:
        plain, *rules = get_args(declared)
        # The rules of a whole number say whether it may be below zero.
        first = (lambda value: type(value) is int,) if plain is int else _rules_of(plain)
        return (*first, *rules) if first else ()
    if declared is Any:
        return (lambda value: bool(finite(value) == value),)
    if declared is int:
        return (lambda value: type(value) is int and 0 <= value <= MAX_WHOLE,)
    if declared is float:
        return (_is_number,)
    if origin is not None or not isinstance(declared, type):
        return ()
    if is_dataclass(declared) or issubclass(declared, Enum):
        return ()
    return (lambda value: isinstance(value, declared),)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and type(value) is not bool and abs(value) < _HUGE


def _ruled(value: Any, rules: Iterable[Callable[[Any], bool]]) -> Any:
    for rule in rules:
        if not rule(value):
            raise ContractError("is not what it should be")
    return value


def finite(value: Any) -> Any:
    """``value`` as JSON can hold it: records in it are objects, floats that are not finite null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    names = _field_names(type(value))  # type: ignore[arg-type]
    return {name: finite(getattr(value, name)) for name in names} if names else value


# -- bounds -----------------------------------------------------------------------------------
def _bound(value: Any, depth: int, items: int) -> None:
    if isinstance(value, str):
        if len(value) > MAX_TEXT:
            raise ContractError("a text is longer than any real one")
    elif isinstance(value, (dict, list)):
        if not depth or len(value) > items:
            raise ContractError("deeper or longer than any real one")
        if isinstance(value, dict):
            for key in value:
                _bound(key, depth, items)
            value = value.values()
        for item in value:
            if type(item) is not str:
                _bound(item, depth - 1, items)
            elif len(item) > MAX_TEXT:
                raise ContractError("a text is longer than any real one")


def _int(text: str) -> int:
    number = int(text) if len(text) <= MAX_DIGITS + 1 and text.isascii() else math.inf
    if abs(number) > MAX_WHOLE:
        raise ContractError("a number is longer than any real one")
    return int(number)


def _float(text: str) -> float:
    number = float(text) if len(text) <= _MAX_FLOAT_CHARS else math.inf
    if not math.isfinite(number):
        raise ContractError("a number is not one that can be")
    return number


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ContractError("a key occurs twice")
    return made


_DECODER = json.JSONDecoder(
    parse_int=_int, parse_float=_float, parse_constant=_float, object_pairs_hook=_once
)
