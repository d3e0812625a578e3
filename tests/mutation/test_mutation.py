"""The tool itself: a mistake that matters is caught, one that changes nothing is not."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.imports import reached_from
from tests.mutation.__main__ import ROOT, equivalent_mutants
from tests.mutation.mutants import Mutant, mutants_of
from tests.mutation.targets import TARGETS

MODULE = '''\
"""A module with a decision in it."""

from __future__ import annotations

import functools

LIMIT = 3


@functools.cache
def half(count: int) -> int:
    return count // 2


def too_many(count: int, most: int = LIMIT) -> bool:
    """Whether ``count`` is above ``most``."""
    if count < 0:
        raise ValueError(f"{count} is no count")
    return count > most and count != 0


def both(one: int, two: int) -> list[bool]:
    found = []
    found.append(too_many(one, two))
    return found
'''
CHECK = """\
from trmcloud.core.tiny import LIMIT, both, half, too_many
import pytest


def test_one_that_asks_first_and_does_not_look():
    half(6)


def test_one_that_looks_at_what_is_known_by_then():
    assert half(6) == 3


def test_it():
    assert LIMIT == 3
    assert too_many(4)
    assert not too_many(3)
    assert both(2, 1) == [True]
    assert not too_many(0)
    with pytest.raises(ValueError):
        too_many(-1)
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    core, tests = tmp_path / "trmcloud" / "core", tmp_path / "tests" / "unit" / "core"
    for folder in (core, tests):
        folder.mkdir(parents=True)
    for package in (core, core.parent):
        (package / "__init__.py").touch()
    (core / "tiny.py").write_text(MODULE)
    (tests / "test_tiny.py").write_text(CHECK)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    return tmp_path


def mutants(tree: Path) -> list[Mutant]:
    package = tree / "trmcloud"
    return mutants_of("core.tiny", package / "core" / "tiny.py", package)


def test_every_kind_of_mistake_is_made(tree: Path) -> None:
    changes = {(m.before, m.after) for m in mutants(tree)}
    for expected in (
        ("if count < 0:", "if count <= 0:"),
        ("if count < 0:", "if count >= 0:"),
        ("count < 0", "count < 1"),
        ("count < 0", "count < -1"),
        ("LIMIT = 3", "LIMIT = 4"),
        ("LIMIT = 3", "LIMIT = 0"),
        ("return count > most and count != 0", "return count > most or count != 0"),
        ("return count > most and count != 0", "return count > most"),
        ("count > most and count != 0", "count > most and count == 0"),
        ("found.append(too_many(one, two))", "pass"),
        ("found.append(too_many(one, two))", "found.append(too_many(two, one))"),
        ("return found", "pass"),
    ):
        assert expected in changes, expected
    keys = [m.key for m in mutants(tree)]
    assert len(keys) == len(set(keys))
    assert all("tiny:" in key for key in keys)


def test_a_mutant_differs_from_its_module_in_one_place_alone(tree: Path) -> None:
    original = ast.unparse(ast.parse(MODULE)).splitlines()
    for mutant in mutants(tree):
        changed = ast.unparse(mutant.build()).splitlines()
        differing = [pair for pair in zip(original, changed, strict=False) if pair[0] != pair[1]]
        assert differing, mutant.key
        if len(changed) == len(original):
            assert len(differing) == 1, mutant.key


def test_a_mistake_is_caught_and_one_that_changes_nothing_survives(tree: Path) -> None:
    """Judged in a process of its own: forking belongs in one without threads."""
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tests.mutation.judge import judge\n"
        "from tests.mutation.mutants import mutants_of\n"
        "tree = Path(sys.argv[1])\n"
        "made = mutants_of('core.tiny', tree / 'trmcloud/core/tiny.py', tree / 'trmcloud')\n"
        "made = [m for m in made if m.before[-10:] in ('count != 0', 'LIMIT = 3', 'count // 2')]\n"
        "tests = [tree / 'tests/unit/core/test_tiny.py']\n"
        "for verdict in judge(tree, 'trmcloud.core.tiny', tests, made, jobs=2):\n"
        "    print(verdict.how, verdict.mutant.before, '→', verdict.mutant.after)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tree)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    # What is above a limit of three is not zero: that half decides nothing.
    assert {line for line in said if not line.startswith("killed ")} == {
        "survived return count > most and count != 0 → return count > most",
        "survived count != 0 → count != 1",
        "survived count != 0 → count != -1",
    }
    assert "killed return count // 2 → return count * 2" in said
    assert "killed LIMIT = 3 → LIMIT = 4" in said
    assert "killed count > most and count != 0 → count >= most and count != 0" in said
    assert (tree / "trmcloud" / "core" / "tiny.py").read_text() == MODULE


def test_tests_that_fail_by_themselves_judge_nothing(tree: Path) -> None:
    (tree / "tests/unit/core/test_tiny.py").write_text("def test_it():\n    assert False\n")
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tests.mutation.judge import BrokenTests, judge\n"
        "tree = Path(sys.argv[1])\n"
        "try:\n"
        "    judge(tree, 'trmcloud.core.tiny', [tree / 'tests/unit/core/test_tiny.py'], [])\n"
        "except BrokenTests as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tree)], cwd=ROOT, capture_output=True, text=True
    )
    assert "do not pass as they are" in done.stdout, done.stderr


def test_every_module_has_tests_and_every_excuse_a_reason() -> None:
    for module, target in TARGETS.items():
        assert len(target.judges(ROOT)) >= len(target.tests), module
        path = ROOT / "trmcloud" / Path(*module.split(".")).with_suffix(".py")
        within = {m.within for m in mutants_of(module, path, ROOT / "trmcloud")}
        for part in target.parts:
            assert any(target.holds(w) and w.startswith(part) for w in within), (module, part)
    for key, why in equivalent_mutants().items():
        assert key.partition(":")[0] in TARGETS, key
        assert " → " in key
        assert why.strip()


def test_what_a_test_leads_to_is_found_by_its_imports(tree: Path) -> None:
    tests = tree / "tests" / "unit" / "core"
    (tests / "conftest.py").touch()
    (tree / "trmcloud" / "core" / "unasked.py").touch()
    reached = reached_from([tests / "test_tiny.py"], tree)
    core = tree / "trmcloud" / "core"
    assert reached == sorted([tests / "test_tiny.py", tests / "conftest.py", core / "tiny.py"])
