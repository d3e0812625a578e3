"""Users, each in an empty home, whose processes are all ended when the test is."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.rented import account, path_of, renting, tenant
from tests.e2e.runpod_user import RentedUser, TestClock
from tests.e2e.user import LAUNCH, User, real_trainer, write_text
from tests.standins.runpod.fixture import judged, paper, runpod_on_paper
from tests.standins.runpod.standin import StandIn
from tests.standins.s3 import S3, s3
from tests.typist import InProcess, quick_renter, typist

__all__ = ["paper", "quick_renter", "runpod_on_paper", "s3", "typist"]


@pytest.fixture
def user(typist: InProcess) -> InProcess:
    """One whose commands that end by themselves run in the test's process: what a test starts,
    kills or looks on at has one of its own."""
    return typist


@pytest.fixture
def in_project(tmp_path: Path) -> Iterator[InProcess]:
    """A user in a folder of a project, beside the home."""
    folder = tmp_path / "project"
    folder.mkdir()
    made = InProcess(tmp_path, cwd=folder)
    yield made
    made.end_everything()


@pytest.fixture
def image_env(tmp_path: Path) -> dict[str, str]:
    """The variables of every pod of ``renter_in`` that is made from now on."""
    return path_of(tmp_path / "image")


@pytest.fixture
def renter_in(tmp_path: Path, s3: S3, image_env: dict[str, str]) -> Iterator[RentedUser]:
    """A user of a RunPod whose pods reach the store."""
    with renting(tmp_path, image_env=image_env, reach=[s3.port]) as made:
        made.environment |= s3.environment
        yield made


@pytest.fixture
def trainee(tmp_path: Path) -> Iterator[InProcess]:
    """A user with the real trainer and a text."""
    trainer = real_trainer(tmp_path / "trainer")
    made = InProcess(tmp_path, trainer=trainer, environment={"OMP_NUM_THREADS": "1"})
    write_text(tmp_path)
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
    with renting(tmp_path) as made:
        yield made


@pytest.fixture
def runpod(tmp_path: Path) -> Iterator[StandIn]:
    """A RunPod whose isolated pods can train; its clock is this machine's."""
    with account(tmp_path) as standin:
        yield standin


@pytest.fixture
def lodger(tmp_path: Path, runpod: StandIn) -> Iterator[User]:
    """A user of that one."""
    made = tenant(tmp_path, runpod)
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
