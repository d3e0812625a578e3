"""The arguments of tools: their JSON Schemas, and the strict check of what a client sends.

Most come from the rows of ``trmcloud.options``. An argument that a tool does not have is refused by
its name, with the nearest that it has: none is ignored. Money is decimal text, since JSON's numbers
are binary floats to most clients.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from trmcloud.api import OptionField, options_of
from trmcloud.core.errors import UsageError
from trmcloud.core.nearest import nearest
from trmcloud.core.values import Value
from trmcloud.options import parse_money

MOST_ARGUMENT_BYTES = 1 << 16
"""Of one call's arguments, as JSON."""
_MOST_TEXT = 1 << 14
_MOST_ITEMS = 1000
_MONEY = r"^[0-9]{1,9}(\.[0-9]{1,6})?$"
_IS_MONEY = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?")
_MOST_SHOWN = 60


class Kind(str, Enum):
    """What a value is in JSON."""

    TEXT = "text"
    MONEY = "money"
    WHOLE = "whole"
    NUMBER = "number"
    FLAG = "flag"
    TEXTS = "texts"


class Argument(Value):
    """One argument of a tool. ``least`` and ``most`` bound numbers; ``choices`` texts."""

    name: str
    kind: Kind
    help: str
    default: Any = None
    required: bool = False
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None

    def schema(self) -> dict[str, Any]:
        made: dict[str, Any] = {"description": self.help, **_FORMS[self.kind].schema}
        if self.choices:
            made["enum"] = list(self.choices)
        if self.least is not None:
            made["minimum"] = self.least
        if self.most is not None:
            made["maximum"] = self.most
        if self.default not in (None, "", (), []):
            made["default"] = list(self.default) if self.kind is Kind.TEXTS else self.default
        return made

    def checked(self, value: Any) -> Any:
        """
        Raises:
            UsageError: it is no such value.
        """
        form = _FORMS[self.kind]
        if not form.holds(value):
            raise UsageError(
                f"{self.name} takes {form.words}, not {_shown(value)}",
                next_step=f"{self.name}: {form.example}",
            )
        if self.choices and value not in self.choices:
            near = nearest(str(value), self.choices)
            raise UsageError(
                f"{self.name} must be one of {', '.join(self.choices)}, not {_shown(value)}",
                next_step=f'{self.name}: "{near}"' if near else "",
            )
        is_number = self.kind in (Kind.WHOLE, Kind.NUMBER)
        if is_number and not (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
        ):
            least = f"from {self.least:g} " if self.least is not None else ""
            most = f"to {self.most:g}" if self.most is not None else "upwards"
            raise UsageError(f"{self.name} must be {least}{most}, not {_shown(value)}")
        return tuple(value) if self.kind is Kind.TEXTS else value


class _Form(NamedTuple):
    """A kind of value: its JSON Schema, what it is in words, an example, whether a value is one."""

    schema: Mapping[str, Any]
    words: str
    example: str
    holds: Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _MOST_TEXT and "\0" not in value


def _is_money(value: Any) -> bool:
    return isinstance(value, str) and bool(_IS_MONEY.fullmatch(value))


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 53


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


def _are_texts(value: Any) -> bool:
    fits = isinstance(value, (list, tuple)) and len(value) <= _MOST_ITEMS
    return fits and all(map(_is_text, value))


_TEXTS = {"type": "array", "items": {"type": "string"}, "maxItems": _MOST_ITEMS}
_FORMS: Mapping[Kind, _Form] = {
    Kind.TEXT: _Form({"type": "string"}, "a text", '"…"', _is_text),
    Kind.MONEY: _Form(
        {"type": "string", "pattern": _MONEY}, "US dollars as decimal text", '"2.50"', _is_money
    ),
    Kind.WHOLE: _Form({"type": "integer"}, "a whole number", "100", _is_whole),
    Kind.NUMBER: _Form({"type": "number"}, "a number", "1.5", _is_number),
    Kind.FLAG: _Form(
        {"type": "boolean"}, "true or false", "true", lambda value: isinstance(value, bool)
    ),
    Kind.TEXTS: _Form(_TEXTS, "a list of texts", '["…", "…"]', _are_texts),
}


def _shown(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=True)
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def schema_of(arguments: Sequence[Argument]) -> dict[str, Any]:
    """Return the JSON Schema of a tool's arguments; no others are allowed."""
    return {
        "type": "object",
        "properties": {each.name: each.schema() for each in arguments},
        "required": [each.name for each in arguments if each.required],
        "additionalProperties": False,
    }


def check_arguments(
    tool: str, arguments: Sequence[Argument], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the values that were given, each checked.

    Raises:
        UsageError: one is too much, missing, or of another kind.
    """
    try:
        size_bytes = len(json.dumps(given, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    except (TypeError, ValueError, RecursionError):
        raise UsageError(f"the arguments of {tool} are nested too deep") from None
    if size_bytes > MOST_ARGUMENT_BYTES:
        raise UsageError(
            f"the arguments of {tool} have {size_bytes:,} bytes; at most "
            f"{MOST_ARGUMENT_BYTES:,} are read",
            next_step="write long content into a file of the project, and name the file",
        )
    known = {each.name: each for each in arguments}
    for name in given:
        if name not in known:
            near = nearest(name[:80], known)
            raise UsageError(
                f"{tool} has no argument {_shown(name)}, and nothing was done",
                next_step=f"did you mean {near}?" if near else f"one of: {', '.join(known)}",
            )
    for each in arguments:
        if each.required and given.get(each.name) is None:
            raise UsageError(
                f"{tool} needs the argument {each.name}", next_step=f"{each.name}: {each.help}"
            )
    return {name: known[name].checked(value) for name, value in given.items() if value is not None}


# -- from the option table -------------------------------------------------------------------------

_KINDS: Mapping[Any, Kind] = {
    int: Kind.WHOLE, int | None: Kind.WHOLE, float: Kind.NUMBER, float | None: Kind.NUMBER,
    bool: Kind.FLAG, Sequence[str]: Kind.TEXTS,
}  # fmt: skip

OF_THE_OWNER: Mapping[str, str] = {
    "accept_exposure": "it accepts a loss beyond the budget",
    "allow_key": "it gives a pod a key of the account",
    "accept_loss": "it accepts losing checkpoints",
    "bucket": "the server's TRMCLOUD_BUCKET decides where checkpoints are kept",
    "env": "variables of this process are the owner's",
}
"""Options that an agent does not have, each with the reason; ``trmcloud`` takes them from the
owner."""
_FLAG = re.compile(r"--([a-z][a-z-]*)")
"""An option as the help of others names it."""
_OF_THE_LAUNCH = ("detach", "name", "tag", "idempotency_key", "words")


def options_for(*commands: str, leave_out: Sequence[str] = ()) -> tuple[Argument, ...]:
    """Return the arguments that stand for the options of ``commands``, each once."""
    found: dict[str, Argument] = {}
    for command in commands:
        for field in options_of(command):
            left_out = field.name in OF_THE_OWNER or field.name in (*_OF_THE_LAUNCH, *leave_out)
            if not left_out:
                found.setdefault(field.name, _of_row(field))
    return tuple(found.values())


def _of_row(field: OptionField) -> Argument:
    row = field.option
    text = _FLAG.sub(lambda found: found[1].replace("-", "_"), row.help)
    if row.parse is parse_money:
        text = f'{text} US dollars as decimal text, such as "2.50".'
        return Argument(field.name, Kind.MONEY, text)
    return Argument(field.name, _KINDS.get(field.kind, Kind.TEXT), text, field.default)
