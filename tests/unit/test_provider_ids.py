"""No code outside a provider's folder branches on a provider's id: what differs is a trait."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.catalog.providers import TRAITS
from trmcloud.providers.registry import ROWS
from trmcloud.providers.skypilot.traits import CLOUDS

PACKAGE = Path(__file__).resolve().parents[2] / "trmcloud"
IDS = frozenset({*TRAITS, *ROWS, *CLOUDS.values()}) - {LOCAL}
NO_IDS = {"operations/commands/trial_process.py": "_LIBRARY_CACHES"}
"""Files in which a word that is an id names something else: the constant that holds it."""
_LOOKUPS = frozenset({"get", "pop", "setdefault", "startswith", "endswith", "index"})


def branches(source: str) -> Iterator[int]:
    """The lines on which something is compared with, matched or looked up by a provider's id."""
    tree = ast.parse(source)
    constants = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and names_id(node.value, frozenset())
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            asked = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            asked = [node.value]
        elif isinstance(node, ast.Dict):
            asked = [key for key in node.keys if key is not None]
        elif isinstance(node, ast.Subscript):
            asked = [node.slice]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            asked = node.args[:1] if node.func.attr in _LOOKUPS else []
        else:
            continue
        if any(names_id(each, constants) for each in asked):
            yield node.lineno


def names_id(node: ast.expr, constants: frozenset[str] | set[str]) -> bool:
    """Whether it is an id, a constant that holds one, or a collection of such."""
    if isinstance(node, ast.Constant):
        return node.value in IDS
    if isinstance(node, ast.Name):
        return node.id in constants
    if isinstance(node, ast.Call):
        return any(names_id(each, constants) for each in node.args)
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(names_id(each, constants) for each in node.elts)
    return False


def test_no_code_outside_its_folder_branches_on_a_providers_id() -> None:
    folders = [PACKAGE / "providers" / name for name in ROWS]
    found = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if not any(path.is_relative_to(folder) for folder in folders)
        and path != PACKAGE / "providers" / "registry.py"
        for line in branches(path.read_text(encoding="utf-8"))
        if NO_IDS.get(str(path.relative_to(PACKAGE)), "\0") not in _line(path, line)
    ]
    assert found == []


def _line(path: Path, number: int) -> str:
    """The line and the next one: a comparison's constant may stand there."""
    return "\n".join(path.read_text(encoding="utf-8").splitlines()[number - 1 : number + 1])


@pytest.mark.parametrize(
    "source",
    [
        'provider == "runpod"',
        'provider in ("aws", "gcp")',
        'USUAL = "runpod"\nprovider != USUAL',
        'SOLD = frozenset({"aws"})\nprovider in SOLD',
        'match provider:\n    case "skypilot":\n        pass',
        'RATES = {"runpod": 1}',
        'rates.get("vast-ai")',
        'rates["nebius"]',
    ],
)
def test_every_way_to_branch_is_found(source: str) -> None:
    assert list(branches(source))


def test_words_that_are_no_ids_are_free() -> None:
    assert not list(branches('provider == "local"; rates["this"]; print("runpod")'))


@pytest.mark.parametrize("name", ROWS)
def test_what_is_sent_to_a_pod_needs_the_standard_library_alone(name: str) -> None:
    path = PACKAGE / "providers" / name / "self_end.py"
    if not path.exists():
        return
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 10))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert (node.module or "").partition(".")[0] in sys.stdlib_module_names
        elif isinstance(node, ast.Import):
            assert all(a.name.partition(".")[0] in sys.stdlib_module_names for a in node.names)
