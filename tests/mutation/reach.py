"""Which of our files lead where by their imports; those within functions count."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable
from pathlib import Path

OURS = ("trmcloud", "tests")


def source_of(module: str, tree: Path) -> Path:
    return tree.joinpath(*module.split(".")).with_suffix(".py")


def reached_from(paths: Iterable[Path], tree: Path) -> list[Path]:
    """``paths``, what they import of ``tree`` and so on, and the conftests that stand above
    them."""
    found: set[Path] = set()
    waiting = list(paths)
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += imported_by(path, tree)
            above = [folder / "conftest.py" for folder in path.parents]
            waiting += [c for c in above if c.is_relative_to(tree) and c.is_file()]
    return sorted(found)


def leading_to(path: Path, tree: Path) -> set[Path]:
    """``path`` and whatever imports it, or what imports that, and so on."""
    importers: dict[Path, set[Path]] = {}
    for name in OURS:
        for file in (tree / name).rglob("*.py"):
            for there in imported_by(file, tree):
                importers.setdefault(there, set()).add(file)
    found: set[Path] = set()
    waiting = [path]
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += importers.get(one, ())
    return found


@functools.cache
def imported_by(path: Path, tree: Path) -> frozenset[Path]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        found |= {source_of(name, tree) for name in names if name.partition(".")[0] in OURS}
    return frozenset(file for file in found if file.is_file())
