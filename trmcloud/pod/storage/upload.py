"""The process that uploads checkpoints to a bucket, piece by piece, and data from it."""

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
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.bucket import (
    GRANTS_NAME,
    MAX_GRANTS_BYTES,
    UPLOADS_NAME,
    Grants,
    Uploads,
    free_slot,
    lacks_metric,
    load_grants,
    load_uploads,
    unstored,
)
from trmcloud.core.contract.bucket_layout import Piece, pieces_of, put_key
from trmcloud.core.contract.manifest import (
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    CheckpointManifest,
    from_json,
)
from trmcloud.core.contract.pod_contract import CheckpointRef
from trmcloud.core.errors import CheckpointError
from trmcloud.io.files import load_small, read_small, write_atomic
from trmcloud.io.transfer import Lane, MovingFile, Part, Transfer, Way
from trmcloud.pod.storage.presigned import LANES, Objects, StoreError, fetch_folder, may_pass
from trmcloud.pod.storage.report_upload import ReportUploader
from trmcloud.pod.storage.token_cache import TokenCache

# One checkpoint's files: read through, found right, and stored piece by piece.

_HASH_BLOCK = 1 << 20


class UnusableCheckpoint(Exception):
    """This checkpoint cannot be stored from here."""


@dataclass
class CurrentUpload:
    """The upload in progress: which checkpoint goes where, and the MD5 of each piece stored.
    ``emptied``: no manifest stands in the slot any more."""

    kept: CheckpointRef
    slot: str
    done: dict[str, str] = field(default_factory=dict)
    emptied: bool = False


class OpenFile(MovingFile):
    """An open file of a checkpoint: it stays readable though the trainer prunes its folder.
    ``objects``: its pieces and the MD5 of each, by where they begin."""

    def __init__(
        self, name: str, handle: int, size_bytes: int, objects: Mapping[int, tuple[Piece, bytes]]
    ) -> None:
        spans = [(piece.start, piece.end) for piece, _ in objects.values()]
        super().__init__(name, handle, size_bytes, spans=spans)
        self.objects = objects


class Sender:
    """Stores by presigned requests. ``now`` is the pod's boot-time clock; ``tick`` is called about
    once a second while several pieces are on their way.

    ``moved`` is when a byte last arrived anywhere; ``lock`` guards what the lanes change.
    """

    def __init__(self, now: Callable[[], float], tick: Callable[[], None]) -> None:
        self._now, self._tick = now, tick
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
                    raise UnusableCheckpoint(f"{file.name}: {error.strerror}") from None
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
        def serve(lane: Lane) -> None:
            with contextlib.closing(Objects()) as objects:
                for part in lane:
                    objects.put_bytes(url, content)
                    lane.moved(part.end)

        file = MovingFile("", -1, len(content), spans=[(0, len(content))])
        Transfer([file], Way(serve, 1, 1, may_pass)).run(lambda done, whole: None)
        self.moved = self._now()

    def put_pieces(
        self,
        doing: CurrentUpload,
        files: Sequence[OpenFile],
        url_of: Callable[[CurrentUpload, str, int | None], str],
    ) -> None:
        by_name = {file.name: file for file in files}

        def store(objects: Objects, lane: Lane, part: Part) -> None:
            piece, md5 = by_name[part.file.name].objects[part.start]
            if doing.done.get(piece.name) == md5.hex():
                return

            def read(at: int, count: int) -> bytes:
                lane.check()
                return os.pread(part.file.handle, count, piece.start + at)

            objects.put(
                url_of(doing, piece.name, piece.length),
                piece.end - piece.start,
                md5,
                read,
                lambda sent: self._sent(f"{doing.slot}/{piece.name}", sent),
            )
            with self.lock:
                doing.done[piece.name] = md5.hex()
                self.moved = self._now()

        def serve(lane: Lane) -> None:
            with contextlib.closing(Objects()) as objects:
                for part in lane:
                    store(objects, lane, part)
                    lane.moved(part.end)

        way = Way(serve, LANES, 1, may_pass)
        Transfer(files, way).run(lambda done, whole: self._tick())

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
        raise UnusableCheckpoint(str(error)) from None
    if os.fstat(handle).st_size != size:
        raise UnusableCheckpoint(f"{name} is not as long as its manifest says")
    whole, objects = hashlib.sha256(), {}
    for piece in pieces:
        part, at = hashlib.md5(), piece.start
        while at < piece.end:
            block = os.pread(handle, min(_HASH_BLOCK, piece.end - at), at)
            if not block:
                raise UnusableCheckpoint(f"{name} was cut while it was read")
            whole.update(block)
            part.update(block)
            at += len(block)
        objects[piece.start] = piece, part.digest()
    if whole.hexdigest() != sha256:
        raise UnusableCheckpoint(f"{name} is damaged here: it differs from its manifest")
    return OpenFile(name, handle, size, objects)


# The process on the pod that brings checkpoints to a bucket, and data from it.
#
# It is the agent's child, and works by ``grants.json`` alone: no key of any account is on the
# pod. What is best and what is latest of each phase goes up as it appears, several pieces at a
# time (see ``pieces``), and the agent's report beside it (see ``tell``). What was stored stands
# in ``uploads.json``, piece by piece, so that a new process continues.
#
#     python -m trmcloud.pod.storage.upload --root /workspace/trmcloud --pod NAME

_FETCH_TRIES = 3
"""So often an unneeded folder is tried that a store does not have as it was promised."""
_LOOK_EVERY_S = 0.5
_REFUSED_PAUSE_S = 5.0
_WRITE_EVERY_S = 1.0


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
        self._sender = Sender(now, self._write)
        self._given_up: list[CheckpointRef] = []
        self._slots: dict[str, dict[str, CheckpointRef | None]] = {}
        self._doing: CurrentUpload | None = None
        self._fetched = False
        self._tokens: TokenCache | None = None
        self._passed_over: set[str] = set()
        self._tries: Counter[str] = Counter()
        self._trouble = ""
        self._written: tuple[float, str] = (-1e9, "")
        self._recall()

    # -- the loop -----------------------------------------------------------------------------

    def run(self) -> None:
        """Until it is killed."""
        teller = ReportUploader(self._pod_dir, lambda: self._grants, self._say, now=self._now)
        threading.Thread(target=teller.run, daemon=True).start()
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
            return self._tokens is not None and self._tokens.store_next()
        kept, folder, text = found
        try:
            self._upload(kept, folder, text)
            self._trouble = ""
        except UnusableCheckpoint as reason:
            self._given_up.append(kept)
            self._doing = None
            self._trouble = f"{kept.label} is given up: {reason}"
            self._say(self._trouble)
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
        self._sleep(_REFUSED_PAUSE_S if error.refused else _LOOK_EVERY_S)

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
        if grants.cache is not None:
            if self._tokens is None:
                self._tokens = TokenCache(self._root, grants.cache, self._say, self._now)
            self._tokens.renew(grants.cache)
        for phase, share in grants.phases.items():
            held = self._slots.setdefault(phase, {})
            for slot in share.slots:
                held.setdefault(slot, share.held.get(slot))

    def _next(self) -> tuple[CheckpointRef, Path, str] | None:
        """The checkpoint to store now: what was begun, else the first that is worth it."""
        here = dict(self._manifests())
        owed = unstored(tuple(here), self._uploaded(), self._given_up)
        wanted = [kept for kept in owed if kept.phase in self._slots]
        if self._doing is not None:
            same = next((kept for kept in here if kept.bits == self._doing.kept.bits), None)
            if same is not None:
                self._doing.kept = same  # it may have been evaluated meanwhile
                return (same, *here[same])
            self._doing = None
        return (wanted[0], *here[wanted[0]]) if wanted else None

    def _manifests(self) -> Iterator[tuple[CheckpointRef, tuple[Path, str]]]:
        lease = load_small(self._pod_dir / contract.LEASE_NAME, contract.load_lease)
        if self._grants is None or lease is None:
            return
        for phase in self._grants.phases:
            run_dir = self._root / contract.RUNS_DIR / lease.run_id
            for path in sorted(
                run_dir.glob(f"{phase}/{contract.CHECKPOINTS_DIR}/*/{MANIFEST_NAME}")
            ):
                with contextlib.suppress(OSError, ValueError, CheckpointError):
                    text = read_small(path, MAX_MANIFEST_BYTES) or ""
                    yield from_json(text, str(path)).ref, (path.parent, text)

    # -- uploading ----------------------------------------------------------------------------

    def _upload(self, kept: CheckpointRef, folder: Path, text: str) -> None:
        """Empty the slot's manifest, store every piece, then the manifest; of one that lies there
        and was evaluated since, the manifest alone.

        Raises:
            Unusable: it is damaged, gone, or has a file that no grant covers.
        """
        scored = lacks_metric(self._slots[kept.phase], kept)
        if scored is not None:
            url = self._url(CurrentUpload(kept, scored), MANIFEST_NAME)
            self._sender.put_small(url, text.encode("utf-8"))
            self._slots[kept.phase][scored] = kept
            self._say(f"{kept.label} has its metric in {scored}")
            return
        manifest = from_json(text, str(folder))
        doing = self._doing
        again = doing is not None and doing.kept == kept
        with self._sender.opened(folder, manifest, again=again) as files:
            held = self._slots[kept.phase]
            if doing is None or not again:
                assert self._grants is not None
                slot = free_slot(held, self._grants.phases[kept.phase].keep_best)
                doing = self._doing = CurrentUpload(kept, slot, emptied=held[slot] is None)
                held[slot] = None
                self._write(force=True)
            if not doing.emptied:
                self._sender.put_small(self._url(doing, MANIFEST_NAME), b"")
                doing.emptied = True
                self._write(force=True)
            self._sender.put_pieces(doing, files, self._url)
            self._sender.put_small(self._url(doing, MANIFEST_NAME), text.encode("utf-8"))
            held[doing.slot] = kept
            self._doing = None
            self._say(f"{kept.label} is stored in {doing.slot}")

    def _url(self, doing: CurrentUpload, name: str, length: int | None = None) -> str:
        assert self._grants is not None
        url = self._grants.puts.get(put_key(doing.kept.phase, doing.slot, name, length))
        if url is None:
            raise UnusableCheckpoint(f"no grant covers {name:.80}")
        return url

    # -- fetching -----------------------------------------------------------------------------

    def _fetch(self) -> bool:
        assert self._grants is not None
        beside: set[Path] = set()
        for folder in self._grants.gets:
            place = Path(folder.folder).parent
            wanted = folder.needed or folder.beside or place not in beside
            if folder.folder in self._passed_over or not wanted:
                continue
            try:
                fetch_folder(self._root, folder, self._progressed)
            except StoreError as error:
                self._tries[folder.folder] += 1
                if not folder.needed and self._tries[folder.folder] >= _FETCH_TRIES:
                    self._passed_over.add(folder.folder)
                    self._say(f"{folder.folder} is done without: {error}")
                    return True
                self._fail(error)
                return False
            except OSError as error:
                self._fail(StoreError(f"data cannot be kept here: {error.strerror or error}"))
                return False
            beside.add(place)
        if self._tokens is not None:
            self._tokens.bring(self._progressed)
        self._fetched, self._trouble = True, ""
        self._write(force=True)
        return True

    def _progressed(self) -> None:
        self._sender.moved = self._now()
        self._write()

    # -- what is remembered -------------------------------------------------------------------

    def _uploaded(self) -> tuple[CheckpointRef, ...]:
        held = (slots.values() for slots in self._slots.values())
        return tuple(kept for values in held for kept in values if kept is not None)

    def _write(self, *, force: bool = False) -> None:
        now = self._now()
        if not force and now - self._written[0] < _WRITE_EVERY_S:
            return
        with self._sender.lock:
            doing = None if self._doing is None else asdict(self._doing)
            uploads = Uploads(
                uploaded=self._uploaded(),
                given_up=tuple(self._given_up),
                moved_boot=self._sender.moved,
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
                phase: {
                    slot: None if row is None else CheckpointRef(**row)
                    for slot, row in held.items()
                }
                for phase, held in data["slots"].items()
            }
            self._given_up = list(before.given_up)
            self._fetched = before.fetched
            if data["doing"] is not None:
                row = data["doing"]
                kept, slot, done = (
                    CheckpointRef(**row["kept"]),
                    str(row["slot"]),
                    dict(row["done"]),
                )
                self._doing = CurrentUpload(kept, slot, done, emptied=row.get("emptied") is True)

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError):
            line = contract.strip_control(f"{time.time():.3f} upload: {text}")
            print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="trmcloud.pod.storage.upload", description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--pod", required=True)
    arguments = parser.parse_args()
    folder = arguments.root / contract.PODS_DIR / arguments.pod
    with open(folder / ".upload.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one that a killed agent left ends soon
        Uploader(arguments.root, arguments.pod).run()


if __name__ == "__main__":
    main()
