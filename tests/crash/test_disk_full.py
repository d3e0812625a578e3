"""A disk that is full in the middle of a run: a real, small file system, and the real command."""

from __future__ import annotations

import hashlib
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.crash.user import CrashUser
from tests.e2e.user import SMALL
from tests.waiting import deadline_s, until
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.core.contract import manifest as mf
from trmcloud.core.control.run_state import State
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO, Usd
from trmcloud.pod.machine import processes

BUDGET = Usd("0.025")
LAUNCH = (*("launch", "local", *SMALL, "--phase", "fast", "--set", "steps=100000", "-y"),)


class SmallDisk:
    """A file system in memory whose size can be changed while it is in use."""

    def __init__(self, folder: Path, size_mb: int = 100) -> None:
        folder.mkdir(parents=True)
        self._folder, self._size = folder, f"size={size_mb}m"
        self._mount("-t", "tmpfs", "-o", f"{self._size},mode=700", "tmpfs", str(folder))

    def fill(self) -> None:
        """Leave no room at all: a page is kept for what grows between looking and shrinking."""
        used = shutil.disk_usage(self._folder).used
        self._mount("-o", f"remount,size={used + 4096}", str(self._folder))
        self._fill_up()

    def _fill_up(self) -> None:
        with open(self._folder / "filler", "ab", buffering=0) as filler, suppress(OSError):
            while True:
                filler.write(bytes(4096))

    @contextmanager
    def kept_full(self) -> Iterator[None]:
        """Whatever is given back meanwhile is filled again at once."""
        done = threading.Event()

        def fill() -> None:
            while not done.wait(0.002):
                self._fill_up()

        self.fill()
        filling = threading.Thread(target=fill)
        filling.start()
        try:
            yield
        finally:
            done.set()
            filling.join()

    def free(self) -> None:
        self._mount("-o", f"remount,{self._size}", str(self._folder))

    def give_back(self) -> None:
        subprocess.run(["umount", "--lazy", str(self._folder)], check=True)

    @staticmethod
    def _mount(*arguments: str) -> None:
        try:
            done = subprocess.run(["mount", *arguments], capture_output=True, text=True)
        except FileNotFoundError:
            pytest.skip("there is no mount command")
        if done.returncode != 0:
            pytest.skip(f"no file system may be mounted here: {done.stderr.strip()}")


@pytest.fixture
def disk(user: CrashUser) -> Iterator[SmallDisk]:
    made = SmallDisk(user.home)
    yield made
    made.free()
    user.end_everything()
    made.give_back()


def checkpoints(user: CrashUser) -> dict[str, mf.CheckpointManifest]:
    """Every complete checkpoint, all its files verified."""
    found = {}
    for path in user.home.glob("runs/*/*/checkpoints/step-*/manifest.json"):
        manifest = mf.from_json(path.read_bytes(), str(path))
        for file in manifest.files:
            data = (path.parent / file.name).read_bytes()
            assert hashlib.sha256(data).hexdigest() == file.sha256
        found[manifest.label] = manifest
    return found


def train_until_a_checkpoint(user: CrashUser, budget: Usd = BUDGET) -> subprocess.Popen[str]:
    process = user.start(*LAUNCH, "--budget", budget.plain())
    until(lambda: bool(user.checkpoints()) or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    return process


def one_error(err: str) -> str:
    assert "Traceback" not in err, err
    lines = [line for line in err.splitlines() if not line.startswith(("data: ", "  try: "))]
    assert len(lines) == 1, err
    assert lines[0].startswith("error: "), err
    return lines[0]


def test_a_disk_that_fills_up_costs_no_more_and_loses_nothing(
    user: CrashUser, disk: SmallDisk
) -> None:
    began = time.monotonic()
    process = train_until_a_checkpoint(user)
    disk.fill()
    kept = user.checkpoints()
    assert kept
    # Whatever the command does with a full disk, the pod ends, and in time.
    until(lambda: not user.live_pods(), within_s=90, what="the pod ends by itself")
    assert time.monotonic() - began < deadline_s(25 + 15), "BUDGET buys 25 s"
    out, err = process.communicate(timeout=deadline_s(100.0))
    assert process.returncode == 7, out + err
    assert "the disk is full" in one_error(err)
    run = user.only_run()
    assert run.state is State.RUNNING
    assert run.settled + run.reserved <= run.cap == BUDGET
    assert "the disk is full" in one_error(user.fails("status", code=7))
    assert user.checkpoints() == kept
    disk.free()
    user.run("status")
    run = user.only_run()
    assert not run.live
    assert ZERO < run.settled <= BUDGET
    assert run.reserved == ZERO
    user.check_money_and_pods(run)
    assert user.checkpoints().items() >= kept.items()
    best = user.json("fetch-best", "--into", str(user.folder / "best"), "--json")
    assert best["checkpoint"] in user.checkpoints()


def trainers(user: CrashUser) -> set[int]:
    """The trainers that run; what one forks bears its name until it becomes a rank."""
    parents = {}
    for pid in user.pids("model.train"):  # torchrun's own words name it, too
        with suppress(OSError):
            about = dict(
                line.split(":", 1)
                for line in Path(f"/proc/{pid}/status").read_text().splitlines()
                if ":" in line
            )
            pending = int(about["SigPnd"], 16) | int(about["ShdPnd"], 16)
            # One that was killed runs no more, though a busy machine has yet to take it down.
            if not pending & (1 << (signal.SIGKILL - 1)) and about["State"].split()[0] not in "ZX":
                parents[pid] = int(about["PPid"])
    return {pid for pid, parent in parents.items() if parent not in parents}


def test_with_no_room_for_its_notes_the_agent_starts_no_second_trainer(
    user: CrashUser, disk: SmallDisk
) -> None:
    """Nor does it try again and again until its money is gone."""
    budget = Usd("0.1")
    process = train_until_a_checkpoint(user, budget)
    began = time.monotonic()
    most = 0
    with disk.kept_full():
        while user.live_pods():
            seen = trainers(user)
            if len(seen) > 1:  # what is taken down may take a busy machine a moment
                time.sleep(1.0)
                seen &= trainers(user)
            most = max(most, len(seen))
            assert time.monotonic() - began < deadline_s(30.0), "four attempts take some seconds"
            time.sleep(0.02)
    assert most == 1
    assert process.wait(timeout=deadline_s(30.0)) == 7
    disk.free()
    user.run("status")
    run = user.only_run()
    assert not run.live
    assert run.settled.micros < budget.micros / 2
    user.check_money_and_pods(run)
    assert user.checkpoints()


def refused(user: CrashUser) -> str:
    process = user.start(*LAUNCH, "--budget", BUDGET.plain())
    _, err = process.communicate(timeout=60)
    assert 0 < process.returncode < 20, err
    return err


def test_a_launch_on_a_full_disk_starts_nothing(user: CrashUser, disk: SmallDisk) -> None:
    user.run("budget", "set", "month", "1")
    before = SqliteLedger(user.home / "ledger.db").records()
    disk.fill()
    error = one_error(refused(user))
    assert "full" in error or "No space left" in error or "free" in error, error
    assert SqliteLedger(user.home / "ledger.db").records() == before
    assert list(user.pods()) == []
    disk.free()
    user.run("launch", "local", *SMALL, "--phase", "fast", "--steps", "30", "--budget", "0.2", "-y")
    assert user.only_run().outcome is Outcome.FINISHED
    assert ZERO < user.only_run().settled <= Usd("0.2")
    assert all(processes.of_pod(pod.name) == [] for pod in user.pods())
