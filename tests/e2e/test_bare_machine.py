"""The tests themselves on a machine that has Python, git and make, and neither rsync nor sshd."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.standins.sshd import ENV_NO_SBIN

ROOT = Path(__file__).resolve().parents[2]
ABSENT = ("rsync", "sshd")
TOUCHED = (
    "tests/contract/test_runpod_refusals.py::test_without_ssh_nothing_is_rented",
    "tests/contract/test_ssh_pull.py",
    "tests/unit/pod/test_sshd.py",
    "tests/e2e/test_ui_rented.py",
)
"""Those that start an SSH server or rsync, or look for one."""


def path_without(folder: Path, *absent: str) -> str:
    """A PATH with every program of this machine but these."""
    folder.mkdir()
    for place in (*os.get_exec_path(), "/usr/local/sbin", "/usr/sbin", "/sbin"):
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            link = folder / program.name
            if program.name not in absent and not link.is_symlink():
                link.symlink_to(program)
    return str(folder)


def test_the_tests_pass_and_say_what_was_not_run(tmp_path: Path) -> None:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    environment["PATH"] = path_without(tmp_path / "bin", *ABSENT)
    environment[ENV_NO_SBIN] = "1"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TOUCHED],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
    first, *_, command, elsewhere = done.stdout.split(" in ")[-1].splitlines()[1:]
    assert "not run:" in first
    assert "for want of sshd" in first
    assert "for want of rsync" in first or "openssh-server" in command
    assert command.startswith("On Debian and Ubuntu this installs what is missing: apt-get install")
    assert "openssh-server" in command.split()
    assert elsewhere.startswith("Elsewhere, install the packages that bring ")
    assert "sshd" in elsewhere
