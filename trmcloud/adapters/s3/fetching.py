"""Bytes from a bucket: ranges side by side, each resumable, every hash checked before a name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from trmcloud.adapters.s3.client import (
    BLOCK,
    LANES,
    Client,
    code_of,
    explain,
    is_missing,
    translate_errors,
)
from trmcloud.core.contract.bucket_layout import Piece
from trmcloud.core.contract.manifest import CheckpointFile
from trmcloud.core.errors import CheckpointError, ProviderError
from trmcloud.io.transfer import Lane, Progress, Way
from trmcloud.operations.checkpoints.receiving import receive_files

RANGE_BYTES = 16 << 20
"""Of one request: several side by side fill a line that one stream does not, and what came is
hashed while others come (329 MB/s in one stream of rclone's store on loopback, 586 so)."""


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


def fetch_files(
    client: Client,
    files: Sequence[CheckpointFile],
    pieces: Mapping[str, Sequence[Piece]],
    target: Path,
    progress: Progress,
) -> None:
    """Bring ``files`` into the folder ``target``: see ``receive_files``. ``pieces`` are the
    objects of each.

    Raises:
        CheckpointError: an object is missing, cut short, or not what the hash says.
        DoesNotFit: too little room here.
    """

    def serve(lane: Lane) -> None:
        for part in lane:
            while part.start < part.end:
                piece = next(each for each in pieces[part.file.name] if each.end > part.start)
                for block in _read(client, piece, part.start, min(part.end, piece.end)):
                    lane.write(block)

    way = Way(serve, LANES, RANGE_BYTES, lambda error: type(error) is ProviderError)
    receive_files(target, files, way, progress, str(client.place))


def _read(client: Client, piece: Piece, start: int, end: int) -> Iterator[bytes]:
    """Bytes ``start`` to ``end`` of the file that ``piece`` is a part of, in blocks."""
    from botocore.exceptions import ClientError

    short = "/".join(piece.name.split("/")[-3:])[:200]
    span = f"bytes={start - piece.start}-{end - piece.start - 1}"
    with translate_errors(client.place, "read"):
        try:
            answer = client.s3.get_object(Bucket=client.place.bucket, Key=piece.name, Range=span)
        except ClientError as error:
            if is_missing(error) or code_of(error) in ("InvalidRange", "416"):
                raise CheckpointError(
                    f"{short} is missing or incomplete in the bucket", where=str(client.place)
                ) from None
            raise
        if int(answer.get("ContentLength", -1)) != end - start:
            raise CheckpointError(
                f"{short} does not have the length in its manifest", where=str(client.place)
            )
        while start < end:
            try:
                block = answer["Body"].read(min(BLOCK, end - start))
            except OSError as error:
                raise explain(error, client.place) from None
            if not block:
                raise ProviderError(f"the download of {short} was interrupted")
            start += len(block)
            yield block
