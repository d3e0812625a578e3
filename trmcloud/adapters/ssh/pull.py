"""Pulls from a machine that somebody else owns: parallel, resumable, verified."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import shutil
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trmcloud.adapters.ssh.connection import SshConnection
from trmcloud.adapters.ssh.session import Session
from trmcloud.core.contract.manifest import CheckpointFile, allowed_name
from trmcloud.core.contract.records import whole
from trmcloud.core.errors import (
    CheckpointError,
    ConnectionDropped,
    DoesNotFit,
    LinkError,
    TrmcloudError,
)
from trmcloud.io.files import read_small, sync_folder, write_atomic
from trmcloud.io.hashing import matches_hash
from trmcloud.io.requests import pause_s

# Files that are on their way here: what has come of them, kept so that an interrupted transfer
# continues, and their real names only once their hash is right.
#
# ``weights.safetensors`` comes as ``.weights.safetensors.part``; which of its bytes are there
# stands beside it in ``.weights.safetensors.part.json``. That note is only a hint: the hash
# decides.

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
                raise OSError(0, "another process truncated the file during the download")
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
    return matches_hash(target / file.name, file.size_bytes, file.sha256)


@contextmanager
def lock_target(target: Path, wait: Callable[[], None]) -> Iterator[None]:
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
        os.close(handle)  # its holder has finished and removed it
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


# Bringing files home from a machine somebody else owns: in parallel, resumable, verified.
#
# Each lane is an SSH connection of its own. It asks for pieces of files by name, and the pod
# answers each with the file's size and then the bytes. rsync is not used in this direction: it
# would have to believe the other side's list of names and sizes, and here every byte is asked
# for, counted, capped and hashed.

LANES = 4
_BLOCK = 1 << 20
_PIECE = 16 << 20
_SMALL_BYTES = 8 << 20
_IDLE_S = 30.0
_TRIES = 6
_MAX_PAUSE_S = 8.0
_HEADER_BYTES = 32
_AHEAD = 2
_TELL_EVERY_S = 0.2
_NOTE_EVERY_S = 1.0

_SERVE = """
while read -r skip count name; do
  if [ -L "$name" ]; then echo '!link'
  elif [ ! -f "$name" ]; then echo '!missing'
  elif [ ! -r "$name" ]; then echo '!missing'
  else wc -c < "$name"; dd if="$name" bs=1048576 skip="$skip" count="$count" 2>/dev/null
  fi
done
"""

Progress = Callable[[int, int], None]


@dataclass
class _Piece:
    part: Part
    start: int
    end: int


def pull(
    connection: SshConnection,
    remote: str,
    files: Sequence[CheckpointFile],
    target: Path,
    progress: Progress,
    *,
    lanes: int = LANES,
) -> None:
    """Bring ``files`` from the folder ``remote`` into ``target``; what is there already is kept.

    Every file gets its name only once its hash is right and it is on disk. Interrupted, by a drop
    or by the user, the next call continues. A second caller waits for the first.

    Raises:
        CheckpointError: a file is missing on the pod, a link, of another size, or not what its hash
            says. DoesNotFit: too little room here. LinkError: the pod stayed out of reach.
    """
    for file in files:
        if not allowed_name(file.name):
            raise CheckpointError(f"file name {file.name!r:.80} is not allowed in a checkpoint")
    whole = sum(file.size_bytes for file in files)
    target.mkdir(parents=True, exist_ok=True)

    def wait() -> None:
        progress(0, whole)
        time.sleep(_TELL_EVERY_S)

    with lock_target(target, wait):
        wanted = [file for file in files if not is_whole(target, file)]
        there = whole - sum(file.size_bytes for file in wanted)
        with contextlib.ExitStack() as stack:
            parts = []
            for file in wanted:
                part = Part(target, file)
                stack.callback(part.close)
                parts.append(part)
            _check_room(target, sum(p.file.size_bytes - p.present for p in parts))
            _Transfer(connection, remote, parts, lanes).run(
                lambda done: progress(there + done, whole)
            )
        sync_folder(target)
        progress(whole, whole)


class _Transfer:
    """Lanes that fetch, one thread that hashes, and the caller's thread that tells and decides."""

    def __init__(
        self, connection: SshConnection, remote: str, parts: Sequence[Part], lanes: int
    ) -> None:
        self._connection, self._parts = connection, parts
        self._command = f"cd {shlex.quote(remote)} || exit 1\n{_SERVE}"
        self._change = threading.Condition()
        self._pieces: deque[_Piece] = deque()
        self._sessions: set[Session] = set()
        self._stopped = False
        self._failure: BaseException | None = None
        self._accepted = 0
        self._lost: LinkError | None = None
        self._noted_at = 0.0
        missing = sum(part.file.size_bytes - part.present for part in parts)
        self._own = missing > _SMALL_BYTES
        self._lanes = min(lanes, -(-missing // _PIECE)) if self._own else 1

    def run(self, tell: Callable[[int], None]) -> None:
        for part in self._parts:
            self._cut(part)
        lanes = [threading.Thread(target=self._lane, daemon=True) for _ in range(self._lanes)]
        threads = [*lanes, threading.Thread(target=self._verify, daemon=True)]
        try:
            for thread in threads:
                thread.start()
            self._watch(lanes, tell)
        finally:
            with self._change:
                self._stopped = True
                for session in self._sessions:
                    session.interrupt()
                self._change.notify_all()
            for thread in threads:
                thread.join()
            self._note(force=True)

    def _watch(self, lanes: Sequence[threading.Thread], tell: Callable[[int], None]) -> None:
        while True:
            with self._change:
                self._change.wait(_TELL_EVERY_S)
                if self._failure is not None:
                    raise self._failure
                ended = self._accepted == len(self._parts)
                present = sum(part.present for part in self._parts)
                if not ended and self._lost and not any(lane.is_alive() for lane in lanes):
                    raise self._lost
            self._note()
            tell(present)
            if ended:
                return

    def _cut(self, part: Part) -> None:
        for start, end in part.missing():
            # Pieces begin on whole blocks, since that is how dd counts.
            at = start - start % _BLOCK
            while at < end:
                upto = min(end, at + _PIECE)
                self._pieces.append(_Piece(part, at, upto))
                at = upto if upto == end else upto - upto % _BLOCK

    def _note(self, force: bool = False) -> None:
        now = time.monotonic()
        if not force and now - self._noted_at < _NOTE_EVERY_S:
            return
        self._noted_at = now
        with self._change, contextlib.suppress(OSError):
            for part in self._parts:
                if part.present and not part.path.exists():
                    part.keep_note()

    # -- lanes --------------------------------------------------------------------------------

    def _lane(self) -> None:
        failures = 0
        while True:
            before = sum(part.present for part in self._parts)
            try:
                self._serve_lane()
                return
            except ConnectionDropped as error:
                gained = sum(part.present for part in self._parts) > before
                failures = 1 if gained else failures + 1
                if failures >= _TRIES:
                    self._lost = error
                    return
                with self._change:
                    pause = pause_s(failures, 0.25, _MAX_PAUSE_S)
                    if self._change.wait_for(lambda: self._stopped, pause):
                        return
            except OSError as error:
                return self._fail(_of_disk(error, self._parts[0].path.parent))
            except BaseException as error:
                return self._fail(error)

    def _serve_lane(self) -> None:
        """One connection's life: ask ahead, read what comes, until nothing is left to ask for."""
        asked: deque[_Piece] = deque()
        with self._change:
            self._await_work(asked)
            if not self._pieces:
                return
        session = self._connection.open(self._command, own=self._own)
        with session:
            with self._change:
                self._sessions.add(session)
            try:
                while True:
                    self._ask(session, asked)
                    if not asked:
                        return
                    self._receive(session, asked[0])
                    asked.popleft()
            finally:
                with self._change:
                    self._sessions.discard(session)
                    self._pieces.extendleft(reversed(asked))
                    self._change.notify_all()

    def _ask(self, session: Session, asked: deque[_Piece]) -> None:
        """Keep some requests ahead, so that the way there and back costs nothing."""
        with self._change:
            # With nothing left to ask, a lane still waits: another one may fail and give back, and
            # a file whose remains were wrong is brought again.
            self._await_work(asked)
            if self._stopped:
                asked.clear()
                return
            fresh = []
            while self._pieces and len(asked) < _AHEAD:
                fresh.append(self._pieces.popleft())
                asked.append(fresh[-1])
        for piece in fresh:
            count = -(-(piece.end - piece.start) // _BLOCK)
            line = f"{piece.start // _BLOCK} {count} {piece.part.file.name}\n"
            try:
                session.stdin.write(line.encode())
            except OSError:
                raise self._why(session) from None

    def _await_work(self, asked: deque[_Piece]) -> None:
        self._change.wait_for(
            lambda: self._stopped or asked or self._pieces or self._accepted == len(self._parts)
        )

    def _receive(self, session: Session, piece: _Piece) -> None:
        part, file = piece.part, piece.part.file
        said = self._header(session)
        if said.startswith("!"):
            what = "is a link on the pod" if said == "!link" else "is missing on the pod"
            raise CheckpointError(f"{file.name} {what}", where=self._connection.where)
        size = whole(said)
        if size is None:
            raise LinkError("the pod's answer was not expected", where=self._connection.where)
        if size != file.size_bytes:
            what = "truncated" if size < file.size_bytes else "longer than expected"
            raise CheckpointError(
                f"{file.name} is {what}: {size} bytes on the pod, {file.size_bytes} in its "
                "manifest",
                where=self._connection.where,
                next_step="fetch an earlier one: trmcloud fetch-best RUN --step N",
            )
        at = piece.start
        while at < piece.end:
            upto = min(at - at % _BLOCK + _BLOCK, piece.end)
            while at < upto:
                count = session.read_to_file(part.handle, at, upto - at, _IDLE_S)
                if count == 0:
                    raise self._why(session)
                at += count
            with self._change:
                part.add(piece.start, at)
                piece.start = at
                self._change.notify_all()

    def _header(self, session: Session) -> str:
        """One short line, read byte by byte so that nothing behind it is taken."""
        line = bytearray()
        one = memoryview(bytearray(1))
        while len(line) < _HEADER_BYTES:
            if session.read_into(one, _IDLE_S) == 0:
                raise self._why(session)
            if one[0] == ord("\n"):
                return line.decode("ascii", "replace").strip()
            line.append(one[0])
        raise LinkError("the pod's answer was not expected", where=self._connection.where)

    def _why(self, session: Session) -> LinkError | CheckpointError:
        """Why the bytes ended."""
        code = session.end(time.monotonic() + _IDLE_S)
        if code == 1:
            return CheckpointError(
                "the checkpoint is no longer on the pod", where=self._connection.where
            )
        return ConnectionDropped(
            f"the command on the pod ended with code {code}", where=self._connection.where
        )

    # -- verifying ----------------------------------------------------------------------------

    def _verify(self) -> None:
        try:
            for part in self._parts:
                while not self._verified(part):
                    pass
                if self._stopped:
                    return
        except OSError as error:
            self._fail(_of_disk(error, self._parts[0].path.parent))
        except BaseException as error:
            self._fail(error)

    def _verified(self, part: Part) -> bool:
        size = part.file.size_bytes
        while True:
            with self._change:
                self._change.wait_for(lambda: self._stopped or part.front > part.hashed or not size)
                if self._stopped:
                    return True
                front = part.front
            part.hash_to(front)
            if part.hashed == size:
                break
        if part.is_right():
            part.accept()
            with self._change:
                self._accepted += 1
                self._change.notify_all()
            return True
        if part.resumed:
            with self._change:
                part.start_over()
                self._cut(part)
                self._change.notify_all()
            return False
        part.discard()
        raise CheckpointError(
            f"{part.file.name} is damaged: its hash differs from the manifest",
            where=self._connection.where,
            next_step="fetch an earlier one: trmcloud fetch-best RUN --step N",
        )

    def _fail(self, error: BaseException) -> None:
        with self._change:
            self._failure = self._failure or error
            self._change.notify_all()


def _check_room(target: Path, needed: int) -> None:
    free = shutil.disk_usage(target).free
    if free < needed:
        raise DoesNotFit(
            f"{needed / 1e6:.1f} MB are still to be downloaded, {free / 1e6:.1f} MB are free",
            where=str(target),
            next_step="free some disk space, or set TRMCLOUD_HOME to a larger disk",
        )


def _of_disk(error: OSError, target: Path) -> TrmcloudError:
    return CheckpointError(f"cannot be written: {error.strerror or error}", where=str(target))
