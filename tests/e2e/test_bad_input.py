"""What bad input gets: one line, a next step, an exit code of its own, and nothing lost."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.user import LAUNCH, ROOT, SMALL, User

# -- data, with the real trainer's own preparation ------------------------------------------------


@pytest.fixture
def reader(user: User) -> User:
    """A user whose text is read by the real trainer."""
    user.trainer = None
    return user


def _no_file(folder: Path) -> str:
    return "gone.txt"


def _tiny(folder: Path) -> str:
    (folder / "tiny.txt").write_text("hi there\n")
    return "tiny.txt"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (_no_file, "there is no such file or folder"),
        (_tiny, "smaller than one batch: 3 tokens to train on, 260 needed"),
    ],
)
def test_data_that_cannot_be_trained_on(
    reader: User, make: Callable[[Path], str], says: str
) -> None:
    name = make(reader.folder)
    small = [part.replace("python-stdlib", name) for part in SMALL]
    small = [part.replace("vocab_size=256", "vocab_size=512") for part in small]
    err = reader.refused(
        "launch", "local", *small, "--phase", "fast", "--budget", "1", "-y", code=9
    )
    assert says in err
    assert name in err
    assert list(reader.home.glob("runs/*")) == []


def test_two_commands_that_prepare_the_same_text(reader: User) -> None:
    (reader.folder / "text.txt").write_text("def f(x):\n    return x\n" * 3000)
    small = [part.replace("python-stdlib", "text.txt") for part in SMALL]
    small = [part.replace("vocab_size=256", "vocab_size=512") for part in small]
    racing = [reader.start("launch", "local", *small, "--budget", "1") for _ in range(3)]
    for process in racing:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 2
        assert "this is not a terminal" in err
    folders = [path for path in (reader.home / "data").iterdir() if path.is_dir()]
    assert len(folders) == 1
    assert (folders[0] / "meta.json").exists()


# -- this machine ---------------------------------------------------------------------------------


def test_torch_missing(new_user: Callable[[str], User]) -> None:
    """Only where it is used: planning and looking need none of it."""
    user = new_user("without")
    hide = user.folder / "hide"
    hide.mkdir()
    (hide / "sitecustomize.py").write_text(
        "import importlib.machinery as m\n"
        "find = m.PathFinder.find_spec\n"
        "def without_torch(name, *rest, **more):\n"
        "    return None if name.partition('.')[0] == 'torch' else find(name, *rest, **more)\n"
        "m.PathFinder.find_spec = without_torch\n"
    )
    user.environment["PYTHONPATH"] = f"{hide}:{ROOT}"
    for arguments in ((*LAUNCH, "--budget", "1"), ("eval",)):
        err = user.refused(*arguments, code=6)
        assert "install" in err
        assert "[train]'" in err
    text = user.folder / "text.txt"
    text.write_text("to be or not to be\n" * 99)
    rented = ("launch", "8xA100", "--data", str(text), "--budget", "50", "-y")
    assert "RUNPOD_API_KEY" in user.refused(*rented, code=15)
    assert user.run("status").startswith("no runs yet")
    assert "Recommended" in user.run("plan", "--budget", "1000")


def test_too_little_disk(user: User) -> None:
    disk = user.folder / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(disk)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small disk needs root")
    try:
        user.environment["TRMCLOUD_HOME"] = str(disk)
        err = user.fails(*LAUNCH, "--budget", "1", code=5)
        assert "checkpoints need 0.07 GB, but the disk has 0.02 GB free" in err
        assert not (disk / "runs").exists()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
