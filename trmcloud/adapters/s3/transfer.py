"""Bytes to and from a bucket: large parts side by side, each resumable, SHA-256 end to end."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from trmcloud.adapters.s3.client import Client, code_of, is_missing, told
from trmcloud.core.errors import CheckpointError, DataError, DoesNotFit
from trmcloud.pod.files import read_small, write_atomic

PART_BYTES = 64 << 20
LANES = 4
RANGE_BYTES = 512 << 20
"""Of a download: each request costs a store more than its bytes do. What came is noted down every
``PART_BYTES``, so that no more than that is asked for again."""
UP_PART_BYTES = 16 << 20
"""Of a multipart upload: small ones are less to send again, and stores keep them in memory."""
UP_LANES = 8
_MOST_PARTS = 10_000
_TRIES = 5
_FIRST_PAUSE_S = 0.5
_BLOCK = 1 << 20

_Job = TypeVar("_Job")


@dataclass(frozen=True)
class Source:
    """Bytes ``start`` to ``end`` of a file are those of the object ``key`` from ``offset`` on."""

    key: str
    start: int
    end: int
    offset: int = 0


class Meter:
    """Bytes moved by several threads, told to one ``progress``, which may raise to end it all."""

    def __init__(self, progress: Callable[[int, int], None], whole: int) -> None:
        self._progress, self._whole = progress, whole
        self._done, self._lock = 0, threading.Lock()

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            self._progress(self._done, self._whole)


def side_by_side(
    jobs: Sequence[_Job],
    work: Callable[[_Job], None],
    then: Callable[[_Job], None],
    lanes: int,
) -> None:
    """``work`` on several jobs at a time, ``then`` on each in their order, once it is done.

    What fails first ends the others and is raised.
    """
    with ThreadPoolExecutor(lanes) as pool:
        futures: list[Future[None]] = [pool.submit(work, job) for job in jobs]
        try:
            for job, future in zip(jobs, futures, strict=True):
                future.result()
                then(job)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


# -- down -------------------------------------------------------------------------------------
class _Have:
    """Which ranges of a file are here already, by a note beside it."""

    def __init__(self, path: Path, mark: str) -> None:
        self._path, self._mark = path, mark
        self._lock = threading.Lock()
        self._upto: dict[int, int] = {}
        with contextlib.suppress(ValueError, KeyError, TypeError, OSError):
            data = json.loads(read_small(path) or "null")
            if data["mark"] == mark:
                self._upto = {int(start): int(at) for start, at in data["upto"].items()}

    def upto(self, one: Source) -> int:
        """Up to where the range is here."""
        return max(one.start, min(one.end, self._upto.get(one.start, one.start)))

    def add(self, start: int, at: int) -> None:
        with self._lock:
            self._upto[start] = at
            note = {"mark": self._mark, "upto": self._upto}
            write_atomic(self._path, json.dumps(note), durable=False)


def fetch_file(
    client: Client,
    sources: Sequence[Source],
    target: Path,
    sha256: str,
    meter: Meter,
) -> None:
    """Bring a file to ``target``; its name appears once its hash is right.

    Interrupted, it goes on range by range where it stopped.

    Raises:
        CheckpointError: an object is missing, cut short, or not what the hash says.
        DoesNotFit: too little room here.
    """
    size = sources[-1].end
    part, note = target.with_name(f".{target.name}.part"), target.with_name(f".{target.name}.have")
    fresh = not part.is_file() or part.is_symlink() or part.stat().st_size != size
    if fresh:
        for path in (part, note):
            path.unlink(missing_ok=True)
    ranges = [
        Source(source.key, at, min(source.end, at + RANGE_BYTES), at - source.start)
        for source in sources
        for at in range(source.start, max(source.end, source.start + 1), RANGE_BYTES)
    ]
    have = _Have(note, f"{sha256}/{size}")
    digest = hashlib.sha256()
    stop = threading.Event()
    try:
        handle = os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(handle, size)

            def bring(one: Source) -> None:
                meter.add(have.upto(one) - one.start)
                _bring_range(client, one, handle, meter, stop, have)

            def check(one: Source) -> None:
                for at in range(one.start, one.end, _BLOCK):
                    digest.update(os.pread(handle, min(_BLOCK, one.end - at), at))

            try:
                side_by_side(ranges, bring, check, LANES)
            finally:
                stop.set()
            os.fsync(handle)
        finally:
            os.close(handle)
        if digest.hexdigest() != sha256:
            part.unlink(missing_ok=True)
            note.unlink(missing_ok=True)
            raise CheckpointError(
                f"{target.name} is damaged: it is not what its manifest's hash says",
                where=f"{client.place}",
                next_step="fetch an earlier one: trmcloud fetch-best RUN --step N",
            )
        os.replace(part, target)
        note.unlink(missing_ok=True)
    except OSError as error:
        raise _disk(error, target) from None


def _bring_range(
    client: Client, one: Source, handle: int, meter: Meter, stop: threading.Event, have: _Have
) -> None:
    from botocore.exceptions import BotoCoreError, ClientError

    at = noted = have.upto(one)
    for attempt in range(_TRIES):
        if at >= one.end:
            return
        try:
            shift = one.offset - one.start
            span = f"bytes={at + shift}-{one.end + shift - 1}"
            answer = client.s3.get_object(Bucket=client.place.bucket, Key=one.key, Range=span)
            if int(answer.get("ContentLength", -1)) != one.end - at:
                raise CheckpointError(
                    f"{_short(one.key)} is not as long as its manifest says",
                    where=str(client.place),
                )
            body = answer["Body"]
            while at < one.end and not stop.is_set():
                block = body.read(min(_BLOCK, one.end - at))
                if not block:
                    break
                os.pwrite(handle, block, at)
                at += len(block)
                if at - noted >= PART_BYTES or at == one.end:
                    have.add(one.start, at)
                    noted = at
                meter.add(len(block))
            if stop.is_set():
                return
        except ClientError as error:
            if is_missing(error) or code_of(error) in ("InvalidRange", "416"):
                raise CheckpointError(
                    f"{_short(one.key)} is missing or cut short in the bucket",
                    where=str(client.place),
                ) from None
            with told(client.place, "read"):
                raise
        except (BotoCoreError, OSError) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            if attempt == _TRIES - 1:
                with told(client.place, "read"):
                    raise
        if at < one.end:
            time.sleep(_FIRST_PAUSE_S * 2**attempt)
    if at < one.end:
        raise CheckpointError(f"{_short(one.key)} was cut off again and again")


def _disk(error: OSError, target: Path) -> Exception:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DoesNotFit("the disk is full", where=str(target.parent))
    return CheckpointError(f"{target.name} cannot be kept here: {error.strerror}")


# -- up ---------------------------------------------------------------------------------------
class Slice:
    """A part of a file as boto3 wants a body: ``read``, ``seek``, ``tell``."""

    def __init__(self, handle: int, start: int, end: int) -> None:
        self._handle, self._start, self._size, self._at = handle, start, end - start, 0

    def read(self, count: int = -1) -> bytes:
        left = self._size - self._at
        wanted = left if count is None or count < 0 else min(count, left)
        block = os.pread(self._handle, wanted, self._start + self._at) if wanted else b""
        self._at += len(block)
        return block

    def seek(self, offset: int, whence: int = 0) -> int:
        base = {0: 0, 1: self._at, 2: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def __len__(self) -> int:
        return self._size


def _body(handle: int, one: Source) -> bytes | Slice:
    """In memory where it is no larger than a part, so that it is sent in one go."""
    if one.end - one.start > PART_BYTES:
        return Slice(handle, one.start, one.end)
    return os.pread(handle, one.end - one.start, one.start)


class Sums:
    """A file's MD5 part by part and its SHA-256, in one reading as it is sent."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def md5(self, start: int, end: int) -> bytes:
        digest = hashlib.md5()
        for at in range(start, end, _BLOCK):
            digest.update(os.pread(self._handle, min(_BLOCK, end - at), at))
        return digest.digest()


def put_pieces(
    client: Client, path: Path, sources: Sequence[Source], sha256: str, meter: Meter
) -> None:
    """Store a file as the objects it is cut into.

    Raises:
        CheckpointError: it is not what ``sha256`` says.
    """
    with _opened(path) as handle:
        whole = hashlib.sha256()
        sums = Sums(handle)

        def send(one: Source) -> None:
            md5 = b64encode(sums.md5(one.start, one.end)).decode("ascii")
            with told(client.place, "write"):
                client.s3.put_object(
                    Bucket=client.place.bucket,
                    Key=one.key,
                    Body=_body(handle, one),
                    ContentLength=one.end - one.start,
                    ContentMD5=md5,
                )
            meter.add(one.end - one.start)

        def check(one: Source) -> None:
            for at in range(one.start, one.end, _BLOCK):
                whole.update(os.pread(handle, min(_BLOCK, one.end - at), at))

        side_by_side(sources, send, check, LANES)
    if whole.hexdigest() != sha256:
        raise CheckpointError(f"{path.name} is not what its manifest says", where=str(path.parent))


def put_file(client: Client, path: Path, key: str, sha256: str, meter: Meter) -> None:
    """Store a file of any size as one object; a multipart upload that was cut goes on.

    Raises:
        DataError: it is not what ``sha256`` says, or cannot be read.
    """
    size = path.stat().st_size
    if _is_there(client, key, size, sha256):
        meter.add(size)
        return
    with _opened(path) as handle:
        if size <= UP_PART_BYTES:
            data = os.pread(handle, size, 0)
            if hashlib.sha256(data).hexdigest() != sha256:
                raise _changed(path)
            put_bytes(client, key, data, {"sha256": sha256})
            meter.add(size)
            return
        _put_parts(client, handle, size, key, sha256, meter, path)


def put_bytes(
    client: Client,
    key: str,
    data: bytes,
    metadata: dict[str, str] | None = None,
    *,
    once: bool = False,
) -> bool:
    """Store a small object; with ``once``, whether there was none yet: it is never replaced."""
    from botocore.exceptions import ClientError

    conditional = {"IfNoneMatch": "*"} if once and not client.plain else {}
    with told(client.place, "write"):
        try:
            client.s3.put_object(
                Bucket=client.place.bucket,
                Key=key,
                Body=data,
                ContentMD5=b64encode(hashlib.md5(data).digest()).decode("ascii"),
                Metadata=metadata or {},
                **conditional,
            )
        except ClientError as error:
            if once and code_of(error) in (
                "PreconditionFailed",
                "412",
                "ConditionalRequestConflict",
            ):
                return False
            raise
    return True


def get_bytes(client: Client, key: str, most: int) -> bytes | None:
    """A small object; None where there is none, or it is larger than ``most``."""
    from botocore.exceptions import ClientError

    with told(client.place, "read"):
        try:
            answer = client.s3.get_object(Bucket=client.place.bucket, Key=key)
        except ClientError as error:
            if is_missing(error):
                return None
            raise
        if int(answer.get("ContentLength", 0)) > most:
            return None
        return bytes(answer["Body"].read(most + 1))


def _put_parts(
    client: Client, handle: int, size: int, key: str, sha256: str, meter: Meter, path: Path
) -> None:
    each = max(UP_PART_BYTES, -(-size // _MOST_PARTS))
    spans = [Source(key, at, min(size, at + each)) for at in range(0, size, each)]
    upload, there = _begun(client, key, sha256)
    tags: dict[int, str] = {}
    whole, sums = hashlib.sha256(), Sums(handle)

    def send(one: Source) -> None:
        number = one.start // each + 1
        md5 = sums.md5(one.start, one.end)
        if there.get(number) != (one.end - one.start, md5.hex()):
            with told(client.place, "write"):
                answer = client.s3.upload_part(
                    Bucket=client.place.bucket,
                    Key=key,
                    UploadId=upload,
                    PartNumber=number,
                    Body=_body(handle, one),
                    ContentLength=one.end - one.start,
                    ContentMD5=b64encode(md5).decode("ascii"),
                )
            tags[number] = answer["ETag"]
        else:
            tags[number] = f'"{md5.hex()}"'
        meter.add(one.end - one.start)

    def check(one: Source) -> None:
        for at in range(one.start, one.end, _BLOCK):
            whole.update(os.pread(handle, min(_BLOCK, one.end - at), at))

    side_by_side(spans, send, check, UP_LANES)
    if whole.hexdigest() != sha256:
        with told(client.place):
            client.s3.abort_multipart_upload(Bucket=client.place.bucket, Key=key, UploadId=upload)
        raise _changed(path)
    parts = [{"PartNumber": number, "ETag": tags[number]} for number in sorted(tags)]
    with told(client.place, "write"):
        client.s3.complete_multipart_upload(
            Bucket=client.place.bucket,
            Key=key,
            UploadId=upload,
            MultipartUpload={"Parts": parts},
        )


def _begun(client: Client, key: str, sha256: str) -> tuple[str, dict[int, tuple[int, str]]]:
    """(id of an upload of this key, size and MD5 of the parts that it has): one that was cut, or
    a new one. Whoever goes on with another's adds the very same bytes: the key names them."""
    bucket = client.place.bucket
    with told(client.place, "write"):
        found = client.s3.list_multipart_uploads(Bucket=bucket, Prefix=key).get("Uploads", ())
        mine = [upload for upload in found if upload["Key"] == key]
        if not mine:
            made = client.s3.create_multipart_upload(
                Bucket=bucket, Key=key, Metadata={"sha256": sha256}
            )
            return str(made["UploadId"]), {}
        upload = max(mine, key=lambda one: one["Initiated"])["UploadId"]
        there: dict[int, tuple[int, str]] = {}
        pages = client.s3.get_paginator("list_parts").paginate(
            Bucket=bucket, Key=key, UploadId=upload
        )
        for page in pages:
            for part in page.get("Parts", ()):
                there[part["PartNumber"]] = (part["Size"], part["ETag"].strip('"'))
        return str(upload), there


def _is_there(client: Client, key: str, size: int, sha256: str) -> bool:
    from botocore.exceptions import ClientError

    with told(client.place, "read"):
        try:
            about = client.s3.head_object(Bucket=client.place.bucket, Key=key)
        except ClientError as error:
            if is_missing(error):
                return False
            raise
    return (about["ContentLength"], about.get("Metadata", {}).get("sha256")) == (size, sha256)


@contextlib.contextmanager
def _opened(path: Path) -> Any:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise DataError(f"it cannot be read: {error.strerror}", where=str(path)) from None
    try:
        yield handle
    finally:
        os.close(handle)


def _changed(path: Path) -> DataError:
    return DataError("it changed while it was sent", where=str(path), next_step="launch again")


def _short(key: str) -> str:
    return "/".join(key.split("/")[-3:])[:200]
