"""Room on a rented pod's disk: what goes first when the next checkpoint might not fit."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract.manifest import CheckpointManifest
from trmcloud.core.contract.pod_contract import CHECKPOINTS_DIR
from trmcloud.core.values import Value, replace
from trmcloud.io.files import sync_folder, write_atomic

ROOM_FOR = 2
"""Checkpoints that must still fit: the next one, and the one after it until the next look."""


class PlannedDrop(Value):
    """Files of a checkpoint that stays; without ``names``, the checkpoint itself."""

    manifest: CheckpointManifest
    names: tuple[str, ...] = ()

    @property
    def freed_bytes(self) -> int:
        files = self.manifest.files
        return sum(f.size_bytes for f in files if not self.names or f.name in self.names)


def plan_drops(manifests: Sequence[CheckpointManifest], free_bytes: int) -> list[PlannedDrop]:
    """As little as makes room again, the oldest first: optimizer shards of all but each phase's
    latest and what was saved before its cooldown, then whole checkpoints that are neither of these
    nor among the best."""
    needed = ROOM_FOR * max((m.size_bytes for m in manifests), default=0)
    drops: list[PlannedDrop] = []
    by_age = sorted(manifests, key=lambda m: (m.created_at, m.step))
    latest = {m.phase: m for m in by_age}
    pruned = mf.to_prune(manifests, max((_keep_best(m) for m in manifests), default=1)).checkpoints
    shards = [
        PlannedDrop(m, tuple(f.name for f in m.files if f.kind == "optimizer"))
        for m in by_age
        if m is not latest[m.phase] and not mf.is_before_cooldown(m, latest[m.phase])
    ]
    for drop in [each for each in shards if each.names]:
        if free_bytes >= needed:
            return drops
        free_bytes += drop.freed_bytes
        drops.append(drop)
    for manifest in [m for m in by_age if m in pruned]:
        if free_bytes >= needed:
            return drops
        rest = tuple(f for f in manifest.files if f.kind != "optimizer")
        free_bytes += sum(f.size_bytes for f in rest)
        drops.append(PlannedDrop(replace(manifest, files=rest)))
    return drops


def make_room(
    run_dir: Path,
    manifests: Sequence[CheckpointManifest],
    say: Callable[[str], None],
    free_bytes: int | None = None,
) -> bool:
    """Drop what must go; whether anything did. ``free_bytes``: of the disk, None: ask it."""
    if not manifests:
        return False
    if free_bytes is None:
        free_bytes = shutil.disk_usage(run_dir).free
    drops = plan_drops(manifests, free_bytes)
    for drop in drops:
        with contextlib.suppress(OSError):
            _drop(run_dir, drop)
            what = "its optimizer's state" if drop.names else "all of it"
            say(f"the disk runs low: dropped {drop.manifest.label}, {what}")
    return bool(drops)


def _drop(run_dir: Path, drop: PlannedDrop) -> None:
    """The manifest first: a checkpoint never names what is not there."""
    step = mf.step_dir_name(drop.manifest.step)
    folder = run_dir / drop.manifest.phase / CHECKPOINTS_DIR / step
    if not drop.names:
        (folder / mf.MANIFEST_NAME).unlink(missing_ok=True)
        sync_folder(folder)
        shutil.rmtree(folder, ignore_errors=True)
        return
    files = tuple(f for f in drop.manifest.files if f.name not in drop.names)
    if not (folder / mf.MANIFEST_NAME).exists():
        return  # the trainer has pruned it meanwhile
    write_atomic(folder / mf.MANIFEST_NAME, mf.to_json(replace(drop.manifest, files=files)))
    for name in drop.names:
        os.unlink(folder / name)


def _keep_best(manifest: CheckpointManifest) -> int:
    wanted = manifest.settings.get("keep_best", 1)
    return wanted if isinstance(wanted, int) else 1
