"""What RunPod's routes answer."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

from tests.standins.web import Answer

PROBLEM = "application/problem+json"


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
