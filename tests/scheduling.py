"""Which worker runs which test, which are left out, and which tools they lacked.

A test with the marker ``more`` belongs to a long target (``tests/targets.py``): it runs only where
``TRMCLOUD_TEST_MORE`` is set.

``make test`` has three workers per core. Of every three one computes (units, simulations, models),
with a lower priority: what computes needs a whole core and can wait. One trains the real trainer
in whole commands. One runs tests of real processes, which mostly wait and need little at a time.
Each begins with the tests marked ``slow``, and takes work of another kind when its own is done,
except that no more tests compute at a time than there are cores. ``--dist`` with another name than
``load`` switches this off.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest

from tests.missing_tools import find, last_lines

try:
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped, unused-ignore]
except ImportError:  # without it there is one process, and nothing to share out
    LoadScopeScheduling = object

ENV_MORE = "TRMCLOUD_TEST_MORE"
_NOT_RUN = pytest.StashKey[Sequence[str]]()
NICENESS = 10

KINDS = _COMPUTING, _TRAINING, _WAITING = "computing", "training", "waiting"
_KINDS = (
    *((f"tests/e2e/test_{name}.py", _TRAINING) for name in (
        "nodes", "real_trainer", "recovery", "serve", "several_machines", "sharded",
        "written_commands",
    )),
    ("tests/e2e/", _WAITING),
    ("tests/crash/", _WAITING),
    ("tests/contract/", _WAITING),
    ("tests/hostile/", _WAITING),
    ("tests/own/", _WAITING),
    ("tests/unit/pod/", _WAITING),
)  # fmt: skip
_STARTS_PROCESSES = (
    "tests/model/", "tests/unit/planner/test_flops.py", "tests/unit/planner/test_memory.py",
    "tests/mutation/", "tests/sim/test_rehearse.py", "tests/unit/operations/test_export",
    "tests/unit/operations/test_packing.py",
    "tests/unit/operations/test_foreign_packages.py", "tests/unit/test_warm.py",
    "tests/unit/runpod/test_settings.py", "tests/unit/skypilot/",
)  # fmt: skip
_USES_SSH = (
    "tests/contract/test_ssh_", "tests/contract/test_runpod_boot.py",
    "tests/contract/test_runpod_pods.py", "tests/unit/pod/test_sshd.py",
)  # fmt: skip
_RENTERS = frozenset(("renter", "rented", "quick_renter", "skyfarer"))
"""Fixtures whose users rent, which needs OpenSSH's client."""
_WHOLE = (
    "tests/unit/", "tests/model/", "tests/e2e/test_serve.py", "tests/e2e/test_ui.py",
    "tests/e2e/test_written_commands.py", "tests/hostile/test_slice.py",
)  # fmt: skip
_TAKEN = (
    (_COMPUTING, _TRAINING, _WAITING),
    (_TRAINING, _WAITING),
    (_WAITING, _TRAINING),
)
"""By each worker of three, in this order."""


def kind_of(nodeid: str) -> str:
    """By where the test stands."""
    return next((kind for path, kind in _KINDS if nodeid.startswith(path)), _COMPUTING)


def starts_processes(nodeid: str) -> bool:
    """Whether the test is about real processes, by where it stands."""
    return kind_of(nodeid) != _COMPUTING or nodeid.startswith(_STARTS_PROCESSES)


def kinds_for(worker: int) -> tuple[str, ...]:
    """What a worker takes, in this order."""
    return _TAKEN[worker % len(_TAKEN)]


class ByKind(LoadScopeScheduling):  # type: ignore[misc, unused-ignore]
    """Files whose tests share what takes long to make go out whole, all other tests one by one."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        self._left: dict[str, deque[str]] | None = None

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.split("::")[0] if nodeid.startswith(_WHOLE) else nodeid

    def _assign_work_unit(self, node: Any) -> None:
        if (unit := self._next_unit(node)) is not None:
            self.workqueue.move_to_end(unit, last=False)
            super()._assign_work_unit(node)

    def _reschedule(self, node: Any) -> None:
        if not node.shutting_down and self.workqueue and self._next_unit(node) is None:
            node.shutdown()
        else:
            super()._reschedule(node)

    def remove_node(self, node: Any) -> str | None:
        self._left = None  # what a worker that died has left is in the queue again
        return super().remove_node(node)  # type: ignore[no-any-return, unused-ignore]

    def _next_unit(self, node: Any) -> str | None:
        """The next of the first kind that this worker takes and that is left."""
        if self._left is None:
            order = dict.fromkeys(map(self._split_scope, self.collection))
            self._left = {kind: deque(u for u in order if kind_of(u) == kind) for kind in KINDS}
        taken = kinds_for(_number(node))
        if not any(_COMPUTING in kinds_for(_number(each)) for each in self.nodes):
            taken = KINDS
        for kind in taken:
            units = self._left[kind]
            while units and units[0] not in self.workqueue:
                units.popleft()
            if units:
                return units[0]
        return None


def _number(node: Any) -> int:
    return int(node.gateway.id.removeprefix("gw"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    more = [item for item in items if item.get_closest_marker("more")]
    if more and not os.environ.get(ENV_MORE):
        config.hook.pytest_deselected(items=more)
        items[:] = [item for item in items if item not in more]
    absent = [name for name in ("ssh", "ssh-keygen") if find(name) is None]
    for item in items:
        if starts_processes(item.nodeid):
            item.add_marker("processes")
        uses = _RENTERS & set(getattr(item, "fixturenames", ()))
        if absent and (uses or item.nodeid.startswith(_USES_SSH)):
            item.add_marker(pytest.mark.skip(reason=f"there is no {absent[-1]} on this machine"))
    if os.environ.get("PYTEST_XDIST_WORKER"):
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return ByKind(config, log) if config.getoption("dist") == "load" else None


def pytest_configure(config: pytest.Config) -> None:
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if worker.startswith("gw") and kinds_for(int(worker[2:]))[0] == _COMPUTING:
        os.nice(NICENESS)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Keep why tests were skipped, for the last lines."""
    skipped = terminalreporter.stats.get("skipped", ())
    config.stash[_NOT_RUN] = last_lines(_reason(report) for report in skipped)


def pytest_unconfigure(config: pytest.Config) -> None:
    """The last lines of a run: which tests were not run, and what to install for them."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    for line in config.stash.get(_NOT_RUN, ()):
        reporter.write_line(line)


def _reason(report: Any) -> str:
    """Why a test was skipped: a report keeps that behind the place where it was."""
    told = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return str(told).removeprefix("Skipped: ")
