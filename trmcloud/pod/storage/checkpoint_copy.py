"""Copies of finished checkpoints in a folder that outlives the machine: a mounted bucket, a share.

Such folders need not rename: a copy counts once its manifest is there, which is written last.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.manifest import (
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    CheckpointManifest,
    from_json,
    to_json,
    with_metric,
)
from trmcloud.core.errors import CheckpointError
from trmcloud.io.files import read_small, write_atomic

ENV_KEEP = "TRMCLOUD_KEEP"


class CheckpointCopier:
    """Copies what ``run_dir`` holds into ``folder``, below the run's id. ``say`` is told why
    something could not be copied, once for each reason; it is tried again."""

    def __init__(self, run_dir: Path, folder: Path, say: Callable[[str], None]) -> None:
        self._run_dir = run_dir
        self._target = folder / run_dir.name
        self._say = say
        self._kept: dict[Path, int] = {}
        """The copied checkpoints, and the size of each manifest then: it changes with the
        metric."""
        self._told: set[str] = set()

    def copy_new(self) -> int:
        """Copy new checkpoints and metrics, and return their number."""
        found = self._run_dir.glob(f"*/{contract.CHECKPOINTS_DIR}/*/{MANIFEST_NAME}")
        return sum(self._copy(manifest.parent) for manifest in sorted(found))

    def _copy(self, source: Path) -> bool:
        target = self._target / source.relative_to(self._run_dir)
        try:
            size = (source / MANIFEST_NAME).stat().st_size
            if self._kept.get(source) == size:
                return False
            if source in self._kept or (target / MANIFEST_NAME).exists():
                return self._copy_metric(source, target, size)
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
        self._kept[source] = size
        return True

    def _copy_metric(self, source: Path, target: Path, size: int) -> bool:
        """Of one that was copied before it was evaluated: its manifest, in one rename where the
        folder has renames, else written over, which a bucket does at once or not at all."""
        here, there = (_manifest(folder / MANIFEST_NAME) for folder in (source, target))
        self._kept[source] = size
        if here is None or there is None or here.sha256 != there.sha256:
            return False  # of an earlier life of the run: it stays as it is
        if here.val_bpb is None or there.val_bpb is not None:
            return False
        scored = to_json(with_metric(there, here.val_bpb, here.step_losses))
        try:
            try:
                write_atomic(target / MANIFEST_NAME, scored)
            except OSError:
                for left in target.glob(f".{MANIFEST_NAME}.*.tmp"):
                    with contextlib.suppress(OSError):  # nor does every bucket let files be deleted
                        left.unlink()
                (target / MANIFEST_NAME).write_text(scored, encoding="utf-8")
        except OSError as error:
            text = f"the metric of {source.name} cannot be added in {self._target}"
            self._say(f"{text}: {error.strerror or error}")
            return False
        return True


def _manifest(path: Path) -> CheckpointManifest | None:
    try:
        return from_json(read_small(path, MAX_MANIFEST_BYTES) or "", str(path))
    except (ValueError, CheckpointError):
        return None
