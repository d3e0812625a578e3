"""A command's working folder and the packages that it asked for."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import time
from pathlib import Path

from trmcloud.core.contract.command import CODE_NAME, is_inside
from trmcloud.pod.machine import packages

# The command's working folder: a copy of the tree that was sent, made once for each phase.

MOST_BYTES = 4 << 30
MOST_FILES = 100_000


def unpack(code_dir: Path, work: Path) -> None:
    """Make ``work`` of ``code.tar``: regular files alone, names that stay inside, up to a size. One
    that is there already, of an attempt before, stays as it is.

    Raises:
        ValueError: the archive holds something else. OSError: it cannot be read or written.
    """
    if work.is_dir():
        return
    making = work.with_name(f".{work.name}.making")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    count = size = 0
    try:
        with tarfile.open(code_dir / CODE_NAME, "r:") as archive:
            for member in archive:
                count, size = count + 1, size + max(0, member.size)
                if not member.isreg() or not is_inside(member.name):
                    raise ValueError(f"{member.name!r:.80} is no plain file of the working tree")
                if count > MOST_FILES or size > MOST_BYTES:
                    raise ValueError("the working tree is larger than any that is sent")
                source = archive.extractfile(member)
                assert source is not None  # a regular file has one
                target = making / member.name
                target.parent.mkdir(parents=True, exist_ok=True)
                mode = 0o755 if member.mode & 0o100 else 0o644
                with source, open(os.open(target, os.O_WRONLY | os.O_CREAT, mode), "wb") as file:
                    shutil.copyfileobj(source, file, 1 << 20)
    except tarfile.TarError as error:
        raise ValueError(f"the working tree's archive cannot be read: {error}") from None
    os.rename(making, work)


def import_roots(tree: Path) -> list[str]:
    """Return the folders of a repository that its own packages are imported from, as by an editable
    install of it."""
    return [str(path) for path in (tree, tree / "src") if path.is_dir()]


def lay_data(work: Path, data: str, named: str) -> None:
    """Put ``--data`` under its name in the working tree, where it named a part of that."""
    if not named or not is_inside(named) or not data:
        return
    place = work / named
    if os.path.lexists(place):
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(data)


# What ``--pip`` names, installed into a folder of the run before the command starts.

_LOG_BYTES = 400


def install(wanted: Path, target: Path, deadline_at: float) -> None:
    """By the pip of the Python that the command finds first; once, for every attempt after it.

    Raises:
        ValueError: there is no such file, no Python, or it could not be installed by
            ``deadline_at`` (epoch s).
    """
    if target.is_dir():
        return
    if not wanted.is_file():
        raise ValueError(f"--pip {wanted.name}: no such file in the working tree")
    python = shutil.which("python") or shutil.which("python3")
    if python is None:
        raise ValueError("--pip: there is no Python here")
    making = target.with_name(f".{target.name}.making")
    shutil.rmtree(making, ignore_errors=True)
    words = [python, "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    words += ["--target", str(making), "-r", str(wanted)]
    left_s = min(3600.0, deadline_at - time.time())
    environment = packages.install_environment(os.environ, making)
    try:
        done = subprocess.run(
            words, env=environment, capture_output=True, text=True, timeout=max(1.0, left_s)
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"--pip {wanted.name}: it could not be installed in time") from None
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())[-_LOG_BYTES:]
        raise ValueError(f"--pip {wanted.name}: {said}")
    making.mkdir(exist_ok=True)
    os.rename(making, target)
