"""Bytes to a bucket: parts side by side, each resumable, SHA-256 end to end."""

from __future__ import annotations

import contextlib
import hashlib
import os
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trmcloud.adapters.s3.client import Client, code_of, is_missing, told
from trmcloud.adapters.s3.spans import BLOCK, LANES, PART_BYTES, Meter, Source, side_by_side
from trmcloud.core.errors import CheckpointError, DataError

UP_PART_BYTES = 8 << 20
"""Of a multipart upload: small ones are less to send again, and stores keep them in memory."""
UP_LANES = 10
_MOST_PARTS = 10_000


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
        for at in range(start, end, BLOCK):
            digest.update(os.pread(self._handle, min(BLOCK, end - at), at))
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
            for at in range(one.start, one.end, BLOCK):
                whole.update(os.pread(handle, min(BLOCK, one.end - at), at))

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
        for at in range(one.start, one.end, BLOCK):
            whole.update(os.pread(handle, min(BLOCK, one.end - at), at))

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
