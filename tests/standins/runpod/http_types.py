"""A request as the routes see it, and what they answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

PROBLEM = "application/problem+json"


@dataclass(frozen=True)
class Asked:
    """``who`` is "account", a pod's id, or "" for nobody known."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    who: str = ""

    def json(self) -> Any:
        """The body; None where it is none."""
        try:
            return json.loads(self.body) if self.body else None
        except ValueError:
            return None


@dataclass
class Answer:
    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    stream: Callable[[], Iterator[bytes]] | None = None
    drop: bool = False
    """Close the connection without a word."""
    forced: bool = False
    """A knob gave it, whatever was asked: the contract is no judge of it."""


def reply(data: Any, status: int = 200) -> Answer:
    return Answer(status, json.dumps(data).encode())


def nothing() -> Answer:
    return Answer(204)


def problem(status: int, detail: str, errors: list[str] | None = None) -> Answer:
    data: dict[str, Any] = {
        "title": HTTPStatus(status).phrase.replace("Content", "Entity"),
        "status": status,
        "detail": detail,
    }
    if errors:
        data["errors"] = errors
    return Answer(status, json.dumps(data).encode(), PROBLEM)
