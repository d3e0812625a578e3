"""A folder that a pod brings from a bucket: ranges side by side, verified, renamed last."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from trmcloud.core.contract.bucket import FileGet, FolderGet
from trmcloud.core.contract.bucket_layout import Piece, pieces_of
from trmcloud.io.backoff import patiently
from trmcloud.io.files import sync_folder
from trmcloud.io.hashing import holds
from trmcloud.pod.storage.presigned import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    Objects,
    StoreError,
    is_refused,
)

RANGE_BYTES = 64 << 20
LANES = 4
_TRIES = 5


class Damaged(StoreError):
    """What came is not what its hash says."""


def fetch_folder(root: Path, folder: FolderGet, moved: Callable[[], None]) -> None:
    """Bring ``folder``, which lies below ``root``; nothing where it is there already.

    Raises:
        StoreError: something could not be had, or is not what was promised.
        OSError: it cannot be kept here.
    """
    target = Path(folder.folder)
    if not os.path.realpath(target).startswith(os.path.realpath(root) + os.sep):
        raise StoreError(f"{folder.folder} is not below {root}", refused=True)
    if target.is_dir():
        return
    making = target.with_name(f".{target.name}.fetch")
    for file in folder.files:
        path = making / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not holds(path, file.size_bytes, file.sha256):
            bring_file(path, file, moved)
    sync_folder(making)
    with contextlib.suppress(OSError):  # another pod on this volume was quicker
        os.rename(making, target)
    shutil.rmtree(making, ignore_errors=True)
    if not target.is_dir():
        raise OSError(0, f"{target} could not be put in place")


def bring_file(path: Path, file: FileGet, moved: Callable[[], None]) -> None:
    """One file as ``path``.

    Raises:
        StoreError: it could not be had; ``Damaged``: it is not what was promised.
        OSError: it cannot be kept here.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    mine = threading.local()

    def one(url: str, start: int, end: int, shift: int) -> None:
        objects: Objects = getattr(mine, "objects", None) or Objects()
        mine.objects = objects
        patiently(
            lambda: objects.get(url, start, end, handle, lambda count: None, shift),
            is_refused,
            tries=_TRIES,
            first_s=FIRST_PAUSE_S,
            longest_s=LONGEST_PAUSE_S,
            sleep=time.sleep,
        )

    try:
        os.ftruncate(handle, file.size_bytes)
        with ThreadPoolExecutor(LANES) as pool:
            running: set[Future[None]] = {
                pool.submit(one, url, at, min(size, at + RANGE_BYTES), piece.start)
                for piece, url in _objects(file)
                for size in (piece.end - piece.start,)
                for at in range(0, size, RANGE_BYTES)
            }
            failure: BaseException | None = None
            while running:
                ended, running = wait(running, timeout=1.0)
                for future in ended:
                    failure = failure or future.exception()
                    moved()
        if failure is not None:
            raise failure
        os.fsync(handle)
    finally:
        os.close(handle)
    if not holds(path, file.size_bytes, file.sha256):
        path.unlink(missing_ok=True)
        raise Damaged(f"{file.name} came damaged: it is not what its hash says")


def _objects(file: FileGet) -> list[tuple[Piece, str]]:
    """Which bytes of the file each of its objects is.

    Raises:
        StoreError: there are not as many as it is cut into.
    """
    if len(file.urls) == 1:
        return [(Piece(file.name, 0, file.size_bytes), file.urls[0])]
    try:
        return list(zip(pieces_of(file.name, file.size_bytes), file.urls, strict=True))
    except ValueError:
        raise StoreError(f"{file.name} is granted in part", refused=True) from None
