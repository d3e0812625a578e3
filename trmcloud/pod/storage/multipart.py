"""One checkpoint's files: read through, found right, and stored piece by piece."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from trmcloud.core.contract.bucket_layout import Piece, pieces_of
from trmcloud.core.contract.manifest import CheckpointManifest
from trmcloud.core.contract.pod_contract import Kept
from trmcloud.io.backoff import patiently
from trmcloud.pod.storage.presigned import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    Objects,
    StoreError,
    is_refused,
)

LANES = 4
_TRIES = 5
_TICK_S = 1.0
_HASH_BLOCK = 1 << 20


class Unusable(Exception):
    """This checkpoint cannot be stored from here."""


class _Overtaken(StoreError):
    """Another piece has failed: that one's reason is told."""


@dataclass
class Doing:
    """The upload in progress: which checkpoint goes where, and the MD5 of each piece stored.
    ``emptied``: no manifest stands in the slot any more."""

    kept: Kept
    slot: str
    done: dict[str, str] = field(default_factory=dict)
    emptied: bool = False


@dataclass
class OpenFile:
    """An open file of a checkpoint: it stays readable though the trainer prunes its folder."""

    name: str
    handle: int
    pieces: tuple[Piece, ...]
    md5s: list[bytes]


class Sender:
    """Stores by presigned requests. ``now`` is the pod's boot-time clock; ``tick`` is called about
    once a second while several pieces are on their way.

    ``moved`` is when a byte last arrived anywhere; ``lock`` guards what the lanes change.
    """

    def __init__(
        self,
        now: Callable[[], float],
        sleep: Callable[[float], None],
        tick: Callable[[], None],
    ) -> None:
        self._now, self._sleep, self._tick = now, sleep, tick
        self.lock = threading.Lock()
        self.moved = 0.0
        self._best_sent: dict[str, int] = {}

    @contextmanager
    def opened(
        self, folder: Path, manifest: CheckpointManifest, *, again: bool
    ) -> Iterator[list[OpenFile]]:
        """Every file of a checkpoint open at once, then read through and found right.

        ``again``: after an upload of it that failed. What is read, or sent, once more is no
        progress: a store may fail again and again.

        Raises:
            Unusable: it is not.
        """
        with contextlib.ExitStack() as stack:
            handles = []
            for file in manifest.files:
                try:
                    handle = os.open(folder / file.name, os.O_RDONLY | os.O_NOFOLLOW)
                except OSError as error:
                    raise Unusable(f"{file.name}: {error.strerror}") from None
                stack.callback(os.close, handle)
                handles.append(handle)
            files = []
            if not again:
                self._best_sent.clear()
            for handle, file in zip(handles, manifest.files, strict=True):
                files.append(_hash(handle, file.name, file.size_bytes, file.sha256))
                if not again:
                    self.moved = self._now()
            yield files

    def put_small(self, url: str, content: bytes) -> None:
        def read(at: int, count: int) -> bytes:
            return content[at : at + count]

        objects = Objects()
        try:
            self._patiently(
                lambda: objects.put(url, len(content), hashlib.md5(content).digest(), read)
            )
        finally:
            objects.close()
        self.moved = self._now()

    def put_pieces(
        self,
        doing: Doing,
        files: Sequence[OpenFile],
        url_of: Callable[[Doing, str, int | None], str],
    ) -> None:
        work = [
            (file, piece, md5)
            for file in files
            for piece, md5 in zip(file.pieces, file.md5s, strict=True)
            if doing.done.get(piece.name) != md5.hex()
        ]
        mine = threading.local()
        stop = threading.Event()

        def one(file: OpenFile, piece: Piece, md5: bytes) -> None:
            if stop.is_set():
                return
            objects: Objects = getattr(mine, "objects", None) or Objects()
            mine.objects = objects
            url = url_of(doing, piece.name, piece.length)

            def read(at: int, count: int) -> bytes:
                if stop.is_set():
                    raise _Overtaken("given up")
                return os.pread(file.handle, count, piece.start + at)

            try:
                self._patiently(
                    lambda: objects.put(
                        url,
                        piece.end - piece.start,
                        md5,
                        read,
                        lambda sent: self._sent(f"{doing.slot}/{piece.name}", sent),
                    ),
                    stop,
                )
            except BaseException:
                objects.close()
                stop.set()
                raise
            with self.lock:
                doing.done[piece.name] = md5.hex()
                self.moved = self._now()

        with ThreadPoolExecutor(LANES) as pool:
            running: set[Future[None]] = {pool.submit(one, *each) for each in work}
            failure: BaseException | None = None
            while running:
                ended, running = wait(running, timeout=_TICK_S)
                for future in ended:
                    if failure is None or isinstance(failure, _Overtaken):
                        failure = future.exception() or failure
                self._tick()
        if failure is not None:
            raise failure

    def _patiently(self, act: Callable[[], None], stop: threading.Event | None = None) -> None:
        """Try again what may pass; after a few tries somebody looks whether it is still wanted."""
        patiently(
            act,
            lambda error: is_refused(error) or (stop is not None and stop.is_set()),
            tries=_TRIES,
            first_s=FIRST_PAUSE_S,
            longest_s=LONGEST_PAUSE_S,
            sleep=self._sleep,
        )

    def _sent(self, key: str, sent: int) -> None:
        """Only bytes that were not sent before count."""
        with self.lock:
            if sent > self._best_sent.get(key, 0):
                self._best_sent[key] = sent
                self.moved = self._now()


def _hash(handle: int, name: str, size: int, sha256: str) -> OpenFile:
    """One reading: what the manifest says of the whole, and what the store will be told of each
    piece."""
    try:
        pieces = pieces_of(name, size)
    except ValueError as error:
        raise Unusable(str(error)) from None
    if os.fstat(handle).st_size != size:
        raise Unusable(f"{name} is not as long as its manifest says")
    whole, md5s = hashlib.sha256(), []
    for piece in pieces:
        part, at = hashlib.md5(), piece.start
        while at < piece.end:
            block = os.pread(handle, min(_HASH_BLOCK, piece.end - at), at)
            if not block:
                raise Unusable(f"{name} was cut while it was read")
            whole.update(block)
            part.update(block)
            at += len(block)
        md5s.append(part.digest())
    if whole.hexdigest() != sha256:
        raise Unusable(f"{name} is damaged here: it is not what its manifest says")
    return OpenFile(name, handle, pieces, md5s)
