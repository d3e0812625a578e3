"""``ports.Bucket`` on S3 or a server that speaks it, and the tokens that pods share there."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from trmcloud.adapters.s3.client import LANES, Client, connect, translate_errors
from trmcloud.adapters.s3.fetching import fetch_files, get_bytes
from trmcloud.adapters.s3.sending import (
    put_bytes,
    put_file,
    put_pieces,
    supports_conditions,
    unfinished,
)
from trmcloud.core.contract import bucket_layout as tc
from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract.bucket import (
    CachedFile,
    CacheGrants,
    FileGet,
    FolderGet,
    Grants,
    PhaseSlots,
)
from trmcloud.core.contract.bucket_layout import (
    DATA_INDEX_NAME,
    LONGEST_GRANT_S,
    MOST_FILE_BYTES,
    OWNER_NAME,
    TOKENS_DIR,
    Piece,
    Place,
    is_oversized,
    is_slot,
    pieces_of,
    put_key,
    puts_in_slot,
    report_name,
    slots_of,
)
from trmcloud.core.contract.command_objects import puts_of_command
from trmcloud.core.contract.command_resuming import checkpoints_to_put_back
from trmcloud.core.contract.manifest import CheckpointFile, CheckpointManifest
from trmcloud.core.contract.records import MAX_JSON_BYTES, ContractError
from trmcloud.core.errors import CheckpointError, ConflictError, NotSupported, ProviderError
from trmcloud.io.transfer import shifted
from trmcloud.ports.bucket import BucketCheckpoints, CacheRequest, GrantRequest, StoredCheckpoint
from trmcloud.ports.compute import StageItem

_PROBE = "made.json"
"""Below a pod's name: stored once, by which a store shows whether it refuses a second writing."""
_PLAIN_NAME = re.compile(r"(?=.{1,600}\Z)(?:(?:^|/)[A-Za-z0-9_][A-Za-z0-9_.@+=-]*)+")
"""A file's name that every store takes as it is."""

ABANDONED_AFTER_S = 86_400.0
_MARGIN_S = 5.0
_MAX_NOTE_BYTES = 1 << 20
_MOST_PAGES = 1000
"""Of a thousand keys each: far more than all runs of one prefix."""
_ANY_SIZE: Mapping[str, int] = {}
_MOST_AT_ONCE = 1000
"""Keys of one deletion, by S3's own limit."""


class S3Bucket:
    """One bucket and prefix; connected to when it is first asked for something."""

    def __init__(
        self,
        place: Place,
        environ: Mapping[str, str] = os.environ,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._place, self._environ, self._now = place, environ, now

    @cached_property
    def client(self) -> Client:
        return connect(self._place, self._environ)

    # -- whose ----------------------------------------------------------------------------------

    def check(self) -> None:
        """As the port says: a probe of a few bytes is written, read and deleted."""
        key = self._place.key(f".trmcloud-probe-{os.urandom(6).hex()}")
        client, said = self.client, b"trmcloud probe"
        put_bytes(client, key, said)
        try:
            if get_bytes(client, key, len(said)) != said:
                raise ProviderError(
                    "the bytes read back differ from those written", where=str(self._place)
                )
        finally:
            with translate_errors(self._place, "delete"):
                client.s3.delete_object(Bucket=self._place.bucket, Key=key)

    def claim(self, run_id: str, ledger_id: str) -> None:
        key = self._place.run(run_id, OWNER_NAME)
        mine = {"ledger": ledger_id, "run": run_id}
        found = get_bytes(self.client, key, _MAX_NOTE_BYTES)
        if found is None:
            if next(self._keys(self._place.run(run_id) + "/"), None) is not None:
                raise self._anothers(run_id)
            if put_bytes(self.client, key, json.dumps(mine).encode(), once=True):
                return
            found = get_bytes(self.client, key, _MAX_NOTE_BYTES)
        try:
            theirs = json.loads(found or b"null")
        except (ValueError, RecursionError):
            theirs = None
        if theirs != mine:
            raise self._anothers(run_id)

    def _anothers(self, run_id: str) -> ConflictError:
        return ConflictError(
            f"the bucket already has a run {run_id} from another ledger: it was not changed",
            where=str(self._place),
            next_step="use another prefix: --bucket s3://BUCKET/PREFIX",
        )

    # -- grants ---------------------------------------------------------------------------------

    def grant(self, request: GrantRequest) -> Grants:
        if self.client.plain:
            raise NotSupported(
                "this store does not accept presigned requests: a pod cannot upload to it",
                where=self.client.endpoint,
            )
        until = min(request.until, self._now() + LONGEST_GRANT_S - _MARGIN_S)
        if self.client.until is not None:
            until = min(until, self.client.until)
        seconds = max(1, int(until - self._now()))
        shelf = self.checkpoints(request.run_id)
        puts: dict[str, str] = {}
        phases = {}
        for phase, keep_best in request.phases.items():
            slots = slots_of(request.generation, keep_best)
            held = {
                slot: stored.manifest.ref
                for stored in shelf.whole
                for slot in slots
                if stored.at == self._place.run(request.run_id, phase, slot)
            }
            phases[phase] = PhaseSlots(keep_best, slots, held)
            most = request.file_bytes.get(phase, MOST_FILE_BYTES)
            allowed = (
                puts_of_command(most)
                if request.of_command
                else puts_in_slot(most, request.shards.get(phase, 0))
            )
            for slot in slots:
                for name, length in allowed:
                    key = self._place.run(request.run_id, phase, slot, name)
                    url = self._signed("put_object", key, seconds, length)
                    puts[put_key(phase, slot, name, length)] = url
        gets = [self._get_item(item, seconds) for item in request.folders]
        latest = [stored.manifest for stored, _ in request.go_on_from]
        put_back = checkpoints_to_put_back(latest) if request.of_command else []
        for stored, folder in request.go_on_from:
            beside = stored.manifest in put_back or any(
                mf.is_before_cooldown(stored.manifest, other) for other in latest
            )
            gets.append(self._get_stored(stored, folder, seconds, beside=beside))
        key = self._place.run(request.run_id, report_name(request.generation))
        report = self._signed("put_object", key, seconds)
        cache = None
        if request.cache is not None:
            cache = self._cache_grants(request.cache, request.pod_name, seconds)
        return Grants(request.pod_name, until, phases, puts, tuple(gets), report, cache)

    def _cache_grants(self, wanted: CacheRequest, pod_name: str, seconds: int) -> CacheGrants:
        """Only pinned files may be fetched, by their pinned hashes. Only objects below the pod's
        own name may be put, and none that is there."""

        def key(name: str) -> str:
            return self._place.key(TOKENS_DIR, wanted.key, name)

        sizes = self._token_sizes(wanted.key)
        held = tc.offered(wanted.pins, sizes)
        once = supports_conditions(self.client, key(f"{pod_name}/{_PROBE}"))
        slots = [slot for slot in tc.token_slots_for(pod_name, wanted.shards) if slot not in sizes]
        names = [*slots, *(tc.entry_of(slot) for slot in slots)]
        return CacheGrants(
            folder=wanted.folder,
            gets=tuple(
                FileGet(
                    file.name,
                    file.size_bytes,
                    file.sha256,
                    (self._signed("get_object", key(file.slot), seconds),),
                )
                for file in held
            ),
            held=held,
            puts={
                name: self._signed("put_object", key(name), seconds, once=once)
                for name in names
                if name not in sizes
            },
        )

    def stored_tokens(
        self, key: str, pods: Collection[str], pins: Sequence[CachedFile]
    ) -> tuple[CachedFile, ...]:
        """As the port says. Entries are hostile text; invalid ones are left out."""
        sizes = self._token_sizes(key)

        def read(slot: str) -> CachedFile | None:
            at = self._place.key(TOKENS_DIR, key, tc.entry_of(slot))
            text = get_bytes(self.client, at, tc.MAX_ENTRY_BYTES)
            with contextlib.suppress(ContractError):
                return tc.load_entry(text or b"", slot, sizes[slot])
            return None

        with ThreadPoolExecutor(LANES) as pool:
            found = list(pool.map(read, tc.unpinned(sizes, pods, pins)))
        return tuple(file for file in found if file is not None)

    def _token_sizes(self, key: str) -> dict[str, int]:
        """Of the objects of a token cache, by their names below its key."""
        start = self._place.key(TOKENS_DIR, key) + "/"
        return {found.removeprefix(start): size for found, size in self._keys(start)}

    def _signed(
        self, verb: str, key: str, seconds: int, length: int | None = None, *, once: bool = False
    ) -> str:
        """``length``: of the body; it is signed with the rest, and another one is refused.
        ``once``: the store refuses it where the object exists."""
        params: dict[str, Any] = {"Bucket": self._place.bucket, "Key": key}
        if length is not None:
            params["ContentLength"] = length
        if once:
            params["IfNoneMatch"] = "*"
        with translate_errors(self._place):
            return str(
                self.client.s3.generate_presigned_url(verb, Params=params, ExpiresIn=seconds)
            )

    def _get_item(self, item: StageItem, seconds: int) -> FolderGet:
        files = []
        for name, sha256 in item.sha256.items():
            key = self._data_key(item, name)
            size = _local_path(item, name).stat().st_size
            files.append(FileGet(name, size, sha256, (self._signed("get_object", key, seconds),)))
        return FolderGet(item.remote, tuple(files))

    def _get_stored(
        self, stored: StoredCheckpoint, folder: str, seconds: int, *, beside: bool
    ) -> FolderGet:
        """A checkpoint's files, its manifest as the last one."""
        files = [
            FileGet(
                file.name,
                file.size_bytes,
                file.sha256,
                tuple(
                    self._signed("get_object", piece.name, seconds)
                    for piece in _pieces(stored.at, file)
                ),
            )
            for file in stored.manifest.files
        ]
        key = f"{stored.at}/{mf.MANIFEST_NAME}"
        url = self._signed("get_object", key, seconds)
        files.append(FileGet(mf.MANIFEST_NAME, stored.text_bytes, stored.text_sha256, (url,)))
        return FolderGet(folder, tuple(files), needed=False, beside=beside)

    # -- checkpoints ----------------------------------------------------------------------------

    def checkpoints(
        self, run_id: str, file_bytes: Mapping[str, int] = _ANY_SIZE
    ) -> BucketCheckpoints:
        """As the port says. Manifests are hostile text, from a pod that somebody else owns."""
        start = self._place.run(run_id) + "/"
        sizes: dict[str, dict[str, int]] = {}
        half: dict[str, str] = {}
        for key, size in self._keys(start):
            label, _, name = key.removeprefix(start).rpartition("/")
            if label.count("/") == 1 and is_slot(label.rpartition("/")[2]):
                sizes.setdefault(label, {})[name] = size
                if is_oversized(key.removeprefix(start), size, file_bytes):
                    half[label] = f"{name} is larger than any grant of a pod"
        begun = {
            label: names
            for label, names in sorted(sizes.items())
            if names.get(mf.MANIFEST_NAME, 0) and label not in half
        }
        for label in sizes.keys() - begun.keys() - half.keys():
            half[label] = "it was never completed"
        whole: dict[tuple[str, str], StoredCheckpoint] = {}
        with ThreadPoolExecutor(LANES) as pool:
            keys = [f"{start}{label}/{mf.MANIFEST_NAME}" for label in begun]
            texts = pool.map(
                lambda key: get_bytes(self.client, key, mf.MAX_MANIFEST_BYTES) or b"", keys
            )
            for (label, names), text in zip(begun.items(), texts, strict=True):
                try:
                    made = _read(text, run_id, label, names)
                    stored = StoredCheckpoint(
                        made, start + label, len(text), hashlib.sha256(text).hexdigest()
                    )
                    known = whole.get((made.label, made.sha256))
                    if known is None or known.manifest.val_bpb is None:
                        whole[made.label, made.sha256] = stored
                except CheckpointError as error:
                    half[label] = str(error)
        return BucketCheckpoints(tuple(whole.values()), tuple(sorted(half.items())))

    def oversized(self, run_id: str, file_bytes: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
        start = self._place.run(run_id) + "/"
        brief = connect(self._place, self._environ, brief=True)
        return tuple(
            (key, size)
            for key, size in self._keys(start, brief)
            if is_oversized(key.removeprefix(start), size, file_bytes)
        )

    def last_report(self, run_id: str, generation: int) -> bytes | None:
        key = self._place.run(run_id, report_name(generation))
        # Asked from the loop that ends pods in time: it must not hang on a store.
        brief = connect(self._place, self._environ, brief=True)
        return get_bytes(brief, key, MAX_JSON_BYTES)

    def fetch(
        self,
        stored: StoredCheckpoint,
        names: Sequence[str],
        target: Path,
        progress: Callable[[int, int], None],
    ) -> None:
        wanted = [file for file in stored.manifest.files if file.name in names]
        pieces = {file.name: _pieces(stored.at, file) for file in wanted}
        fetch_files(self.client, wanted, pieces, target, progress)

    def store(
        self,
        folder: Path,
        manifest: CheckpointManifest,
        slot: str,
        progress: Callable[[int, int], None],
    ) -> None:
        at = self._place.run(manifest.run_id, manifest.phase, slot)
        sent = 0
        put_bytes(self.client, f"{at}/{mf.MANIFEST_NAME}", b"")
        for file in manifest.files:
            tell = shifted(progress, sent, manifest.size_bytes)
            put_pieces(self.client, folder / file.name, _pieces(at, file), file.sha256, tell)
            sent += file.size_bytes
        put_bytes(self.client, f"{at}/{mf.MANIFEST_NAME}", mf.to_json(manifest).encode())

    def add_metric(
        self, stored: StoredCheckpoint, val_bpb: float, step_losses: Sequence[float]
    ) -> None:
        scored = mf.with_metric(stored.manifest, val_bpb, step_losses)
        key = f"{stored.at}/{mf.MANIFEST_NAME}"
        put_bytes(self.client, key, mf.to_json(scored).encode())

    def delete(self, stored: StoredCheckpoint, names: Sequence[str] = ()) -> None:
        manifest_key = f"{stored.at}/{mf.MANIFEST_NAME}"
        if not names:
            self.drop([manifest_key])
            self.drop([key for key, _ in self._keys(stored.at + "/")])
            return
        kept = tuple(file for file in stored.manifest.files if file.name not in names)
        left = replace(stored.manifest, files=kept)
        gone = [file for file in stored.manifest.files if file.name in names]
        put_bytes(self.client, manifest_key, mf.to_json(left).encode())
        self.drop([piece.name for file in gone for piece in _pieces(stored.at, file)])

    # -- data -----------------------------------------------------------------------------------

    def send(self, item: StageItem, progress: Callable[[int, int], None]) -> None:
        sizes = {name: _local_path(item, name).stat().st_size for name in item.sha256}
        index = {name: [size, item.sha256[name]] for name, size in sorted(sizes.items())}
        text = json.dumps(index, sort_keys=True).encode()
        key = self._data_key(item)
        if get_bytes(self.client, key, len(text)) == text:
            return
        whole, sent = sum(sizes.values()), 0
        for name, sha256 in item.sha256.items():
            path, tell = _local_path(item, name), shifted(progress, sent, whole)
            put_file(self.client, path, self._data_key(item, name), sha256, tell)
            sent += sizes[name]
        put_bytes(self.client, key, text)
        self.sweep()

    def sweep(self) -> int:
        """Abort multipart uploads that were begun more than a day ago, below our own prefix
        alone; how many there were. Where a store does not list them, one that fails ends its own
        at once."""
        old = []
        for upload in unfinished(self.client, self._place.key("data") + "/") or ():
            began: datetime = upload["Initiated"]
            if self._now() - began.timestamp() > ABANDONED_AFTER_S:
                old.append((upload["Key"], upload["UploadId"]))
        with translate_errors(self._place, "end uploads"):
            for key, upload_id in old:
                self.client.s3.abort_multipart_upload(
                    Bucket=self._place.bucket, Key=key, UploadId=upload_id
                )
        return len(old)

    def _data_key(self, item: StageItem, name: str = "") -> str:
        """The key of a file of data: its name, or, where a store may refuse or change that, its
        hash. Without ``name``, that of the folder's index."""
        if name and (name == DATA_INDEX_NAME or not _PLAIN_NAME.fullmatch(name)):
            name = f"named-{hashlib.sha256(name.encode()).hexdigest()}"
        return self._place.key("data", item.remote.rpartition("/")[2], name or DATA_INDEX_NAME)

    # -- keys -----------------------------------------------------------------------------------

    def _keys(self, prefix: str, client: Client | None = None) -> Iterator[tuple[str, int]]:
        """(key, size) of every object below ``prefix``; one page's token twice ends it.

        Raises:
            ProviderError: it does not end.
        """
        s3 = (client or self.client).s3
        before, token = None, None
        for _ in range(_MOST_PAGES):
            more: dict[str, Any] = {"ContinuationToken": token} if token else {}
            with translate_errors(self._place, "list"):
                page = s3.list_objects_v2(Bucket=self._place.bucket, Prefix=prefix, **more)
                found = [(str(row["Key"]), int(row["Size"])) for row in page.get("Contents", ())]
            yield from found
            before, token = token, page.get("NextContinuationToken")
            if not token or token == before:
                return
        raise ProviderError("the store's list does not end", where=str(self._place))

    def drop(self, keys: Sequence[str]) -> None:
        s3, bucket = self.client.s3, self._place.bucket
        if self.client.plain or len(keys) < 2:
            self._delete_singly(keys)
            return
        for at in range(0, len(keys), _MOST_AT_ONCE):
            some = keys[at : at + _MOST_AT_ONCE]
            objects = {"Objects": [{"Key": key} for key in some], "Quiet": True}
            try:
                with translate_errors(self._place, "delete"):
                    refused = s3.delete_objects(Bucket=bucket, Delete=objects).get("Errors", ())
            except ProviderError:
                self._delete_singly(some)  # a store without batches refuses them in its own words
                continue
            self._delete_singly([error["Key"] for error in refused])

    def _delete_singly(self, keys: Sequence[str]) -> None:
        for key in keys:
            with translate_errors(self._place, "delete"):
                self.client.s3.delete_object(Bucket=self._place.bucket, Key=key)


def _pieces(at: str, file: CheckpointFile) -> tuple[Piece, ...]:
    """Return the objects of a checkpoint's file, by their keys."""
    try:
        pieces = pieces_of(file.name, file.size_bytes)
    except ValueError as error:
        raise CheckpointError(str(error), where=at) from None
    return tuple(replace(piece, name=f"{at}/{piece.name}") for piece in pieces)


def _read(text: bytes, run_id: str, label: str, names: Mapping[str, int]) -> CheckpointManifest:
    """
    Raises:
        CheckpointError: it is no manifest, another run's, or not all that it names is there.
    """
    made = mf.from_json(text, label)
    if (made.run_id, made.phase) != (run_id, label.partition("/")[0]):
        raise CheckpointError("the manifest belongs to another checkpoint", where=label)
    for file in made.files:
        for piece in _pieces("", file):
            name = piece.name.removeprefix("/")
            if names.get(name) != piece.end - piece.start:
                raise CheckpointError(f"{name} is missing or incomplete", where=label)
    return made


def _local_path(item: StageItem, name: str) -> Path:
    return item.local / name if item.local.is_dir() else item.local
