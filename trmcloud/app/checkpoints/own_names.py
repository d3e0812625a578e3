"""A command's checkpoint under the names that its script knows, beside the verified copy."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from trmcloud.core.contract.command_terms import OWN_DIR
from trmcloud.core.contract.manifest import CheckpointManifest
from trmcloud.core.errors import CheckpointError, ConflictError
from trmcloud.pod.job.shelf import OPENS, restore


def under_own_names(manifest: CheckpointManifest, folder: Path) -> tuple[Path, str]:
    """(the file or folder as the script had it, what opening it may do: see ``TreeFile``). Every
    hash is checked again; what an earlier call has made is made anew.

    Raises:
        CheckpointError: a file is not what its manifest says, or a name is none.
        ConflictError: it cannot be written.
    """
    final, making = folder / OWN_DIR, folder / f".{OWN_DIR}.{os.getpid()}"
    try:
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir()
        made = restore(folder, manifest, making)
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
    return final / made.relative_to(making), str(manifest.extra.get(OPENS, "unknown"))
