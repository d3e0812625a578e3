"""As much of GraphQL as clients of RunPod send: one operation, arguments, variables."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_TOKEN = re.compile(
    r"""\s*(?:\#[^\n]*\s*)*(?P<t>"""
    r'"(?:[^"\\\n]|\\.)*"|-?\d+\.\d+|-?\d+|[A-Za-z_]\w*|\$[A-Za-z_]\w*|[{}()\[\]:,!=])'
)


class Malformed(ValueError):
    """Not a query."""


@dataclass(frozen=True)
class Field:
    """One selected field; ``fields`` is empty for a scalar."""

    name: str
    alias: str
    arguments: Mapping[str, Any]
    fields: tuple[Field, ...]


def parse(query: str, variables: Mapping[str, Any]) -> tuple[str, tuple[Field, ...]]:
    """("query" or "mutation", what is selected)."""
    return _Parser(_tokens(query), variables).operation()


def _tokens(query: str) -> list[str]:
    tokens, at = [], 0
    while at < len(query.rstrip()):
        match = _TOKEN.match(query, at)
        if match is None:
            raise Malformed(f"Syntax Error: Unexpected character at {at}.")
        tokens.append(match["t"])
        at = match.end()
    return [token for token in tokens if token != ","]


class _Parser:
    def __init__(self, tokens: list[str], variables: Mapping[str, Any]) -> None:
        self._tokens, self._variables, self._at = tokens, variables, 0

    def operation(self) -> tuple[str, tuple[Field, ...]]:
        kind = "query"
        if self._peek() in ("query", "mutation"):
            kind = self._next()
            if self._peek() not in ("{", "("):
                self._next()
            if self._peek() == "(":
                while self._next() != ")":
                    pass
        fields = self._selection()
        if self._at != len(self._tokens):
            raise Malformed(f"Syntax Error: Unexpected {self._peek()!r}.")
        return kind, fields

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        if not token:
            raise Malformed("Syntax Error: Unexpected <EOF>.")
        self._at += 1
        return token

    def _take(self, wanted: str) -> None:
        token = self._next()
        if token != wanted:
            raise Malformed(f"Syntax Error: Expected {wanted!r}, found {token!r}.")

    def _name(self) -> str:
        token = self._next()
        if not re.fullmatch(r"[A-Za-z_]\w*", token):
            raise Malformed(f"Syntax Error: Expected Name, found {token!r}.")
        return token

    def _selection(self) -> tuple[Field, ...]:
        self._take("{")
        fields = []
        while self._peek() != "}":
            alias = name = self._name()
            if self._peek() == ":":
                self._next()
                name = self._name()
            arguments = self._pairs(")") if self._skip("(") else {}
            inner = self._selection() if self._peek() == "{" else ()
            fields.append(Field(name, alias, arguments, inner))
        self._take("}")
        return tuple(fields)

    def _skip(self, token: str) -> bool:
        if self._peek() != token:
            return False
        self._at += 1
        return True

    def _pairs(self, end: str) -> dict[str, Any]:
        pairs = {}
        while not self._skip(end):
            name = self._name()
            self._take(":")
            pairs[name] = self._value()
        return pairs

    def _value(self) -> Any:
        token = self._next()
        if token == "{":
            return self._pairs("}")
        if token == "[":
            values = []
            while not self._skip("]"):
                values.append(self._value())
            return values
        if token.startswith("$"):
            return self._variables.get(token[1:])
        if token in ("true", "false", "null"):
            return {"true": True, "false": False, "null": None}[token]
        if token[0] == '"' or token[0].isdigit() or token[0] == "-":
            return json.loads(token)
        if re.fullmatch(r"[A-Za-z_]\w*", token):
            return token
        raise Malformed(f"Syntax Error: Unexpected {token!r}.")
