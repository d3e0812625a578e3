"""Judges mutants by the unit tests: each in a forked process of its own, with a time limit.

The tests and the package are copied first, so that what is judged stays the same while others
work in the tree, and nothing is ever written to it. A mutant exists in its process's memory only:
an import hook gives out the changed module in place of the one on the disk.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import resource
import shutil
import signal
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.imports import leading_to, source_of
from tests.mutation.mutants import Mutant
from tests.mutation.swap import NOTICED, Nursery

KILLED, SURVIVED, TIMED_OUT = "killed", "survived", "timed out"
_MEMORY_BYTES = 3 << 30
_PASSED, _FAILED, _INTERRUPTED, _NO_TESTS, _BROKEN = 0, 1, 2, 5, 70


@dataclass(frozen=True)
class Verdict:
    mutant: Mutant
    how: str

    @property
    def killed(self) -> bool:
        return self.how != SURVIVED


class BrokenTests(Exception):
    """The tests do not pass without any mutant, so that they can judge none."""


def copy_tree(root: Path, into: Path) -> None:
    """The package, the trainer's families, the tests and the pages that they read, as they are now;
    how tests are handed out to workers is left out."""
    leave_out = shutil.ignore_patterns("__pycache__", "*.pyc")
    for name in ("trmcloud", "model", "tests", "docs/reference"):
        shutil.copytree(root / name, into / name, ignore=leave_out)
    (into / "tests" / "conftest.py").write_text("import tests.registered\n")
    settings = "[pytest]\naddopts = --import-mode=importlib\npythonpath = .\n"
    (into / "pytest.ini").write_text(settings)


def judge(
    tree: Path,
    module: str,
    tests: Sequence[Path],
    mutants: Sequence[Mutant],
    *,
    jobs: int = 1,
    told: Callable[[Verdict], None] = lambda verdict: None,
) -> list[Verdict]:
    """A verdict on each mutant of ``module`` (its full name), by ``tests`` below ``tree``.

    Raises:
        BrokenTests: they fail, or are none, without any mutant.
    """
    _warm_up()
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = _BROKEN
        try:
            os.close(receive)
            again = partial(_in_child, tree, module, tests)
            tell = partial(_send, send)
            dependents = set(map(str, leading_to(source_of(module, tree), tree)))
            nursery = Nursery(module, mutants, dependents, again, tell, jobs)
            code = _in_child(tree, module, tests, None, nursery)
        finally:
            os._exit(code)
    os.close(send)
    verdicts: dict[int, Verdict] = {}
    sound = False
    with os.fdopen(receive) as lines:
        for line in lines:
            number, code = map(int, line.split())
            if number < 0:
                sound = code == _PASSED
                continue
            verdicts[number] = Verdict(mutants[number], _meaning(code))
            told(verdicts[number])
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if not sound:
        why = "there are none" if code == _NO_TESTS else f"pytest ended with {code}"
        raise BrokenTests(f"the tests of {module} do not pass as they are: {why}")
    if len(verdicts) < len(mutants):
        raise BrokenTests(f"the judge of {module} broke off with {code}")
    return [verdicts[number] for number in range(len(mutants))]


def _send(pipe: int, number: int, code: int) -> None:
    os.write(pipe, f"{number} {code}\n".encode())


def _meaning(code: int) -> str:
    if code == _PASSED:
        return SURVIVED
    if code in (-signal.SIGXCPU, -signal.SIGALRM):
        return TIMED_OUT
    if code in (_FAILED, _INTERRUPTED, NOTICED) or code < 0:
        return KILLED
    raise BrokenTests(f"pytest ended with {code}, which judges nothing")


def _in_child(
    tree: Path, module: str, tests: Sequence[Path], mutant: Mutant | None, *plugins: object
) -> int:
    """pytest's exit status, in a process that is made for it."""
    import pytest

    silent = os.open(os.devnull, os.O_RDWR)
    for handle in (0, 1, 2):
        os.dup2(silent, handle)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if mutant is None:
        for name in list(sys.modules):
            if name.partition(".")[0] in ("trmcloud", "tests", "model"):
                del sys.modules[name]
        os.chdir(tree)
        sys.path.insert(0, str(tree))
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(tree / ".hypothesis")
    os.environ.pop("PYTEST_ADDOPTS", None)
    if mutant is not None:
        path = source_of(module, tree)
        code = compile(mutant.build(), str(path), "exec")
        sys.meta_path.insert(0, _Hook(module, str(path), code))
    # Why a test fails is shown to nobody, and takes longer to write down than to find out.
    arguments = [
        "-x",
        "-q",
        "--tb=native",
        "--assert=plain",
        "-c",
        str(tree / "pytest.ini"),
        "--rootdir",
        str(tree),
    ]
    for plugin in ("cacheprovider", "xdist", "timeout", "randomly"):
        arguments += ["-p", f"no:{plugin}"]
    return int(pytest.main([*arguments, *map(str, tests)], plugins=[_Quick(), *plugins]))


class _Hook(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives out one module's changed code."""

    def __init__(self, module: str, path: str, code: types.CodeType) -> None:
        self._module, self._path, self._code = module, path, code

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._module:
            return None
        return importlib.util.spec_from_loader(name, self, origin=self._path)

    def exec_module(self, module: types.ModuleType) -> None:
        exec(self._code, module.__dict__)


class _Quick:
    """Property tests last, the same examples every time, and nothing spent on shrinking."""

    def pytest_configure(self) -> None:
        from hypothesis import HealthCheck, Phase, settings

        settings.register_profile(
            "mutation",
            deadline=None,
            database=None,
            derandomize=True,
            phases=(Phase.explicit, Phase.generate),
            suppress_health_check=list(HealthCheck),
        )
        settings.load_profile("mutation")

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items.sort(key=lambda item: bool(getattr(item.obj, "is_hypothesis_test", False)))


def _warm_up() -> None:
    """What every child needs, imported once."""
    names = ("pytest", "hypothesis.strategies", "sqlite3", "tomllib")
    clients = ("httpx2", "pydantic", "tenacity", "boto3", "botocore.session", "email.utils")
    for name in (*names, *clients, "_hypothesis_pytestplugin"):
        importlib.import_module(name)
