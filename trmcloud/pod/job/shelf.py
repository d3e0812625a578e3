"""A command's checkpoints: copied while they are hashed, and kept for the controller."""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path

from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract.command import RECIPE, Command, is_inside
from trmcloud.core.contract.command_objects import command_file_name
from trmcloud.core.contract.command_resuming import MODELS_ALONE, checkpoints_to_put_back
from trmcloud.core.contract.command_terms import TREE_NAME, CheckpointTree, TreeFile
from trmcloud.core.contract.manifest import CheckpointFile, CheckpointManifest
from trmcloud.core.contract.records import dump, load
from trmcloud.core.errors import CheckpointError
from trmcloud.core.text import CONTROL, one_line
from trmcloud.core.values import Value, replace
from trmcloud.io.files import read_small, sync_folder, write_atomic
from trmcloud.io.foreign_files import open_unlinked
from trmcloud.io.hashing import file_sha256
from trmcloud.pod.job.artifacts import (
    OUTPUTS,
    STATES,
    Artifact,
    ArtifactRefused,
    NameNumbers,
    SeenFile,
    metrics_in,
    names_best,
    step_in,
)
from trmcloud.pod.job.metric_order import SavedCheckpoint
from trmcloud.pod.job.observed import SavedStates
from trmcloud.pod.job.parts import SplitFolder
from trmcloud.pod.job.readings import plain_name
from trmcloud.pod.job.reporting import CommandReporter
from trmcloud.pod.job.watcher import Watcher, why_half

# A command's checkpoints as the rest of the house knows them: copied while they are hashed, under
# flat names, their manifest last; pruned to the best and the latest of each training.
#
# A copy, since a script may write the next one over the last. What changes under the copy is no
# checkpoint, and is taken once it has stopped changing.

MAKING = ".making-"
_CHUNK = 1 << 20
_TREE_BYTES = 1 << 20
TREE_SHA256 = "tree_sha256"
"""The key in a manifest's ``extra`` of the hash of ``tree.json``, which stands for all of it."""
_SPARE_BYTES, _SPARE_SHARE = 256 << 20, 8
"""Of the disk, left to the command when a checkpoint is copied: no more than an eighth of it."""
_CLOCKS_S = 0.02
"""A file's time is that of the kernel's last tick."""
_PENDING = 2
"""Checkpoints beside the kept ones that wait for their metric."""


class Metric(Value):
    """A checkpoint's value of the metric. ``by``: how it was found: ``report``, ``layout``,
    ``step``, ``epoch``, ``time``, ``order``, ``same weights``; ``step``: the one that it was
    measured at, where the log says so; ``other``: the value if the order is the other one;
    ``source``: what has told it, by its rank in ``metric_order``, where that was the log."""

    value: float
    by: str
    step: int | None = None
    other: float | None = None
    source: int | None = None


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
        """The provenance of its command, for each manifest."""
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(f"{MAKING}*"):
            shutil.rmtree(left, ignore_errors=True)
        self._begun_at = now()
        self._trees = {str(made.extra.get(TREE_SHA256)) for made in self.manifests()}
        self.is_unsure = False
        """Whether it is not known which checkpoint is the best."""
        self._waiting: list[int] = []
        self._others: dict[int, float | None] = {}

    def continue_from(self, manifest: CheckpointManifest) -> None:
        """What is taken from now on is of the training that saved ``manifest``; without this call,
        of a training that begins at its beginning, for which nothing of another one is deleted."""
        self._begun_at = manifest.begun_at

    def manifests(self) -> list[CheckpointManifest]:
        found = []
        for path in sorted(self._folder.glob(f"*/{mf.MANIFEST_NAME}")):
            with suppress(OSError, CheckpointError):
                text = path.read_bytes()[: mf.MAX_MANIFEST_BYTES + 1]
                found.append(mf.from_json(text, str(path)))
        return found

    def take(
        self, artifact: Artifact, step: int | None, metric: Metric | None, *, waits: bool = False
    ) -> CheckpointManifest | None:
        """Copy an artifact; None where the very same was taken before.

        Args:
            step: that it was saved at, as far as that is known; one that is taken already, or is
                not known, becomes the next free one.
            metric: as far as it is known now.
            waits: its metric may still come: it is kept until then.

        Raises:
            ArtifactRefused: it is not whole, changed meanwhile, or has no room.
            OSError: it could not be written. Nothing of it remains.
        """
        for file in artifact.files:
            if why := why_half(artifact.root / file.path):
                raise ArtifactRefused(f"{file.path}: {why}")
        made = self.manifests()
        self._make_room(artifact.size_bytes, made)
        number = self._free_step(step, made)
        making = self._folder / f"{MAKING}{mf.step_dir_name(number)}-{os.getpid()}"
        shutil.rmtree(making, ignore_errors=True)
        try:
            making.mkdir()
            is_final = artifact.kind in MODELS_ALONE and step is not None and step < number
            final_at = step if is_final else None
            manifest = self._copy(artifact, number, metric, making, made, final_at)
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
        if waits:
            self._waiting.append(number)
        self.prune()
        return manifest

    def score(self, step: int, metric: Metric) -> CheckpointManifest | None:
        """Give a checkpoint its metric, once; None where it is gone or has one.

        Raises:
            OSError: its manifest could not be written.
        """
        if step in self._waiting and metric.other is None:
            self._waiting.remove(step)
        self._others[step] = metric.other
        path = self._folder / mf.step_dir_name(step) / mf.MANIFEST_NAME
        before = next((m for m in self.manifests() if m.step == step), None)
        if before is None or before.val_bpb is not None:
            return None
        value = self._score_of(metric)
        scored = replace(before, extra={**before.extra, **self._metric_words(metric)})
        if value is not None:
            scored = mf.with_metric(scored, value, ())
        write_atomic(path, mf.to_json(scored))
        self.prune()
        return scored

    def settle(self, step: int) -> None:
        """Its metric will not come."""
        if step in self._waiting:
            self._waiting.remove(step)

    def prune(self) -> None:
        """Delete of this training all but the best, the script's own best without a metric, the
        latest, and those whose metric may still come. Where the order of values and saves is not
        known, the best by either order are kept. What another training has left stays."""
        made = self._mine(self.manifests())
        keep = self._command.keep_best
        kept = {m.step for m in mf.to_prune(made, keep).kept}
        if any(other is not None for other in self._others.values()):
            others = [replace(m, val_bpb=self._others.get(m.step) or m.val_bpb) for m in made]
            kept |= {m.step for m in mf.to_prune(others, keep).kept}
        best = mf.pick_best(made)
        self.is_unsure = best is not None and bool(mf.rivals(best, made))
        kept |= set(self._waiting[-_PENDING - keep :])
        for manifest in made:
            if manifest.step not in kept:
                self._delete(manifest)

    def _mine(self, made: Sequence[CheckpointManifest]) -> list[CheckpointManifest]:
        return [m for m in made if m.begun_at == self._begun_at]

    def take_outputs(self, work: Path, files: Sequence[SeenFile]) -> CheckpointManifest | None:
        """Put files of no layout into one archive, unjudged: it is never the best, never resumed
        from, and prunes nothing; None where there are none, or the very same were taken before.

        Raises:
            ArtifactRefused: there is no room for it.
            OSError: it could not be written.
        """
        size = sum(file.size_bytes + 1024 for file in files) + (1 << 16)
        if not files:
            return None
        if _room(self._folder) < size:
            raise ArtifactRefused(f"{len(files)} of {size / 1e9:.2f} GB, and the disk has no room")
        archive = self._folder / f"{MAKING}outputs-{os.getpid()}.tar"
        try:
            with tarfile.open(archive, "w") as tar:
                for file in files:
                    with suppress(OSError):
                        tar.add(work / file.path, arcname=file.path, recursive=False)
            about = os.lstat(archive)
            seen = SeenFile(archive.name, about.st_size, about.st_mtime_ns, about.st_ino)
            outputs = Artifact("outputs.tar", archive.parent, (seen,), True, OUTPUTS)
            return self.take(outputs, 0, None)
        finally:
            archive.unlink(missing_ok=True)

    def to_put_back(self) -> list[CheckpointManifest]:
        """Return the one to resume from, and after it those that its script may look for too; none
        where there is no checkpoint."""
        return checkpoints_to_put_back(self.manifests())

    def restore(self, manifest: CheckpointManifest, into: Path) -> Path:
        """The checkpoint under its own names, below ``into``; returns the file or folder.

        Raises:
            CheckpointError: it is not what its manifest says. OSError: it cannot be written.
        """
        folder = self._folder / mf.step_dir_name(manifest.step)
        return restore(folder, manifest, into)

    def tree_of(self, manifest: CheckpointManifest) -> CheckpointTree:
        """Return the names that the command gave to a checkpoint and its files.

        Raises:
            CheckpointError: its list of files cannot be used.
        """
        return tree_of(self._folder / mf.step_dir_name(manifest.step))

    def _make_room(self, needed: int, made: Sequence[CheckpointManifest]) -> None:
        """The oldest of this training go first, but not its best one, where the disk has too little
        room."""
        made = self._mine(made)
        best = mf.pick_best(made) or next(iter(mf.own_bests(made)), None) or mf.pick_latest(made)
        spare = sorted((m for m in made if m != best), key=lambda m: m.created_at)
        while (room := _room(self._folder)) < needed:
            if not spare:
                raise ArtifactRefused(
                    f"{needed / 1e9:.2f} GB, and the disk has room for {max(0, room) / 1e9:.2f} GB"
                )
            self._delete(spare.pop(0))

    def _copy(
        self,
        artifact: Artifact,
        step: int,
        metric: Metric | None,
        making: Path,
        made: Sequence[CheckpointManifest],
        final_at: int | None,
    ) -> CheckpointManifest:
        files: list[CheckpointFile] = []
        listed: list[TreeFile] = []
        largest = max(artifact.weights, key=lambda file: file.size_bytes)
        # By size, since a pod's grants for a bucket count on that; the tree keeps the own order.
        by_size = sorted(artifact.files, key=lambda file: -file.size_bytes)
        numbers = {seen.path: number for number, seen in enumerate(by_size, 1)}
        for seen in artifact.files:
            name = command_file_name(numbers[seen.path])
            kind = "weights" if seen is largest else "state"
            source = artifact.root / seen.path
            digest = _copy_unchanged(source, seen, making / name)
            if (same := self._same_file(digest, seen.size_bytes, made)) is not None:
                with suppress(OSError):  # a folder of another disk, or one without such links
                    os.link(same, making / f"{name}.same")
                    os.replace(making / f"{name}.same", making / name)
            files.append(CheckpointFile(name, kind, seen.size_bytes, digest))
            path = "outputs.tar" if artifact.kind == OUTPUTS else seen.path
            listed.append(TreeFile(path, name))
        # Once all is copied: a trainer that keeps few may delete its own while a disk is slow.
        for file in files:
            _flush(making / file.name)
        tree = CheckpointTree(
            artifact.source, tuple(listed), artifact.is_file, place=artifact.place
        )
        # Where it stood and what it is called is part of what it is, and so are its hashes.
        text = dump(tree)
        whole = hashlib.sha256("\n".join([text, *(file.sha256 for file in files)]).encode())
        _write(making / TREE_NAME, text.encode())
        size = len(text.encode())
        digest = hashlib.sha256(text.encode()).hexdigest()
        files.append(CheckpointFile(TREE_NAME, "state", size, digest))
        weights = next(file.sha256 for file in files if file.kind == "weights")
        if metric is None and artifact.kind != OUTPUTS:
            metric = self._of_same_weights(weights, made)
        return CheckpointManifest(
            run_id=self._run_id,
            phase=self._phase,
            step=step,
            tokens=0,
            created_at=mf.OUTPUTS_AT
            if artifact.kind == OUTPUTS
            else min(self._now(), max(artifact.saved_at, self._begun_at)),
            recipe=RECIPE,
            settings={"recipe": RECIPE, "family": RECIPE, "phase": self._phase}
            | {"keep_best": self._command.keep_best},
            world_size=1,
            val_bpb=self._score_of(metric),
            step_losses=(),
            cooled=False,
            data_sha256=self._command.source.data_sha256 if self._command.source else "",
            tokenizer_sha256="",
            files=tuple(files),
            extra={
                TREE_SHA256: whole.hexdigest(),
                mf.PROVENANCE: dict(self.provenance),
                mf.LAYOUT: artifact.kind,
                mf.BEGUN_AT: self._begun_at,
                **({mf.FINAL_AT: final_at} if final_at is not None else {}),
                **({mf.NAMED_BEST: _own_name(artifact)} if names_best(artifact.source) else {}),
                **self._metric_words(metric),
            },
        )

    def _same_file(
        self, sha256: str, size_bytes: int, made: Sequence[CheckpointManifest]
    ) -> Path | None:
        """A file of another checkpoint with the same bytes: they are stored once."""
        for manifest in made:
            for file in manifest.files:
                if (file.sha256, file.size_bytes) == (sha256, size_bytes):
                    return self._folder / mf.step_dir_name(manifest.step) / file.name
        return None

    def _of_same_weights(self, sha256: str, made: Sequence[CheckpointManifest]) -> Metric | None:
        """The metric of a checkpoint with the very same weights: the final model of a trainer that
        loads its best one, or has just saved its last one."""
        for manifest in made:
            told = manifest.extra.get(mf.METRIC)
            if not isinstance(told, dict) or type(told.get("value")) is not float:
                continue
            if any(f.sha256 == sha256 for f in manifest.weights):
                by = "same weights" if manifest.is_sure else str(told.get("by"))
                step, source = told.get("step", manifest.step), told.get("source")
                return Metric(told["value"], by, step, source=source)
        return None

    def _score_of(self, metric: Metric | None) -> float | None:
        """The value that is compared; None for NaN and infinity, which are noted alone."""
        if metric is None or not math.isfinite(metric.value):
            return None
        return self._command.score(metric.value)

    def _metric_words(self, metric: Metric | None) -> dict[str, object]:
        name = self._command.metric_name
        if not name or metric is None:
            return {}
        finite = math.isfinite(metric.value)
        words = {"name": name, "value": metric.value if finite else None, "by": metric.by}
        if not finite:
            words["said"] = str(metric.value)
        if metric.step is not None:
            words["step"] = metric.step
        if metric.source is not None:
            words["source"] = metric.source
        if metric.other is not None and math.isfinite(metric.other):
            words["other"] = metric.other
        return {mf.METRIC: words}

    def _free_step(self, step: int | None, made: list[CheckpointManifest]) -> int:
        taken = {manifest.step for manifest in made}
        if step is not None and step not in taken:
            return step
        return max(taken | {step or 0}) + 1

    def _delete(self, manifest: CheckpointManifest) -> None:
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
            raise CheckpointError(f"{entry.path} differs from its manifest", where=str(folder))
        target = root / on_disk(entry.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(source, "rb") as reader, open(target, "xb") as writer:  # no two names are one
            shutil.copyfileobj(reader, writer, _CHUNK)
    return into / on_disk(first_of(tree)) if tree.is_file else root


def first_of(tree: CheckpointTree) -> str:
    """Of files that stand beside each other, the one that the others are parts of."""
    named = tree.source.rpartition("/")[2]
    paths = [file.path for file in tree.files]
    return named if named in paths else paths[0]


_ESCAPED = re.compile(r"%(?=[0-9A-Fa-f]{2})|" + CONTROL.pattern)


def on_disk(path: str) -> str:
    """A name without control characters, as a terminal may show it: their bytes are written like
    ``%1B``, and so is a ``%`` that would look like one. No two names become the same, and
    ``urllib.parse.unquote`` gives the name back."""

    def escaped(found: re.Match[str]) -> str:
        return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass"))

    return _ESCAPED.sub(escaped, path)


def _own_name(artifact: Artifact) -> str:
    """The end of its name, which is what tells it from others."""
    return on_disk(artifact.source)[-_LONGEST_NAME:]


def _room(folder: Path) -> int:
    """Bytes that a checkpoint may take of the disk."""
    disk = shutil.disk_usage(folder)
    return disk.free - min(_SPARE_BYTES, disk.total // _SPARE_SHARE)


def _copy_unchanged(source: Path, seen: SeenFile, target: Path) -> str:
    """SHA-256 of a file that is copied as it was ``seen``."""
    digest, size = hashlib.sha256(), 0
    try:
        reader = open_unlinked(source)
    except OSError as error:
        raise ArtifactRefused(f"{seen.path}: {error.strerror}") from None
    with reader, open(target, "wb") as writer:
        while chunk := reader.read(_CHUNK):
            size += len(chunk)
            digest.update(chunk)
            writer.write(chunk)
            if size > seen.size_bytes:
                break
        about = os.fstat(reader.fileno())
    if (size, about.st_mtime_ns, about.st_ino) != (seen.size_bytes, seen.mtime_ns, seen.inode):
        raise ArtifactRefused(f"{seen.path} changed while it was copied")
    return digest.hexdigest()


def _flush(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _write(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


# What a command has saved is taken beside it, and whatever is left out is told of once.

_MOST_LEFT_OUT = 1000
_LONGEST_NAME = 200
_STRIPPED = 0.6
"""The size of a model without its optimizer, of both, at most."""


class CheckpointTaker:
    """Copies what settles, and gives each checkpoint its metric once that is known. ``say`` puts a
    line into the log; ``most_bytes`` is what was reserved for one checkpoint."""

    def __init__(
        self,
        work: Path,
        watcher: Watcher,
        shelf: CommandCheckpoints,
        tell: CommandReporter,
        say: Callable[[str], None],
        most_bytes: int,
    ) -> None:
        self._work, self._watcher, self._shelf = work, watcher, shelf
        self._tell, self._say, self._most_bytes = tell, say, most_bytes
        self.states = SavedStates()
        self._under_way: dict[
            Artifact, tuple[Future[CheckpointManifest | None], SavedCheckpoint]
        ] = {}
        self._taker = ThreadPoolExecutor(max_workers=1)
        self._left_out: dict[str, str] = {}
        self._versions: dict[str, tuple[Artifact, SavedCheckpoint]] = {}
        """Of each name the newest version that settled, and the save that its metric is of."""
        self._unscored: dict[int, SavedCheckpoint] = {}
        self._last: CheckpointManifest | None = None
        self.taken: dict[str, Artifact] = {}
        """By name, the last version that was taken."""
        self.largest_bytes = 0
        """Of the checkpoints taken."""
        self.has_outputs = False

    @property
    def changes(self) -> int:
        """Grows with whatever changes in the folder that is watched."""
        return self._watcher.changes

    @property
    def split(self) -> tuple[SplitFolder, ...]:
        """Folders of distributed checkpoints, as of the last look."""
        return self._watcher.split

    @property
    def incomplete(self) -> list[str]:
        """Return a sentence for each distributed checkpoint whose index is here and not all of its
        files."""
        return [
            f"{one_line(split.name)[:_LONGEST_NAME]} lacks {len(split.missing)} of its ranks'"
            " files, and is not a checkpoint"
            for split in self._watcher.split
            if split.missing
        ]

    @property
    def notes(self) -> list[str]:
        """Return warnings: checkpoints that were left out, overwritten, or larger than what was
        reserved; and whether the best is a guess."""
        notes = []
        if self._left_out:
            name, why = next(reversed(self._left_out.items()))
            notes.append(f"left out {name}: {why}")
        if lost := self._watcher.overwritten:
            times = "once" if lost == 1 else f"{lost} times"
            name = one_line(self._watcher.last_overwritten)[:_LONGEST_NAME]
            notes.append(f"{name} was overwritten {times} before it could be copied")
        if self._shelf.is_unsure:
            notes.append("unsure which checkpoint is the best: fetch-best brings all that may be")
        if self.largest_bytes > self._most_bytes:
            notes.append(
                f"a checkpoint holds {self.largest_bytes / 1e9:.2f} GB, more than the"
                f" {self._most_bytes / 1e9:.2f} GB reserved: --checkpoint-gb"
            )
        return notes

    def settled(self, steady: float, after_s: float) -> None:
        """Take whatever has not changed for so many seconds."""
        for found in self._watcher.settled(steady, after_s):
            if not isinstance(found, Artifact):
                self._refuse(*found)
                continue
            named = step_in(found)
            number = found.marks.number if named is None else named
            is_sure = found.kind.startswith("transformers") and named is not None
            bears_step = number is not None and (
                is_sure or self._tell.order.is_step(number, found.saved_at)
            )
            if bears_step:
                step = number
            else:
                step = self._tell.step_at(found.saved_at)
                step = named if step is None else step
            if is_sure and number is not None:
                self._tell.reach(number, found.saved_at, time.time())
            saved = self._saved_as(found, self._save_of(found, found.marks._replace(step=named)))
            metric, waits = self._of_layout(found, step), False
            if metric is None and found.kind not in STATES:
                metric, waits = self._metric_of(saved)
            if not bears_step and metric and metric.step and metric.by in ("time", "order"):
                # The log is read a little late: its last line may be of many steps after the save.
                step = metric.step
            self._take(found, step, metric, saved, waits=waits)

    def _saved_as(self, found: Artifact, saved: SavedCheckpoint) -> SavedCheckpoint:
        """Return the save that a checkpoint's metric belongs to: that of the version before, where
        this is the same file and much smaller, as one whose optimizer was removed at the end. That
        version may have been seen and never taken, where it had not settled by then."""
        before = self._versions.get(found.name)
        missed = self._watcher.missed.get(found.name)
        if before is not None and before[0].weights == found.weights:
            return before[1]
        if missed is not None and found.size_bytes < _STRIPPED * missed.size_bytes:
            saved = self._save_of(missed, missed.marks._replace(step=step_in(missed)))
            self._tell.order.saw_save(saved)
        elif before is not None and found.size_bytes < _STRIPPED * before[0].size_bytes:
            saved = before[1]
        else:
            self._tell.order.saw_save(saved)
        self._versions[found.name] = found, saved
        return saved

    def _save_of(self, found: Artifact, marks: NameNumbers) -> SavedCheckpoint:
        return SavedCheckpoint(found.saved_at, marks, self.states.of(found))

    def named(self, path: str, step: int | None, metric: float | None, said_at: float) -> None:
        """Take the checkpoint that the command reported as whole at ``said_at``, epoch seconds; the
        step and metric are not of one that was written since."""
        root = os.path.realpath(self._work)
        name = os.path.relpath(os.path.realpath(self._work / path), root)
        if name == "." or not is_inside(name):
            self._refuse(path, "it is not in the working folder")
            return
        try:
            if (artifact := self._watcher.look(name)) is not None:
                if artifact.saved_at > said_at + _CLOCKS_S:
                    self._refuse(name, "it was overwritten before it could be copied")
                    return
                saved = self._save_of(artifact, artifact.marks._replace(step=step))
                reported, waits = Metric(metric, "report") if metric is not None else None, False
                if reported is None:
                    reported, waits = self._metric_of(saved)
                self._take(artifact, step, reported, saved, waits=waits)
            else:
                self._refuse(name, "no such file or folder, or an empty one")
        except ArtifactRefused as why:
            self._refuse(name, str(why))

    def _of_layout(self, artifact: Artifact, step: int | None) -> Metric | None:
        """Return the value of its step in its own state; else the last one before it."""
        wanted = plain_name(self._tell.metric_name)
        found: Metric | None = None
        for at, metrics in metrics_in(artifact) if wanted else []:
            if at is not None and step is not None and at > step:
                continue
            value = next((v for key, v in metrics.items() if plain_name(key) == wanted), None)
            if value is not None:
                found = Metric(value, "layout" if at in (None, step) else "order", at)
        return found

    def _metric_of(self, saved: SavedCheckpoint) -> tuple[Metric | None, bool]:
        """The metric as far as it is known now, and whether it may still come or change."""
        assigned = self._tell.order.value_of(saved)
        if assigned.pending or assigned.value is None:
            return None, assigned.pending
        value = assigned.value
        other = assigned.other.value if assigned.is_ambiguous and assigned.other else None
        source = self._tell.order.source
        return Metric(value.value, assigned.by or "unsure", value.step, other, source), False

    def _take(
        self,
        artifact: Artifact,
        step: int | None,
        metric: Metric | None,
        saved: SavedCheckpoint,
        *,
        waits: bool = False,
    ) -> None:
        """Have it copied beside: a large one must not keep the command from being stopped."""
        if artifact not in self._under_way:
            work = self._taker.submit(self._shelf.take, artifact, step, metric, waits=waits)
            self._under_way[artifact] = work, saved

    def collect(self, *, to_the_end: bool = False) -> None:
        """Collect the copies that are done; ``to_the_end``: wait for all of them."""
        if to_the_end:
            wait(work for work, _ in self._under_way.values())
        for artifact, (work, saved) in list(self._under_way.items()):
            if not work.done():
                continue
            del self._under_way[artifact]
            try:
                made = work.result()
            except ArtifactRefused as why:
                if (artifact.root / artifact.files[0].path).exists():
                    self._refuse(artifact.name, str(why))
                continue  # or the command has removed it itself
            except OSError as error:
                self._refuse(artifact.name, f"it could not be kept: {error.strerror or error}")
                continue
            self._watcher.done(artifact)
            self.taken[artifact.name] = artifact
            self._left_out.pop(artifact.name, None)
            self.largest_bytes = max(self.largest_bytes, artifact.size_bytes)
            if made is not None:
                self._last = made
                if mf.METRIC not in made.extra and made.extra[mf.LAYOUT] not in (OUTPUTS, *STATES):
                    self._unscored[made.step] = saved
                self._tell.saved(made.trained_to, made.val_bpb, time.time())
                final = (
                    "" if made.final_at is None else f", the final model of step {made.final_at}"
                )
                self._say(
                    f"took {one_line(artifact.name)} ({artifact.kind}) as {made.label}{final},"
                    f" {made.size_bytes} bytes"
                )
        self._score()

    def _score(self) -> None:
        """Give their metric to those that waited for it."""
        for step, saved in list(self._unscored.items()):
            metric, waits = self._metric_of(saved)
            if waits:
                continue
            del self._unscored[step]
            if metric is None:
                self._shelf.settle(step)
            else:
                with suppress(OSError):
                    scored = self._shelf.score(step, metric)
                    if scored is not None:
                        self._tell.scored(scored.trained_to, scored.val_bpb, time.time())
                        self._say(f"{scored.label}: {self._tell.metric_name} {metric.value:g}")

    def take_outputs(self) -> None:
        """At the end: files that are part of no checkpoint, as one archive."""
        try:
            others = self._within_reserve(self._watcher.others())
            made = self._shelf.take_outputs(self._work, others)
            if made is not None:
                self.has_outputs = True
                many = "1 other file" if len(others) == 1 else f"{len(others)} other files"
                self._say(f"took {many}, unjudged, as {made.label}")
        except ArtifactRefused as why:
            self._refuse("other files", str(why))
        except OSError as error:
            self._refuse("other files", f"they could not be kept: {error.strerror or error}")

    def _within_reserve(self, files: Sequence[SeenFile]) -> list[SeenFile]:
        """Of files beside the named places the newest, as many as one checkpoint may hold: a tree
        may hold data that took no part in what was reserved."""
        taken = list(self._watcher.rest)
        known, room, left = {file.path for file in taken}, self._most_bytes, 0
        beside = [file for file in files if file.path not in known]
        for file in sorted(beside, key=lambda file: file.mtime_ns, reverse=True):
            if file.size_bytes <= room:
                room -= file.size_bytes
                taken.append(file)
            else:
                left += 1
        if left:
            self._refuse(
                "other files", f"{left} beside the named places, more than --checkpoint-gb holds"
            )
        return sorted(taken, key=lambda file: file.path)

    def _refuse(self, name: str, why: str) -> None:
        if self._left_out.get(name) != why and len(self._left_out) < _MOST_LEFT_OUT:
            self._left_out[name] = why
            self._say(f"left out {one_line(name)[:_LONGEST_NAME]}: {one_line(why)}")
