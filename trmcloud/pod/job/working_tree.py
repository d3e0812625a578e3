"""The command's working folder: a copy of the tree that was sent, made once for each phase."""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path

from trmcloud.core.contract.command import CODE_NAME
from trmcloud.core.contract.command_terms import is_inside

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


def lay_data(work: Path, data: str, named: str) -> None:
    """Where ``--data`` named something of the working tree, it stands there under that name."""
    if not named or not is_inside(named) or not data:
        return
    place = work / named
    if os.path.lexists(place):
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(data)
