"""Which files below a command's folder are whole checkpoints: those that have stopped changing.

Nothing is ever loaded. What could not be carried home safely is refused with a reason: links, trees
that are too deep, too many files, too many bytes, names that lead out of the folder.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from trmcloud.core.contract.command import MOST_DEPTH, MOST_FILES, is_inside
from trmcloud.core.values import dataclass

_FORMATS = frozenset(
    (
        *(".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".npz", ".npy", ".msgpack", ".h5"),
        *(".hdf5", ".keras", ".pkl", ".pickle", ".joblib", ".onnx", ".gguf", ".tar", ".distcp"),
    )
)
"""The suffixes of files that may be checkpoints, where no pattern names them."""
_IN_MAKING = re.compile(r"(^\.)|(^tmp)|(\.tmp$)|(\.part(ial)?$)|(~$)|(^__pycache__$)", re.I)
_STEPPED = re.compile(
    r"(?:step|checkpoint|ckpt|iter|global_step)[-_=.]?([0-9]{1,8})(?![0-9])", re.I
)
_MOST_ENTRIES = 4096


class CandidateRefused(ValueError):
    """A candidate that cannot be taken; its text says why."""


@dataclass(frozen=True)
class SeenFile:
    """One file, as it was when it was looked at."""

    path: str
    """Below the candidate; its own name where the candidate is one file."""
    size_bytes: int
    mtime_ns: int
    inode: int


@dataclass(frozen=True)
class Candidate:
    """A file or folder that may be a checkpoint. ``source`` is its name in the command's folder."""

    source: str
    root: Path
    """The folder that its files' paths are below."""
    files: tuple[SeenFile, ...]
    is_file: bool

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def step(self) -> int | None:
        """The step that its name bears."""
        found = _STEPPED.search(self.source.rpartition("/")[2])
        return int(found.group(1)) if found else None


class Watcher:
    """``checkpoints`` is the folder that was named, or a pattern of names in one, below ``work``;
    ``most_bytes`` the most that one may hold."""

    def __init__(self, work: Path, checkpoints: str, most_bytes: int) -> None:
        self._work = work
        self._most_bytes = most_bytes
        folder, name = checkpoints.rstrip("/"), ""
        if any(char in checkpoints for char in "*?["):
            folder, _, name = checkpoints.rpartition("/")
        self._named = bool(checkpoints)
        self._folder, self._pattern = "" if folder == "." else folder, name
        self._since: dict[str, tuple[tuple[SeenFile, ...], float]] = {}
        self._done: dict[str, tuple[SeenFile, ...]] = {}
        self.changes = 0
        """Counts what was seen to have changed: a sign that the command gets on."""

    def settled(self, now: float, after_s: float) -> Iterator[Candidate | tuple[str, str]]:
        """Candidates that have not changed for ``after_s`` seconds until ``now``, and (name, why)
        of what is refused. One that is ``done`` with comes again only once it has changed."""
        there = set()
        for name in self._names():
            there.add(name)
            try:
                candidate = self.look(name)
            except CandidateRefused as why:
                yield name, str(why)
                continue
            if candidate is None or self._done.get(name) == candidate.files:
                continue
            before = self._since.get(name)
            if before is None or before[0] != candidate.files:
                self._since[name] = candidate.files, now
                self.changes += 1
                if after_s > 0:
                    continue
            elif now - before[1] < after_s:
                continue
            yield candidate
        for gone in set(self._since) - there:
            del self._since[gone]
            self._done.pop(gone, None)

    def done(self, candidate: Candidate) -> None:
        """It is taken, or will not be as it is."""
        self._done[candidate.source] = candidate.files

    def look(self, name: str) -> Candidate | None:
        """Return the candidate at ``name`` below the working folder; None where that is no
        checkpoint.

        Raises:
            Refused: it cannot be taken.
        """
        path = self._work / name
        self._require_inside(path)
        try:
            about = os.lstat(path)
        except OSError:
            return None
        if stat.S_ISLNK(about.st_mode):
            return None  # a "latest" that names another one, which is seen itself
        if stat.S_ISREG(about.st_mode):
            self._require_size(about.st_size)
            return Candidate(name, path.parent, (_seen(path.name, about),), True)
        if not stat.S_ISDIR(about.st_mode):
            return None
        files = tuple(sorted(self._files(path), key=lambda file: file.path))
        return Candidate(name, path, files, False) if files else None

    def _names(self) -> list[str]:
        """Of what may be a checkpoint, relative to the working folder."""
        if not self._named:
            return []
        root = self._work / self._folder
        try:
            if not stat.S_ISDIR(os.lstat(root).st_mode) and not root.is_symlink():
                return [self._folder]
            found = sorted(entry.name for entry in os.scandir(root))[:_MOST_ENTRIES]
        except OSError:
            return []
        prefix = f"{self._folder}/" if self._folder else ""
        return [prefix + name for name in found if self._may_be(root, name)]

    def _may_be(self, root: Path, name: str) -> bool:
        if _IN_MAKING.search(name):
            return False
        if self._pattern:
            return fnmatchcase(name, self._pattern)
        path = root / name
        if path.is_dir():
            return _STEPPED.search(name) is not None or any(
                os.path.splitext(inner)[1].lower() in _FORMATS for inner in _some_names(path)
            )
        return path.suffix.lower() in _FORMATS

    def _files(self, root: Path, below: str = "", depth: int = 0) -> list[SeenFile]:
        if depth > MOST_DEPTH:
            raise CandidateRefused(f"it is deeper than {MOST_DEPTH} folders")
        found: list[SeenFile] = []
        size = 0
        with os.scandir(root / below) as entries:
            for entry in entries:
                name = f"{below}/{entry.name}" if below else entry.name
                if not is_inside(name) or not name.isprintable():
                    raise CandidateRefused(f"{name!r:.80} is no plain relative name")
                try:
                    about = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if stat.S_ISDIR(about.st_mode):
                    found += self._files(root, name, depth + 1)
                elif stat.S_ISREG(about.st_mode):
                    found.append(_seen(name, about))
                else:
                    raise CandidateRefused(f"{name} is a link, or no file")
                if len(found) > MOST_FILES:
                    raise CandidateRefused(f"it holds more than {MOST_FILES} files")
        size = sum(file.size_bytes for file in found)
        self._require_size(size)
        return found

    def _require_size(self, size: int) -> None:
        if size > self._most_bytes:
            raise CandidateRefused(
                f"{size / 1e9:.2f} GB are more than the {self._most_bytes / 1e9:.2f} GB reserved:"
                " --checkpoint-gb"
            )

    def _require_inside(self, path: Path) -> None:
        """A folder that is a link may lead anywhere."""
        root, real = os.path.realpath(self._work), os.path.realpath(path.parent)
        if real != root and not real.startswith(root + os.sep):
            raise CandidateRefused(f"its folder leads out of the working tree, to {real:.200}")


def _seen(name: str, about: os.stat_result) -> SeenFile:
    return SeenFile(name, about.st_size, about.st_mtime_ns, about.st_ino)


def _some_names(folder: Path) -> Iterator[str]:
    for count, (_, _, names) in enumerate(os.walk(folder)):
        yield from names[:_MOST_ENTRIES]
        if count > MOST_FILES:
            return


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
