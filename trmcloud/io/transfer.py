"""Files on their way in parts: several lanes, hashes in order, resumed by a note beside each file.

The way that bytes take (SSH, S3, presigned requests) is a function that is given a ``Lane``: it
takes parts, moves their bytes, and says how far each has come. The rest is done here: which parts
are missing, what a lane whose connection dropped gives back, how often that is tried, the hash of
each file, the note by which an interrupted transfer continues, and the name that a file gets once
its hash is right.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from trmcloud.io.files import read_small, sync_folder, write_atomic
from trmcloud.io.hashing import matches_hash
from trmcloud.io.requests import pause_s

BLOCK_BYTES = 1 << 20
"""A part of a file that comes begins at a multiple of it."""
LOCK_NAME = ".lock"
"""In a folder to which files come."""
_HASH_BYTES = 1 << 18
_TELL_EVERY_S = 0.2
_NOTE_EVERY_S = 1.0
_TRIES = 6
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 8.0

Progress = Callable[[int, int], None]
"""Is called with the bytes that have moved, and all of them. What it raises ends the transfer."""


class DamagedFile(Exception):
    """A file does not match its hash; it is raised with the file's name."""


class DiskFault(OSError):
    """A file here cannot be read or written."""


class TransferStopped(Exception):
    """Another lane has failed, or the caller gave up: that is the error which is raised."""


class Part:
    """Bytes of a file that are still to move; ``start`` follows them."""

    def __init__(self, file: MovingFile, start: int, end: int) -> None:
        self.file, self.start, self.end = file, start, end


class MovingFile:
    """An open file on its way, and which of its bytes have moved. It is sent in ``spans``.

    Writing to ``handle``, or reading from it, from several threads at their own offsets is safe.
    With an empty ``sha256`` the hash is checked elsewhere.
    """

    def __init__(
        self,
        name: str,
        handle: int,
        size_bytes: int,
        sha256: str = "",
        spans: Iterable[tuple[int, int]] = (),
    ) -> None:
        self.name, self.handle, self.size_bytes, self.sha256 = name, handle, size_bytes, sha256
        self._spans = spans
        self.done: list[tuple[int, int]] = []
        self.hashed = 0
        self._hash = hashlib.sha256()

    def parts(self) -> Iterator[Part]:
        """Return the parts that still have to be transferred."""
        return (Part(self, start, end) for start, end in self._spans)

    @property
    def present(self) -> int:
        return sum(end - start for start, end in self.done)

    @property
    def front(self) -> int:
        """Bytes from the beginning without a hole."""
        return self.done[0][1] if self.done and self.done[0][0] == 0 else 0

    def add(self, start: int, end: int) -> None:
        """``start`` to ``end`` has moved."""
        merged: list[tuple[int, int]] = []
        for one in sorted([*self.done, (start, end)]):
            if merged and one[0] <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], one[1]))
            elif one[0] < one[1]:
                merged.append(one)
        self.done = merged

    def hash_to(self, end: int) -> None:
        """Continue the hash up to ``end``, which has moved."""
        if not self.sha256:
            self.hashed = end
        while self.hashed < end:
            block = os.pread(self.handle, min(_HASH_BYTES, end - self.hashed), self.hashed)
            if not block:
                raise OSError(0, "another process truncated the file during the transfer")
            self._hash.update(block)
            self.hashed += len(block)

    def settle(self) -> bool:
        """Judge the file, all of which has moved and is hashed; False where it begins again.

        Raises:
            DamagedFile: its hash is wrong.
        """
        if self.sha256 and self._hash.hexdigest() != self.sha256:
            raise DamagedFile(self.name)
        return True

    def keep_note(self) -> None:
        """Keep what the next process needs to continue."""


class WantedFile(Protocol):
    """A file as it must be; its name may lead into folders."""

    @property
    def name(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def sha256(self) -> str: ...


class IncomingFile(MovingFile):
    """A file that comes to ``target``.

    ``weights.safetensors`` comes as ``.weights.safetensors.part``. Which of its bytes are there is
    noted in ``.weights.safetensors.part.json``. That note is only a hint: the hash decides.
    """

    def __init__(self, target: Path, wanted: WantedFile, part_bytes: int) -> None:
        self._path, self._part_bytes = target / wanted.name, part_bytes
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._partial = self._path.with_name(f".{self._path.name}.part")
        self._note = self._path.with_name(f".{self._path.name}.part.json")
        super().__init__(
            wanted.name, _open_regular(self._partial), wanted.size_bytes, wanted.sha256
        )
        self.done = self._noted()
        self._resumed = bool(self.done)

    def parts(self) -> Iterator[Part]:
        """The holes; each part ends at a multiple of ``part_bytes``, or with its hole."""
        each, before = self._part_bytes, 0
        for start, end in [*self.done, (self.size_bytes, self.size_bytes)]:
            at = before - before % min(BLOCK_BYTES, each) if before < start else start
            while at < start:
                upto = min(start, at - at % each + each)
                yield Part(self, at, upto)
                at = upto
            before = end

    def settle(self) -> bool:
        """Give the file its name, on disk. What an earlier attempt left and its note called right
        is brought once more where it was not."""
        try:
            super().settle()
        except DamagedFile:
            self._note.unlink(missing_ok=True)
            if not self._resumed:
                self._partial.unlink(missing_ok=True)
                raise
            os.ftruncate(self.handle, 0)
            self.done, self._resumed, self.hashed = [], False, 0
            self._hash = hashlib.sha256()
            return False
        os.ftruncate(self.handle, self.size_bytes)
        os.fsync(self.handle)
        os.replace(self._partial, self._path)
        self._note.unlink(missing_ok=True)
        return True

    def keep_note(self) -> None:
        if self.done:
            note = {"size": self.size_bytes, "sha256": self.sha256, "done": self.done}
            write_atomic(self._note, json.dumps(note), durable=False)

    def _noted(self) -> list[tuple[int, int]]:
        there = os.fstat(self.handle).st_size
        try:
            note = json.loads(read_small(self._note) or "{}")
            if (note["size"], note["sha256"]) != (self.size_bytes, self.sha256):
                raise ValueError
            done = [(int(start), int(end)) for start, end in note["done"]]
        except (ValueError, KeyError, TypeError):
            done = []
        at = 0
        for start, end in done:
            if not at <= start < end <= min(there, self.size_bytes):
                done = []
                break
            at = end
        if not done:
            os.ftruncate(self.handle, 0)
        return done


def _open_regular(path: Path) -> int:
    """A handle for reading and writing; a link or anything odd in its place is taken away."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(os.lstat(path).st_mode):
            path.unlink()
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def receive(
    target: Path,
    wanted: Sequence[WantedFile],
    way: Way,
    progress: Progress,
    begin: Callable[[int], None] = lambda due: None,
) -> None:
    """Bring ``wanted`` into the folder ``target``; what is there already is kept, and what was
    interrupted continues. A file gets its name only once its hash is right and it is on disk.
    ``begin`` is called with the bytes that are still to come.

    Raises: see ``Transfer.run``.
    """
    whole = sum(file.size_bytes for file in wanted)
    with contextlib.ExitStack() as stack:
        files = []
        try:
            for each in wanted:
                if not matches_hash(target / each.name, each.size_bytes, each.sha256):
                    files.append(IncomingFile(target, each, way.part_bytes))
                    stack.callback(os.close, files[-1].handle)
        except OSError as error:
            raise DiskFault(error.errno, error.strerror or str(error)) from None
        there = whole - sum(file.size_bytes for file in files)
        transfer = Transfer(files, way)
        begin(transfer.due_bytes)
        transfer.run(shifted(progress, there, whole))
    sync_folder(target)
    progress(whole, whole)


@contextlib.contextmanager
def lock_target(target: Path, wait: Callable[[], None]) -> Iterator[None]:
    """Nobody else brings files to ``target`` meanwhile; ``wait()`` is called while one does. The
    lock is a file in it: beside it, nothing of the user's is touched.
    """
    import fcntl

    lock = target / LOCK_NAME
    while True:
        target.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:
            continue  # its holder has finished, and given the folder its name
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            wait()
            continue
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(lock), os.fstat(handle)):
                break
        os.close(handle)  # its holder has finished and removed it
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(handle)


class Way(NamedTuple):
    """How bytes move: ``serve`` is what each of at most ``lanes`` threads runs.

    Files that come are cut into parts of ``part_bytes``. Where ``may_pass`` says of an error that
    it may, the lane is served anew; six in a row without a byte in between end it.
    """

    serve: Callable[[Lane], None]
    lanes: int
    part_bytes: int = 1
    may_pass: Callable[[Exception], bool] = lambda error: False


class Lane:
    """One thread's parts of a transfer, whose ``due_bytes`` were missing when it began."""

    def __init__(self, transfer: Transfer) -> None:
        self._transfer, self.due_bytes = transfer, transfer.due_bytes
        self.taken: deque[Part] = deque()
        self.interrupt: Callable[[], None] = lambda: None

    def __iter__(self) -> Iterator[Part]:
        """Take one part after the other, until nothing is left."""
        while self.take():
            yield self.taken[0]

    def take(self, ahead: int = 1) -> Sequence[Part]:
        """Take parts until there are ``ahead``, and return the new ones. A lane that has none
        waits, since another one may fail and give back; at the end none are returned.

        Raises:
            TransferStopped: the transfer has ended early.
        """
        fresh: list[Part] = []
        transfer = self._transfer
        with transfer.change:
            transfer.change.wait_for(
                lambda: transfer.stopped or self.taken or transfer.waiting or transfer.is_settled
            )
            self.check()
            while transfer.waiting and len(self.taken) < ahead:
                fresh.append(transfer.waiting.popleft())
                self.taken.append(fresh[-1])
        return fresh

    def moved(self, upto: int) -> None:
        """The first of the taken parts has moved up to ``upto``.

        Raises:
            TransferStopped: the transfer has ended early.
        """
        with self._transfer.change:
            part = self.taken[0]
            part.file.add(part.start, upto)
            part.start = upto
            if upto == part.end:
                self.taken.popleft()
            self._transfer.changed()
            self.check()

    def write(self, block: bytes) -> None:
        """Write what has come of the first of the taken parts."""
        part, view = self.taken[0], memoryview(block)
        at = part.start
        while view:
            count = os.pwrite(part.file.handle, view, at)
            view, at = view[count:], at + count
        self.moved(at)

    def on_stop(self, interrupt: Callable[[], None]) -> None:
        """Have ``interrupt`` called by another thread where the transfer ends early."""
        with self._transfer.change:
            self.interrupt = interrupt
            self.check()

    def check(self) -> None:
        """
        Raises:
            TransferStopped: the transfer has ended early.
        """
        if self._transfer.stopped:
            raise TransferStopped


class Transfer:
    """Lanes that move the parts of files, one thread that hashes, and the caller's that tells."""

    def __init__(self, files: Sequence[MovingFile], way: Way) -> None:
        self._files, self._way = files, way
        self._whole = sum(file.size_bytes for file in files)
        self.due_bytes = self._whole - self._present()
        self.change = threading.Condition()
        self.waiting = deque(part for file in files for part in file.parts())
        self.stopped = False
        self._running = 0
        self._changes = 0
        self._judged = self._settled = 0
        self._failure: BaseException | None = None
        self._lost: Exception | None = None
        self._noted_at = 0.0

    @property
    def is_settled(self) -> bool:
        return self._settled == len(self._files)

    def run(self, progress: Progress) -> None:
        """Move all parts, and settle each file. ``progress`` is called by this thread, several
        times a second.

        Raises:
            DamagedFile: see ``MovingFile.settle``. DiskFault: a file cannot be read or written.
            What a lane raises and may not pass.
        """
        count = min(self._way.lanes, len(self.waiting), -(-self.due_bytes // self._way.part_bytes))
        lanes = [Lane(self) for _ in range(max(1, count))]
        self._running = len(lanes)
        threads = [
            threading.Thread(target=self._serve, args=(each,), daemon=True) for each in lanes
        ]
        threads.append(threading.Thread(target=self._verify, daemon=True))
        try:
            for thread in threads:
                thread.start()
            self._watch(progress)
        finally:
            with self.change:
                self.stopped = True
                for lane in lanes:
                    lane.interrupt()
                self.changed()
            for thread in threads:
                thread.join()
            self._note()

    def changed(self) -> None:
        self._changes += 1
        self.change.notify_all()

    def _watch(self, progress: Progress) -> None:
        seen, running = -1, 1
        while running:
            with self.change:
                if self._changes == seen:
                    self.change.wait(_TELL_EVERY_S)
                seen, running = self._changes, self._running
                if self._failure is not None:
                    raise self._failure
            self._note(_NOTE_EVERY_S)
            progress(self._present(), self._whole)
        if self.waiting or not self.is_settled:
            raise self._lost or TransferStopped

    def _serve(self, lane: Lane) -> None:
        failures = 0
        try:
            while True:
                before = self._present()
                try:
                    self._way.serve(lane)
                    return
                except Exception as error:
                    if not self._way.may_pass(error):
                        raise
                    failures = 1 if self._present() > before else failures + 1
                    if failures >= _TRIES:
                        self._lost = error
                        return
                finally:
                    with self.change:
                        self.waiting.extendleft(reversed(lane.taken))
                        lane.taken.clear()
                        self.changed()
                with self.change:
                    pause = pause_s(failures - 1, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
                    if self.change.wait_for(lambda: self.stopped, pause):
                        return
        except BaseException as error:
            self._fail(error)
        finally:
            with self.change:
                self._running -= 1
                self.changed()

    def _verify(self) -> None:
        try:
            for file in self._files:
                while not self._is_right(file):
                    pass
        except BaseException as error:
            self._fail(error)

    def _is_right(self, file: MovingFile) -> bool:
        while file.hashed < file.size_bytes:
            with self.change:
                self.change.wait_for(lambda: self.stopped or file.front > file.hashed)
                if self.stopped:
                    raise TransferStopped
                front = file.front
            file.hash_to(front)
        with self.change:
            self._judged += 1  # a note that is kept from here on would outlive the file's part
        is_right = file.settle()
        with self.change:
            if is_right:
                self._settled += 1
            else:
                self._judged -= 1
                self.waiting.extend(file.parts())
            self.changed()
        return is_right

    def _note(self, every_s: float = 0.0) -> None:
        now = time.monotonic()
        if now - self._noted_at < every_s:
            return
        self._noted_at = now
        with self.change, contextlib.suppress(OSError):
            for file in self._files[self._judged :]:
                file.keep_note()

    def _present(self) -> int:
        return sum(file.present for file in self._files)

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, OSError):
            error = DiskFault(error.errno, error.strerror or str(error))
        if not isinstance(error, TransferStopped):
            with self.change:
                self._failure = self._failure or error
                self.changed()


def shifted(progress: Progress, base: int, whole: int) -> Progress:
    """``progress`` of a part that begins at ``base`` of ``whole``."""
    return lambda done, _: progress(base + done, whole)
