"""Which of our files lead where by their imports, those within functions and scripts included.

Read by pattern, not by parsing: all of our files in a third of a second, and a name too many only
makes more of them count.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from pathlib import Path

OURS = ("trmcloud", "model", "tests")
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n;#]+)|import[ \t]+([^\n;#]+))",
    re.MULTILINE,
)
_COMMENT = re.compile(r"#[^\n]*")
_NAMED = re.compile(rf"""["']((?:{"|".join(OURS)})(?:\.\w+)+)\.?["'{{]|["']-m["'], *\(?["'](\w+)""")


def source_of(module: str, tree: Path) -> Path:
    return tree.joinpath(*module.split(".")).with_suffix(".py")


def reached_from(
    paths: Iterable[Path],
    tree: Path,
    follow: Callable[[Path, Path], Iterable[Path]] | None = None,
) -> list[Path]:
    """Return ``paths``, what they import of ``tree`` and so on, and the conftests above them.

    ``follow`` returns what a file leads to, ``imported_by`` where none is given.
    """
    found: set[Path] = set()
    waiting = list(paths)
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += (follow or imported_by)(path, tree)
            above = [folder / "conftest.py" for folder in path.parents]
            waiting += [c for c in above if c.is_relative_to(tree) and c.is_file()]
    return sorted(found)


def leading_to(path: Path, tree: Path) -> set[Path]:
    """Return ``path`` and whatever imports it, or what imports that, and so on."""
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
    """Return the modules of ``tree`` that a file imports."""
    names: set[str] = set()
    for module, parts, modules in _IMPORT.findall(path.read_text(encoding="utf-8")):
        inner = [part.split()[0] for part in _listed(parts)]
        names |= {module, *(f"{module}.{part}" for part in inner)} if module else set()
        names |= {part.split()[0] for part in _listed(modules)}
    ours = (name for name in names if name.partition(".")[0] in OURS)
    return frozenset(file for name in ours if (file := source_of(name, tree)).is_file())


def _listed(names: str) -> list[str]:
    return [name for name in _COMMENT.sub("", names).strip("() \n").split(",") if name.strip()]


@functools.cache
def named_in(path: Path, tree: Path, *, started: bool = True) -> frozenset[Path]:
    """Return the modules whose names stand in a file as text: what it imports by name or starts.

    The name of a package stands for all modules in it. ``started``: what it may start counts, too.
    """
    text = path.read_text(encoding="utf-8")
    if not started and "import_module(" not in text:
        return frozenset()
    found: set[Path] = set()
    for dotted, started_name in _NAMED.findall(text):
        module = source_of(dotted or started_name, tree)
        folder = module.with_suffix("")
        found |= {module} if module.is_file() else {folder / "__main__.py"}
        if dotted and (folder / "__init__.py").is_file():
            found |= set(folder.rglob("*.py"))
    return frozenset(file for file in found if file.is_file())
