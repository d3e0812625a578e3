"""Bytes from a bucket: ranges side by side, each resumable, every hash checked before a name."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from trmcloud.adapters.s3.client import (
    BLOCK,
    LANES,
    PART_BYTES,
    Client,
    Source,
    TransferMeter,
    code_of,
    is_missing,
    run_in_parallel,
    translate_errors,
)
from trmcloud.core.errors import CheckpointError, DoesNotFit
from trmcloud.io.files import read_small, write_atomic

RANGE_BYTES = 16 << 20
"""Of one request: several side by side fill a line that one stream does not, and what came is
hashed while others come (329 MB/s in one stream of rclone's store on loopback, 586 so)."""
_TRIES = 5
_FIRST_PAUSE_S = 0.5


def get_bytes(client: Client, key: str, most: int) -> bytes | None:
    """A small object; None where there is none, or it is larger than ``most``."""
    from botocore.exceptions import ClientError

    with translate_errors(client.place, "read"):
        try:
            answer = client.s3.get_object(Bucket=client.place.bucket, Key=key)
        except ClientError as error:
            if is_missing(error):
                return None
            raise
        if int(answer.get("ContentLength", 0)) > most:
            return None
        return bytes(answer["Body"].read(most + 1))


class _PresentRanges:
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
    meter: TransferMeter,
) -> None:
    """Bring a file to ``target``; its name appears once its hash is right.

    Interrupted, it continues range by range where it stopped.

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
    have = _PresentRanges(note, f"{sha256}/{size}")
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
                for at in range(one.start, one.end, BLOCK):
                    digest.update(os.pread(handle, min(BLOCK, one.end - at), at))

            try:
                run_in_parallel(ranges, bring, check, LANES)
            finally:
                stop.set()
            os.fsync(handle)
        finally:
            os.close(handle)
        if digest.hexdigest() != sha256:
            part.unlink(missing_ok=True)
            note.unlink(missing_ok=True)
            raise CheckpointError(
                f"{target.name} is damaged: its hash differs from the manifest",
                where=f"{client.place}",
                next_step="fetch an earlier one: trmcloud fetch-best RUN --step N",
            )
        os.replace(part, target)
        note.unlink(missing_ok=True)
    except OSError as error:
        raise _disk(error, target) from None


def _bring_range(
    client: Client,
    one: Source,
    handle: int,
    meter: TransferMeter,
    stop: threading.Event,
    have: _PresentRanges,
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
                    f"{_short(one.key)} does not have the length in its manifest",
                    where=str(client.place),
                )
            body = answer["Body"]
            while at < one.end and not stop.is_set():
                block = body.read(min(BLOCK, one.end - at))
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
                    f"{_short(one.key)} is missing or incomplete in the bucket",
                    where=str(client.place),
                ) from None
            with translate_errors(client.place, "read"):
                raise
        except (BotoCoreError, OSError) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            if attempt == _TRIES - 1:
                with translate_errors(client.place, "read"):
                    raise
        if at < one.end:
            time.sleep(_FIRST_PAUSE_S * 2**attempt)
    if at < one.end:
        raise CheckpointError(f"the download of {_short(one.key)} was interrupted too many times")


def _disk(error: OSError, target: Path) -> Exception:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DoesNotFit("the disk is full", where=str(target.parent))
    return CheckpointError(f"{target.name} cannot be saved here: {error.strerror}")


def _short(key: str) -> str:
    return "/".join(key.split("/")[-3:])[:200]
