"""Users, each in an empty home, whose processes are all ended when the test is."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.rented import image
from tests.e2e.runpod_user import RentedUser, TestClock, why_not
from tests.e2e.user import LAUNCH, User
from tests.standins.runpod.containers import SYSTEM_PATH
from tests.standins.runpod.fixture import judged
from tests.standins.s3 import s3

__all__ = ["s3"]


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    made = User(tmp_path)
    yield made
    made.end_everything()


@pytest.fixture
def new_user(tmp_path: Path) -> Iterator[Callable[[str], User]]:
    """Several users, each in a home of their own."""
    made: list[User] = []

    def make(name: str) -> User:
        folder = tmp_path / name
        folder.mkdir()
        made.append(User(folder))
        return made[-1]

    yield make
    for user in made:
        user.end_everything()


@pytest.fixture
def rented(tmp_path: Path) -> Iterator[RentedUser]:
    """A user of a RunPod of their own, whose pods are machines of their own."""
    if missing := why_not():
        pytest.skip(f"pods that answer over SSH: {missing}")
    clock = TestClock(tmp_path / "clock")
    inside = image(tmp_path / "image")
    path = {"PATH": f"{inside / 'bin'}:{SYSTEM_PATH}"}
    with judged(
        tmp_path / "runpod", clock=clock, isolated=True, keep=[inside], image_env=path
    ) as standin:
        made = RentedUser(tmp_path, standin=standin, clock=clock)
        yield made
        made.end_everything()


@pytest.fixture
def renter(tmp_path: Path) -> Iterator[RentedUser]:
    """A user of a RunPod whose pods are on paper: for what happens before one would run."""
    clock = TestClock(tmp_path / "clock")
    with judged(tmp_path / "runpod", clock=clock, real_pods=False) as standin:
        made = RentedUser(tmp_path, standin=standin, clock=clock)
        yield made
        made.end_everything()


@pytest.fixture(scope="session")
def ended_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home whose only run has ended: to be copied, never used itself."""
    user = User(tmp_path_factory.mktemp("ended"))
    user.run(*LAUNCH, "--steps", "40", "--budget", "1")
    yield user.home
    user.end_everything()


@pytest.fixture
def owner(user: User, ended_home: Path) -> User:
    """A user with one finished run of two checkpoints."""
    shutil.copytree(ended_home, user.home)
    return user


@pytest.fixture
def mortal() -> tuple[str, ...]:
    """A wrapper under which permissions count, for root too."""
    if os.geteuid() != 0:
        return ()
    if shutil.which("setpriv") is None:
        pytest.skip("root may read everything, and setpriv is not here")
    return ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
