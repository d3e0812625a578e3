"""Core, planner and CLI where the standard library has no more than a Mac's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

IMPORT_ALL = """
import tests.standins.not_linux
import importlib, pkgutil, sys
import trmcloud
rooms = ("core", "io", "ports", "options", "operations", "export", "api",
         "wiring", "wiring_plans", "cli", "adapters", "providers")
names = [
    each.name for each in pkgutil.walk_packages(trmcloud.__path__, "trmcloud.")
    if each.name.split(".")[1] in rooms
]
assert len(names) > 200, len(names)
for name in names:
    importlib.import_module(name)
assert sys.platform == "darwin"
print(len(names))
"""
COMMAND = """
import tests.standins.not_linux
import sys
from trmcloud.cli.main import main
sys.argv = ["trmcloud", *sys.argv[1:]]
main()
"""


def without_linux(script: str, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8",
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-c", script, *words],
        cwd=home, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_every_module_of_the_core_planner_and_cli_is_imported(tmp_path: Path) -> None:
    done = without_linux(IMPORT_ALL, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("plan", "--recipe", "trm-tiny", "--budget", "5"), "Launch it: trmcloud launch p-"),
        (("status",), "no runs yet"),
        (("prices", "list"), "H100"),
        (("budget", "show"), "budget"),
        (("--help",), "launch"),
        (("doctor",), "no /proc"),
    ],
)
def test_commands_that_rent_nothing_work(tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    done = without_linux(COMMAND, tmp_path, *words)
    assert told in done.stdout, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_the_stand_in_takes_linux_away(tmp_path: Path) -> None:
    script = (
        "import tests.standins.not_linux, os, time, pathlib\n"
        "assert not hasattr(os, 'sched_getaffinity') and not hasattr(time, 'CLOCK_BOOTTIME')\n"
        "assert not pathlib.Path('/proc/self').exists() and not os.path.exists('/sys')\n"
        "open('/proc/meminfo')\n"
    )
    done = without_linux(script, tmp_path)
    assert done.stderr.rstrip().endswith("No such file or directory: '/proc/meminfo'")
