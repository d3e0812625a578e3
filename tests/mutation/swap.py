"""Mutants tried in processes that have imported, or collected, what the mutant does not touch.

One process imports the module and its tests and collects them, then forks for each mutant. For one
of a function's body the function's code is replaced, and of the tests those are run that call it,
the likeliest to tell first: no other can. For one that stands outside of all functions, or that
survives in one that is called while modules are imported, whatever leads to the module is imported
and collected again. Both cost a fraction of a whole run, and give the same verdict.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import resource
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from tests.mutation.mutants import Mutant

_CPU_S, _TIMES = 3, 5
"""A mutant may take so many seconds of a processor, and so many times what its tests take."""
NOTICED = 3
_WAIT_S = 120
"""How long one may wait for something that does not come, on a machine that is not busy."""


class Nursery:
    """A pytest plugin that tries mutants of ``module`` instead of running the tests.

    ``again`` runs all tests on a mutant in this process, with only ``dependents`` (files of ours
    that lead to the module) imported anew; it gives pytest's exit status. ``tell`` is given each
    mutant's number and the exit status of its process, negative for a signal; first, with the
    number -1, that of the tests without any mutant.
    """

    def __init__(
        self,
        module: str,
        mutants: Sequence[Mutant],
        dependents: Collection[str],
        again: Callable[[Mutant], int],
        tell: Callable[[int, int], None],
        jobs: int,
    ) -> None:
        self._module, self._mutants, self._dependents = module, mutants, dependents
        self._again, self._tell, self._jobs = again, tell, jobs
        self._imports = _Watch(module)
        self._running: dict[int, int] = {}
        self._unless_noticed: dict[int, tuple[Callable[[], int], float]] = {}
        self._noticed: dict[str, int] = {}
        """How many mutants a test was the first to notice."""
        self._first, self._send_first = os.pipe()

    def pytest_sessionstart(self) -> None:
        self._imports.begin()

    def pytest_collection_finish(self) -> None:
        self._imports.end()

    def pytest_runtestloop(self, session: Any) -> bool | None:
        if session.testsfailed or not session.items:
            return None
        passed, calls, took_s = _looked_over(session, self._module)
        self._tell(-1, 0 if passed else 1)
        if not passed:
            return True
        gc.collect()
        gc.freeze()
        for number, mutant in enumerate(self._mutants):
            while len(self._running) >= self._jobs:
                self._await_one()
            anew = functools.partial(self._anew, mutant), sum(took_s.values())
            swap = self._swap_of(mutant)
            if swap is None:
                self._start(number, *anew)
                continue
            function, code = swap
            name = function.__code__.co_qualname
            asked = [item for item in session.items if name in calls.get(item.nodeid, ())]
            if name in self._imports.called:
                self._unless_noticed[number] = anew
            elif not asked:
                self._tell(number, 0)
                continue
            asked.sort(key=lambda i: (-self._noticed.get(i.nodeid, 0), took_s[i.nodeid]))
            judged = functools.partial(self._swapped, session, function, code, asked)
            self._start(number, judged, sum(took_s[item.nodeid] for item in asked))
        while self._running:
            self._await_one()
        return True

    def _swap_of(self, mutant: Mutant) -> tuple[types.FunctionType, types.CodeType] | None:
        function = _function_of(sys.modules.get(self._module), mutant.within)
        if function is None:
            return None
        old = function.__code__
        made = compile(mutant.build(), old.co_filename, "exec")
        found = [each for each in _codes(made) if each.co_qualname == old.co_qualname]
        if len(found) != 1 or found[0] == old or found[0].co_freevars != old.co_freevars:
            return None  # what differs is a default, or stands beside it
        return function, found[0]

    def _start(self, number: int, judged: Callable[[], int], took_s: float) -> None:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                limit = int(time.process_time() + _CPU_S + _TIMES * took_s) + 1
                resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
                signal.alarm(int(_WAIT_S + 10 * _TIMES * took_s))
                code = judged()
            finally:
                os._exit(code)
        self._running[pid] = number

    def _await_one(self) -> None:
        pid, status = os.waitpid(-1, 0)
        if pid not in self._running:
            return
        number, code = self._running.pop(pid), os.waitstatus_to_exitcode(status)
        anew = self._unless_noticed.pop(number, None)
        if code == 0 and anew is not None:
            self._start(number, *anew)
            return
        self._tell(number, code)
        if code == NOTICED:
            # One that has noticed a slip is likely to notice the next one, too.
            test = os.read(self._first, 4096).rstrip(b"\0").decode()
            self._noticed[test] = self._noticed.get(test, 0) + 1

    def _anew(self, mutant: Mutant) -> int:
        for name, module in list(sys.modules.items()):
            if getattr(module, "__file__", None) in self._dependents:
                del sys.modules[name]
                package, _, last = name.rpartition(".")
                vars(sys.modules.get(package, types.ModuleType(""))).pop(last, None)
        return self._again(mutant)

    def _swapped(
        self, session: Any, function: types.FunctionType, code: types.CodeType, asked: list[Any]
    ) -> int:
        function.__code__ = code
        session.items[:] = asked
        first = _First()
        session.config.pluginmanager.register(first)
        if _loop(session):
            return 0
        if len(first.failed.encode()) > 4096:
            return 1
        os.write(self._send_first, first.failed.encode().ljust(4096, b"\0"))
        return NOTICED


class _First:
    """The test that failed first."""

    failed = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid


def _looked_over(session: Any, module: str) -> tuple[bool, dict[str, list[str]], dict[str, float]]:
    """Whether all tests pass; by test, the names of the module's functions that it calls, and its
    seconds of a processor. Found in a process of its own: in this one nothing has been run."""
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(receive)
        tests = _WatchTests(module)
        session.config.pluginmanager.register(tests)
        with os.fdopen(send, "w") as out:
            passed = _loop(session)
            json.dump([passed, tests.calls, tests.took_s], out)
        os._exit(0)
    os.close(send)
    with os.fdopen(receive) as told:
        passed, calls, took_s = json.load(told)
    os.waitpid(pid, 0)
    return passed, calls, took_s


class _Watch:
    """Which functions of a module are called."""

    def __init__(self, module: str) -> None:
        self._end = module.replace(".", os.sep) + ".py"
        self.called: set[str] = set()

    def begin(self) -> None:
        threading.settrace(self._call)
        sys.settrace(self._call)

    def end(self) -> None:
        sys.settrace(None)

    def _call(self, frame: types.FrameType, event: str, arg: Any) -> None:
        if frame.f_code.co_filename.endswith(self._end):
            self.called.add(frame.f_code.co_qualname)


class _WatchTests:
    """Which functions of a module each test calls. What the module keeps of earlier calls is
    forgotten first: a test that alone would call a function calls it here, too."""

    def __init__(self, module: str) -> None:
        self._module = module
        known = vars(sys.modules.get(module, types.ModuleType("")))
        self._caches = [each for each in known.values() if hasattr(each, "cache_clear")]
        self.calls: dict[str, list[str]] = {}
        self.took_s: dict[str, float] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        for cache in self._caches:
            cache.cache_clear()
        self._began, self._now = time.process_time(), _Watch(self._module)
        self._now.begin()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._now.end()
        self.calls[nodeid] = sorted(self._now.called)
        self.took_s[nodeid] = time.process_time() - self._began


def _loop(session: Any) -> bool:
    """Whether all tests have passed."""
    from _pytest import main

    try:
        main.pytest_runtestloop(session)
    except BaseException:  # pytest ends so, too
        return False
    return not session.testsfailed


def _function_of(module: Any, within: str) -> types.FunctionType | None:
    """The outermost function of a module that holds what stands ``within``."""
    found = module
    for name in within.split(".") if within else ():
        found = _unwrapped(vars(found).get(name)) if hasattr(found, "__dict__") else None
        if isinstance(found, types.FunctionType):
            return found if found.__module__ == module.__name__ else None
    return None


def _unwrapped(found: Any) -> Any:
    if isinstance(found, staticmethod | classmethod):
        found = found.__func__
    elif isinstance(found, property):
        found = found.fget
    elif isinstance(found, functools.cached_property):
        found = found.func
    while hasattr(found, "__wrapped__"):
        if hasattr(found, "cache_clear"):
            found.cache_clear()
        found = found.__wrapped__
    return found


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield each
            yield from _codes(each)
