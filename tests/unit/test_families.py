"""A family of models is one folder: what may know its name, and what its plan may import."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trmcloud.core.spec.settings import FAMILIES

ROOT = Path(__file__).resolve().parents[2]
PLANS = sorted((ROOT / "model" / "families").glob("*/plan.py"))


def compared(tree: ast.AST) -> Iterator[ast.expr]:
    """Every expression that code may branch by: compared, matched, or looked up with."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            yield from (node.left, *node.comparators)
        elif isinstance(node, ast.MatchValue):
            yield node.value
        elif isinstance(node, ast.Subscript):
            yield node.slice
        elif isinstance(node, ast.Dict):
            yield from filter(None, node.keys)
        elif isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            yield from (each for each in node.elts if isinstance(each, ast.Constant))


def named(node: ast.AST) -> set[str]:
    found = (each.value for each in ast.walk(node) if isinstance(each, ast.Constant))
    return {value for value in found if isinstance(value, str)} & set(FAMILIES)


@pytest.mark.parametrize("room", ["cli", "core"])
def test_no_code_branches_on_a_familys_name(room: str) -> None:
    for path in (ROOT / "trmcloud" / room).rglob("*.py"):
        text = path.read_text()
        if not any(name in text for name in FAMILIES):
            continue
        for node in compared(ast.parse(text)):
            assert not named(node), f"{path}:{node.lineno}"


def test_the_check_sees_a_branch() -> None:
    for text in (
        'if family == "trm": pass', 'if family in ("bd3lm", "hdp"): pass', 'rows = {"trm": 1}',
        'match family:\n case "gpt": pass', 'rows["hdp"]',
    ):  # fmt: skip
        assert any(map(named, compared(ast.parse(text)))), text
    assert not any(map(named, compared(ast.parse('recipe: str = "trm"'))))


def test_every_family_is_found_by_its_folder() -> None:
    assert [path.parent.name for path in PLANS] == list(FAMILIES)
    assert all((path.parent / "model.py").exists() for path in PLANS)


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.parent.name)
def test_a_plan_imports_the_standard_library_and_core_alone(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            first = name.partition(".")[0]
            assert name.startswith("trmcloud.core.") or first in sys.stdlib_module_names, name
