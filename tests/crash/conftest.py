"""Users of these tests, each in an empty home, whose processes are all ended when the test is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.crash.user import CrashUser

NewUser = Callable[[str], CrashUser]


@pytest.fixture
def new_user(tmp_path: Path) -> Iterator[NewUser]:
    made: list[CrashUser] = []

    def make(name: str) -> CrashUser:
        folder = tmp_path / name
        folder.mkdir()
        made.append(CrashUser(folder))
        return made[-1]

    yield make
    for user in made:
        user.end_everything()


@pytest.fixture
def user(new_user: NewUser) -> CrashUser:
    return new_user("u")
