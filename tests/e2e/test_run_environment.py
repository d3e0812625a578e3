"""What surrounds a command of ``trmcloud run``: the repository around it, its packages, its
limits, and what is kept of where it came from.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_run import RATE, log_of
from tests.e2e.user import User
from trmcloud.core.errors import Outcome, UsageError

FAILED = Outcome.FAILED.exit_code


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    folder = tmp_path / "repository"
    folder.mkdir()
    made = User(tmp_path, cwd=folder)
    yield made
    made.end_everything()


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)


def typed(user: User, *options: str, code: int = 0, words: tuple[str, ...] = ()) -> str:
    command = ("python3", "train.py", *words)
    return user.run("run", "local", *RATE, "--budget", "0.20", *options, "--", *command, code=code)


def test_a_script_imports_from_the_repository_around_its_folder(user: User) -> None:
    top = user.cwd
    assert top is not None
    write(
        top,
        {
            "small/__init__.py": "NAME = 'small'",
            "src/inner.py": "NAME = 'inner'",
            "data/words.txt": "to be",
            "projects/adder/train.py": "import os, small, inner\n"
            "print('FOUND', small.NAME, inner.NAME, os.path.basename(os.getcwd()))\n"
            "print('DATA', open('../../data/words.txt').read())\n",
        },
    )
    git(top, "init", "-q")
    user.cwd = top / "projects" / "adder"
    alone = typed(user, "--dry-run")
    assert "only adder of its repository is sent; --root ../.. sends the whole" in alone
    out = typed(user, "--root", "../..", "--data", "../../data")
    assert "code sent       3 files" in out
    assert "repository as a whole; the command starts in projects/adder" in out
    log = log_of(user)
    assert "FOUND small inner adder" in log
    assert "DATA to be" in log


def test_a_root_that_is_not_around_the_folder_is_refused(user: User) -> None:
    assert user.cwd is not None
    write(user.cwd, {"train.py": "print(1)", "other/file.txt": ""})
    words = ("run", "local", *RATE, "--budget", "1", "--root", "other", "--", "python3", "train.py")
    said = user.fails(*words, code=UsageError.exit_code)
    assert "--root takes a folder around this one" in said
