"""RunPod's published OpenAPI as the judge of every v2 answer, and of every request's refusal.

The file is named by the environment (it is RunPod's, so it is not part of this repository).
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.standins.web import Answer, Asked

ENV_OPENAPI = "TRMCLOUD_RUNPOD_OPENAPI"
_DATE_TIME = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$")
_BASE = "urn:runpod"
_YOUNGER = {("GET", "/v2/network-volumes"): ("cursor", "pagination")}
"""What RunPod has added since the published file: a query parameter and an answer's field. RunPod's
SDK 2.0.0rc2 (November 2026) refuses an answer without ``pagination``."""


def given() -> Oracle | None:
    """The judge; None where the file is not named."""
    path = os.environ.get(ENV_OPENAPI)
    return Oracle(Path(path)) if path else None


def required() -> Oracle:
    oracle = given()
    if oracle is None:
        pytest.skip(f"{ENV_OPENAPI} names no file: RunPod's contract is not at hand")
    return oracle


class Oracle:
    """``faults``: each thing that was not as published, in words."""

    def __init__(self, path: Path) -> None:
        from jsonschema import Draft202012Validator, FormatChecker
        from referencing import Registry
        from referencing.jsonschema import DRAFT202012

        self._document = json.loads(path.read_text())
        checker = FormatChecker(formats=[])
        checker.checks("date-time")(
            lambda text: not isinstance(text, str) or bool(_DATE_TIME.match(text))
        )
        registry = Registry().with_resource(_BASE, DRAFT202012.create_resource(self._document))
        self._validator = lambda schema: Draft202012Validator(
            _absolute(schema), registry=registry, format_checker=checker
        )
        self._paths = [
            (re.compile("^" + re.sub(r"\{[^}]+\}", "[^/]+", name) + "$"), verbs)
            for name, verbs in self._document["paths"].items()
        ]
        self.faults: list[str] = []

    def __call__(self, asked: Asked, answer: Answer) -> None:
        operation = self._operation(asked)
        if operation is None:
            return
        what = f"{asked.method} {asked.path} → {answer.status}"
        response = operation["responses"].get(str(answer.status), operation["responses"]["default"])
        response = self._resolved(response)
        younger = _YOUNGER.get((asked.method, asked.path), ())
        if answer.stream is None:
            self._judge_answer(what, response, answer, younger)
        for name in ("RateLimit", "RateLimit-Policy"):
            if answer.status < 300 and name not in answer.headers:
                self.faults.append(f"{what}: no {name} header")
        self._judge_request(what, operation, asked, answer)
        self._judge_query(what, operation, asked, answer)

    def valid(self, name: str, value: Any) -> list[str]:
        """What is wrong with a value, as a schema of the contract sees it."""
        schema = {"$ref": f"#/components/schemas/{name}"}
        return [error.message for error in self._validator(schema).iter_errors(value)]

    def _judge_answer(
        self, what: str, response: dict[str, Any], answer: Answer, younger: tuple[str, ...]
    ) -> None:
        content = response.get("content", {})
        if not content:
            if answer.body:
                self.faults.append(f"{what}: a body where none is published")
            return
        if answer.content_type not in content:
            self.faults.append(f"{what}: {answer.content_type} is not published")
            return
        told = json.loads(answer.body)
        if answer.status < 300:
            for name in younger:
                told.pop(name, None)
        errors = self._validator(content[answer.content_type]["schema"]).iter_errors(told)
        self.faults += [f"{what}: {error.json_path}: {error.message[:200]}" for error in errors]

    def _judge_request(
        self, what: str, operation: dict[str, Any], asked: Asked, answer: Answer
    ) -> None:
        """A body that breaks the contract is a 422, and no other is."""
        if "requestBody" not in operation or answer.status in (401, 403, 404, 405, 429):
            return
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        broken = [error.message for error in self._validator(schema).iter_errors(asked.json())]
        if bool(broken) != (answer.status == 422):
            self.faults.append(f"{what}: the contract says of the request: {broken or 'valid'}")

    def _judge_query(
        self, what: str, operation: dict[str, Any], asked: Asked, answer: Answer
    ) -> None:
        """A parameter that breaks the contract is a 422, and one that is not in it is asked of
        nobody."""
        if answer.status in (401, 403, 429, 410):
            return
        declared = {}
        for parameter in map(self._resolved, operation.get("parameters", [])):
            if parameter["in"] == "query":
                declared[parameter["name"]] = self._resolved(parameter["schema"])
        younger = _YOUNGER.get((asked.method, asked.path), ())
        unknown = sorted(set(asked.query) - set(declared) - set(younger))
        if unknown:
            self.faults.append(f"{what}: the contract knows no parameter {', '.join(unknown)}")
        wrong = [
            f"{name}: {error.message}"
            for name, text in asked.query.items()
            if name in declared
            for error in self._validator(declared[name]).iter_errors(_typed(declared[name], text))
        ]
        if wrong and answer.status not in (400, 422):
            self.faults.append(f"{what}: the contract says of the query: {wrong}")

    def _operation(self, asked: Asked) -> dict[str, Any] | None:
        for pattern, verbs in self._paths:
            if pattern.match(asked.path):
                operation: dict[str, Any] | None = verbs.get(asked.method.lower())
                return operation
        return None

    def _resolved(self, value: dict[str, Any]) -> dict[str, Any]:
        found: Any = value
        while "$ref" in found:
            place: Any = self._document
            for part in found["$ref"].removeprefix("#/").split("/"):
                place = place[part]
            found = place
        return dict(found)


def _typed(schema: Any, text: str) -> Any:
    """A parameter's text as what its schema says it is."""
    kind = schema.get("type")
    if kind == "array":
        return text.split(",")
    if kind == "integer" and text.lstrip("-").isdecimal():
        return int(text)
    return {"true": True, "false": False}.get(text, text) if kind == "boolean" else text


def _absolute(schema: Any) -> Any:
    """The same schema with its references made to the published document."""
    if isinstance(schema, dict):
        return {
            key: _BASE + value if key == "$ref" and value.startswith("#") else _absolute(value)
            for key, value in schema.items()
        }
    return [_absolute(item) for item in schema] if isinstance(schema, list) else schema
