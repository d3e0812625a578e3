"""The OpenAPI document as a page that needs no script and nothing from elsewhere."""

from __future__ import annotations

from html import escape
from typing import Any, Mapping

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse}td,th{border:1px solid #999;padding:.2rem .6rem}"
)
_LIMITS = {"minimum": "≥", "maximum": "≤", "exclusiveMaximum": "<"}


def page_of(document: Mapping[str, Any]) -> str:
    """Every path with what it answers, and every schema with its fields."""
    info = document["info"]
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        f"<title>{escape(info['title'])}</title><style>{_STYLE}</style>",
        f"<h1>{escape(info['title'])} <small>{escape(info['version'])}</small></h1>",
        "<p>The same for programs: <a href=/openapi.json>/openapi.json</a></p>",
    ]
    for path, methods in document["paths"].items():
        for method, told in methods.items():
            parts.append(f"<h2>{escape(method.upper())} {escape(path)}</h2>")
            parts.append(f"<p>{escape(told['summary'])}</p>")
            rows = [(code, each["description"]) for code, each in told["responses"].items()]
            parts.append(_table(("status", "meaning"), rows))
    for name, schema in document["components"]["schemas"].items():
        parts.append(f"<h2>{escape(name)}</h2><p>{escape(schema['description'])}</p>")
        required = schema.get("required", [])
        fields = [
            (field, _kind(of), "needed" if field in required else _default(of),
             of.get("description", ""))
            for field, of in schema["properties"].items()
        ]  # fmt: skip
        parts.append(_table(("field", "type", "default", "meaning"), fields))
    return "\n".join(parts) + "</html>\n"


def _default(field: Mapping[str, Any]) -> str:
    default = field.get("default", "")
    return "" if default is None else str(default)


def _kind(field: Mapping[str, Any]) -> str:
    if "anyOf" in field:
        return " | ".join(_kind(each) for each in field["anyOf"] if each.get("type") != "null")
    if "enum" in field:
        return " | ".join(map(str, field["enum"]))
    if "const" in field:
        return str(field["const"])
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    if field.get("type") == "array" and field.get("items"):
        return f"array of {_kind(field['items'])}"
    limits = [f"{sign} {field[key]}" for key, sign in _LIMITS.items() if key in field]
    return " ".join([str(field.get("type", "")), *limits])


def _table(head: tuple[str, ...], rows: list[Any]) -> str:
    top = "".join(f"<th>{escape(each)}" for each in head)
    lines = ("<tr>" + "".join(f"<td>{escape(str(each))}" for each in row) for row in rows)
    return f"<table><tr>{top}\n" + "\n".join(lines) + "</table>"
