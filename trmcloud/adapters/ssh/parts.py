"""Files that are on their way here: what has come of them, kept so that an interrupted transfer
goes on, and their real names only once their hash is right.

``weights.safetensors`` comes as ``.weights.safetensors.part``; which of its bytes are there stands
beside it in ``.weights.safetensors.part.json``. That note is only a hint: the hash decides.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from trmcloud.core.contract.manifest import CheckpointFile
from trmcloud.io.files import read_small, write_atomic
from trmcloud.io.hashing import holds

_HASH_BYTES = 1 << 18


class Part:
    """One file on its way."""

    def __init__(self, target: Path, file: CheckpointFile) -> None:
        self.file = file
        self.path = target / file.name
        self._part = target / f".{file.name}.part"
        self._note = target / f".{file.name}.part.json"
        self._handle = _open_regular(self._part)
        self.done = self._noted()
        self.resumed = bool(self.done)
        self._hash = hashlib.sha256()
        self._buffer = memoryview(bytearray(_HASH_BYTES))
        self.hashed = 0

    @property
    def present(self) -> int:
        return sum(end - start for start, end in self.done)

    @property
    def front(self) -> int:
        """Bytes from the beginning without a hole."""
        return self.done[0][1] if self.done and self.done[0][0] == 0 else 0

    def missing(self) -> Iterator[tuple[int, int]]:
        """The holes, as (start, end)."""
        at = 0
        for start, end in self.done:
            if at < start:
                yield at, start
            at = end
        if at < self.file.size_bytes:
            yield at, self.file.size_bytes

    @property
    def handle(self) -> int:
        """The open file; writing to it from several threads at their own offsets is safe."""
        return self._handle

    def add(self, start: int, end: int) -> None:
        """``start`` to ``end`` has come."""
        merged: list[tuple[int, int]] = []
        for one in sorted([*self.done, (start, end)]):
            if merged and one[0] <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], one[1]))
            elif one[0] < one[1]:
                merged.append(one)
        self.done = merged

    def keep_note(self) -> None:
        note = {"size": self.file.size_bytes, "sha256": self.file.sha256, "done": self.done}
        write_atomic(self._note, json.dumps(note), durable=False)

    def hash_to(self, end: int) -> None:
        """Hash on, up to ``end``, which has come."""
        while self.hashed < end:
            view = self._buffer[: min(_HASH_BYTES, end - self.hashed)]
            count = os.preadv(self._handle, [view], self.hashed)
            if count == 0:
                raise OSError(0, "the file on its way was cut by somebody else")
            self._hash.update(view[:count])
            self.hashed += count

    def is_right(self) -> bool:
        return self._hash.hexdigest() == self.file.sha256

    def start_over(self) -> None:
        """Once: what an earlier attempt left was not what its note said."""
        os.ftruncate(self._handle, 0)
        self._note.unlink(missing_ok=True)
        self.done, self.resumed, self.hashed = [], False, 0
        self._hash = hashlib.sha256()

    def accept(self) -> None:
        """Its hash is right: durable, and under its own name."""
        os.ftruncate(self._handle, self.file.size_bytes)
        os.fsync(self._handle)
        os.replace(self._part, self.path)
        self._note.unlink(missing_ok=True)

    def discard(self) -> None:
        self._part.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._handle)

    def _noted(self) -> list[tuple[int, int]]:
        there = os.fstat(self._handle).st_size
        try:
            note = json.loads(read_small(self._note) or "{}")
            if (note["size"], note["sha256"]) != (self.file.size_bytes, self.file.sha256):
                raise ValueError
            done = [(int(start), int(end)) for start, end in note["done"]]
        except (ValueError, KeyError, TypeError):
            done = []
        at = 0
        for start, end in done:
            if not at <= start < end <= min(there, self.file.size_bytes):
                done = []
                break
            at = end
        if not done:
            os.ftruncate(self._handle, 0)
        return done


def is_whole(target: Path, file: CheckpointFile) -> bool:
    """Whether the file is there already, and is what its hash says."""
    return holds(target / file.name, file.size_bytes, file.sha256)


@contextmanager
def only_one(target: Path, wait: Callable[[], None]) -> Iterator[None]:
    """Nobody else brings files to ``target`` meanwhile; ``wait()`` is called while one does."""
    import fcntl

    lock = target.with_name(f".{target.name}.lock")
    while True:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            wait()
            continue
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(lock), os.fstat(handle)):
                break
        os.close(handle)  # whoever held it has finished and taken it away
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(handle)


def _open_regular(path: Path) -> int:
    """A handle for reading and writing; a link or anything odd in its place is taken away."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(os.lstat(path).st_mode):
            path.unlink()
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
