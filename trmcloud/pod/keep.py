"""Copies of finished checkpoints in a folder that outlives the machine: a mounted bucket, a share.

Such folders need not rename: a copy counts once its manifest is there, which is written last.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from trmcloud.core import pod_contract as contract
from trmcloud.core.manifest import MANIFEST_NAME

ENV_KEEP = "TRMCLOUD_KEEP"


class Keeper:
    """Copies what ``run_dir`` holds into ``folder``, below the run's id. ``say`` is told why
    something could not be copied, once for each reason; it is tried again."""

    def __init__(self, run_dir: Path, folder: Path, say: Callable[[str], None]) -> None:
        self._run_dir = run_dir
        self._target = folder / run_dir.name
        self._say = say
        self._kept: set[Path] = set()
        self._told: set[str] = set()

    def copy_new(self) -> int:
        """How many checkpoints were copied."""
        found = self._run_dir.glob(f"*/{contract.CHECKPOINTS_DIR}/*/{MANIFEST_NAME}")
        return sum(self._copy(manifest.parent) for manifest in sorted(found))

    def _copy(self, source: Path) -> bool:
        target = self._target / source.relative_to(self._run_dir)
        if source in self._kept or (target / MANIFEST_NAME).exists():
            self._kept.add(source)
            return False
        try:
            target.mkdir(parents=True, exist_ok=True)
            for path in sorted(source.iterdir()):
                if path.name != MANIFEST_NAME and path.is_file() and not path.is_symlink():
                    shutil.copyfile(path, target / path.name)
            shutil.copyfile(source / MANIFEST_NAME, target / MANIFEST_NAME)
        except OSError as error:
            # One that was pruned meanwhile is no loss; its copy has no manifest, and so is none.
            if source.exists() and (text := error.strerror or str(error)) not in self._told:
                self._told.add(text)
                self._say(f"{source.name} cannot be kept in {self._target}: {text}")
            return False
        self._kept.add(source)
        return True
