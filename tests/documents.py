"""Documents of ``--json`` held to the JSON Schema in docs/json."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker

FOLDER = Path(__file__).parent.parent / "docs" / "json"


@cache
def _validator(schema: str) -> Draft202012Validator:
    path = FOLDER / f"{schema.replace('/', '-')}.schema.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    return Draft202012Validator(found, format_checker=FormatChecker())


def valid(document: Any) -> Any:
    """Return ``document``, which is what its schema says."""
    assert isinstance(document, dict), document
    _validator(document["schema"]).validate(document)
    return document


def document_in(text: str) -> Any:
    """Return the one document that ``text`` holds, and nothing beside it."""
    return valid(json.loads(text))


def lines_in(text: str) -> list[Any]:
    """Return the documents of ``text``, one on each line."""
    return [valid(json.loads(line)) for line in text.splitlines()]
