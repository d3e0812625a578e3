"""Checkpoints on disk: whole or not there, verified before use, pruned after saving.

A checkpoint is made under a temporary name: every file written, synced and hashed, the manifest
last; then one rename makes it a checkpoint, and the folder above is synced so that the rename
lasts. It is evaluated after that, and its manifest replaced by one with the metric. What a crash
leaves behind under a temporary name is removed at the next start.

Weights and optimizer are safetensors, the rest JSON; nothing here is ever pickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from model.machine.tensors import Piece, StoredTensor, file_bytes, open_tensors, piece_of, whole_of
from trmcloud.core.contract.manifest import (
    KINDS,
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    CheckpointFile,
    CheckpointManifest,
    from_json,
    parse_step_dir,
    shard_name,
    step_dir_name,
    to_json,
    to_prune,
    with_metric,
)
from trmcloud.core.errors import CheckpointError
from trmcloud.io.files import sync_folder
from trmcloud.io.hashing import file_sha256

WEIGHTS_NAME = "weights.safetensors"
OPTIMIZER_NAME = "optimizer.safetensors"
STATE_NAME = "state.json"
TOKENIZER_NAME = "tokenizer.json"
_MAKING = ".making-"
_DAMAGED = "damaged-"


@dataclass(frozen=True)
class FoundCheckpoint:
    """A complete checkpoint folder and its manifest."""

    folder: Path
    manifest: CheckpointManifest


@dataclass(frozen=True)
class Contents:
    """A checkpoint's content besides the manifest."""

    weights: Mapping[str, Piece]
    optimizer: Mapping[str, Piece]
    state: Mapping[str, Any]
    tokenizer_json: str

    @classmethod
    def of(
        cls,
        weights: Mapping[str, Tensor],
        optimizer: Mapping[str, Tensor],
        state: Mapping[str, Any],
        tokenizer_json: str,
    ) -> Contents:
        """With tensors that are whole."""
        made, beside = (
            {name: piece_of(each) for name, each in tensors.items()}
            for tensors in (weights, optimizer)
        )
        return cls(made, beside, state, tokenizer_json)


class CheckpointFolder:
    """The ``checkpoints/`` folder of one phase; only rank 0 writes in it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def clean(self) -> None:
        """Removes what an interrupted save, or an interrupted pruning, left behind."""
        self.root.mkdir(parents=True, exist_ok=True)
        for entry in self.root.iterdir():
            if entry.name.startswith(_MAKING):
                shutil.rmtree(entry)
        for folder in self._step_folders():
            if not os.path.lexists(folder / MANIFEST_NAME):
                shutil.rmtree(folder)
            (folder / f"{_MAKING}{MANIFEST_NAME}").unlink(missing_ok=True)

    def complete(self) -> list[FoundCheckpoint]:
        """Checkpoints with a readable manifest, latest step first; contents not verified."""
        found = []
        for folder in self._step_folders():
            with suppress(CheckpointError):
                found.append(FoundCheckpoint(folder, read_manifest(folder)))
        return sorted(found, key=lambda each: each.manifest.step, reverse=True)

    def latest_sound(self, say: Any) -> FoundCheckpoint | None:
        """The latest checkpoint whose every file has its size and hash.

        Damaged ones are set aside under another name, so that they are neither resumed from nor
        counted when checkpoints are pruned; ``say(text)`` is told about each.

        Raises:
            CheckpointError: there are checkpoints, and all are damaged.
        """
        damaged = []
        for folder in sorted(self._step_folders(), reverse=True):
            if not (folder / MANIFEST_NAME).exists():
                continue  # no manifest, no checkpoint
            found = self.sound(folder, say)
            if found is not None:
                return found
            damaged.append(folder.name)
        if damaged:
            raise CheckpointError(
                f"every checkpoint is damaged: {', '.join(damaged)}",
                where=str(self.root),
                next_step="remove the folder to start again, or restore an undamaged checkpoint",
            )
        return None

    def sound(self, folder: Path, say: Any) -> FoundCheckpoint | None:
        """The checkpoint in ``folder``; None where it is damaged, and set aside."""
        try:
            manifest = read_manifest(folder)
            verify(folder, manifest)
            return FoundCheckpoint(folder, manifest)
        except CheckpointError as error:
            say(f"checkpoint {folder.name} is damaged and was moved aside: {error}")
            aside = folder.with_name(_DAMAGED + folder.name)
            shutil.rmtree(aside, ignore_errors=True)
            folder.rename(aside)
            return None

    def save(self, contents: Contents, manifest: CheckpointManifest) -> FoundCheckpoint:
        """Writes one checkpoint; ``manifest.files`` is filled in here.

        Raises:
            OSError: it could not be written (errno ENOSPC: the disk is full). Nothing of it
                remains, and earlier checkpoints are as they were.
        """
        making = self.making(manifest.step)
        try:
            self.begin(making)
            files = write_contents(making, contents)
            return self.finish(making, _with_files(manifest, files))
        except BaseException:
            self.abandon(making)
            raise

    def making(self, step: int) -> Path:
        """Return the folder where this process makes the checkpoint of ``step``."""
        return self.root / f"{_MAKING}{step_dir_name(step)}-{os.getpid()}"

    def begin(self, making: Path) -> None:
        """Raises: OSError: it cannot be made."""
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)

    def finish(self, making: Path, manifest: CheckpointManifest) -> FoundCheckpoint:
        """All of its files are in ``making``: with ``manifest`` it becomes a checkpoint.

        Raises:
            OSError: it could not be written.
        """
        final = self.root / step_dir_name(manifest.step)
        _write(making / MANIFEST_NAME, "manifest", to_json(manifest).encode())
        sync_folder(making)
        if final.exists():
            # Only an incomplete folder can be in the way: complete steps are not saved again.
            shutil.rmtree(final)
        os.rename(making, final)
        sync_folder(self.root)
        return FoundCheckpoint(final, manifest)

    def abandon(self, making: Path) -> None:
        shutil.rmtree(making, ignore_errors=True)

    def add_metric(
        self,
        step: int,
        val_bpb: float,
        step_losses: Iterable[float],
        extra: Mapping[str, Any] | None = None,
    ) -> CheckpointManifest:
        """Puts the metric of a checkpoint that was saved before it was evaluated into its manifest,
        and ``extra`` beside it. It is replaced in one rename; its files are left alone.

        Raises:
            CheckpointError: there is no such checkpoint.
            OSError: it could not be written. The checkpoint is as it was.
        """
        folder = self.root / step_dir_name(step)
        scored = with_metric(read_manifest(folder), val_bpb, step_losses)
        scored = replace(scored, extra={**scored.extra, **(extra or {})})
        making = folder / f"{_MAKING}{MANIFEST_NAME}"
        try:
            _write(making, "manifest", to_json(scored).encode())
            os.rename(making, folder / MANIFEST_NAME)
        except BaseException:
            making.unlink(missing_ok=True)
            raise
        sync_folder(folder)
        return scored

    def prune(self, keep_best: int) -> list[str]:
        """Removes what ``to_prune`` names; returns the removed names."""
        there = self.complete()
        removed = []
        for manifest in to_prune([each.manifest for each in there], keep_best).checkpoints:
            folder = next(each.folder for each in there if each.manifest is manifest)
            # The manifest goes first: a half-deleted folder must not pass for a checkpoint.
            (folder / MANIFEST_NAME).unlink()
            shutil.rmtree(folder)
            removed.append(folder.name)
        return removed

    def _step_folders(self) -> Iterable[Path]:
        if not self.root.is_dir():
            return []
        return [
            entry
            for entry in self.root.iterdir()
            if entry.is_dir() and not entry.is_symlink() and parse_step_dir(entry.name) is not None
        ]


def read_manifest(folder: Path) -> CheckpointManifest:
    """The manifest of a checkpoint folder.

    Raises:
        CheckpointError: it is missing or malformed.
    """
    path = folder / MANIFEST_NAME
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_MANIFEST_BYTES + 1)
    except OSError as error:
        raise CheckpointError(
            f"this is not a complete checkpoint: its manifest cannot be read ({error.strerror})",
            where=str(folder),
            next_step="name a checkpoint folder like checkpoints/step-00000120",
        ) from None
    return from_json(text, where=str(path))


def verify(folder: Path, manifest: CheckpointManifest, kinds: Sequence[str] = KINDS) -> None:
    """Checks size and hash of every file of these kinds.

    Raises:
        CheckpointError: naming the first file that differs.
    """
    for file in manifest.files:
        if file.kind not in kinds:
            continue
        path = folder / file.name
        try:
            size = path.stat().st_size
            if path.is_symlink() or size != file.size_bytes:
                raise CheckpointError(
                    f"{file.name} has {size} bytes, the manifest says {file.size_bytes}",
                    where=str(folder),
                )
            digest = file_sha256(path)
        except OSError as error:
            raise CheckpointError(
                f"{file.name} cannot be read: {error.strerror}", where=str(folder)
            ) from None
        if digest != file.sha256:
            raise CheckpointError(
                f"{file.name} does not have the hash in its manifest", where=str(folder)
            )


def read_tensors(folder: Path, manifest: CheckpointManifest, kind: str) -> dict[str, Tensor]:
    """All tensors of this kind, whole and on the CPU.

    Raises:
        CheckpointError: there is no such file, or it is not safetensors.
    """
    stored = stored_tensors(folder, manifest, kind)
    try:
        return {name: whole_of(each) for name, each in stored.items()}
    except Exception as error:
        raise CheckpointError(f"its {kind} cannot be read: {error}", where=str(folder)) from None


def stored_tensors(
    folder: Path, manifest: CheckpointManifest, kind: str
) -> Mapping[str, StoredTensor]:
    """The tensors of this kind, of which rows may be read; the checkpoint may be in shards.

    Raises:
        CheckpointError: there is no such file, it is not safetensors, or shards do not fit
            together.
    """
    names = [file.name for file in manifest.files if file.kind == kind]
    if not names:
        raise CheckpointError(f"the checkpoint has no {kind}", where=str(folder))
    return open_tensors(folder, names)


def read_text(folder: Path, manifest: CheckpointManifest, kind: str) -> str:
    """The text of the checkpoint's file of this kind.

    Raises:
        CheckpointError: there is no such file, or it is not UTF-8.
    """
    try:
        return (folder / _name_of(folder, manifest, kind)).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"its {kind} cannot be read: {error}", where=str(folder)) from None


def _name_of(folder: Path, manifest: CheckpointManifest, kind: str) -> str:
    for file in manifest.files:
        if file.kind == kind:
            return file.name
    raise CheckpointError(f"the checkpoint has no {kind}", where=str(folder))


def _with_files(
    manifest: CheckpointManifest, files: tuple[CheckpointFile, ...]
) -> CheckpointManifest:
    return replace(manifest, files=files)


def _json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def write_contents(making: Path, contents: Contents) -> tuple[CheckpointFile, ...]:
    """Every file but the manifest, by one process that has it all.

    Raises:
        OSError: one could not be written.
    """
    tensors = (
        (WEIGHTS_NAME, "weights", contents.weights),
        (OPTIMIZER_NAME, "optimizer", contents.optimizer),
    )
    return (
        *(
            _write(making / name, kind, file_bytes(pieces, is_shard=False))
            for name, kind, pieces in tensors
        ),
        *write_rest(making, contents),
    )


def write_rest(making: Path, contents: Contents) -> tuple[CheckpointFile, ...]:
    """Write the files that are no tensors.

    Raises:
        OSError: it could not be written.
    """
    return (
        _write(making / STATE_NAME, "state", _json(contents.state)),
        _write(making / TOKENIZER_NAME, "tokenizer", contents.tokenizer_json.encode()),
    )


def write_shard(
    making: Path, kind: str, number: int, count: int, content: Chunks
) -> CheckpointFile:
    """The ``number``-th of ``count`` files of this kind, from 1 on.

    Raises:
        OSError: it could not be written.
    """
    return _write(making / shard_name(kind, number, count), kind, content)


Chunks = Iterable[bytes | memoryview]


def _write(path: Path, kind: str, content: bytes | Chunks) -> CheckpointFile:
    digest = hashlib.sha256()
    size = 0
    with open(path, "wb") as file:
        for chunk in (content,) if isinstance(content, bytes) else content:
            file.write(chunk)
            digest.update(chunk)
            size += len(chunk)
        file.flush()
        os.fsync(file.fileno())
    return CheckpointFile(path.name, kind, size, digest.hexdigest())
