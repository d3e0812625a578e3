"""A command's checkpoint under the names that its script knows, beside the verified copy."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from trmcloud.app.checkpoints.opening import Opening, opening_of
from trmcloud.core.contract.command_terms import OWN_DIR
from trmcloud.core.contract.manifest import CheckpointManifest
from trmcloud.core.errors import CheckpointError, ConflictError
from trmcloud.core.values import dataclass
from trmcloud.pod.job.shelf import on_disk, restore, tree_of


@dataclass(frozen=True)
class OwnNames:
    """``path``: the file or folder as the script had it; ``files``: its files' names, each with the
    effect of opening it, by the bytes that are here."""

    path: Path
    files: tuple[tuple[str, Opening], ...]


def under_own_names(manifest: CheckpointManifest, folder: Path) -> OwnNames:
    """Every hash is checked again; what an earlier call has made is made anew. Control characters
    of a name are written as ``on_disk`` does.

    Raises:
        CheckpointError: a file is not what its manifest says, or a name is none.
        ConflictError: it cannot be written.
    """
    final, making = folder / OWN_DIR, folder / f".{OWN_DIR}.{os.getpid()}"
    try:
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir()
        made = restore(folder, manifest, making)
        found = tuple(_openings(folder, made))
        if final.is_symlink():
            raise CheckpointError("a link stands where its files should go", where=str(final))
        shutil.rmtree(final, ignore_errors=True)
        os.rename(making, final)
    except OSError as error:
        raise ConflictError(
            f"its files cannot be written: {error.strerror}", where=str(folder)
        ) from None
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return OwnNames(final / made.relative_to(making), found)


def _openings(folder: Path, made: Path) -> list[tuple[str, Opening]]:
    names = [on_disk(file.path) for file in tree_of(folder).files]
    return [(name, opening_of(made if made.is_file() else made / name, name)) for name in names]
