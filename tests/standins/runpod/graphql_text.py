"""GraphQL as clients of RunPod send it: one operation, arguments, variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from graphql import FieldNode, GraphQLError, OperationDefinitionNode, SelectionSetNode
from graphql import parse as parse_document
from graphql.utilities import value_from_ast_untyped


@dataclass(frozen=True)
class Field:
    """One selected field; ``fields`` is empty for a scalar."""

    name: str
    alias: str
    arguments: Mapping[str, Any]
    fields: tuple[Field, ...]


def parse(query: str, variables: Mapping[str, Any]) -> tuple[str, tuple[Field, ...]]:
    """("query" or "mutation", what is selected).

    Raises:
        GraphQLError: it is no query.
    """
    [operation] = parse_document(query).definitions
    if not isinstance(operation, OperationDefinitionNode):
        raise GraphQLError("Syntax Error: one operation is expected")
    return operation.operation.value, _selected(operation.selection_set, dict(variables))


def _selected(nodes: SelectionSetNode | None, variables: dict[str, Any]) -> tuple[Field, ...]:
    return tuple(
        Field(
            node.name.value,
            (node.alias or node.name).value,
            {
                a.name.value: value_from_ast_untyped(a.value, variables)
                for a in node.arguments or ()
            },
            _selected(node.selection_set, variables),
        )
        for node in (nodes.selections if nodes is not None else ())
        if isinstance(node, FieldNode)
    )
