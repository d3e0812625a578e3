"""The process on the pod that brings checkpoints to a bucket, and data from it.

It is the agent's child, and works by ``grants.json`` alone: no key of any account is on the pod.
What is best and what is latest of each phase goes up as it appears, several pieces at a time. What
was stored stands in ``uploads.json``, piece by piece, so that one started anew goes on.

    python -m trmcloud.pod.upload --root /workspace/trmcloud --pod NAME
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trmcloud.core import pod_contract as contract
from trmcloud.core.bucket import (
    GRANTS_NAME,
    MAX_GRANTS_BYTES,
    UPLOADS_NAME,
    Grants,
    Piece,
    Uploads,
    free_slot,
    load_grants,
    load_uploads,
    pieces_of,
    unstored,
)
from trmcloud.core.errors import CheckpointError
from trmcloud.core.manifest import (
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    CheckpointManifest,
    from_json,
    step_dir_name,
)
from trmcloud.core.pod_contract import Kept
from trmcloud.pod.fetch import fetch_folder
from trmcloud.pod.files import read_small, write_atomic
from trmcloud.pod.objects import Objects, StoreError

LANES = 4
_TRIES = 5
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 20.0
_FETCH_TRIES = 3
"""So often an unneeded folder is tried that a store does not have as it was promised."""
_LOOK_EVERY_S = 0.5
_WRITE_EVERY_S = 1.0
_HASH_BLOCK = 1 << 20


class _Unusable(Exception):
    """This checkpoint cannot be stored from here."""


@dataclass
class Doing:
    """The upload in progress: which checkpoint goes where, and the MD5 of each piece stored."""

    kept: Kept
    slot: str
    done: dict[str, str] = field(default_factory=dict)


@dataclass
class _File:
    """An open file of a checkpoint: it stays readable though the trainer prunes its folder."""

    name: str
    handle: int
    pieces: tuple[Piece, ...]
    md5s: list[bytes]


class Uploader:
    """``now`` is the pod's boot-time clock; ``sleep`` waits between looks."""

    def __init__(
        self,
        root: Path,
        pod_name: str,
        *,
        now: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._root, self._pod_name = root, pod_name
        self._pod_dir = root / contract.PODS_DIR / pod_name
        self._now, self._sleep = now, sleep
        self._grants: Grants | None = None
        self._grants_stamp: tuple[int, int] | None = None
        self._lock = threading.Lock()
        self._best_sent: dict[str, int] = {}
        self._moved = 0.0
        self._given_up: list[Kept] = []
        self._slots: dict[str, dict[str, Kept | None]] = {}
        self._doing: Doing | None = None
        self._fetched = False
        self._passed_over: set[str] = set()
        self._tries = 0
        self._trouble = ""
        self._written: tuple[float, str] = (-1e9, "")
        self._refused_stamp: tuple[int, int] | None = None
        self._recall()

    # -- the loop -----------------------------------------------------------------------------

    def run(self) -> None:
        """Until it is killed."""
        while True:
            if not self.once():
                self._sleep(_LOOK_EVERY_S)

    def once(self) -> bool:
        """Whether something was done."""
        self._read_grants()
        if self._grants is None:
            return False
        if not self._fetched:
            return self._fetch()
        found = self._next()
        if found is None:
            self._write()
            return False
        kept, folder, text = found
        try:
            self._upload(kept, folder, text)
            self._trouble = ""
        except _Unusable as reason:
            self._given_up.append(kept)
            self._doing = None
            self._say(f"{kept.phase}/{step_dir_name(kept.step)} is given up: {reason}")
        except StoreError as error:
            self._fail(error)
        except OSError as error:
            self._fail(StoreError(f"cannot be read here: {error.strerror or error}"))
        self._write(force=True)
        return True

    def _fail(self, error: StoreError) -> None:
        if str(error) != self._trouble:
            self._say(f"not stored: {error}")
        self._trouble = str(error)[:200]
        self._write(force=True)
        self._sleep(_LONGEST_PAUSE_S / 4 if error.refused else _FIRST_PAUSE_S)

    # -- what is to be done -------------------------------------------------------------------

    def _read_grants(self) -> None:
        path = self._pod_dir / GRANTS_NAME
        try:
            about = os.stat(path)
            stamp = (about.st_mtime_ns, about.st_ino)
            if stamp == self._grants_stamp:
                return
            grants = load_grants(read_small(path, MAX_GRANTS_BYTES) or "")
        except (OSError, ValueError):
            return
        if grants.pod_name != self._pod_name:
            return
        self._grants, self._grants_stamp = grants, stamp
        for phase, share in grants.phases.items():
            held = self._slots.setdefault(phase, {})
            for slot in share.slots:
                held.setdefault(slot, share.held.get(slot))

    def _next(self) -> tuple[Kept, Path, str] | None:
        """The checkpoint to store now: what was begun, else the first that is worth it."""
        here = dict(self._manifests())
        done = (*self._uploaded(), *self._given_up)
        wanted = [kept for kept in unstored(tuple(here), done) if kept.phase in self._slots]
        if self._doing is not None:
            if self._doing.kept in here:
                return (self._doing.kept, *here[self._doing.kept])
            self._doing = None
        return (wanted[0], *here[wanted[0]]) if wanted else None

    def _manifests(self) -> Iterator[tuple[Kept, tuple[Path, str]]]:
        grants = self._grants
        name = contract.parse_pod_name(self._pod_name)
        if grants is None or name is None:
            return
        for phase in grants.phases:
            for run_dir in self._run_dirs():
                folder = run_dir / phase / contract.CHECKPOINTS_DIR
                for path in sorted(folder.glob(f"*/{MANIFEST_NAME}")):
                    with contextlib.suppress(OSError, ValueError, CheckpointError):
                        text = read_small(path, MAX_MANIFEST_BYTES) or ""
                        yield _kept(from_json(text, str(path))), (path.parent, text)

    def _run_dirs(self) -> list[Path]:
        with contextlib.suppress(ValueError):
            text = read_small(self._pod_dir / contract.LEASE_NAME)
            if text is not None:
                return [self._root / contract.RUNS_DIR / contract.load_lease(text).run_id]
        return []

    # -- uploading ----------------------------------------------------------------------------

    def _upload(self, kept: Kept, folder: Path, text: str) -> None:
        """Empty the slot's manifest, store every piece, then the manifest.

        Raises:
            _Unusable: it is damaged, gone, or has a file that no grant covers.
        """
        manifest = from_json(text, str(folder))
        with _opened(folder, manifest, self._hash) as files:
            doing = self._doing
            held = self._slots[kept.phase]
            if doing is None or doing.kept != kept:
                assert self._grants is not None
                slot = free_slot(held, self._grants.phases[kept.phase].keep_best)
                doing = self._doing = Doing(kept, slot)
                fresh = held[slot] is None
                held[slot] = None
                self._write(force=True)
                if not fresh:
                    self._put_small(doing, MANIFEST_NAME, b"")
            self._put_pieces(doing, files)
            self._put_small(doing, MANIFEST_NAME, text.encode("utf-8"))
            held[doing.slot] = kept
            self._doing = None
            self._say(f"{kept.phase}/{step_dir_name(kept.step)} is stored in {doing.slot}")

    def _put_small(self, doing: Doing, name: str, content: bytes) -> None:
        def read(at: int, count: int) -> bytes:
            return content[at : at + count]

        objects = Objects()
        try:
            url = self._url(doing, name)
            self._patiently(
                lambda: objects.put(url, len(content), hashlib.md5(content).digest(), read)
            )
        finally:
            objects.close()
        self._moved = self._now()

    def _put_pieces(self, doing: Doing, files: Sequence[_File]) -> None:
        work = [
            (file, piece, md5)
            for file in files
            for piece, md5 in zip(file.pieces, file.md5s, strict=True)
            if doing.done.get(piece.name) != md5.hex()
        ]
        mine = threading.local()
        stop = threading.Event()

        def one(file: _File, piece: Piece, md5: bytes) -> None:
            if stop.is_set():
                return
            objects: Objects = getattr(mine, "objects", None) or Objects()
            mine.objects = objects
            url = self._url(doing, piece.name)

            def read(at: int, count: int) -> bytes:
                if stop.is_set():
                    raise StoreError("given up")
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
            with self._lock:
                doing.done[piece.name] = md5.hex()
                self._moved = self._now()

        with ThreadPoolExecutor(LANES) as pool:
            running: set[Future[None]] = {pool.submit(one, *each) for each in work}
            failure: BaseException | None = None
            while running:
                ended, running = wait(running, timeout=_WRITE_EVERY_S)
                for future in ended:
                    failure = failure or future.exception()
                self._write()
        self._best_sent.clear()
        if failure is not None:
            raise failure

    def _patiently(self, act: Callable[[], None], stop: threading.Event | None = None) -> None:
        """Try again what may pass; after a few tries somebody looks whether it is still wanted."""
        for attempt in range(_TRIES):
            try:
                act()
                return
            except StoreError as error:
                last = attempt == _TRIES - 1
                if error.refused or last or (stop is not None and stop.is_set()):
                    raise
            self._sleep(min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**attempt))

    def _url(self, doing: Doing, name: str) -> str:
        assert self._grants is not None
        url = self._grants.puts.get(f"{doing.kept.phase}/{doing.slot}/{name}")
        if url is None:
            raise _Unusable(f"no grant covers {name:.80}")
        return url

    def _sent(self, key: str, sent: int) -> None:
        """Bytes that were sent before are no progress: a store may fail at the end, again and
        again."""
        with self._lock:
            if sent > self._best_sent.get(key, 0):
                self._best_sent[key] = sent
                self._moved = self._now()

    def _hash(self, handle: int, name: str, size: int, sha256: str) -> _File:
        """One reading: what the manifest says of the whole, and what the store will be told of
        each piece."""
        try:
            pieces = pieces_of(name, size)
        except ValueError as error:
            raise _Unusable(str(error)) from None
        if os.fstat(handle).st_size != size:
            raise _Unusable(f"{name} is not as long as its manifest says")
        whole, md5s = hashlib.sha256(), []
        for piece in pieces:
            part, at = hashlib.md5(), piece.start
            while at < piece.end:
                block = os.pread(handle, min(_HASH_BLOCK, piece.end - at), at)
                if not block:
                    raise _Unusable(f"{name} was cut while it was read")
                whole.update(block)
                part.update(block)
                at += len(block)
            md5s.append(part.digest())
        if whole.hexdigest() != sha256:
            raise _Unusable(f"{name} is damaged here: it is not what its manifest says")
        self._moved = self._now()
        return _File(name, handle, pieces, md5s)

    # -- fetching -----------------------------------------------------------------------------

    def _fetch(self) -> bool:
        assert self._grants is not None
        for folder in self._grants.gets:
            if folder.folder in self._passed_over:
                continue
            try:
                fetch_folder(self._root, folder, self._progressed)
            except StoreError as error:
                self._tries += 1
                if not folder.needed and self._tries >= _FETCH_TRIES:
                    self._passed_over.add(folder.folder)
                    self._tries = 0
                    self._say(f"{folder.folder} is done without: {error}")
                    return True
                self._fail(error)
                return False
            except OSError as error:
                self._fail(StoreError(f"data cannot be kept here: {error.strerror or error}"))
                return False
            self._tries = 0
        self._fetched, self._trouble = True, ""
        self._write(force=True)
        return True

    def _progressed(self) -> None:
        self._moved = self._now()
        self._write()

    # -- what is remembered -------------------------------------------------------------------

    def _uploaded(self) -> tuple[Kept, ...]:
        held = (slots.values() for slots in self._slots.values())
        return tuple(kept for values in held for kept in values if kept is not None)

    def _write(self, *, force: bool = False) -> None:
        now = self._now()
        if not force and now - self._written[0] < _WRITE_EVERY_S:
            return
        with self._lock:
            doing = None if self._doing is None else asdict(self._doing)
            uploads = Uploads(
                uploaded=self._uploaded(),
                given_up=tuple(self._given_up),
                moved_boot=self._moved,
                fetched=self._fetched,
                trouble=self._trouble,
            )
        slots = {
            phase: {slot: None if kept is None else asdict(kept) for slot, kept in held.items()}
            for phase, held in self._slots.items()
        }
        text = json.dumps({**asdict(uploads), "slots": slots, "doing": doing}, sort_keys=True)
        if text == self._written[1]:
            return
        self._written = (now, text)
        with contextlib.suppress(OSError):  # a full disk must not keep anything from the bucket
            write_atomic(self._pod_dir / UPLOADS_NAME, text, durable=force)

    def _recall(self) -> None:
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            text = read_small(self._pod_dir / UPLOADS_NAME)
            if text is None:
                return
            before = load_uploads(text)
            data: Mapping[str, Any] = json.loads(text)
            self._slots = {
                phase: {slot: None if row is None else Kept(**row) for slot, row in held.items()}
                for phase, held in data["slots"].items()
            }
            self._given_up = list(before.given_up)
            self._fetched = before.fetched
            if data["doing"] is not None:
                row = data["doing"]
                self._doing = Doing(Kept(**row["kept"]), str(row["slot"]), dict(row["done"]))

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError):
            line = contract.strip_control(f"{time.time():.3f} upload: {text}")
            print(line, file=sys.stderr, flush=True)


def _kept(manifest: CheckpointManifest) -> Kept:
    m = manifest
    return Kept(m.phase, m.step, m.sha256, m.size_bytes, m.val_bpb)


@contextmanager
def _opened(
    folder: Path,
    manifest: CheckpointManifest,
    check: Callable[[int, str, int, str], _File],
) -> Iterator[list[_File]]:
    """Every file of a checkpoint open at once, then read through and found right."""
    with contextlib.ExitStack() as stack:
        handles = []
        for file in manifest.files:
            try:
                handle = os.open(folder / file.name, os.O_RDONLY | os.O_NOFOLLOW)
            except OSError as error:
                raise _Unusable(f"{file.name}: {error.strerror}") from None
            stack.callback(os.close, handle)
            handles.append(handle)
        yield [
            check(handle, file.name, file.size_bytes, file.sha256)
            for handle, file in zip(handles, manifest.files, strict=True)
        ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="trmcloud.pod.upload", description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--pod", required=True)
    arguments = parser.parse_args()
    folder = arguments.root / contract.PODS_DIR / arguments.pod
    with open(folder / ".upload.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one that a killed agent left ends soon
        Uploader(arguments.root, arguments.pod).run()


if __name__ == "__main__":
    main()
