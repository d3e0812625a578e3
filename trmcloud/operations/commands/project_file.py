"""``trmcloud.toml``: a user's own command and its options, kept beside the script.

The file may come with somebody else's repository, so it may say less than a user who types. Its
keys are the rows of the option table that have ``in_file``. Its paths stay in its git tree, what
is typed wins, and ``-y`` does not agree to a budget or an environment that only the file names.
"""

# The types of the rows' fields are values here.
import json
import os
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from decimal import Decimal
from pathlib import Path
from typing import Any

import tomllib

from trmcloud.core.errors import UsageError
from trmcloud.core.nearest import suggest_name
from trmcloud.core.text import one_line
from trmcloud.core.values import Value, replace
from trmcloud.io.files import is_below, read_small
from trmcloud.operations.commands.commands import CommandRequest, check_hardware
from trmcloud.operations.home import PROJECT_FILE, find_project_file, top_of
from trmcloud.operations.plans.planning import is_plan_id
from trmcloud.options import LaunchRequest, Option, parse_money, rows_of

_MOST_BYTES = 1 << 16
_MOST_WHOLE = 1 << 53
_ROWS = rows_of(LaunchRequest, "run") | rows_of(CommandRequest, "run")
_KINDS = {each.name: each.type for of in (LaunchRequest, CommandRequest) for each in fields(of)}
_NAMES = {row.key: name for name, row in _ROWS.items() if row.in_file}


class Filled(Value):
    """A launch with the values of a file. ``line``: the file, its values but the command's, and
    those that typed options replace."""

    request: LaunchRequest
    asked: CommandRequest
    here: Path
    """The file's folder, in which the command starts."""
    line: str


def fill_in(
    request: LaunchRequest, asked: CommandRequest, here: Path, *, unseen: bool = False
) -> Filled | None:
    """Take from the nearest file what was not typed in the folder ``here``. None where there is no
    file, or a command, a recipe or the id of a plan was typed.

    Args:
        unseen: with -y, the user confirms nothing before money is spent.

    Raises:
        UsageError: the file is not valid, or is to decide with ``unseen`` what must be typed.
    """
    typed = (*request.typed, *asked.typed)
    of_recipes = rows_of(LaunchRequest, "launch").keys() - _ROWS.keys()
    if asked.words or is_plan_id(request.hardware) or not of_recipes.isdisjoint(typed):
        return None
    if (path := find_project_file(here)) is None:
        return None
    said = read_file(path, typed)
    used = {n: v for n, v in said.items() if not {n, _ROWS[n].not_beside}.intersection(typed)}
    if unseen:
        untyped = [] if "budget" in typed else ["--budget 5"]
        if untyped := untyped + [f"--env {name}" for name in used.get("env", ())]:
            raise UsageError(
                f"with -y, budget and env must be typed: {PROJECT_FILE} cannot decide them",
                where=str(path),
                next_step=f"{' '.join(untyped)}, or leave out -y",
            )
    line = _line(path, said, tuple(used))
    if "data" in used:
        used["data"] = str(path.parent / used["data"])
    elif request.data:
        request = replace(request, data=str(here / Path(request.data).expanduser()))
    own = {name: used.pop(name) for name in rows_of(CommandRequest, "run") if name in used}
    return Filled(replace(request, **used), replace(asked, **own), path.parent, line)


def _line(path: Path, said: Mapping[str, Any], used: Collection[str]) -> str:
    def shown(name: str) -> str:
        value = said[name]
        if isinstance(value, tuple):
            value = shlex.join(value)
        return f"{_ROWS[name].key} {f'{value:g}' if isinstance(value, float) else value}"

    line = ", ".join([f"from {path}: command", *(shown(n) for n in used if n != "words")])
    replaced = ", ".join(shown(name) for name in said if name not in used)
    return one_line(line + (f"; replaced by what was typed: {replaced}" if replaced else ""))


def read_file(path: Path, typed: Collection[str] = ()) -> dict[str, Any]:
    """Return the values of a file by their names in the requests. Types are checked of all; what
    is in ``typed`` may have a bad value, as it is not used.

    Raises:
        UsageError: it cannot be read, or has an unknown key, a wrong type or a bad value.
    """
    try:
        return _values(read_small(path, _MOST_BYTES) or "", path, typed)
    except (OSError, ValueError, RecursionError) as error:
        why = one_line(str(error)).removeprefix(f"{path}: ")[:200]
        raise UsageError(
            f"{PROJECT_FILE} cannot be read: {why}",
            where=str(path),
            next_step="correct it, or type the command after --",
        ) from None


def _values(text: str, path: Path, typed: Collection[str] = ()) -> dict[str, Any]:
    said = tomllib.loads(text, parse_float=Decimal)
    if "command" not in said:
        raise ValueError("it has no command")
    return {_name_of(key, path): _value(key, value, path, typed) for key, value in said.items()}


def _name_of(key: str, path: Path) -> str:
    if key in _NAMES:
        return _NAMES[key]
    launch = rows_of(LaunchRequest, "launch") | _ROWS
    flag = next((row.flag for row in launch.values() if row.key == key), "")
    what = f"{key} cannot stand in the file" if flag else f"unknown key {one_line(key)[:40]!r}"
    next_step = f"type {flag}" if flag else suggest_name(key, _NAMES)
    raise UsageError(what, where=str(path), next_step=next_step)


def _value(key: str, said: Any, path: Path, typed: Collection[str]) -> Any:
    name = _NAMES[key]
    row = _ROWS[name]
    try:
        value = _of_kind(row, _KINDS[name], said)
        if not all(t.isprintable() for t in (value if isinstance(value, tuple) else [str(value)])):
            raise UsageError("it has control characters")
        if row.metavar in ("DIR", "FILE"):
            _require_inside(path.parent, name, value)
        if name not in typed and row.parse is not None:
            if name == "hardware":
                check_hardware(value)  # as a command takes it: any, 8xany, too
            else:
                row.parse(row.flag, value)
    except (UsageError, ValueError) as error:
        step = getattr(error, "next_step", "") or f"correct {key}"
        raise UsageError(f"{key}: {error}", where=str(path), next_step=step) from None
    return value


def _of_kind(row: Option, kind: Any, said: Any) -> Any:
    """Return ``said`` as a command line would give it.

    Raises:
        UsageError, ValueError: it is of another type, or no words as a shell has them.
    """
    make: Callable[[Any], Any] = tuple
    is_whole = type(said) is int and abs(said) < _MOST_WHOLE
    is_number = is_whole or isinstance(said, Decimal)
    if kind == Sequence[str]:
        said = shlex.split(said) if row.is_positional and isinstance(said, str) else said
        fits = isinstance(said, list) and all(isinstance(each, str) for each in said)
        takes = 'a list of words, as ["python", "train.py"]'
    elif row.parse is parse_money:
        fits, takes, make = is_number or isinstance(said, str), "a number", str
    elif kind is float:
        fits, takes, make = is_number, "a number", float
    elif kind is str:
        fits, takes, make = isinstance(said, str), "a string", str
    else:
        fits, takes, make = is_whole, "a whole number", int
    if not fits:
        raise UsageError(f"it takes {takes}")
    return make(said)


def _require_inside(folder: Path, name: str, named: str) -> None:
    """
    Raises:
        UsageError: a path leads out of the git tree around ``folder``, or ``data`` holds the
            script: it would be sent with all that git ignores.
    """
    for each in named.split(os.pathsep) if name == "checkpoints" else (named,):
        real = Path(os.path.realpath(folder / each))
        is_whole = name == "data" and is_below(folder, real)
        if each.startswith(("/", "~")) or not is_below(real, top_of(folder)) or is_whole:
            raise UsageError(
                f"{each[:80]!r} is not a place within the git tree around the file",
                next_step=f"type {_ROWS[name].flag} {shlex.quote(each)}",
            )


def write_file(path: Path, line: str) -> None:
    """Write what a ``trmcloud run …`` line says.

    Raises:
        UsageError: there is such a file, it cannot be written, or ``line`` names what cannot stand
            in one.
    """
    words = shlex.split(line)
    end = words.index("--")
    said: dict[str, list[str]] = {"hardware": [words[2]], "command": words[end + 1 :]}
    for flag, text in zip(words[3:end:2], words[4:end:2], strict=True):
        said.setdefault(flag.removeprefix("--"), []).append(text)
    lines = []
    for key, values in said.items():
        kind = _KINDS[_name_of(key, path)]
        value: Any = values if kind == Sequence[str] else values[0]
        is_text = kind in (str, str | None, Sequence[str])
        lines.append(f"{key} = {json.dumps(value, ensure_ascii=False) if is_text else value}\n")
    _values("".join(lines), path)
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.writelines(lines)
    except OSError as error:
        raise UsageError(
            f"{PROJECT_FILE} cannot be written: {error.strerror}",
            where=str(path),
            next_step=f"rm {shlex.quote(str(path))}",
        ) from None
