"""Which worker runs which test, which are left out, and the table of the slowest.

A test with the marker ``more`` is a variant of one that always runs: only ``make test-all``, which
sets ``TRMCLOUD_TEST_MORE``, runs it.

``make test`` has four workers per core. Of every four one computes (units, simulations, models),
with a lower priority: what computes needs a whole core and can wait. One trains the real trainer
in whole commands. Two run tests of real processes, which mostly wait and need little at a time.
Each begins with the slowest that is known, and takes work of another kind when its own is done,
except that no more tests compute at a time than there are cores. ``--dist`` with another name than
``load`` switches this off.

``--again`` is the second part of ``make test``: a test of real processes that failed is run once
more with nothing beside it, since its deadlines are for a machine that has a core for it. It counts
as failed if it fails there as well. A test that computes, and more than ``MOST_AGAIN`` failures,
get no second try.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.missing_tools import find, last_lines

try:
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped, unused-ignore]
except ImportError:  # without it there is one process, and nothing to share out
    LoadScopeScheduling = object

ENV_MORE = "TRMCLOUD_TEST_MORE"
_BEGAN = pytest.StashKey[float]()
_NOT_RUN = pytest.StashKey[Sequence[str]]()
MOST_AGAIN = 8
"""A machine that is only busy fails a handful of tests; where more failed, something is broken."""
PAGE = Path(__file__).resolve().parents[1] / "docs" / "tests.md"
SHOWN = 30
NICENESS = 10

KINDS = _COMPUTING, _TRAINING, _WAITING = "computing", "training", "waiting"
_KINDS = (
    *((f"tests/e2e/test_{name}.py", _TRAINING) for name in (
        "nodes", "real_trainer", "recovery", "serve", "several_machines", "sharded", "token_cache",
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
    "tests/mutation/", "tests/sim/test_rehearse.py", "tests/unit/app/test_export",
    "tests/unit/app/test_packing.py", "tests/unit/runpod/test_settings.py", "tests/unit/skypilot/",
)  # fmt: skip
_USES_SSH = (
    "tests/contract/test_ssh_", "tests/contract/test_runpod_boot.py",
    "tests/contract/test_runpod_pods.py", "tests/unit/pod/test_sshd.py",
)  # fmt: skip
_RENTERS = frozenset(("renter", "rented", "skyfarer"))
"""Fixtures whose users rent, which needs OpenSSH's client."""
_WHOLE = (
    "tests/unit/", "tests/model/", "tests/e2e/test_serve.py", "tests/e2e/test_ui.py",
    "tests/e2e/test_written_commands.py",
)  # fmt: skip
_TAKEN = (
    (_COMPUTING, _TRAINING, _WAITING),
    (_TRAINING, _WAITING),
    (_WAITING, _TRAINING),
    (_WAITING, _TRAINING),
)
"""By each worker of four, in this order."""


def kind_of(nodeid: str) -> str:
    """By where the test stands."""
    return next((kind for path, kind in _KINDS if nodeid.startswith(path)), _COMPUTING)


def starts_processes(nodeid: str) -> bool:
    """Whether the test is about real processes, by where it stands."""
    return kind_of(nodeid) != _COMPUTING or nodeid.startswith(_STARTS_PROCESSES)


def kinds_for(worker: int) -> tuple[str, ...]:
    """What a worker takes, in this order."""
    return _TAKEN[worker % len(_TAKEN)]


def slowest_known(page: str) -> Mapping[str, float]:
    """test → seconds, as the table of a page has them."""
    rows = re.findall(r"^\| ([\d.]+) \| `(\S.*)` \|$", page, re.MULTILINE)
    return {nodeid: float(seconds) for seconds, nodeid in rows}


class ByKind(LoadScopeScheduling):  # type: ignore[misc, unused-ignore]
    """Files whose tests share what takes long to make go out whole, all other tests one by one."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        known = slowest_known(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}
        self._seconds: dict[str, float] = {}
        for nodeid, seconds in known.items():
            unit = self._split_scope(nodeid)
            self._seconds[unit] = self._seconds.get(unit, 0.0) + seconds
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
        """The slowest of the first kind that this worker takes and that is left."""
        if self._left is None:
            order = sorted(self.workqueue, key=lambda unit: -self._seconds.get(unit, 0.0))
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


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.getoption("again") and (
        why := no_second_try([i.nodeid for i in session.items])
    ):
        pytest.exit(why, returncode=1)


def no_second_try(failed: Sequence[str]) -> str:
    """Return why the tests that failed are not run again; empty where they are."""
    computing = [nodeid for nodeid in failed if not starts_processes(nodeid)]
    if computing:
        return f"not run again, as it depends on no other process: {computing[0]}"
    return f"{len(failed)} failed: more than a busy machine explains" * (len(failed) > MOST_AGAIN)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return ByKind(config, log) if config.getoption("dist") == "load" else None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slowest-page", type=Path, metavar="FILE", help="write the table of the slowest there"
    )
    parser.addoption(
        "--again", action="store_true", help="with --last-failed: judge what failed, one at a time"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_BEGAN] = time.monotonic()
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if worker.startswith("gw") and kinds_for(int(worker[2:]))[0] == _COMPUTING:
        os.nice(NICENESS)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The slowest thirty; a page of them where one is asked for."""
    skipped = terminalreporter.stats.get("skipped", ())
    config.stash[_NOT_RUN] = last_lines(_reason(report) for report in skipped)
    if config.getoption("again"):
        for report in terminalreporter.stats.get("passed", ()):
            terminalreporter.write_line(f"failed beside other tests, passed alone: {report.nodeid}")
    spent_s: dict[str, float] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                spent_s[report.nodeid] = spent_s.get(report.nodeid, 0.0) + report.duration
    if not (page := config.getoption("slowest_page")):
        return
    wall_s = time.monotonic() - config.stash[_BEGAN]
    failed = sum(len(terminalreporter.stats.get(name, ())) for name in ("failed", "error"))
    lines = table(spent_s, wall_s, failed, workers=config.getoption("numprocesses", None) or 1)
    terminalreporter.section(f"slowest {SHOWN} tests")
    for nodeid, took_s in slowest(spent_s):
        terminalreporter.write_line(f"{took_s:7.1f} s  {nodeid}")
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(lines, encoding="utf-8")


def pytest_unconfigure(config: pytest.Config) -> None:
    """The last lines of a run: which tests were not run, and what to install for them."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    for line in config.stash.get(_NOT_RUN, ()):
        reporter.write_line(line)


def _reason(report: Any) -> str:
    """Why a test was skipped: a report keeps that behind the place where it was."""
    told = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return str(told).removeprefix("Skipped: ")


def slowest(spent_s: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(spent_s.items(), key=lambda item: -item[1])[:SHOWN]


def table(spent_s: Mapping[str, float], wall_s: float, failed: int, *, workers: int) -> str:
    """The page: what all took, and the slowest tests with their setup and teardown."""
    more = bool(os.environ.get(ENV_MORE))
    made_by = "make test-all" if more else "make test PAGE=docs/tests.md"
    rows = [f"| {took_s:.1f} | `{nodeid}` |" for nodeid, took_s in slowest(spent_s)]
    all_s = sum(spent_s.values())
    return "\n".join(
        [
            "# Variants that make test leaves out" if more else "# The slowest tests",
            "",
            f"Made by `{made_by}`, {time.strftime('%F')}: {len(spent_s):,} tests, {failed} failed,",
            f"on {os.cpu_count()} cores by {workers} workers in {wall_s / 60:.1f} minutes; one"
            f" after another they took {all_s / 60:.0f}.",
            *([] if more else ["The next run begins with these."]),
            "Setup and teardown are counted.",
            "",
            "| seconds | test |",
            "|--:|---|",
            *rows,
            "",
        ]
    )
