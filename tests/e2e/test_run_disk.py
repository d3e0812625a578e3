"""``trmcloud run`` of commands that write far too much: a disk that is full, 5 GB in one file."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.user import User
from trmcloud.core.errors import Outcome

DISK = "128m"
RATE = ("--rate", "3.60", "--checkpoint-gb", "0.001", "--grace", "3", "-y")

#: Saves a checkpoint, then writes until the disk is full. What it does then is its last argument.
FILLING = """
import os, sys, time
os.makedirs("out", exist_ok=True)
open("out/step-10.pt", "wb").write(b"kept" * 1000)
print("step 10 val_loss=1.5", flush=True)
time.sleep(4)
def fill():
    with open("out/scratch.dat", "ab") as file:
        while True:
            file.write(bytes(1 << 20))
            file.flush()
while True:
    try:
        fill()
    except OSError as error:
        print("cannot write:", error, flush=True)
        if sys.argv[1] == "leaves":
            raise
    print("step 20 val_loss=1.4", flush=True)
    time.sleep(0.5)
"""


@contextmanager
def small_disk(at: Path) -> Iterator[None]:
    at.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=700", "tmpfs", str(at)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a small disk needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(at)], check=True)


@pytest.fixture
def user(in_project: User) -> User:
    (in_project.here / "train.py").write_text(FILLING, encoding="utf-8")
    return in_project


def text_of(shown: str) -> str:
    return " ".join(shown.split())


def check_best(user: User) -> None:
    """What existed before the disk was full is at home, and whole."""
    shown = user.run("fetch-best", "--into", "best")
    assert "fetched and verified" in shown
    assert (user.here / "best" / "own" / "step-10.pt").read_bytes() == b"kept" * 1000


SAVES = ("--checkpoints", "out", "--metric", "val_loss", "--", "python3", "train.py")


@pytest.mark.parametrize(
    ("full", "then", "budget", "outcome"),
    [("runs", "leaves", "0.20", Outcome.FAILED), (".", "stays", "0.03", Outcome.LANDED)],
    ids=["of runs alone", "of the whole home"],
)
def test_one_that_fills_the_disk_ends_with_its_best_at_home(
    user: User, full: str, then: str, budget: str, outcome: Outcome
) -> None:
    with small_disk(user.home / full):
        shown = user.run(
            *("run", "local", "--budget", budget, *RATE, *SAVES, then), code=outcome.exit_code
        )
        assert ("No space left on device" in shown) == (outcome is Outcome.FAILED)
        assert "it filled the disk: what it wrote last may be cut off" in text_of(shown)
        assert "spent $" in shown
        assert not user.live_pods()
        run = user.only_run()
        assert run.outcome is outcome
        assert run.settled <= run.cap
        check_best(user)


@pytest.mark.more
def test_one_that_writes_five_gigabytes(user: User) -> None:
    if shutil.disk_usage(user.folder).free < 25e9:
        pytest.skip("25 GB of disk are needed")
    (user.here / "train.py").write_text(
        "import os\nos.makedirs('out')\n"
        "with open('out/step_5.pt', 'wb') as file:\n"
        "    for _ in range(5000): file.write(os.urandom(1_000_000))\n"
        "print('step 5 val_loss=1.5')\n"
    )
    shown = user.run("run", "local", "--budget", "2", *RATE, *SAVES, within_s=500)
    assert "a checkpoint holds 5.00 GB, more than the 0.00 GB reserved: --checkpoint-gb" in shown
    assert "spent $" in shown
    assert not user.live_pods()
    print(user.run("fetch-best", "--into", "best", within_s=300))
    assert (user.here / "best" / "own" / "step_5.pt").stat().st_size == 5_000_000_000
