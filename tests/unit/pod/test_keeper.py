"""The process beside a trial's interval on another machine, with real processes."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import deadline_s, until
from trmcloud.core.contract import pod_contract as contract
from trmcloud.pod.machine import processes
from trmcloud.pod.sweep.keeper import (
    KEEPER,
    Order,
    environment_here,
    kill_file,
    land_file,
    read_order,
    write_order,
)

#: It leaves a process in a session of its own behind, whose pid is in the file ``left``.
LEAVES = """
import subprocess, sys, time
made = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                        start_new_session=True)
with open("making", "w") as file:
    file.write(str(made.pid))
import os
os.rename("making", "left")
{then}
"""
FOR_EVER = LEAVES.format(then="time.sleep(600)")


def order(folder: Path, script: str, limit_s: float | None = None) -> Path:
    made = Order(3, (sys.executable, "-c", script), dict(os.environ), str(folder), limit_s)
    path = write_order(made)
    assert read_order(path) == made
    return path


def start(path: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen((sys.executable, "-m", KEEPER, str(path), str(os.getpid())))


def left(folder: Path) -> tuple[int, str]:
    until((folder / "left").exists)
    pid = int((folder / "left").read_text())
    return pid, processes.started(pid) or ""


def test_it_ends_as_its_command_and_ends_what_that_left_running(tmp_path: Path) -> None:
    path = order(tmp_path, LEAVES.format(then="print('done'); sys.exit(7)"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    keeper = start(path)
    assert keeper.wait(deadline_s(100.0)) == 7
    assert not processes.alive(*left(tmp_path))
    assert "done" in (tmp_path / contract.TRAIN_LOG_NAME).read_text()


def test_a_file_asks_it_to_land_and_another_one_ends_it(tmp_path: Path) -> None:
    says = "import signal; signal.signal(signal.SIGTERM, lambda *_: print('asked', flush=True))\n"
    keeper = start(order(tmp_path, says + FOR_EVER))
    child = left(tmp_path)
    land_file(tmp_path, 2).touch()  # of an attempt before
    land_file(tmp_path, 3).touch()
    until(lambda: "asked" in (tmp_path / contract.TRAIN_LOG_NAME).read_text())
    assert keeper.poll() is None
    kill_file(tmp_path, 3).touch()
    assert keeper.wait(deadline_s(100.0)) == 128 + signal.SIGKILL
    assert not processes.alive(*child)


def test_it_ends_at_its_limit_without_being_asked(tmp_path: Path) -> None:
    keeper = start(order(tmp_path, FOR_EVER, limit_s=0.5))
    assert keeper.wait(deadline_s(100.0)) == 128 + signal.SIGKILL
    if (tmp_path / "left").exists():
        assert not processes.alive(*left(tmp_path))


def test_it_ends_everything_when_the_process_that_started_it_is_killed(tmp_path: Path) -> None:
    path = order(tmp_path, FOR_EVER)
    worker = (
        "import os, subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-m', {KEEPER!r}, {str(path)!r}, str(os.getpid())])\n"
        "time.sleep(600)"
    )
    started = subprocess.Popen((sys.executable, "-c", worker))
    child = left(tmp_path)
    started.kill()
    started.wait()
    until(lambda: not processes.alive(*child))


def test_the_gpus_are_those_of_this_machine(tmp_path: Path) -> None:
    given = {"CUDA_VISIBLE_DEVICES": "0", "PATH": "/there"}
    made = Order(1, ("python",), given, str(tmp_path))
    here = environment_here(made, {"CUDA_VISIBLE_DEVICES": "5", "PATH": "/here"})
    assert here.environment == {"CUDA_VISIBLE_DEVICES": "5", "PATH": "/there"}


def test_what_is_no_order_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is not there"):
        read_order(tmp_path / "order-1.json")
    (tmp_path / "order-1.json").write_text('{"attempt": 1}')
    with pytest.raises(ValueError, match="is no order"):
        read_order(tmp_path / "order-1.json")
