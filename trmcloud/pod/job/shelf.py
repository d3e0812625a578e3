"""A command's checkpoints: copied while they are hashed, and kept for the controller."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path

from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract.command import (
    RECIPE,
    TREE_NAME,
    CheckpointTree,
    Command,
    TreeFile,
    is_inside,
)
from trmcloud.core.contract.manifest import CheckpointFile, CheckpointManifest
from trmcloud.core.contract.records import dump, load
from trmcloud.core.errors import CheckpointError
from trmcloud.core.text import CONTROL, one_line
from trmcloud.io.files import file_sha256, read_small, sync_folder
from trmcloud.pod.job.reporting import CommandReporter
from trmcloud.pod.job.watch import Candidate, CandidateRefused, SeenFile, Watcher, why_half

# A command's checkpoints as the rest of the house knows them: copied while they are hashed, under
# flat names, their manifest last; pruned to the best and the latest.
#
# A copy, since a script may write the next one over the last. What changes under the copy is no
# checkpoint, and is taken once it has stopped changing.

MAKING = ".making-"
_CHUNK = 1 << 20
_TREE_BYTES = 1 << 20
METRIC, TREE_SHA256 = "metric", "tree_sha256"
"""Keys of a manifest's ``extra``: what its metric is called and was; the hash of ``tree.json``,
which stands for all of it."""


class CommandCheckpoints:
    """The ``checkpoints/`` folder of one phase. ``now`` gives epoch seconds."""

    def __init__(
        self,
        folder: Path,
        run_id: str,
        phase: str,
        command: Command,
        now: Callable[[], float],
    ) -> None:
        self._folder, self._run_id, self._phase = folder, run_id, phase
        self._command, self._now = command, now
        self.provenance: Mapping[str, object] = {}
        """What its command is run with, for each manifest."""
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(f"{MAKING}*"):
            shutil.rmtree(left, ignore_errors=True)
        self._trees = {str(made.extra.get(TREE_SHA256)) for made in self.manifests()}

    def manifests(self) -> list[CheckpointManifest]:
        found = []
        for path in sorted(self._folder.glob(f"*/{mf.MANIFEST_NAME}")):
            with suppress(OSError, CheckpointError):
                text = path.read_bytes()[: mf.MAX_MANIFEST_BYTES + 1]
                found.append(mf.from_json(text, str(path)))
        return found

    def take(
        self, candidate: Candidate, step: int | None, metric: float | None
    ) -> CheckpointManifest | None:
        """Copy a candidate; None where the very same was taken before.

        Args:
            step: that it was saved at, as far as that is known; one that is taken already, or is
                not known, becomes the next free one.
            metric: as the command tells it.

        Raises:
            Refused: it is not whole, or changed meanwhile.
            OSError: it could not be written. Nothing of it remains.
        """
        for file in candidate.files:
            if why := why_half(candidate.root / file.path):
                raise CandidateRefused(f"{file.path}: {why}")
        made = self.manifests()
        number = self._free_step(step, made)
        making = self._folder / f"{MAKING}{mf.step_dir_name(number)}-{os.getpid()}"
        shutil.rmtree(making, ignore_errors=True)
        try:
            making.mkdir()
            manifest = self._copy(candidate, number, metric, making)
            tree = str(manifest.extra[TREE_SHA256])
            if tree in self._trees:
                return None
            _write(making / mf.MANIFEST_NAME, mf.to_json(manifest).encode())
            sync_folder(making)
            final = self._folder / mf.step_dir_name(number)
            shutil.rmtree(final, ignore_errors=True)  # without a manifest, or it were not free
            os.rename(making, final)
            sync_folder(self._folder)
        finally:
            shutil.rmtree(making, ignore_errors=True)
        self._trees.add(tree)
        self._prune([*made, manifest])
        return manifest

    def latest(self) -> CheckpointManifest | None:
        return mf.pick_latest(self.manifests())

    def restore(self, manifest: CheckpointManifest, into: Path) -> Path:
        """The checkpoint under its own names, below ``into``; returns the file or folder.

        Raises:
            CheckpointError: it is not what its manifest says. OSError: it cannot be written.
        """
        folder = self._folder / mf.step_dir_name(manifest.step)
        return restore(folder, manifest, into)

    def source_of(self, manifest: CheckpointManifest) -> str:
        """Return the name below the working folder that the command gave to a checkpoint.

        Raises:
            CheckpointError: its list of files cannot be used.
        """
        return tree_of(self._folder / mf.step_dir_name(manifest.step)).source

    def _copy(
        self, candidate: Candidate, step: int, metric: float | None, making: Path
    ) -> CheckpointManifest:
        files: list[CheckpointFile] = []
        listed: list[TreeFile] = []
        largest = max(candidate.files, key=lambda file: file.size_bytes)
        for number, seen in enumerate(candidate.files, 1):
            name = f"file-{number:04d}.bin"
            kind = "weights" if seen is largest else "state"
            source = candidate.root / seen.path
            digest = _copy_unchanged(source, seen, making / name)
            files.append(CheckpointFile(name, kind, seen.size_bytes, digest))
            listed.append(TreeFile(seen.path, name))
        tree = CheckpointTree(candidate.source, tuple(listed), candidate.is_file)
        # Where it stood and what it is called is part of what it is, and so are its hashes.
        text = dump(tree)
        whole = hashlib.sha256("\n".join([text, *(file.sha256 for file in files)]).encode())
        _write(making / TREE_NAME, text.encode())
        size = len(text.encode())
        digest = hashlib.sha256(text.encode()).hexdigest()
        files.append(CheckpointFile(TREE_NAME, "state", size, digest))
        return CheckpointManifest(
            run_id=self._run_id,
            phase=self._phase,
            step=step,
            tokens=0,
            created_at=self._now(),
            recipe=RECIPE,
            settings={"recipe": RECIPE, "family": RECIPE, "phase": self._phase}
            | {"keep_best": self._command.keep_best},
            world_size=1,
            val_bpb=self._command.score(metric) if metric is not None else None,
            step_losses=(),
            cooled=False,
            data_sha256=self._command.source.data_sha256 if self._command.source else "",
            tokenizer_sha256="",
            files=tuple(files),
            extra={
                TREE_SHA256: whole.hexdigest(),
                mf.PROVENANCE: dict(self.provenance),
                **self._told(metric),
            },
        )

    def _told(self, metric: float | None) -> dict[str, object]:
        name = self._command.metric_name
        return {METRIC: {"name": name, "value": metric}} if name and metric is not None else {}

    def _free_step(self, step: int | None, made: list[CheckpointManifest]) -> int:
        taken = {manifest.step for manifest in made}
        if step is not None and step not in taken:
            return step
        return max(taken | {step or 0}) + 1

    def _prune(self, made: list[CheckpointManifest]) -> None:
        for manifest in mf.to_prune(made, self._command.keep_best).checkpoints:
            folder = self._folder / mf.step_dir_name(manifest.step)
            with suppress(OSError):
                # The manifest first: a half-deleted folder must not pass for a checkpoint.
                (folder / mf.MANIFEST_NAME).unlink()
                shutil.rmtree(folder)


def tree_of(folder: Path) -> CheckpointTree:
    """Return the files of a command's checkpoint, by its own names.

    Raises:
        CheckpointError: it says so in no way that can be trusted.
    """
    try:
        tree = load(CheckpointTree, 1, read_small(folder / TREE_NAME, _TREE_BYTES) or "")
    except ValueError as error:
        raise CheckpointError(
            f"its {TREE_NAME} cannot be used: {error}", where=str(folder)
        ) from None
    if len({file.path for file in tree.files}) != len(tree.files) or not tree.files:
        raise CheckpointError(f"its {TREE_NAME} names a file twice, or none", where=str(folder))
    return tree


def restore(folder: Path, manifest: CheckpointManifest, into: Path) -> Path:
    """Copy a checkpoint's files to their own names below ``into``, as ``on_disk`` writes them;
    return the file or folder that it was.

    Raises:
        CheckpointError: a file is not what its manifest says, or its name is none.
        OSError: it cannot be written.
    """
    tree = tree_of(folder)
    known = {file.name: file for file in manifest.files}
    base = on_disk(tree.source.rpartition("/")[2])
    root = into if tree.is_file else into / base
    for entry in tree.files:
        file = known.get(entry.name)
        source = folder / entry.name
        if file is None or source.is_symlink() or file_sha256(source) != file.sha256:
            raise CheckpointError(f"{entry.path} is not what its manifest says", where=str(folder))
        target = root / on_disk(entry.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(source, "rb") as reader, open(target, "xb") as writer:  # no two names are one
            shutil.copyfileobj(reader, writer, _CHUNK)
    return into / on_disk(tree.files[0].path) if tree.is_file else root


_ESCAPED = re.compile(r"%(?=[0-9A-Fa-f]{2})|" + CONTROL.pattern)


def on_disk(path: str) -> str:
    """A name without control characters, as a terminal may show it: their bytes are written like
    ``%1B``, and so is a ``%`` that would look like one. No two names become the same, and
    ``urllib.parse.unquote`` gives the name back."""

    def escaped(found: re.Match[str]) -> str:
        return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass"))

    return _ESCAPED.sub(escaped, path)


def _copy_unchanged(source: Path, seen: SeenFile, target: Path) -> str:
    """SHA-256 of a file that is copied as it was ``seen``."""
    digest, size = hashlib.sha256(), 0
    try:
        handle = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise CandidateRefused(f"{seen.path}: {error.strerror}") from None
    with open(handle, "rb") as reader, open(target, "wb") as writer:
        while chunk := reader.read(_CHUNK):
            size += len(chunk)
            digest.update(chunk)
            writer.write(chunk)
            if size > seen.size_bytes:
                break
        about = os.fstat(reader.fileno())
        writer.flush()
        os.fsync(writer.fileno())
    if (size, about.st_mtime_ns, about.st_ino) != (seen.size_bytes, seen.mtime_ns, seen.inode):
        raise CandidateRefused(f"{seen.path} changed while it was copied")
    return digest.hexdigest()


def _write(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


# What a command has saved is taken beside it, and whatever is left out is told of once.

_MOST_LEFT_OUT = 1000
_LONGEST_NAME = 200


class CheckpointTaker:
    """``say`` puts a line into the log."""

    def __init__(
        self,
        work: Path,
        watcher: Watcher,
        shelf: CommandCheckpoints,
        tell: CommandReporter,
        say: Callable[[str], None],
    ) -> None:
        self._work, self._watcher, self._shelf = work, watcher, shelf
        self._tell, self._say = tell, say
        self._under_way: dict[Candidate, Future[CheckpointManifest | None]] = {}
        self._taker = ThreadPoolExecutor(max_workers=1)
        self._left_out: dict[str, str] = {}

    @property
    def changes(self) -> int:
        """Grows with whatever changes in the folder that is watched."""
        return self._watcher.changes

    @property
    def left_out(self) -> str:
        """Return the last one that was left out, and why; empty where there was none."""
        if not self._left_out:
            return ""
        name, why = next(reversed(self._left_out.items()))
        return f"left out {name}: {why}"

    def settled(self, steady: float, after_s: float) -> None:
        """Whatever has stood still for so many seconds."""
        for found in self._watcher.settled(steady, after_s):
            if not isinstance(found, Candidate):
                self._refuse(*found)
                continue
            saved_at = max(file.mtime_ns for file in found.files) / 1e9
            step = self._tell.step_at(saved_at) if found.step is None else found.step
            self._take(found, step, self._tell.metric_of(found.step, saved_at))

    def named(self, path: str, step: int | None, metric: float | None) -> None:
        """Take the checkpoint that the command reports as whole."""
        root = os.path.realpath(self._work)
        name = os.path.relpath(os.path.realpath(self._work / path), root)
        if name == "." or not is_inside(name):
            self._refuse(path, "it is not in the working folder")
            return
        try:
            if (candidate := self._watcher.look(name)) is not None:
                self._take(candidate, step, metric)
            else:
                self._refuse(name, "no such file or folder, or an empty one")
        except CandidateRefused as why:
            self._refuse(name, str(why))

    def _take(self, candidate: Candidate, step: int | None, metric: float | None) -> None:
        """Have it copied beside: a large one must not keep the command from being stopped."""
        if candidate not in self._under_way:
            work = self._taker.submit(self._shelf.take, candidate, step, metric)
            self._under_way[candidate] = work

    def collect(self, *, to_the_end: bool = False) -> None:
        """Collect the copies that are done; ``to_the_end``: wait for all of them."""
        if to_the_end:
            wait(self._under_way.values())
        for candidate, work in list(self._under_way.items()):
            if not work.done():
                continue
            del self._under_way[candidate]
            try:
                made = work.result()
            except CandidateRefused as why:
                if (self._work / candidate.source).exists():  # or the command has removed it itself
                    self._refuse(candidate.source, str(why))
                continue
            except OSError as error:
                self._refuse(candidate.source, f"it could not be kept: {error.strerror or error}")
                continue
            self._watcher.done(candidate)
            self._left_out.pop(candidate.source, None)
            if made is not None:
                self._tell.saved(made.step, made.val_bpb, time.time())
                self._say(f"took {candidate.source} as {made.label}, {made.size_bytes} bytes")

    def _refuse(self, name: str, why: str) -> None:
        if self._left_out.get(name) != why and len(self._left_out) < _MOST_LEFT_OUT:
            self._left_out[name] = why
            self._say(f"left out {one_line(name)[:_LONGEST_NAME]}: {one_line(why)}")
