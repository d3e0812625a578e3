"""A stranger's lists of packages, looked at by a user with keys: nothing in them is run, no file
outside what is sent is read or shown, and no key or private name goes to an index of the list's
choice."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.user import User
from tests.standins.package_index import PackageIndex, trap
from tests.typist import InProcess, typist
from trmcloud.core.errors import DataError

__all__ = ["typist"]


RATE = ("--rate", "3.60", "--checkpoint-gb", "0.001", "-y")
KEY = "rpa_CANARYCANARYCANARYCANARYCANARYCA"
SECRET = "postgres-login-of-the-ledger"


@pytest.fixture
def index() -> Iterator[PackageIndex]:
    """Packages from an index in the user's pip or uv configuration."""
    made = PackageIndex()
    made.wheel("alpha", "1.0", ["beta>=1"])
    made.wheel("beta", "2.0")
    with made.serving():
        yield made


@pytest.fixture
def theirs() -> Iterator[PackageIndex]:
    """Packages from an index in the requirements file."""
    with PackageIndex().serving() as made:
        yield made


@pytest.fixture
def looker(typist: InProcess, index: PackageIndex, tmp_path: Path) -> User:
    user = typist
    tree = tmp_path / "clone"
    (tree / "dist").mkdir(parents=True)
    (tree / "train.py").write_text("")
    name, content = trap("evil", "1.0", mark_of(user))
    (tree / "dist" / name).write_bytes(content)
    user.cwd = tree
    user.environment |= {
        "RUNPOD_API_KEY": KEY,
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": index.url,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    return user


def mark_of(user: User) -> Path:
    return user.folder / "mark"


def put(user: User, files: dict[str, str]) -> None:
    assert user.cwd is not None
    for name, text in files.items():
        path = user.cwd / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def look(user: User, name: str = "requirements.txt") -> tuple[int, str]:
    """The exit code of a dry run, and all that it printed."""
    code, out, err = user.ended(
        "run", "local", *RATE, "--budget", "1", "--dry-run", "--pip", name, "--", "true"
    )
    assert code in (0, DataError.exit_code), (code, out, err)
    return code, out + err


BUILDS = {
    "on one line": "--find-links ./dist --no-index --no-binary :all:\nevil\n",
    "on one line, joined": "--find-links=./dist --no-index --no-binary=:all:\nevil\n",
    "short": "--no-index -f./dist\n--pre --no-binary evil\nevil\n",
    "continued": "--no-index \\\n --find-links \\\n ./dist --no-bin\\\nary :all:\nevil\n",
    "shortened": "--no-ind --find-l ./dist --no-bin :all:\nevil\n",
    "a constraint": "-c fixed.txt\nevil\n",
    "a path": "./dist/evil-1.0.tar.gz\n",
    "a path by name": "evil @ file:./dist/evil-1.0.tar.gz\n",
    "editable": "-e .\n",
}


@pytest.mark.parametrize("spelling", BUILDS)
def test_nothing_is_built_to_look_at_a_list(looker: User, spelling: str) -> None:
    assert looker.cwd is not None
    sdist = looker.cwd / "dist" / "evil-1.0.tar.gz"
    put(
        looker,
        {
            "requirements.txt": BUILDS[spelling],
            "fixed.txt": f"evil @ file://{sdist}\n",
            "pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = 'trap'\n"
            "backend-path = ['.']\n",
            "trap.py": f"open({str(mark_of(looker))!r}, 'w').write('run')\n",
        },
    )
    code, said = look(looker)
    assert not mark_of(looker).exists()
    if spelling in ("shortened", "a constraint"):
        assert code == DataError.exit_code
        place = "fixed.txt:1" if spelling == "a constraint" else "requirements.txt:1"
        assert place in said
    else:
        assert "not pinned: " in said


def test_a_wheels_own_needs_are_not_built(looker: User, theirs: PackageIndex) -> None:
    assert looker.cwd is not None
    sdist = looker.cwd / "dist" / "evil-1.0.tar.gz"
    theirs.wheel("bait", "1.0", [f"evil @ file://{sdist}"])
    put(looker, {"requirements.txt": f"--index-url {theirs.url}\nbait\n"})
    code, said = look(looker)
    assert not mark_of(looker).exists()
    assert code == 0
    assert "not pinned" in said


def test_an_environment_of_the_tree_is_not_started(looker: User) -> None:
    """Its folder is the first of PATH, as after ``activate``."""
    assert looker.cwd is not None
    programs = looker.cwd / ".venv" / "bin"
    programs.mkdir(parents=True)
    (looker.cwd / ".venv" / "pyvenv.cfg").write_text("version = 3.11.2\n")
    for name in ("python", "python3", "uv", "pip"):
        (programs / name).write_text(f"#!/bin/sh\nenv >> {mark_of(looker)}\n")
        (programs / name).chmod(0o755)
    looker.environment["PATH"] = f"{programs}:{looker.environment['PATH']}"
    looker.environment["VIRTUAL_ENV"] = str(looker.cwd / ".venv")
    looker.environment["UV_PYTHON"] = str(programs / "python")
    put(looker, {"requirements.txt": "alpha\n"})
    code, said = look(looker)
    assert not mark_of(looker).exists()
    assert code == 0
    assert "packages        2, resolved here" in said


def test_a_variable_is_named_and_not_put_in(looker: User, theirs: PackageIndex) -> None:
    text = f"--extra-index-url {theirs.url}/${{RUNPOD_API_KEY}}/\nalpha\n"
    put(looker, {"requirements.txt": text})
    code, said = look(looker)
    assert not any(KEY in path for path, _ in theirs.asked)
    assert code == 0
    assert KEY not in said
    assert "not pinned" in said
    assert "--env RUNPOD_API_KEY sets it on the machine" in said


OUTSIDE = {
    "by an absolute path": "-r {secret}\n",
    "joined": "-r{secret}\n",
    "long": "--requirement={secret}\n",
    "upwards": "-r ../secret.txt\n",
    "as constraints": "alpha\n-c {secret}\n",
    "through a link": "-r link.txt\n",
    "through a folder's link": "-r up/secret.txt\n",
    "an address": "-r file://{secret}\n",
    "a key in the tree": "-r token\n",
}


@pytest.mark.parametrize("way", OUTSIDE)
def test_no_file_that_is_not_sent_is_shown_or_asked_for(
    looker: User, index: PackageIndex, way: str
) -> None:
    content = f"{SECRET}\n" if way.startswith("a") else f"{SECRET}:19000:0:99999 x\n"
    assert looker.cwd is not None
    secret = looker.folder / "secret.txt"
    secret.write_text(content)
    (looker.cwd / "link.txt").symlink_to(secret)
    (looker.cwd / "up").symlink_to("..")
    put(looker, {"token": content, "requirements.txt": OUTSIDE[way].format(secret=secret)})
    code, said = look(looker)
    assert SECRET not in said
    assert not index.names & {SECRET}
    assert code == DataError.exit_code
    line = 2 if way == "as constraints" else 1
    assert f"requirements.txt:{line}" in said


@pytest.mark.parametrize("name", ["link.txt", "token"])
def test_a_list_itself_is_a_file_that_is_sent(looker: User, index: PackageIndex, name: str) -> None:
    assert looker.cwd is not None
    (looker.folder / "secret.txt").write_text(f"{SECRET}\n")
    (looker.cwd / "link.txt").symlink_to(looker.folder / "secret.txt")
    put(looker, {"token": f"{SECRET}\n"})
    code, said = look(looker, name)
    assert SECRET not in said
    assert not index.asked
    assert code == DataError.exit_code


def test_a_private_name_goes_to_the_index_that_the_list_names_alone(
    looker: User, index: PackageIndex, theirs: PackageIndex
) -> None:
    """It exists there as source alone: whether it exists at all is asked nowhere else."""
    theirs.add("ours-alone", trap("ours-alone", "1.0", mark_of(looker)))
    put(looker, {"requirements.txt": f"-i {theirs.url}\nours-alone==1.0\n"})
    code, said = look(looker)
    assert not index.asked
    assert code == 0, said
    assert "not pinned: ours-alone: it has no prebuilt package" in said
    assert not mark_of(looker).exists()


def test_what_a_repository_or_constraint_brings_is_not_asked_for(
    looker: User, index: PackageIndex
) -> None:
    index.wheel("gamma", "1.0", ["ours-alone", "ours-too"])
    text = "ours-alone @ git+https://example.org/a\n-c fixed.txt\ngamma\nours-too\n"
    put(
        looker,
        {"requirements.txt": text, "fixed.txt": "ours-too @ https://example.org/o-1.whl\n"},
    )
    code, said = look(looker)
    assert code == 0, said
    assert index.names == {"gamma"}
    assert "not pinned: requirements.txt:1: it is a repository" in said
    assert "not pinned: ours-too: it is a direct address" in said


def test_the_users_login_goes_to_the_users_index_alone(
    looker: User, index: PackageIndex, theirs: PackageIndex
) -> None:
    """Both are of one host: an entry of netrc has no port."""
    index.login = "me:p%w"
    theirs.wheel("beta", "9.0")
    (looker.folder / ".netrc").write_text("machine 127.0.0.1 login me password p%w\n")
    put(looker, {"requirements.txt": f"--extra-index-url {theirs.url}\nalpha\n"})
    code, said = look(looker)
    assert not [login for _, login in theirs.asked if login]
    assert code == 0
    assert "packages        2, resolved here" in said
    assert [login for path, login in index.asked if path.endswith(".whl") and login]
