"""Bytes to a bucket: parts side by side, each resumable, SHA-256 end to end."""

from __future__ import annotations

import contextlib
import hashlib
import os
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trmcloud.adapters.s3.client import (
    BLOCK,
    LANES,
    Client,
    code_of,
    is_final_error,
    is_missing,
    is_unsupported,
    translate_errors,
)
from trmcloud.core.contract.bucket_layout import Piece
from trmcloud.core.errors import CheckpointError, DataError, ProviderRefused, TrmcloudError
from trmcloud.io.hashing import file_sha256
from trmcloud.io.transfer import DamagedFile, Lane, MovingFile, Part, Progress, Transfer, Way

PART_BYTES = 64 << 20
"""As much of a file is read into memory to be sent; more is read block by block."""
UP_PART_BYTES = 8 << 20
"""Of a multipart upload: small ones are less to send again, and stores keep them in memory."""
UP_LANES = 10
_MOST_PARTS = 10_000
_IS_THERE = ("PreconditionFailed", "412", "ConditionalRequestConflict")
"""The error codes of a store where an object must not be overwritten."""
_LARGEST_PUT_BYTES = 5 * 10**9
"""By S3's own limit for one request, 5 GB."""


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


def _body(handle: int, start: int, end: int) -> tuple[bytes | Slice, bytes]:
    """Bytes of a file as boto3 takes them, and their MD5: in memory where they are no more than a
    part, so that they are read once and sent in one go."""
    if end - start <= PART_BYTES:
        data = os.pread(handle, end - start, start)
        return data, hashlib.md5(data).digest()
    digest = hashlib.md5()
    for at in range(start, end, BLOCK):
        digest.update(os.pread(handle, min(BLOCK, end - at), at))
    return Slice(handle, start, end), digest.digest()


def _put(client: Client, key: str, body: bytes | Slice, md5: bytes, **more: Any) -> None:
    with translate_errors(client.place, "write"):
        client.s3.put_object(
            Bucket=client.place.bucket,
            Key=key,
            Body=body,
            ContentLength=len(body),
            ContentMD5=b64encode(md5).decode("ascii"),
            **more,
        )


def _send(
    file: MovingFile,
    put: Callable[[Part, bytes | Slice, bytes], None],
    lanes: int,
    progress: Progress,
) -> None:
    """Send the parts of a file side by side, each with its MD5."""

    def serve(lane: Lane) -> None:
        for part in lane:
            put(part, *_body(file.handle, part.start, part.end))
            lane.moved(part.end)

    Transfer([file], Way(serve, lanes)).run(progress)


def put_pieces(
    client: Client, path: Path, pieces: Sequence[Piece], sha256: str, progress: Progress
) -> None:
    """Store a file as the objects that it is cut into.

    Raises:
        CheckpointError: it is not what ``sha256`` says. DataError: it cannot be read.
    """
    keys = {piece.start: piece.name for piece in pieces}
    spans = [(piece.start, piece.end) for piece in pieces]

    def put(part: Part, body: bytes | Slice, md5: bytes) -> None:
        _put(client, keys[part.start], body, md5)

    wrong = CheckpointError(f"{path.name} does not match its manifest", where=str(path.parent))
    with _opened(path, wrong) as handle:
        _send(MovingFile(path.name, handle, spans[-1][1], sha256, spans), put, LANES, progress)


def put_file(client: Client, path: Path, key: str, sha256: str, progress: Progress) -> None:
    """Store a file of any size as one object; a multipart upload that was cut is continued.

    Raises:
        DataError: it is not what ``sha256`` says, or cannot be read.
    """
    size = path.stat().st_size
    if not _is_there(client, key, size, sha256):
        wrong = DataError("it changed during the upload", where=str(path), next_step="launch again")
        with _opened(path, wrong) as handle:
            begun = _begun(client, key, sha256) if size > UP_PART_BYTES else None
            if begun is None:
                _put_whole(client, handle, size, key, sha256, path)
            else:
                _put_parts(client, handle, size, key, sha256, progress, path, begun)
    progress(size, size)


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
    with translate_errors(client.place, "write"):
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
            if once and code_of(error) in _IS_THERE:
                return False
            if not (conditional and is_unsupported(error)):
                raise
            # A store without conditional writes: the caller has looked that there is none.
            return put_bytes(client, key, data, metadata)
    return True


def supports_conditions(client: Client, key: str) -> bool:
    """Whether the store refuses to write over ``key`` where it is asked to; ``key`` is stored."""
    from botocore.exceptions import ClientError

    if client.plain:
        return False
    for _ in range(2):
        with translate_errors(client.place, "write"):
            try:
                client.s3.put_object(
                    Bucket=client.place.bucket, Key=key, Body=b"{}", IfNoneMatch="*"
                )
            except ClientError as error:
                if code_of(error) in _IS_THERE:
                    return True
                if is_unsupported(error):
                    return False
                raise
    return False


def _put_parts(
    client: Client,
    handle: int,
    size: int,
    key: str,
    sha256: str,
    progress: Progress,
    path: Path,
    begun: _BegunUpload,
) -> None:
    each = max(UP_PART_BYTES, -(-size // _MOST_PARTS))
    spans = [(at, min(size, at + each)) for at in range(0, size, each)]
    named = {"Bucket": client.place.bucket, "Key": key, "UploadId": begun.upload_id}
    tags: dict[int, str] = {}

    def put(part: Part, body: bytes | Slice, md5: bytes) -> None:
        number = part.start // each + 1
        tags[number] = f'"{md5.hex()}"'
        if begun.parts.get(number) != (len(body), md5.hex()):
            with translate_errors(client.place, "write"):
                answer = client.s3.upload_part(
                    **named,
                    PartNumber=number,
                    Body=body,
                    ContentLength=len(body),
                    ContentMD5=b64encode(md5).decode("ascii"),
                )
            tags[number] = answer["ETag"]

    try:
        _send(MovingFile(path.name, handle, size, sha256, spans), put, UP_LANES, progress)
        parts = [{"PartNumber": number, "ETag": tags[number]} for number in sorted(tags)]
        with translate_errors(client.place, "write"):
            client.s3.complete_multipart_upload(**named, MultipartUpload={"Parts": parts})
    except BaseException as error:
        # Where it cannot be found again to be continued, its parts would cost rent for nothing.
        if isinstance(error, DamagedFile) or not begun.is_listed:
            with contextlib.suppress(TrmcloudError), translate_errors(client.place):
                client.s3.abort_multipart_upload(**named)
        raise


def _put_whole(client: Client, handle: int, size: int, key: str, sha256: str, path: Path) -> None:
    """In one request: a small file, or any to a store that knows no uploads in parts."""
    if size > _LARGEST_PUT_BYTES:
        raise ProviderRefused(
            "the store does not accept uploads in parts, and without them at most 5 GB: "
            f"{path.name} has {size / 1e9:.1f} GB",
            where=str(client.place),
            next_step="use another store, or leave out --bucket",
        )
    body, md5 = _body(handle, 0, size)
    found = hashlib.sha256(body).hexdigest() if isinstance(body, bytes) else file_sha256(path)
    if found != sha256:
        raise DamagedFile(path.name)
    _put(client, key, body, md5, Metadata={"sha256": sha256})


class _BegunUpload(NamedTuple):
    """A multipart upload. ``parts``: size and MD5 of those that it has, by number; ``is_listed``:
    it can be found again."""

    upload_id: str
    parts: Mapping[int, tuple[int, str]]
    is_listed: bool


def _begun(client: Client, key: str, sha256: str) -> _BegunUpload | None:
    """Return an upload of this key that was cut, or a new one; None where the store knows no
    uploads in parts.

    The key names the content, so an upload that another process began gets the very same bytes.
    """
    from botocore.exceptions import ClientError

    named = {"Bucket": client.place.bucket, "Key": key}
    found = unfinished(client, key)
    mine = [upload for upload in found or () if upload["Key"] == key]
    if mine:
        upload_id = str(max(mine, key=lambda one: one["Initiated"])["UploadId"])
        pages = client.s3.get_paginator("list_parts").paginate(**named, UploadId=upload_id)
        parts = _listed(client, pages, "Parts")
        if parts is not None:
            there = {p["PartNumber"]: (p["Size"], p["ETag"].strip('"')) for p in parts}
            return _BegunUpload(upload_id, there, True)
    with translate_errors(client.place, "write"):
        try:
            made = client.s3.create_multipart_upload(**named, Metadata={"sha256": sha256})
        except ClientError as error:
            if is_unsupported(error):
                return None
            raise
    return _BegunUpload(str(made["UploadId"]), {}, found is not None and not mine)


def unfinished(client: Client, prefix: str) -> list[Any] | None:
    """Multipart uploads below ``prefix`` that were begun and not ended; None where the store does
    not list them, or not to this key."""
    pages = client.s3.get_paginator("list_multipart_uploads").paginate(
        Bucket=client.place.bucket, Prefix=prefix
    )
    return _listed(client, pages, "Uploads")


def _listed(client: Client, pages: Any, kind: str) -> list[Any] | None:
    from botocore.exceptions import ClientError
    from botocore.parsers import ResponseParserError

    with translate_errors(client.place, "list uploads"):
        try:
            return [each for page in pages for each in page.get(kind, ())]
        except ResponseParserError:
            return None
        except ClientError as error:
            # Whatever else it is, what must not fail comes next: the upload itself.
            if is_final_error(error):
                raise
            return None


def _is_there(client: Client, key: str, size: int, sha256: str) -> bool:
    from botocore.exceptions import ClientError

    with translate_errors(client.place, "read"):
        try:
            about = client.s3.head_object(Bucket=client.place.bucket, Key=key)
        except ClientError as error:
            if is_missing(error):
                return False
            raise
    return (about["ContentLength"], about.get("Metadata", {}).get("sha256")) == (size, sha256)


@contextlib.contextmanager
def _opened(path: Path, wrong: TrmcloudError) -> Iterator[int]:
    """
    Raises:
        DataError: the file cannot be read. ``wrong``: it does not match its hash.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            yield file.fileno()
    except DamagedFile:
        raise wrong from None
    except OSError as error:
        raise DataError(f"it cannot be read: {error.strerror}", where=str(path)) from None
