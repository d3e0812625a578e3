"""Ending needs nothing: a person who names a run ends its pod with a full disk, a ledger that is
damaged or missing, a home that cannot be written to; that is on record as soon as it can be.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.crash.test_disk_full import SmallDisk
from tests.e2e.runpod_user import ACCEPT, LAUNCH, RentedUser
from tests.e2e.user import IMPATIENT, until
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO

STOP, REAP = ("stop", "-y", "--now"), ("admin", "reap", "-y")
Harm = Callable[[RentedUser, SmallDisk, Path], contextlib.AbstractContextManager[None]]


@pytest.fixture
def away(renter: RentedUser, tmp_path: Path) -> Path:
    """Where this user's intents are kept; the home is not there."""
    renter.program = IMPATIENT
    folder = tmp_path / "runtime"
    folder.mkdir(mode=0o700)
    renter.environment["XDG_RUNTIME_DIR"] = str(folder)
    return folder


@pytest.fixture
def disk(renter: RentedUser) -> Iterator[SmallDisk]:
    made = SmallDisk(renter.home, size_mb=400)
    yield made
    made.free()
    renter.end_everything()
    made.give_back()


def booting(user: RentedUser) -> RunState:
    """A run whose pod lives, and which no process drives any more."""
    arguments = ("--steps", "60", "--budget", "0.30", *user.data, *ACCEPT)
    launch = user.start(*LAUNCH, *arguments)
    until(lambda: user._state() is State.BOOTING or launch.poll() is not None)
    assert launch.poll() is None, launch.communicate()
    run = user.run_in(State.BOOTING)
    until(lambda: user.only_run().generation.pod_id is not None)  # type: ignore[union-attr]
    launch.kill()
    launch.communicate()
    assert len(user.live()) == 1
    return run


def ended_without_ledger(
    user: RentedUser, words: Sequence[str], run: RunState, *, asks: bool = True
) -> str:
    """stderr of a command that ends the run's pod; ``asks``: by itself, without the ledger."""
    process = user.start(*words, run.run_id)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, f"{process.returncode}\n{out}\n{err}"
    assert "Traceback" not in err, err
    assert user.live() == []
    assert not asks or "asked runpod to end" in out
    return err


def _backups(user: RentedUser) -> list[Path]:
    return sorted((user.home / "backups").glob("*.db"))


def _pod_id(ledger: Path, run_id: str) -> str | None:
    """What a copy of the ledger knows of the run's pod."""
    run = SqliteLedger(ledger).read().runs.get(run_id)
    generation = run.generation if run is not None else None
    return generation.pod_id if generation is not None else None


def kept(folder: Path) -> list[Path]:
    return list(folder.glob("trmcloud-ending-*"))


def settled(user: RentedUser, folder: Path) -> RunState:
    """The run once the next commands have put on record what was done."""
    user.run("status")
    assert kept(folder) == []
    run = user.close_books()
    assert run.outcome is Outcome.STOPPED, run.outcome
    assert run.stop is not None
    assert run.stop.at_once
    assert run.reserved == ZERO
    assert ZERO < run.settled <= run.cap
    assert user.billed() <= float(run.settled) + 2e-6
    account = user.json("budget", "show", "--json")["budgets"][0]
    assert account["level"] == "account"
    assert account["reserved_usd"] == "0"
    assert account["settled_usd"] == run.settled.plain()
    return run


@contextlib.contextmanager
def _read_only(user: RentedUser, disk: SmallDisk, aside: Path) -> Iterator[None]:
    """For root too: the file system is."""
    subprocess.run(["mount", "-o", "remount,ro", str(user.home)], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(user.home)], check=True)


def _without(*names: str) -> Harm:
    """Files of the ledger, and all its backups, are lost."""

    @contextlib.contextmanager
    def harm(user: RentedUser, disk: SmallDisk, aside: Path) -> Iterator[None]:
        shutil.rmtree(user.home / "backups")
        for name in names:
            shutil.move(user.home / name, aside / name)
        yield
        for name in names:
            shutil.move(aside / name, user.home / name)

    return harm


HARMS: Mapping[str, tuple[Harm, Sequence[str]]] = {
    "no ledger, nor its side file, reap": (_without("ledger.db", "ledger.head"), REAP),
    "read-only home, stop": (_read_only, STOP),
}


@pytest.mark.parametrize(("harm", "words"), HARMS.values(), ids=HARMS)
def test_a_pod_is_ended_where_its_ledger_cannot_be_used(
    renter: RentedUser, away: Path, disk: SmallDisk, tmp_path: Path, harm: Harm,
    words: Sequence[str],
) -> None:  # fmt: skip
    run = booting(renter)
    with harm(renter, disk, tmp_path):
        err = ended_without_ledger(renter, words, run)
        (note,) = kept(away)
        assert str(note) in err
        assert note.stat().st_mode & 0o777 == 0o600
    assert renter.ledger().runs[run.run_id].stop is None, "nothing could be written"
    settled(renter, away)


def test_what_was_lost_is_restored_from_the_backup_that_knows_the_pod(
    renter: RentedUser, away: Path
) -> None:
    """Only backups are left that know the pod's name and not its id."""
    run = booting(renter)
    for path in _backups(renter):
        if _pod_id(path, run.run_id) is not None:
            path.unlink()
    assert _pod_id(_backups(renter)[-1], run.run_id) is None
    for name in ("ledger.db", "ledger.head"):
        (renter.home / name).unlink()
    err = ended_without_ledger(renter, STOP, run, asks=False)
    assert "the ledger could not be used" in " ".join(err.split())
    settled(renter, away)


def test_where_nothing_at_all_can_be_written(renter: RentedUser, disk: SmallDisk) -> None:
    """Another user has taken the intent's name in every folder: the pod is ended all the same, and
    what that user wrote is neither believed nor removed."""
    run = booting(renter)
    disk.fill()
    renter.environment |= dict.fromkeys(("XDG_RUNTIME_DIR", "TMPDIR"), "/proc")
    of_home = hashlib.sha256(os.fsencode(renter.home)).hexdigest()[:16]
    name = f"trmcloud-ending-{os.geteuid()}-{of_home}-{run.run_id}.json"
    planted = [Path(folder) / name for folder in ("/dev/shm", "/tmp")]
    try:
        for path in planted:
            path.write_text("{}")
            os.chown(path, 65534, 65534)
        err = ended_without_ledger(renter, STOP, run)
        assert all(path.stat().st_uid == 65534 for path in planted)
    finally:
        for path in planted:
            path.unlink(missing_ok=True)
    assert "this could not be recorded" in err
    assert f"trmcloud stop --now {run.run_id}" in err
    disk.free()
    process = renter.start("stop", "-y", "--now", "-d", run.run_id)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, out + err
    assert renter.close_books().outcome is Outcome.STOPPED


def test_a_full_disk_costs_less_than_two_seconds(
    renter: RentedUser, away: Path, disk: SmallDisk, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the command's start to the provider's word that it is taken."""
    took_s = {}
    for full in (False, True):
        run = booting(renter)
        renter.environment["TRMCLOUD_RUNPOD_API"] = renter.standin.url
        if full:
            disk.fill()
        began = time.monotonic()
        process = renter.start(*STOP, run.run_id, "-d")
        until(lambda: renter.live() == [], within_s=30, what="the pod has ended")
        took_s[full] = time.monotonic() - began
        process.communicate(timeout=120)
        if not full:
            renter.close_books()
            shutil.rmtree(renter.home / "runs", ignore_errors=True)
            _forget_runs(renter)
    with capsys.disabled():
        print(f"\nstop --now: {took_s[False]:.2f} s, with a full disk {took_s[True]:.2f} s")
    assert took_s[True] < took_s[False] + 2.0


def _forget_runs(user: RentedUser) -> None:
    """A home without runs, on the same disk."""
    for path in user.home.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def test_all_pods_of_a_ledger_by_their_names_alone(
    renter: RentedUser, away: Path, tmp_path: Path
) -> None:
    booting(renter)
    ledger_id = SqliteLedger(renter.ledger_path).ledger_id
    shutil.move(renter.home, tmp_path / "lost")
    assert renter.fails("admin", "reap", "--all-of", "00000000", "-y", code=3)
    assert len(renter.live()) == 1
    process = renter.start("admin", "reap", "--all-of", ledger_id)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 2, err
    assert f"trmc-{ledger_id}-" in out
    assert "pass -y" in err
    assert len(renter.live()) == 1
    assert f"ended trmc-{ledger_id}-" in renter.run("admin", "reap", "--all-of", ledger_id, "-y")
    assert renter.live() == []
