"""Records of frozen dataclasses as JSON, read strictly: what is read may be hostile."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

MAX_JSON_BYTES = 1 << 20
_HUGE = 1e300

_Record = TypeVar("_Record")


class ContractError(ValueError):
    """Text from the other side that is not what the contract says."""


def dump(record: Any) -> str:
    """A record as one line of JSON; NaN and infinity become null."""
    return json.dumps(finite(asdict(record)), sort_keys=True, allow_nan=False)


def load(kind: type[_Record], version: int, text: str | bytes, **convert: Any) -> _Record:
    """A record of ``version`` from text; ``convert``: what makes a field of what JSON has for it.

    Raises:
        ContractError: too long, no JSON, another version, or a field that is not of its type.
    """
    if len(text) > MAX_JSON_BYTES:
        raise ContractError(f"{kind.__name__}: larger than any real one")
    try:
        data = json.loads(text)
        if data.get("version") != version:
            raise ContractError(f"{kind.__name__}: version {data.get('version')!r}")
        for key, function in convert.items():
            if key in data:
                data[key] = function(data[key])
        return made(kind, data)
    except ContractError:
        raise
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise ContractError(f"{kind.__name__}: {error}") from None


def made(kind: type[_Record], data: Mapping[str, Any]) -> _Record:
    """A record from its fields, each of the type that is declared; what is unknown is left out,
    since a newer version may say more."""
    declared = _declared(kind)  # type: ignore[arg-type]
    values = {key: value for key, value in data.items() if key in declared}
    for key, value in values.items():
        if not _fits(value, declared[key]):
            raise ContractError(f"{kind.__name__}: {key} is not what it should be")
    return kind(**values)


@lru_cache
def _declared(kind: type[Any]) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _fits(value: Any, declared: Any) -> bool:
    """Whether a value read from JSON is of a declared type, and every number in it finite."""
    inner = get_args(declared)
    if get_origin(declared) is Mapping:
        return isinstance(value, dict) and all(_fits(item, inner[1]) for item in value.values())
    if get_origin(declared) is tuple:
        return isinstance(value, (list, tuple)) and all(_fits(item, inner[0]) for item in value)
    if inner:
        return any(_fits(value, one) for one in inner)
    if declared is Any:
        return bool(finite(value) == value)
    if declared is float or declared is int:
        kinds = (int, float) if declared is float else int
        return isinstance(value, kinds) and not isinstance(value, bool) and abs(value) < _HUGE
    return isinstance(value, declared)


def finite(value: Any) -> Any:
    """``value`` as JSON can hold it: floats in it that are not finite are null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value
