"""Judges mutants by the unit tests: each in a forked process of its own, with a time limit.

The tests and the package are copied first, so that what is judged stays the same while others
work in the tree, and nothing is ever written to it. A mutant exists in its process's memory only:
an import hook gives out the changed module in place of the one on the disk.
"""

from __future__ import annotations

import ast
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import os
import resource
import shutil
import signal
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.mutation.mutants import Mutant

KILLED, SURVIVED, TIMED_OUT = "killed", "survived", "timed out"
_MEMORY_BYTES = 3 << 30
_BASELINE_LIMIT_S = 120.0
_PASSED, _FAILED, _INTERRUPTED, _NO_TESTS = 0, 1, 2, 5


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
    """The package and its tests without a network or a process, as they are now."""
    leave_out = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(root / "trmcloud", into / "trmcloud", ignore=leave_out)
    for name in ("unit", "fuzz", "standins"):
        shutil.copytree(root / "tests" / name, into / "tests" / name, ignore=leave_out)
    (into / "tests" / "__init__.py").touch()
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
    started = time.monotonic()
    code = _wait(_fork(tree, module, tests, None), _BASELINE_LIMIT_S)
    took_s = time.monotonic() - started
    if code != _PASSED:
        why = "there are none" if code == _NO_TESTS else f"pytest ended with {code}"
        raise BrokenTests(f"the tests of {module} do not pass as they are: {why}")
    limit_s = 10.0 + 5 * took_s
    verdicts: dict[int, Verdict] = {}
    running: dict[int, tuple[int, float]] = {}
    waiting = iter(enumerate(mutants))
    while len(verdicts) < len(mutants):
        while len(running) < jobs and (following := next(waiting, None)) is not None:
            number, mutant = following
            pid = _fork(tree, module, tests, mutant)
            running[pid] = (number, time.monotonic() + limit_s)
        for pid, code in _ended(running):
            number, _ = running.pop(pid)
            verdicts[number] = Verdict(mutants[number], _meaning(code))
            told(verdicts[number])
    return [verdicts[number] for number in range(len(mutants))]


def _meaning(code: int | None) -> str:
    if code is None:
        return TIMED_OUT
    if code == _PASSED:
        return SURVIVED
    if code in (_FAILED, _INTERRUPTED) or code < 0:
        return KILLED
    raise BrokenTests(f"pytest ended with {code}, which judges nothing")


def _ended(running: dict[int, tuple[int, float]]) -> Iterator[tuple[int, int | None]]:
    """Those that have ended, or been ended at their limit; waits a moment where none has."""
    found: list[tuple[int, int | None]] = []
    for pid, (_, deadline) in running.items():
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            found.append((pid, os.waitstatus_to_exitcode(status)))
        elif time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            found.append((pid, None))
    if not found:
        time.sleep(0.005)
    yield from found


def _wait(pid: int, limit_s: float) -> int | None:
    running = {pid: (0, time.monotonic() + limit_s)}
    while True:
        for _, code in _ended(running):
            return code


def _fork(tree: Path, module: str, tests: Sequence[Path], mutant: Mutant | None) -> int:
    changed = mutant.build() if mutant is not None else None
    gc.collect()
    gc.freeze()
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            code = _in_child(tree, module, tests, changed)
        finally:
            os._exit(code)
    return pid


def _in_child(tree: Path, module: str, tests: Sequence[Path], changed: ast.Module | None) -> int:
    import pytest

    silent = os.open(os.devnull, os.O_RDWR)
    for handle in (0, 1, 2):
        os.dup2(silent, handle)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name in list(sys.modules):
        if name.partition(".")[0] in ("trmcloud", "tests", "model"):
            del sys.modules[name]
    os.chdir(tree)
    sys.path.insert(0, str(tree))
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(tree / ".hypothesis")
    os.environ.pop("PYTEST_ADDOPTS", None)
    if changed is not None:
        path = tree.joinpath(*module.split(".")).with_suffix(".py")
        code = compile(changed, str(path), "exec")
        sys.meta_path.insert(0, _Hook(module, str(path), code))
    arguments = ["-x", "-q", "-c", str(tree / "pytest.ini"), "--rootdir", str(tree)]
    for plugin in ("cacheprovider", "xdist", "timeout", "randomly"):
        arguments += ["-p", f"no:{plugin}"]
    return int(pytest.main([*arguments, *map(str, tests)], plugins=[_Quick()]))


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
    names = ("pytest", "_pytest.assertion.rewrite", "hypothesis.strategies", "sqlite3", "tomllib")
    for name in (*names, "_hypothesis_pytestplugin"):
        importlib.import_module(name)
