"""Places that are watched for checkpoints: what has stopped changing is handed out, once for each
version of its weights.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import astuple
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from trmcloud.core.contract.command_terms import CheckpointTree
from trmcloud.core.values import replace
from trmcloud.io.files import write_atomic
from trmcloud.io.foreign_files import read_part
from trmcloud.pod.job.artifacts import (
    MOST_ENTRIES,
    UNFINISHED,
    Artifact,
    ArtifactRefused,
    SeenFile,
    artifact_at,
    files_below,
    find_artifacts,
    is_in_making,
    is_like_data,
    splits_at,
    stays_inside,
)
from trmcloud.pod.job.parts import SplitFolder


class Watcher:
    """Watches the places that ``--checkpoints`` names, or the whole working tree.

    Args:
        work: the working tree.
        checkpoints: folders, files or patterns of names, separated by ``os.pathsep``; relative to
            ``work``, or outside it: absolute, or below ``~``. Empty: all of ``work``.
        record: keeps, over all attempts of a run on this machine, the files that stood in each
            watched place before the first one, which are no output while they are unchanged, and
            the files that were taken.
        home: the command's home folder, which ``~`` stands for.
    """

    def __init__(
        self,
        work: Path,
        checkpoints: str,
        record: FilesRecord | None = None,
        home: Path | None = None,
    ) -> None:
        self._work, self._record = work, record or FilesRecord(None)
        self._home = home or Path(os.path.expanduser("~"))
        self._named = [self._place(each) for each in checkpoints.split(os.pathsep) if each]
        self._found: dict[str, _Place] = {}
        """By path, files outside the working tree that the command was seen to save."""
        self._but = self._record.before("", work)
        for place in self._named:
            if place.outside:
                self._record.before(place.outside, place.root)
        self._since: dict[str, tuple[Artifact, float]] = {}
        self._done = self._record.taken
        self.rest: tuple[SeenFile, ...] = ()
        """Files of no layout in the working tree, as of the last look."""
        self.split: tuple[SplitFolder, ...] = ()
        """Folders of distributed checkpoints, as of the last look."""
        self.changes = 0
        """Counts what was seen to have changed: a sign that the command makes progress."""
        self._lost: dict[str, int] = {}
        """By name, the versions that were gone before they could be taken."""
        self.overwritten = 0
        """Versions that were gone before they could be taken."""
        self.last_overwritten = ""
        self.missed: dict[str, Artifact] = {}
        """By name: the last version that was seen and overwritten before it was taken, until a
        later one is."""

    def _place(self, named: str) -> _Place:
        folder, pattern = named.rstrip("/") or "/", ""
        if any(char in named for char in "*?["):
            folder, _, pattern = named.rpartition("/")
        if not named.startswith(("/", "~")):
            return _Place(self._work, "", "" if folder == "." else folder, pattern)
        path = Path(folder.replace("~", str(self._home), 1) if folder[0] == "~" else folder)
        return _Place(path, folder, "", pattern)

    def note_saved(self, path: str) -> None:
        """Watch a file outside the working tree that the command has saved there, unless its name
        is that of data."""
        real = os.path.realpath(path)
        if is_like_data(os.path.basename(real)) or self.watches(real):
            return
        if len(self._found) < _MOST_FOUND and real not in self._found:
            self._found[real] = _Place(Path(real), real, "", "")

    def watches(self, real: str) -> bool:
        """Whether a path, its links resolved, is in one of the places that are watched."""
        known = (self._work, *(place.root for place in self._named))
        return real in self._found or any(
            real.startswith(f"{os.path.realpath(each)}{os.sep}") for each in known
        )

    def outside(self, tree: CheckpointTree) -> Path | None:
        """Return the folder outside the working tree that a checkpoint's names are below; None
        where no place of that name is watched."""
        for place in (*self._named, *self._found.values()):
            if place.outside and place.outside == tree.place:
                is_file = place.root.name == tree.source and not place.root.is_dir()
                return place.root.parent if is_file else place.root
        return None

    def settled(self, now: float, after_s: float) -> Iterator[Artifact | tuple[str, str]]:
        """Checkpoints that have not changed for ``after_s`` seconds until ``now``, and (name, why)
        of what is refused. One that is ``done`` with comes again only once its weights changed.
        One whose format shows that it is whole waits a quarter as long, and so does a small one
        that was overwritten twice before it had settled: else none of its versions ever were."""
        there = set()
        for artifact in self._look():
            if not isinstance(artifact, Artifact):
                yield artifact
                continue
            name = artifact.name
            there.add(name)
            if self._done.get(name) == artifact.weights:
                continue
            before = self._since.get(name)
            if before is None or before[0].files != artifact.files:
                if before is not None:
                    self._count_overwritten(artifact, before[0])
                    if self._done.get(name) != before[0].weights:
                        self.missed[name] = before[0]
                self._since[name] = artifact, now
                self.changes += 1
                if after_s > 0:
                    continue
            elif now - before[1] < (after_s / 4 if self._is_quick(artifact) else after_s):
                continue
            yield artifact
        for gone in set(self._since) - there:
            del self._since[gone]
            self.missed.pop(gone, None)
            self._done.pop(gone, None)

    def done(self, artifact: Artifact) -> None:
        """It is taken, or will not be as it is."""
        self._record.take(artifact.name, artifact.weights)
        self.missed.pop(artifact.name, None)

    def others(self) -> tuple[SeenFile, ...]:
        """New files of the working tree that are part of no checkpoint: of no layout, or in none
        of the places that were named. Looks at the whole tree."""
        if not self._named:
            return self.rest
        taken = {
            artifact.root / file.path
            for artifact in self._look()
            if isinstance(artifact, Artifact)
            for file in artifact.files
        }
        found = find_artifacts(self._work, but=self._but)
        new = {file.path: file for file in (*self.rest, *found.rest)}
        for artifact in found.artifacts:
            below = artifact.root.relative_to(self._work).as_posix()
            for file in artifact.files:
                path = file.path if below == "." else f"{below}/{file.path}"
                new[path] = replace(file, path=path)
        return tuple(file for path, file in sorted(new.items()) if self._work / path not in taken)

    def look(self, name: str) -> Artifact | None:
        """Return what stands at ``name`` below the working tree as one checkpoint, whatever its
        layout; None where that is nothing.

        Raises:
            ArtifactRefused: it cannot be taken.
        """
        path = self._work / name
        if not stays_inside(self._work, path.parent):
            raise ArtifactRefused(
                f"its folder leads out of the working tree, to {os.path.realpath(path.parent):.200}"
            )
        artifact = artifact_at(self._work, name)
        if artifact is not None and artifact.kind == UNFINISHED:
            raise ArtifactRefused("its index, or files that its index names, are not here yet")
        return artifact

    def _look(self) -> Iterator[Artifact | tuple[str, str]]:
        rest: list[SeenFile] = []
        split: list[SplitFolder] = []
        if not self._named:
            found = find_artifacts(self._work, but=self._but)
            rest, split = list(found.rest), list(found.split)
            yield from found.artifacts
            yield from found.refused
        for place in (*self._named, *self._found.values()):
            for each in _alike(place):
                yield from self._look_in(each, rest, split)
        self.rest, self.split = tuple(rest), tuple(split)

    def _look_in(
        self, place: _Place, rest: list[SeenFile], split: list[SplitFolder]
    ) -> Iterator[Artifact | tuple[str, str]]:
        if not place.outside and not stays_inside(place.root, place.root / place.below):
            yield place.below, "it leads out of the working tree"
            return
        at = place.root / place.below
        if place.pattern:
            try:
                names = sorted(entry.name for entry in os.scandir(at))[:MOST_ENTRIES]
            except OSError:
                return
            grouped = set()
            but = self._record.before(place.outside, place.root) if place.outside else self._but
            look = find_artifacts(
                place.root, place=place.outside, below=place.below, but=but, is_flat=True
            )
            for artifact in look.artifacts:
                files = {file.path for file in artifact.files}
                if len(files) > 1 and any(fnmatchcase(name, place.pattern) for name in files):
                    grouped |= files
                    yield artifact
            for name in names:
                is_meant = fnmatchcase(name, place.pattern) and name not in grouped
                if is_meant and not is_in_making(name):
                    named = f"{place.below}/{name}" if place.below else name
                    yield from self._one(place, named, split)
        elif at.is_file():
            whole = place.root.parent if not place.below else place.root
            named = place.below or place.root.name
            yield from self._one(place._replace(root=whole, below=""), named, split)
        else:
            but = self._record.before(place.outside, place.root) if place.outside else self._but
            found = find_artifacts(place.root, place=place.outside, below=place.below, but=but)
            if not place.outside:
                rest += found.rest
            split += found.split
            yield from found.artifacts
            yield from found.refused

    def _one(
        self, place: _Place, name: str, split: list[SplitFolder]
    ) -> Iterator[Artifact | tuple[str, str]]:
        if (place.root / name).is_dir():
            split += splits_at(place.root, name, place.outside)
        try:
            artifact = artifact_at(place.root, name, place.outside)
        except ArtifactRefused as why:
            yield name, str(why)
            return
        if artifact is not None and artifact.kind != UNFINISHED:
            yield artifact

    def _is_quick(self, artifact: Artifact) -> bool:
        is_hasty = self._lost.get(artifact.name, 0) >= _HASTY
        return (is_hasty and artifact.size_bytes <= _HASTY_BYTES) or _shows_whole(artifact)

    def _count_overwritten(self, artifact: Artifact, before: Artifact) -> None:
        """One of the same size as the next was whole, most likely; a smaller one was being
        written."""
        is_lost = self._done.get(before.name) != before.weights != artifact.weights
        if is_lost and before.size_bytes == artifact.size_bytes:
            self.overwritten += 1
            self._lost[artifact.name] = self._lost.get(artifact.name, 0) + 1
            self.last_overwritten = before.name


_HASTY, _HASTY_BYTES = 2, 64 << 20
_MOST_FOUND = 64
_MOST_ALIKE = 200
_DIGITS = re.compile(r"[0-9]+")


class _Place(NamedTuple):
    root: Path
    outside: str
    """As it was named, where it is no part of the working tree."""
    below: str
    pattern: str


def _alike(place: _Place) -> Iterator[_Place]:
    """A place, and the folders that a wildcard or another number in the place of its own leads to:
    scripts number their folders by the start, as ``exp2`` or ``version_1``."""
    has_wildcard = any(char in place.below for char in "*?[")
    wanted = place.below if has_wildcard else _DIGITS.sub("*", place.below)
    if not has_wildcard:
        yield place
    if place.outside or (wanted == place.below and not has_wildcard):
        return
    root = str(place.root)
    for path in sorted(glob.glob(os.path.join(glob.escape(root), wanted)))[:_MOST_ALIKE]:
        below = os.path.relpath(path, root)
        if below != place.below and os.path.isdir(path):
            yield place._replace(below=below)


class FilesRecord:
    """The files of a run's places before its first attempt, and those that were taken, in a file
    that its attempts on this machine share.

    Args:
        path: of that file; None: nothing is kept, and ``before`` is all that stood there.
        before: files by place; "" is the working tree.
    """

    def __init__(
        self, path: Path | None, before: Mapping[str, tuple[SeenFile, ...]] | None = None
    ) -> None:
        self._path = path
        self._before = dict(before or {})
        self.taken: dict[str, tuple[SeenFile, ...]] = {}
        """By a checkpoint's name, the weights that were taken last."""
        try:
            said = json.loads(path.read_text(encoding="utf-8")) if path is not None else {}
            if isinstance(said, list):  # of a run that an earlier version began
                said = {"before": {"": said}}
            for name, into in (("before", self._before), ("taken", self.taken)):
                for key, rows in said.get(name, {}).items():
                    into[key] = tuple(SeenFile(*row) for row in rows)
        except (OSError, ValueError, TypeError, AttributeError):
            self.taken.clear()

    def before(self, place: str, root: Path) -> tuple[SeenFile, ...]:
        """The files below ``root`` as they were when this was asked for the first time."""
        if place not in self._before and self._path is not None:
            self._before[place] = files_below(root)
            self._write()
        return self._before.get(place, ())

    def take(self, name: str, weights: tuple[SeenFile, ...]) -> None:
        if self.taken.get(name) != weights:
            self.taken[name] = weights
            self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        said = {
            name: {key: [astuple(file) for file in files] for key, files in held.items()}
            for name, held in (("before", self._before), ("taken", self.taken))
        }
        with contextlib.suppress(OSError):  # on a full disk the next attempt takes some again
            write_atomic(self._path, json.dumps(said), durable=False)


# Whether a file is whole, by the marks of its format.


def _shows_whole(artifact: Artifact) -> bool:
    """Whether the formats of its weights tell a whole file from half of one, and say whole."""
    paths = [artifact.root / file.path for file in artifact.weights]
    return all(
        path.suffix == ".safetensors" or read_part(path, 4) == b"PK\x03\x04" for path in paths
    ) and not any(map(why_half, paths))


def why_half(path: Path) -> str:
    """Why a file is seen to be cut off, by its format's own marks; empty where nothing shows it."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            begin = file.read(8)
            if path.suffix == ".safetensors":
                return _half_safetensors(file.read(1 << 24), begin, size)
            if begin.startswith(b"PK\x03\x04"):
                file.seek(max(0, size - (1 << 16) - 22))
                return "" if b"PK\x05\x06" in file.read() else "its zip has no end"
    except OSError as error:
        return error.strerror or "it cannot be read"
    return ""


def _half_safetensors(header: bytes, begin: bytes, size: int) -> str:
    """Its header says where the last tensor ends (format: 8 bytes of length, JSON, then data)."""
    length = int.from_bytes(begin, "little") if len(begin) == 8 else 0
    ends = [
        int(end)
        for end in re.findall(rb'"data_offsets":\s*\[\d{1,18},\s*(\d{1,18})\]', header[:length])
    ]
    if not 0 < length <= len(header) or size < 8 + length + max(ends, default=0):
        return "its safetensors are cut off"
    return ""
