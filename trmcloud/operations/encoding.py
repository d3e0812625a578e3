"""Views as JSON, by the contract of ``views``.

The unit of a value stands in its key: ``…_usd`` is a decimal string, ``…_at`` an instant of
RFC 3339 in UTC, ``…_s`` a number of seconds. ``encode`` writes each value by its type and its key.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

from trmcloud.core.money import Usd

AMOUNT, INSTANT = "_usd", "_at"
_PER = re.compile(r"^(.*_)?usd_per_(.+)$")


class Verbatim(dict[str, Any]):
    """JSON of another format, which is kept as it is."""


def encode(value: Any, key: str = "") -> Any:
    """Return ``value`` as JSON has it under ``key``; floats that are not finite are null."""
    if isinstance(value, Verbatim):
        return dict(value)
    if isinstance(value, Usd):
        return value.plain()
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, (int, float)):
        if not math.isfinite(value):
            return None
        if key.endswith(INSTANT):
            return instant(value)
        return f"{value:.6f}".rstrip("0").rstrip(".") if key.endswith(AMOUNT) else value
    if isinstance(value, Mapping):
        unit = key if key.endswith((AMOUNT, INSTANT)) else ""
        return {str(name): encode(item, unit or str(name)) for name, item in value.items()}
    if dataclasses.is_dataclass(value):
        return {
            field.name: encode(getattr(value, field.name), field.name)
            for field in dataclasses.fields(value)
        }
    if isinstance(value, (list, tuple, set, frozenset)):
        return [encode(item, key) for item in value]
    return str(value)


def instant(at: float) -> str:
    """Return epoch seconds as ``2026-11-26T22:10:00.000Z``."""
    made = dt.datetime.fromtimestamp(at, dt.timezone.utc)
    return f"{made:%Y-%m-%dT%H:%M:%S}.{made.microsecond // 1000:03d}Z"


def facts_in(value: Any) -> dict[str, Any]:
    """Return a record of the ledger, or the facts of a reason, with each unit in its key:
    ``amount`` of money is ``amount_usd``, a ``rate`` is ``rate_per_hour_usd``."""
    if dataclasses.is_dataclass(value):
        items = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    else:
        items = dict(value)
    return dict(_fact(name, item) for name, item in items.items())


def _fact(name: str, value: Any) -> tuple[str, Any]:
    if per := _PER.match(name):
        return f"{per[1] or ''}per_{per[2]}_usd", encode(value, AMOUNT)
    if isinstance(value, Usd) and not name.endswith(AMOUNT):
        name = f"{name}{'_per_hour' if name.endswith('rate') else ''}{AMOUNT}"
    if dataclasses.is_dataclass(value) and not isinstance(value, Usd):
        return name, facts_in(value)
    if isinstance(value, Mapping):
        return name, facts_in(value)
    if isinstance(value, (list, tuple)):
        return name, [
            facts_in(item)
            if isinstance(item, Mapping) or (dataclasses.is_dataclass(item) and item is not None)
            else encode(item, name)
            for item in value
        ]
    return name, encode(value, name)


def as_object(document: Any) -> dict[str, Any]:
    """Return a document as JSON has it, its ``schema`` first."""
    return {"schema": document.schema, **encode(document)}
