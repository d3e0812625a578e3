"""Files of runs on this machine: metrics, logs and checkpoints below the home folder."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.manifest import CheckpointManifest
from trmcloud.core.contract.trainer_contract import Heartbeat, load_heartbeat
from trmcloud.core.errors import CheckpointError
from trmcloud.core.spec.settings import PHASE_NAMES
from trmcloud.io.files import read_small
from trmcloud.io.hashing import matches_hash
from trmcloud.pod.machine.metrics_file import read_metrics

_CHUNK_BYTES = 1 << 22


class LocalRunFiles:
    """``RunFiles`` over ``<home>/runs``. Everything read is checked as if it were hostile."""

    def __init__(self, home: Path) -> None:
        self._runs = home / contract.RUNS_DIR

    def phases(self, run_id: str) -> Sequence[str]:
        folder = self._runs / run_id
        names = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
        return [phase for phase in PHASE_NAMES if phase in names]

    def heartbeat(self, run_id: str, phase: str) -> Heartbeat | None:
        try:
            text = read_small(self._runs / run_id / phase / contract.HEARTBEAT_NAME)
            return load_heartbeat(text) if text is not None else None
        except ValueError:
            return None

    def metrics(self, run_id: str, phase: str) -> Sequence[Mapping[str, object]]:
        return read_metrics(self._runs / run_id / phase / contract.METRICS_NAME)

    def manifests(self, run_id: str) -> Sequence[CheckpointManifest]:
        return [found for _, found in self._scan(run_id) if isinstance(found, CheckpointManifest)]

    def damaged(self, run_id: str) -> Sequence[tuple[str, str]]:
        return [(label, found) for label, found in self._scan(run_id) if isinstance(found, str)]

    def fetch(
        self,
        manifest: CheckpointManifest,
        names: Sequence[str],
        into: str,
        progress: Callable[[int, int], None],
    ) -> None:
        source = self._folder(manifest)
        target = Path(into)
        target.mkdir(parents=True, exist_ok=True)
        wanted = [file for file in manifest.files if file.name in names]
        whole = sum(file.size_bytes for file in wanted)
        done = 0
        for file in wanted:
            if not matches_hash(target / file.name, file.size_bytes, file.sha256):
                _copy_verified(source / file.name, target / file.name, file)
            done += file.size_bytes
            progress(done, whole)

    def delete(self, manifest: CheckpointManifest) -> None:
        """The manifest goes first: what is left without one is no checkpoint."""
        folder = self._folder(manifest)
        (folder / mf.MANIFEST_NAME).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)

    def folder_of(self, manifest: CheckpointManifest) -> str:
        return str(self._folder(manifest))

    def logs(self, run_id: str, phase: str) -> str:
        return str(self._runs / run_id / phase / contract.TRAIN_LOG_NAME)

    def folder(self, run_id: str) -> str:
        return str(self._runs / run_id)

    def _folder(self, manifest: CheckpointManifest) -> Path:
        step = mf.step_dir_name(manifest.step)
        return self._runs / manifest.run_id / manifest.phase / contract.CHECKPOINTS_DIR / step

    def _scan(self, run_id: str) -> list[tuple[str, CheckpointManifest | str]]:
        found: list[tuple[str, CheckpointManifest | str]] = []
        for phase in self.phases(run_id):
            folder = self._runs / run_id / phase / contract.CHECKPOINTS_DIR
            entries = sorted(folder.iterdir()) if folder.is_dir() else []
            for entry in entries:
                if mf.parse_step_dir(entry.name) is None or entry.is_symlink():
                    continue
                label = f"{phase}/{entry.name}"
                try:
                    found.append((label, self._manifest(run_id, phase, entry)))
                except (CheckpointError, ValueError) as error:
                    found.append((label, str(error)))
        return found

    def _manifest(self, run_id: str, phase: str, folder: Path) -> CheckpointManifest:
        path = folder / mf.MANIFEST_NAME
        text = read_small(path, mf.MAX_MANIFEST_BYTES)
        if text is None:
            raise CheckpointError("no manifest: it was never completed", where=str(folder))
        made = mf.from_json(text, str(path))
        if (made.run_id, made.phase) != (run_id, phase) or (
            mf.step_dir_name(made.step) != folder.name
        ):
            raise CheckpointError("the manifest is that of another checkpoint", where=str(path))
        return made


def _copy_verified(source: Path, target: Path, file: mf.CheckpointFile) -> None:
    """Copy and hash in one pass; the name appears only once the hash is right."""
    if source.is_symlink():
        raise CheckpointError(f"{file.name} is a link", where=str(source))
    partial = target.with_name(f".{target.name}.part")
    digest = hashlib.sha256()
    size = 0
    try:
        with open(source, "rb") as reader, open(partial, "wb") as writer:
            while chunk := reader.read(_CHUNK_BYTES):
                size += len(chunk)
                if size > file.size_bytes:
                    break
                digest.update(chunk)
                writer.write(chunk)
            writer.flush()
            os.fsync(writer.fileno())
    except FileNotFoundError:
        raise CheckpointError(f"{file.name} is missing", where=str(source.parent)) from None
    except OSError as error:
        raise CheckpointError(
            f"{file.name} could not be copied: {error.strerror}", where=str(target)
        ) from error
    if size != file.size_bytes or digest.hexdigest() != file.sha256:
        partial.unlink(missing_ok=True)
        raise CheckpointError(
            f"{file.name} is damaged: it is not what its manifest's hash says",
            where=str(source),
            next_step="fetch an earlier one: trmcloud fetch-best RUN --step N",
        )
    os.replace(partial, target)
