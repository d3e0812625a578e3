"""A checkpoint that came in shards becomes one of single files, read and written piece by piece.

Nothing of it is ever whole in memory, and the shards stay until everything else is in place.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract import shards
from trmcloud.core.contract.manifest import (
    CheckpointFile,
    CheckpointManifest,
    parse_shard_name,
    whole_name,
)
from trmcloud.core.errors import CheckpointError
from trmcloud.core.values import replace

_CHUNK_BYTES = 4 << 20
_MAKING = ".gathering-"


def gather(folder: Path, manifest: CheckpointManifest) -> CheckpointManifest:
    """Writes one file of each kind that ``folder`` has in shards, which were verified before.

    Returns:
        The manifest of what is there then; the same one where nothing was in shards.

    Raises:
        CheckpointError: the shards do not make up whole tensors.
        OSError: it could not be written; the shards are as they were.
    """
    files: list[CheckpointFile] = []
    for kind in mf.KINDS:
        of_kind = [file for file in manifest.files if file.kind == kind]
        if any(parse_shard_name(file.name) for file in of_kind):
            names = sorted(file.name for file in of_kind)
            files.append(_gathered(folder, kind, names))
        else:
            files += of_kind
    if tuple(files) == manifest.files:
        return manifest
    return replace(
        manifest, files=tuple(files), extra={**manifest.extra, mf.GATHERED: manifest.sha256}
    )


def _gathered(folder: Path, kind: str, names: list[str]) -> CheckpointFile:
    name = whole_name(kind)
    making = folder / f"{_MAKING}{name}"
    digest, size = hashlib.sha256(), 0
    with ExitStack() as stack:
        readers = [stack.enter_context(open(folder / each, "rb")) for each in names]
        try:
            with open(making, "wb") as into:
                for chunk in _chunks(readers):
                    into.write(chunk)
                    digest.update(chunk)
                    size += len(chunk)
                into.flush()
                os.fsync(into.fileno())
        except BaseException:
            making.unlink(missing_ok=True)
            raise
    os.replace(making, folder / name)
    return CheckpointFile(name, kind, size, digest.hexdigest())


def _chunks(readers: Sequence[BinaryIO]) -> Iterator[bytes]:
    headers = [
        shards.read_header(each.read, os.fstat(each.fileno()).st_size, each.name)
        for each in readers
    ]
    header, copies = shards.one_file(headers, where=os.path.dirname(readers[0].name))
    yield header
    for index, offset, length in copies:
        readers[index].seek(offset)
        while length:
            chunk = readers[index].read(min(length, _CHUNK_BYTES))
            if not chunk:
                raise CheckpointError("it ends too early", where=readers[index].name)
            yield chunk
            length -= len(chunk)
