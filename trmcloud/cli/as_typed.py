"""Options whose values need no conversion, taken as they were typed.

Typer from 0.29 converts every value by pydantic, text to text among them. Its import takes longer
than the rest of a short command, so that a command whose options are text starts without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any


class _AsTyped:
    """A parameter's conversion that leaves to Typer what is not of the right type already."""

    def __init__(self, described: Any, typers: Any) -> None:
        self._described, self._typers = described, typers

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        if self._described.parameter_info.parser is None and not self._described.is_ranged:
            kind = self._described.annotation
            if not several and kind in (str, int, float, bool) and type(value) is kind:
                return value
            if several and kind == list[str] and _is_texts(value):
                return list(value)
        return self._typers().coerce(value, param=param, ctx=ctx)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(type(item) is str for item in value)


def take_as_typed(command: Any) -> None:
    """Have ``command``, and each command of a group, convert no value that needs none."""
    params_of = command.get_params
    command.get_params = lambda context: values_as_typed(params_of(context))
    for each in getattr(command, "commands", {}).values():
        take_as_typed(each)


def values_as_typed(params: Sequence[Any]) -> list[Any]:
    """Have ``params`` convert no value that needs none; return them.

    An older Typer's convert by Click, quickly: these stay as they are.
    """
    for param in params:
        typers = getattr(param, "get_runtime_param", None)
        if typers is not None and "get_runtime_param" not in vars(param):
            param.get_runtime_param = partial(_AsTyped, param.type_descriptor, typers)
    return list(params)
