"""Files of a checkpoint come to this machine: the one engine, and what its errors say to a user."""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from trmcloud.core.contract.manifest import CheckpointFile, allowed_name
from trmcloud.core.errors import CheckpointError, DoesNotFit
from trmcloud.io.transfer import DamagedFile, DiskFault, Progress, Way, lock_target, receive

_WAIT_S = 0.2
_MORE_ROOM = "free some disk space, or set TRMCLOUD_HOME to a larger disk"


def receive_files(
    target: Path,
    files: Sequence[CheckpointFile],
    way: Way,
    progress: Progress,
    where: str,
) -> None:
    """Bring ``files`` into the folder ``target``, from ``where``; what is there already is kept.

    Interrupted, by a drop or by the user, the next call continues. A second caller waits for the
    first.

    Raises:
        CheckpointError: a file is not what its hash says, or cannot be written here.
        DoesNotFit: too little room here. What the lanes raise.
    """
    for file in files:
        if not allowed_name(file.name):
            raise CheckpointError(f"file name {file.name!r:.80} is not allowed in a checkpoint")
    whole = sum(file.size_bytes for file in files)

    def wait() -> None:
        progress(0, whole)
        time.sleep(_WAIT_S)

    def check_room(due: int) -> None:
        free = shutil.disk_usage(target).free
        if free < due:
            raise DoesNotFit(
                f"{due / 1e6:.1f} MB are still to be downloaded, {free / 1e6:.1f} MB are free",
                where=str(target),
                next_step=_MORE_ROOM,
            )

    try:
        with lock_target(target, wait):
            receive(target, files, way, progress, check_room)
    except DamagedFile as damaged:
        what = f"{damaged} is damaged: its hash differs from the manifest"
        raise unusable(what, where) from None
    except DiskFault as fault:
        what = f"cannot be written: {fault.strerror}"
        if fault.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DoesNotFit(what, where=str(target), next_step=_MORE_ROOM) from None
        raise CheckpointError(what, where=str(target)) from None


def unusable(what: str, where: str) -> CheckpointError:
    """The error of a checkpoint in whose place an earlier one can be had."""
    return CheckpointError(
        what,
        where=where,
        next_step="fetch an earlier one: trmcloud fetch-best RUN --step N",
    )
