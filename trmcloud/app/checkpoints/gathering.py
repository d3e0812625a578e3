"""A checkpoint that came in shards becomes one of single files, read and written piece by piece.

Nothing of it is ever whole in memory, and the shards stay until everything else is in place.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract import shards
from trmcloud.core.contract.manifest import CheckpointFile, CheckpointManifest
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
        if any(shards.parse_shard_name(file.name) for file in of_kind):
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
    header, copies = shards.one_file(
        [read_header(folder / name) for name in names], where=str(folder)
    )
    name = shards.whole_name(kind)
    making = folder / f"{_MAKING}{name}"
    digest = hashlib.sha256(header)
    size = len(header)
    readers = [open(folder / each, "rb") for each in names]  # noqa: SIM115
    try:
        with open(making, "wb") as into:
            into.write(header)
            for index, offset, length in copies:
                readers[index].seek(offset)
                while length:
                    chunk = readers[index].read(min(length, _CHUNK_BYTES))
                    if not chunk:
                        raise CheckpointError(f"{names[index]} ends too early", where=str(folder))
                    into.write(chunk)
                    digest.update(chunk)
                    length -= len(chunk)
                    size += len(chunk)
            into.flush()
            os.fsync(into.fileno())
    except BaseException:
        making.unlink(missing_ok=True)
        raise
    finally:
        for reader in readers:
            reader.close()
    os.replace(making, folder / name)
    return CheckpointFile(name, kind, size, digest.hexdigest())


def read_header(path: Path) -> shards.Header:
    """
    Raises:
        CheckpointError: it is not safetensors.
        OSError: it cannot be read.
    """
    size = path.stat().st_size
    with open(path, "rb") as file:
        first = file.read(8)
        length = shards.header_length(first, size, where=str(path))
        head = first + file.read(length - len(first))
    return shards.parse_header(head, size, where=str(path))
