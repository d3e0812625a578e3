"""Several machines, and a checkpoint on the disk of the first: the others are sent it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from model.checkpoint import read_manifest, verify
from model.distributed import World
from trmcloud.core.contract.manifest import MANIFEST_NAME

_CHUNK_BYTES = 1 << 26


def share(folder: Path, world: World) -> None:
    """Where a machine lacks the checkpoint that rank 0 has in ``folder``, its first rank writes it
    there, verified. A collective call.

    Raises:
        CheckpointError: what arrived is not what its manifest says.
    """
    lacks = not (folder / MANIFEST_NAME).exists()
    if not world.largest([int(lacks)])[0]:
        return
    writes = lacks and world.local_rank == 0
    names: list[str] = []
    if world.is_main:
        manifest = read_manifest(folder)
        names = [*(file.name for file in manifest.files), MANIFEST_NAME]
    names = json.loads(world.told(json.dumps(names).encode()))
    part = folder.with_name(f".part-{folder.name}")
    if writes:
        part.mkdir(parents=True, exist_ok=True)
    for name in names:
        _send(folder / name, part / name if writes else None, world)
    if writes:
        verify(part, read_manifest(part))
        # What has no manifest is no checkpoint.
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(part, folder)
    world.part()


def _send(source: Path, target: Path | None, world: World) -> None:
    """One file from rank 0 to wherever ``target`` is given, in pieces; an empty one ends it."""
    reader = open(source, "rb") if world.is_main else None  # noqa: SIM115
    writer = open(target, "wb") if target is not None else None  # noqa: SIM115
    try:
        while piece := world.told(reader.read(_CHUNK_BYTES) if reader is not None else b""):
            if writer is not None:
                writer.write(piece)
    finally:
        for file in (reader, writer):
            if file is not None:
                file.close()
