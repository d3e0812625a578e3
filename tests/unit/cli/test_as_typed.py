"""Values that the command line takes as they were typed, held to Typer's own conversion of them."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from trmcloud.cli.main import COMMANDS, load_command

VALUES: tuple[Any, ...] = (None, "x", "", "7", 7, 1.5, True, ("a", "b"), ["a"], [], ("7", 7))


def _params(command: Any) -> Iterator[Any]:
    yield from command.get_params(typer.Context(command))
    for each in getattr(command, "commands", {}).values():
        yield from _params(each)


def _outcome(made: Any, param: Any, context: Any, value: Any) -> object:
    try:
        found = made.coerce(value, param=param, ctx=context)
    except Exception as error:
        return type(error).__name__, str(error)
    return type(found).__name__, found


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_each_option_takes_what_typer_makes_of_it(name: str) -> None:
    command = load_command(name)
    context = typer.Context(command)
    judged = 0
    for param in _params(command):
        if not hasattr(type(param), "get_runtime_param"):
            pytest.skip("this Typer converts by Click")
        typers = type(param).get_runtime_param(param)
        for value in VALUES:
            expected = _outcome(typers, param, context, value)
            assert _outcome(param.get_runtime_param(), param, context, value) == expected, param
            judged += 1
    assert judged >= len(VALUES), "every command has --help"


@pytest.mark.parametrize(
    "arguments", [("plan", "--budget", "100"), ("status",), ("plan", "--help")]
)
def test_a_command_of_text_alone_starts_without_pydantic(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    code = (
        "import sys\n"
        "from trmcloud.cli.main import main\n"
        "try:\n"
        f"    main({list(arguments)!r})\n"
        "except SystemExit as left:\n"
        "    assert not left.code, left.code\n"
        "print('pydantic' in sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TRMCLOUD_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stderr.splitlines()[-1] == "False"


def test_a_command_parses_calls_and_renders_within_eighty_lines() -> None:
    """ruff holds their complexity (pyproject.toml), this their length with signature and help."""
    found = {
        f"{path.name}:{node.name}": node.end_lineno - node.lineno + 1
        for path in (Path(__file__).parents[3] / "trmcloud/cli/commands").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None
    }
    assert len(found) > 100
    assert {name: lines for name, lines in found.items() if lines > 80} == {}
