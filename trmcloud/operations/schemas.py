"""JSON Schema (draft 2020-12) of each document, made from the classes in ``documents``."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

from trmcloud.core.money import Usd
from trmcloud.operations.views import all_documents

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_MONEY = {"type": "string", "pattern": r"^-?[0-9]+(\.[0-9]+)?$"}
_INSTANT = {
    "type": "string",
    "format": "date-time",
    "pattern": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z$",
}
_PLAIN: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    Any: {},
}


def schema_of(kind: type[Any]) -> dict[str, Any]:
    """Return the schema of a document.

    Raises:
        TypeError: the key of a field does not bear the unit of its type.
    """
    parts: dict[str, Any] = {}
    made = _object(kind, parts)
    name: str = kind.schema
    made["properties"] = {"schema": {"const": name}, **made["properties"]}
    made["required"] = ["schema", *made["required"]]
    return {
        "$schema": DIALECT,
        "$id": f"trmcloud/{name}",
        "title": name,
        **made,
        **({"$defs": dict(sorted(parts.items()))} if parts else {}),
    }


def all_schemas() -> dict[str, dict[str, Any]]:
    """Return the schema of every document by its name."""
    return {name: schema_of(kind) for name, kind in all_documents().items()}


def file_name(name: str) -> str:
    """``status-1.schema.json`` of ``status/1``."""
    return f"{name.replace('/', '-')}.schema.json"


def _object(kind: type[Any], parts: dict[str, Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]
    text = " ".join((kind.__doc__ or "").split())
    return {
        **({"description": text} if text and text != kind.__name__ else {}),
        "type": "object",
        "properties": {name: _value(hints[name], name, parts) for name in names},
        "required": names,
        "additionalProperties": False,
    }


def _value(declared: Any, key: str, parts: dict[str, Any]) -> dict[str, Any]:
    origin, inner = get_origin(declared), get_args(declared)
    if origin in (Union, types.UnionType):
        some = [each for each in inner if each is not type(None)]
        made = _value(some[0], key, parts)
        if "type" in made:
            return {**made, "type": [made["type"], "null"]}
        return {"anyOf": [made, {"type": "null"}]}
    if origin is tuple:
        return {"type": "array", "items": _value(inner[0], key, parts)}
    if origin is Mapping:
        if inner[1] is Any:
            return {"type": "object"}
        return {"type": "object", "additionalProperties": _value(inner[1], key, parts)}
    if isinstance(declared, type) and dataclasses.is_dataclass(declared) and declared is not Usd:
        if declared.__name__ not in parts:
            parts[declared.__name__] = {}
            parts[declared.__name__] = _object(declared, parts)
        return {"$ref": f"#/$defs/{declared.__name__}"}
    if declared is Usd or key.endswith("_usd"):
        if not key.endswith("_usd") or declared not in (Usd, float):
            raise TypeError(f"{key}: money and only money is {declared} under …_usd")
        return _MONEY
    if key.endswith("_at"):
        if declared is not float:
            raise TypeError(f"{key}: an instant is a float, and not {declared}")
        return _INSTANT
    if key.endswith("_s") and declared is not float:
        raise TypeError(f"{key}: a duration is a float, and not {declared}")
    return dict(_PLAIN[declared])
