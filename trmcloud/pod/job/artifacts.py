"""Checkpoints among the files that a command writes: known layouts, and files that belong together.

Nothing is ever loaded: names, sizes, times and the first bytes of a file decide, and small JSON
files of known layouts. Names may be hostile. A checkpoint that cannot be carried home safely is
refused with a reason: links that lead out, trees that are too deep, too many files.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from trmcloud.core.contract.command import MOST_PATH_CHARS
from trmcloud.core.contract.command_terms import MOST_DEPTH, MOST_FILES
from trmcloud.core.values import Value
from trmcloud.io.foreign_files import read_part
from trmcloud.pod.job.parts import (
    INDEX_NAME,
    SUFFIX,
    Index,
    SplitFolder,
    named_files,
    zero_files,
    zero_shards,
)

OUTPUTS = "outputs"
"""The kind of the one archive of files that no layout recognises."""
UNFINISHED = "unfinished"
"""The layout of a folder whose index is not there yet, or that lacks files of its index."""
STATES = frozenset({"cbsnapshot"})
"""Layouts of a training's state whose step no name and no line of the log tells."""
NAMED = "named"
"""The kind of what a pattern of ``--checkpoints`` or a line of reports names."""
_MODELS = frozenset(
    (
        *(".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".npz", ".npy", ".msgpack", ".h5"),
        *(".hdf5", ".keras", ".pkl", ".pickle", ".joblib", ".skops", ".onnx", ".gguf", ".tar"),
        *(".distcp", ".ubj", ".cbm", ".cbsnapshot", ".eqx", ".pdparams", ".params", ".nemo"),
        *(".torch", ".model", ".index", ".pb", ".tflite", ".mar", ".rds", ".jld2", ".bson"),
    )
)
"""The suffixes of files that hold weights."""
_TF_DATA = re.compile(r"\.data-[0-9]{5}-of-[0-9]{5}$")
_FIRST_BYTES: tuple[tuple[bytes, bytes], ...] = (
    (b"PK\x03\x04", b"data.pkl"),
    (b"\x80\x02", b""),
    (b"\x80\x03", b""),
    (b"\x80\x04", b""),
    (b"\x80\x05", b""),
    (b"\x89HDF\r\n\x1a\n", b""),
    (b"GGUF", b""),
    (b"CBM1", b""),
    (b'{"learner"', b""),
    (b"{L\x00\x00\x00\x00\x00\x00\x00\x07learner", b""),
    (b"tree\nversion=", b""),
)
"""How files of weights begin, and what else stands in their first bytes: torch's zip, a pickle,
HDF5, GGUF, CatBoost, XGBoost's JSON and UBJSON, LightGBM's text."""
_LOOKED_AT = 256
_TORCH_ZIP = (b"PK\x03\x04", b"data.pkl")
_IN_ARCHIVE = re.compile(
    rb"policy\.pth|pytorch_variables\.pth|data\.pkl|variables\.index|\.safetensors|model\.weights\.h5"
)
"""Names in the list at a zip's end that show a model: Stable-Baselines3's, torch's, Keras'."""
_BY_CONTENT = frozenset(("", ".txt", ".json", ".deprecated", ".lgb", ".xgb"))
"""Suffixes that say nothing: the first bytes decide."""

_OF_ANYTHING = frozenset((".npz", ".npy", ".pkl", ".pickle", ".joblib", ".tar", ".h5", ".hdf5"))
"""Suffixes of data as well: where no folder was named, the name must be a model's."""
_LIKE_A_MODEL = re.compile(
    r"model|ckpt|checkpoint|weight|epoch|step|iter|clf|classif|regress|estim|param|state|agent"
    r"|policy|net|best|last|final",
    re.I,
)
_LIKE_DATA = re.compile(
    r"eval|histor|metric|result|log(?!it|ist)|loss|pred|sampl|output|score|featur|embed|curve", re.I
)
"""Names of arrays that are none of a model, in a named folder as well."""
_PART = re.compile(
    r"^(training_args|optim|opt_state|scheduler|lr_sched|scaler|rng_state|random_state|trainer_state"
    r"|tokenizer|vocab|merges|special_tokens|added_tokens|generation_config|preprocessor|sampler"
    r"|chat_template|zero_to_fp32|latest_checkpointed|hparams|dl_state|custom_checkpoint)"
    r"|^(?!model)(.*[_.-])?(optim|optimizer|scheduler|config|meta|metadata|args|opts?|labels|classes)"
    r"([_.-]|$)|\.index\.json$",
    re.I,
)
"""Names of what belongs to a checkpoint and is none by itself."""
_PART_SUFFIXES = frozenset(
    (".json", ".yaml", ".yml", ".toml", ".txt", ".model", ".jinja", ".md", ".py", ".csv")
)
_IN_MAKING = re.compile(
    r"(^\.)|(^tmp)|(\.tmp)|(-tmp-)|(^_tmp)|(\.part(ial)?$)|(\.incomplete)|(\.lock$)|(~$)", re.I
)
_NO_OUTPUT = frozenset(("__pycache__", "node_modules", "site-packages"))
"""Folders of packages, which are not looked into."""
_TRACKERS = frozenset(("wandb", "mlruns"))
"""Folders of trackers: models may lie in them, and what else does is theirs."""
_BOARDS = frozenset(("runs", "logs", "tensorboard"))
"""Folders of boards' event files. Checkpoints may lie in them; they are part of none."""
_INPUTS = frozenset(("data", "dataset", "datasets", "cache"))
"""Folders in which, where no folder was named, a checkpoint's name must be like a model's."""
_LOG = re.compile(r"(\.log$)|(^events\.out\.tfevents\.)|(\.out$)|(\.err$)", re.I)
_SHARD = re.compile(
    r"[-_.]?(\d{5}-of-\d{5}|(?:mp|zero_pp)_rank_\d+(?:_mp_rank_\d+)?|rank[-_]?\d+)", re.I
)
_STEP = re.compile(
    r"(?:(?:global[-_]?)?(step)s?|checkpoint|ckpt|(iter)(?:ation)?)[-_=.]?([0-9]{1,8})(?![0-9])",
    re.I,
)
_EPOCH = re.compile(r"(?<![A-Za-z])(?:epochs?|ep)[-_=.]?([0-9]{1,8})(?![0-9])", re.I)
_DIGITS = re.compile(r"[0-9]+")
_DECIMAL = re.compile(r"[0-9]+\.[0-9]+")
_VARIANT = re.compile(r"(best|last|latest|final|ema|current|init)", re.I)
_BEST = re.compile(
    r"(?<![a-z])best(?![a-z])|(?<![a-z])best(?:model|ckpt|checkpoint|weight)"
    r"|(?:model|ckpt|checkpoint|weights)best(?![a-z])"
)
_NOT_BEST = re.compile(r"(?<![a-z])(last|latest|current|init|initial)(?![a-z])")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NAMED_METRIC = re.compile(r"([A-Za-z_][A-Za-z0-9_/.]*)=(-?[0-9]+\.[0-9]+(?:e-?[0-9]+)?)", re.I)
_HUB_WEIGHTS = re.compile(
    r"(model|pytorch_model|adapter_model|tf_model|flax_model|diffusion_pytorch_model)"
    r"([-.].*)?\.(safetensors|bin|h5|msgpack|index\.json)",
    re.I,
)
_HUB_SIGNS = frozenset(
    ("config.json", "adapter_config.json", "trainer_state.json", "training_args.bin")
)
_WRITTEN_BYTES_PER_S = 50e6
"""The slowest disk on which files of one checkpoint are known for such by their times."""
MOST_ENTRIES = 100_000
"""Files and folders of one look at a place: about half a second of a processor."""
_DEEPEST = 32
"""Folders below a place that are looked into."""
_SEARCHED = "; not all of it was searched: name the folder with --checkpoints"
_MOST_STATE_BYTES = 64 << 20
"""Of a ``trainer_state.json``, which lists all that was logged."""


class ArtifactRefused(ValueError):
    """A checkpoint that cannot be taken; its text says why."""


class SeenFile(Value):
    """One file, as it was when it was looked at."""

    path: str
    """Below the artifact's root."""
    size_bytes: int
    mtime_ns: int
    inode: int


class NameNumbers(NamedTuple):
    """The numbers in a name: ``checkpoint-20``, ``epoch=1-step=20.ckpt``, ``model_000020.pt``."""

    step: int | None = None
    epoch: int | None = None
    number: int | None = None
    """The last number, where none is called a step."""
    counter: str = ""
    """The word before the step, "step" or "iter", where it is one of these."""


class Artifact(Value):
    """Files that are one checkpoint. ``source`` is its name below its place."""

    source: str
    root: Path
    """The folder that its files' paths are below."""
    files: tuple[SeenFile, ...]
    is_file: bool
    """Its files stand beside each other, in no folder of their own."""
    kind: str = NAMED
    """The layout by which it was recognised: checkpoints of one kind may be compared in size."""
    place: str = ""
    """The folder outside the working tree that it was found in, as it was named."""

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def marks(self) -> NameNumbers:
        return marks_of(self.source.rpartition("/")[2])

    @property
    def weights(self) -> tuple[SeenFile, ...]:
        """The files that are no parts; all, where every name is that of a part."""
        found = tuple(f for f in self.files if not is_part(f.path.rpartition("/")[2]))
        return found or self.files

    @property
    def saved_at(self) -> float:
        """Epoch seconds of the last write to its weights."""
        return max(file.mtime_ns for file in self.weights) / 1e9

    @property
    def name(self) -> str:
        """For people: with the place, where that is outside the working tree."""
        return f"{self.place}/{self.source}" if self.place else self.source


def marks_of(name: str) -> NameNumbers:
    plain = _SHARD.sub("", name)
    step, epoch = _STEP.search(plain), _EPOCH.search(plain)
    numbers = _DIGITS.findall(_DECIMAL.sub("", _stem(plain)))
    number = int(numbers[-1][-8:]) if numbers and step is None else None
    counter = ((step.group(1) or step.group(2) or "") if step else "").lower()
    return NameNumbers(
        int(step.group(3)) if step else None,
        int(epoch.group(1)) if epoch else None,
        number,
        counter,
    )


def names_best(source: str) -> bool:
    """Whether a script's own name for a checkpoint says that it is its best: ``best.pt``,
    ``model_best.pth.tar``, ``checkpoint-best``, ``best_model``, ``BestModel``; or a file in a
    folder of such a name, unless its own name says that it is the last one."""
    folder, _, name = _HUMP.sub("_", source).lower().rpartition("/")
    if _BEST.search(name):
        return True
    return not _NOT_BEST.search(name) and _BEST.search(folder.rpartition("/")[2]) is not None


def is_part(name: str) -> bool:
    """Whether a file of this name belongs to a checkpoint and is none by itself."""
    return _PART.search(name) is not None


def is_like_data(name: str) -> bool:
    """Whether a file's name is rather that of data, results or a part than that of a model."""
    is_data = _LIKE_DATA.search(name) or re.search(r"data|cache|token|corpus", name, re.I)
    return is_part(name) or bool(is_data and not _LIKE_A_MODEL.search(name))


def metrics_in(artifact: Artifact) -> list[tuple[int | None, dict[str, float]]]:
    """Return the metrics in the layout itself: (step, metrics) in the order of logging.

    transformers' ``trainer_state.json``, orbax's ``metrics/metrics``, and names that bear a value
    (``epoch=2-val_loss=0.34.ckpt``).
    """
    by_path = {file.path: file for file in artifact.files}
    state = by_path.get("trainer_state.json")
    if state is not None and (said := _json(artifact.root / state.path)) is not None:
        history = said.get("log_history")
        rows = history if isinstance(history, list) else []
        return [(_whole(row.get("step")), _numbers(row)) for row in rows if isinstance(row, dict)]
    for path in ("metrics/metrics", "metrics"):
        if path in by_path and (said := _json(artifact.root / path)) is not None:
            return [(artifact.marks.step, _numbers(said))]
    if artifact.kind == "spacy":
        said = _json(artifact.root / "meta.json")
        told = said.get("performance") if said is not None else None
        if isinstance(told, dict):
            return [(artifact.marks.step, _numbers(told))]
    named = _NAMED_METRIC.findall(artifact.source.rpartition("/")[2].rpartition(".")[0])
    metrics = {name: float(value) for name, value in named}
    return [(artifact.marks.step, metrics)] if metrics else []


def step_in(artifact: Artifact) -> int | None:
    """The step that the layout itself names, by its state or its name."""
    if any(file.path == "trainer_state.json" for file in artifact.files):
        said = _json(artifact.root / "trainer_state.json")
        if said is not None and (step := _whole(said.get("global_step"))) is not None:
            return step
    if artifact.kind == "orbax" and artifact.marks.step is None:
        return artifact.marks.number
    return artifact.marks.step


def _json(path: Path) -> dict[str, Any] | None:
    said = _json_of(path)
    return said if isinstance(said, dict) else None


def _json_of(path: Path) -> object:
    """None where it cannot be read, or is too large."""
    try:
        text = read_part(path, _MOST_STATE_BYTES + 1)
        return json.loads(text) if len(text) <= _MOST_STATE_BYTES else None
    except (ValueError, RecursionError):
        return None


def _whole(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 100_000_000 else None


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    return {k[:80]: float(v) for k, v in list(row.items())[:64] if type(v) in (int, float)}


# Looking at a place: one walk, which is bounded, and then the layouts, from the top down.


class Folder(NamedTuple):
    """A folder as it was found: the files and folders in it, and links by what they are."""

    path: str
    """Below the place; empty for the place itself."""
    files: Mapping[str, SeenFile]
    folders: Mapping[str, Folder]
    trouble: str = ""
    """Why what it holds cannot be taken as a whole."""
    limit: str = ""
    """The limit of a look by which a part of it was not searched."""

    def every(self, *, boards: bool = False) -> Iterator[SeenFile]:
        """All files at and below this folder; ``boards``: those of boards' folders as well."""
        yield from self.files.values()
        for name, folder in self.folders.items():
            if boards or name not in _BOARDS:
                yield from folder.every(boards=boards)

    @property
    def troubles(self) -> str:
        found = (folder.troubles for folder in self.folders.values())
        return self.trouble or next(filter(None, found), "")


class PlaceContents(NamedTuple):
    """A look at a place: checkpoints, what is refused (name, why), and files of no layout."""

    artifacts: tuple[Artifact, ...]
    refused: tuple[tuple[str, str], ...]
    rest: tuple[SeenFile, ...]
    """Their paths are below the place."""
    split: tuple[SplitFolder, ...] = ()
    """Folders of distributed checkpoints, of which other machines may have files."""


def find_artifacts(
    root: Path,
    *,
    place: str = "",
    below: str = "",
    but: Collection[SeenFile] = (),
    is_flat: bool = False,
) -> PlaceContents:
    """Look for checkpoints below ``root``.

    Args:
        root: the working tree, or a folder outside it.
        place: the name of that folder outside.
        below: look in this folder of ``root`` alone.
        but: files that were there before and are no output while they are unchanged.
        is_flat: look among the files of the folder, not below it: those that belong together are
            one checkpoint.
    """
    known = {(file.path, file.mtime_ns, file.size_bytes) for file in but}
    folder = _walk(root, below, _DEEPEST if is_flat else 0, [MOST_ENTRIES], known)
    found = _Search(root, place, by_name=not (below or place or is_flat))
    if is_flat:
        found.search_files(folder)
    else:
        found.search(folder, is_top=True)
    if found.limit:
        found.refused.append((place or below or "the working tree", found.limit))
    split = tuple(splits_in(folder, root, place))
    return PlaceContents(tuple(found.artifacts), tuple(found.refused), tuple(found.rest), split)


def artifact_at(root: Path, name: str, place: str = "") -> Artifact | None:
    """Return a file or a whole folder as one checkpoint, whatever its layout; None where there is
    none.

    Raises:
        ArtifactRefused: it cannot be taken as a whole.
    """
    path = root / name
    try:
        about = os.lstat(path)
    except OSError:
        return None
    if stat.S_ISREG(about.st_mode):
        return Artifact(name, path.parent, (_seen(path.name, about),), True, NAMED, place)
    if not stat.S_ISDIR(about.st_mode):
        return None  # a "latest" that names another one, which is seen itself
    folder = _walk(root, name, 0, [MOST_ENTRIES], ())
    files = [_named(file, file.path[len(name) + 1 :]) for file in folder.every()]
    if why := folder.troubles or _why_too_large(files):
        raise ArtifactRefused(why)
    kind = layout_of(folder, root) or NAMED
    if not all(split.is_whole for split in splits_in(folder, root)):
        kind = UNFINISHED
    ordered = tuple(sorted(files, key=lambda file: file.path))
    return Artifact(name, path, ordered, False, kind, place) if files else None


def _why_too_large(files: Sequence[SeenFile]) -> str:
    """Why so many files, or such deep ones, are not taken as one checkpoint; empty otherwise."""
    if len(files) > MOST_FILES:
        return f"it holds more than {MOST_FILES} files"
    is_deep = any(file.path.count("/") > MOST_DEPTH for file in files)
    return f"it is deeper than {MOST_DEPTH} folders" if is_deep else ""


def splits_at(root: Path, name: str, place: str = "") -> Iterator[SplitFolder]:
    """Every folder of a distributed checkpoint at or below ``name``."""
    return splits_in(_walk(root, name, 0, [MOST_ENTRIES], ()), root, place)


def files_below(root: Path) -> tuple[SeenFile, ...]:
    """Every file below ``root``, as far as a look reaches."""
    return tuple(_walk(root, "", 0, [MOST_ENTRIES], ()).every(boards=True))


def is_in_making(name: str) -> bool:
    """Whether a file or folder of this name is still being written."""
    return _IN_MAKING.search(name) is not None


def _walk(
    root: Path, below: str, depth: int, left: list[int], known: Collection[tuple[str, int, int]]
) -> Folder:
    files: dict[str, SeenFile] = {}
    folders: dict[str, Folder] = {}
    trouble = limit = ""
    try:
        with os.scandir(root / below if below else root) as found:
            # Data sets come last: they hold most files, and hardly ever a checkpoint.
            entries = sorted(found, key=lambda entry: (entry.name in _INPUTS, entry.name))
    except OSError:
        return Folder(below, {}, {})
    for entry in entries:
        left[0] -= 1
        if left[0] < 0:
            trouble = limit = f"there are more than {MOST_ENTRIES:,} files and folders{_SEARCHED}"
            break
        path = f"{below}/{entry.name}" if below else entry.name
        if len(path) > MOST_PATH_CHARS:
            trouble = limit = f"{path!r:.80} is too long a name{_SEARCHED}"
            continue
        try:
            about = entry.stat(follow_symlinks=False)
            if stat.S_ISLNK(about.st_mode):
                if not stays_inside(root, Path(entry.path)):
                    trouble = f"{path:.80} is a link that leads out"
                continue  # another name of what is seen itself
        except OSError:
            continue
        if stat.S_ISDIR(about.st_mode):
            if depth >= _DEEPEST:
                trouble = limit = f"{path:.80} is deeper than {_DEEPEST} folders{_SEARCHED}"
            elif entry.name not in _NO_OUTPUT and not entry.name.startswith("."):
                folders[entry.name] = _walk(root, path, depth + 1, left, known)
        elif not stat.S_ISREG(about.st_mode):
            trouble = f"{path:.80} is no file"
        elif (path, about.st_mtime_ns, about.st_size) not in known:
            files[entry.name] = _seen(path, about)
    return Folder(below, files, folders, trouble, limit)


def stays_inside(root: Path, link: Path) -> bool:
    real, target = os.path.realpath(root), os.path.realpath(link)
    return target == real or target.startswith(real + os.sep)


class _Search:
    def __init__(self, root: Path, place: str, *, by_name: bool) -> None:
        self._root, self._place, self._by_name = root, place, by_name
        self.artifacts: list[Artifact] = []
        self.refused: list[tuple[str, str]] = []
        self.rest: list[SeenFile] = []
        self.limit = ""

    def search(self, folder: Folder, *, is_top: bool = False) -> None:
        name = folder.path.rpartition("/")[2]
        self.limit = self.limit or folder.limit
        if not is_top and is_in_making(name):
            return
        kind = layout_of(folder, self._root)
        if kind == UNFINISHED:
            self.rest += folder.every()
            return
        if kind and not (is_top and kind == "folder"):
            if kind in _WHOLE or marks_of(name).step is not None:
                if not all(split.is_whole for split in splits_in(folder, self._root)):
                    self.rest += folder.every()
                    return
                self._add(folder.path, list(folder.every()), kind, folder.troubles)
            else:
                self._add_model(folder, kind)
            return
        if not self._by_name and _STEP.search(name) and folder.troubles:
            self.refused.append((folder.path, folder.troubles))
            return
        for child_name, child in folder.folders.items():
            rest, artifacts, limit = len(self.rest), len(self.artifacts), self.limit
            self.search(child)
            if child_name in _TRACKERS or (self._by_name and child_name in _INPUTS):
                del self.rest[rest:]
            if self._by_name and child_name in _INPUTS:
                found = self.artifacts[artifacts:]
                like = [each for each in found if _LIKE_A_MODEL.search(each.source)]
                self.artifacts[artifacts:], self.limit = like, limit
        self.search_files(folder)

    def _add_model(self, folder: Folder, kind: str) -> None:
        """A model with other checkpoints in its folder, as transformers' output folder is."""
        files = [f for n, f in folder.files.items() if not _LOG.search(n) and not is_in_making(n)]
        parts = _named_parts(folder, self._root)
        for name, child in folder.folders.items():
            if name in parts:
                files += child.every()
            elif name in _BOARDS or _holds_checkpoints(child, self._root):
                self.search(child)
            elif not is_in_making(child.path.rpartition("/")[2]):
                files += child.every()
        # In a folder that bears its name; or beside others, where the place itself is the folder.
        self._add(folder.path, files, kind, folder.trouble)

    def search_files(self, folder: Folder) -> None:
        """Group the files of a folder of no layout: those with the same numbers in their names, and
        those without any by best, last and the like."""
        groups: dict[object, list[str]] = {}
        parts: list[str] = []
        for name, file in folder.files.items():
            if is_in_making(name) or not file.size_bytes:
                continue
            if not is_part(name) and is_model(self._root, file) and self._may_be(file):
                groups.setdefault(_group_of(name), []).append(name)
            elif is_part(name) or os.path.splitext(name)[1].lower() in _PART_SUFFIXES:
                parts.append(name)
            elif not _LOG.search(name):
                self.rest.append(file)
        for key in [key for key in groups if isinstance(key, str)]:
            names = groups.pop(key)
            groups |= {(key, at): each for at, each in _written_together(folder.files, names)}
        for name in parts:
            group = _group_of(name)
            if isinstance(group, str):
                group = _nearest_group(folder.files, name, group, groups)
            if is_part(name) and group in groups:
                groups[group].append(name)
            else:
                self.rest.append(folder.files[name])
        for names in groups.values():
            names = _without_twins(folder.files, names)
            first = next(name for name in names if not is_part(name))
            suffix = os.path.splitext(first)[1].lower().lstrip(".") or "file"
            source = f"{folder.path}/{first}" if folder.path else first
            files = [folder.files[name] for name in names]
            self._add(source, files, suffix, "", is_file=True)

    def _may_be(self, file: SeenFile) -> bool:
        name = file.path.rpartition("/")[2]
        if os.path.splitext(name)[1].lower() not in _OF_ANYTHING:
            return True
        if self._by_name and not is_of_torch(self._root, file):
            return _LIKE_A_MODEL.search(name) is not None
        return _LIKE_DATA.search(name) is None

    def _add(
        self, source: str, files: list[SeenFile], kind: str, trouble: str, *, is_file: bool = False
    ) -> None:
        if not files:
            return
        parent = source.rpartition("/")[0] if is_file else source
        cut = len(parent) + 1 if parent else 0
        below = [_named(file, file.path[cut:]) for file in files]
        if why := trouble or _why_too_large(below):
            self.refused.append((source, why))
            return
        if not source:  # the place itself: its files stand in no folder that could be restored
            source, is_file = next(f.path for f in below if not is_part(f.path)), True
        ordered = tuple(sorted(below, key=lambda file: file.path))
        self.artifacts.append(
            Artifact(source, self._root / parent, ordered, is_file, kind, self._place)
        )


_WHOLE = frozenset(
    ("orbax", "torch-dcp", "saved-model", "speechbrain", "deepspeed", "spacy", "folder")
)
"""Layouts of which all that is in the folder is part."""


def layout_of(folder: Folder, root: Path) -> str:
    """The layout of a folder that is one checkpoint; empty where it is none."""
    files, folders = folder.files, folder.folders
    name = folder.path.rpartition("/")[2]
    if "_CHECKPOINT_METADATA" in files or "_METADATA" in files:
        return "orbax"
    if any("_METADATA" in f.files for n, f in folders.items() if not _DIGITS.search(n)):
        return "orbax"
    if (split := split_of(folder, root)) is not None:
        what = "torch-dcp" if INDEX_NAME in files else "deepspeed"
        return what if split.is_whole else UNFINISHED
    if "saved_model.pb" in files:
        return "saved-model"
    if "CKPT.yaml" in files:
        return "speechbrain"
    if {"config.cfg", "meta.json", "tokenizer"} <= set(files):
        return "spacy"
    if "model_index.json" in files and folders:
        return "diffusers"
    has_weights = any(_HUB_WEIGHTS.fullmatch(n) for n in files)
    trains = any(is_part(n) and n.startswith(("optim", "random_states", "rng")) for n in files)
    if has_weights and (trains or _HUB_SIGNS & set(files)):
        what = "adapter" if any(n.startswith("adapter_model") for n in files) else "model"
        if not (_HUB_SIGNS & set(files)):
            return "accelerate"
        return f"transformers-{what}" + ("-and-optimizer" if trains else "")
    if any(n.startswith("pytorch_model_fsdp") for n in folders):
        return "accelerate"
    if _STEP.search(name) and any(is_model(root, file) for file in folder.every()):
        return "folder"
    return ""


def split_of(folder: Folder, root: Path, place: str = "") -> SplitFolder | None:
    """A folder of a distributed checkpoint; None where it is none. Its index is written last."""
    files = folder.files
    index = files.get(INDEX_NAME)
    own = {name: file.mtime_ns for name, file in files.items() if name.endswith(SUFFIX)}
    if index is None:
        if shards := tuple(zero_shards(files)):
            return _split_of_zero(folder, root, place, shards)
        return (
            SplitFolder(place, folder.path, root / folder.path, own, None, _NONE) if own else None
        )
    named = named_files(root / index.path, index.mtime_ns, index.size_bytes)
    if not own and not named:
        return None
    missing = named - own.keys()
    known = Index(root / index.path, index.mtime_ns)
    return SplitFolder(place, folder.path, root / folder.path, own, known, missing)


def _split_of_zero(folder: Folder, root: Path, place: str, shards: tuple[str, ...]) -> SplitFolder:
    """Of DeepSpeed: its index is the file of model states of the first rank here."""
    own = {name: folder.files[name].mtime_ns for name in shards}
    first = min((n for n in shards if n.endswith("_model_states.pt")), key=len, default=None)
    if first is None:
        return SplitFolder(place, folder.path, root / folder.path, own, None, _NONE)
    index = folder.files[first]
    known = Index(root / index.path, index.mtime_ns)
    named = zero_files(known.path, index.mtime_ns, index.size_bytes, shards)
    return SplitFolder(place, folder.path, root / folder.path, own, known, named - own.keys())


_NONE: frozenset[str] = frozenset()


def splits_in(folder: Folder, root: Path, place: str = "") -> Iterator[SplitFolder]:
    """Every folder of a distributed checkpoint at or below this one."""
    if (found := split_of(folder, root, place)) is not None:
        yield found
    for child in folder.folders.values():
        yield from splits_in(child, root, place)


def _named_parts(folder: Folder, root: Path) -> set[str]:
    """The folders that a pipeline's index names as its parts: of diffusers, of
    sentence-transformers."""
    files = (folder.files.get(name) for name in ("model_index.json", "modules.json"))
    named: set[str] = set()
    for said in (_json_of(root / file.path) for file in files if file is not None):
        rows = said if isinstance(said, list) else []
        named |= {str(row.get("path")) for row in rows if isinstance(row, dict)}
        named |= said.keys() if isinstance(said, dict) else set()
    return named & set(folder.folders)


def _holds_checkpoints(folder: Folder, root: Path) -> bool:
    return bool(layout_of(folder, root)) or any(
        _holds_checkpoints(child, root) for child in folder.folders.values()
    )


@lru_cache(maxsize=1 << 16)
def is_model(root: Path, file: SeenFile) -> bool:
    """Whether a file holds weights: by its suffix, or by how it begins where that says nothing."""
    name = file.path.rpartition("/")[2]
    suffix = os.path.splitext(name)[1].lower()
    if _TF_DATA.search(name):
        return True
    if suffix in _MODELS and suffix not in _BY_CONTENT:
        return True
    if _DIGITS.fullmatch(suffix[1:]):
        suffix = ""  # step_0.5
    if _LOG.search(name):
        return False
    if not suffix and _STEP.search(name):
        return True
    begin = read_part(root / file.path, _LOOKED_AT)
    if suffix == ".zip" and begin.startswith(_TORCH_ZIP[0]):
        end = read_part(root / file.path, 1 << 16, max(0, file.size_bytes - (1 << 16)))
        return _IN_ARCHIVE.search(end) is not None
    # A suffix that nothing is known of, as .cleanrl_model, may be of a file that torch wrote, or,
    # in a file of a model's name, as model_400.d3, of any format of weights.
    if suffix == ".json" and not begin.lstrip().startswith(b"{"):
        return False  # Ray Tune pickles the state of a search under such a name
    is_open = suffix in _BY_CONTENT or _LIKE_A_MODEL.search(os.path.splitext(name)[0])
    known = _FIRST_BYTES if is_open else (_TORCH_ZIP,)
    return any(begin.startswith(first) and also in begin for first, also in known)


@lru_cache(maxsize=1 << 16)
def is_of_torch(root: Path, file: SeenFile) -> bool:
    """Whether ``torch.save`` wrote a file, whatever its name: ``4.pkl``."""
    begin = read_part(root / file.path, _LOOKED_AT)
    return begin.startswith(_TORCH_ZIP[0]) and _TORCH_ZIP[1] in begin


def _without_twins(files: Mapping[str, SeenFile], names: Sequence[str]) -> list[str]:
    """Without files that bear the name of another one in other punctuation, as ``step=20.ckpt``
    beside ``step-20.ckpt``: the same model, saved by two callbacks. The first one that was written
    stays."""
    first: dict[str, str] = {}
    for name in sorted(names, key=lambda name: files[name].mtime_ns):
        first.setdefault(re.sub(r"[^a-z0-9.]", "", name.lower()), name)
    return [name for name in names if name in first.values()]


def _group_of(name: str) -> object:
    """Return the part that names of one checkpoint have in common: all their numbers; where they
    have none, whether they are called best, last or neither."""
    plain = _TF_DATA.sub("", _SHARD.sub("", name))
    stem = _stem(plain)
    if numbers := _DIGITS.findall(stem):
        return tuple(str(int(number)) for number in numbers)
    variant = _VARIANT.search(stem)
    return variant.group(1).lower() if variant else ""


def _written_together(
    files: Mapping[str, SeenFile], names: Sequence[str]
) -> list[tuple[int, list[str]]]:
    """Divide files without a number by their times: one that was written long after another one
    belongs to another checkpoint. Returns each part's last time in ns, and its names."""
    found: list[tuple[int, list[str]]] = []
    for name in sorted(names, key=lambda name: files[name].mtime_ns):
        file = files[name]
        if found and file.mtime_ns - found[-1][0] <= _apart_ns(file):
            found[-1] = file.mtime_ns, [*found[-1][1], name]
        else:
            found.append((file.mtime_ns, [name]))
    return [(at, sorted(each)) for at, each in found]


def _nearest_group(
    files: Mapping[str, SeenFile], name: str, key: str, groups: Mapping[object, list[str]]
) -> object:
    """The group of files without a number that a part was written with: of its own kind of name, or
    of any."""
    file = files[name]
    plain = [each for each in groups if isinstance(each, tuple) and isinstance(each[-1], int)]
    alike = [each for each in plain if each[0] == key] or plain
    near = [each for each in alike if abs(each[-1] - file.mtime_ns) <= 3 * _apart_ns(file)]
    return min(near, key=lambda each: abs(each[-1] - file.mtime_ns), default=None)


def _apart_ns(file: SeenFile) -> int:
    """How long it may have taken to write a file after the one before it."""
    return int(1.0e9 + file.size_bytes / _WRITTEN_BYTES_PER_S * 1e9)


def _stem(name: str) -> str:
    """A name without the suffix that says its format: ``weights.01-0.31`` of a ``.keras`` file."""
    stem, suffix = os.path.splitext(name)
    return name if _DIGITS.search(suffix) and suffix.lower() not in _MODELS else stem


def _seen(path: str, about: os.stat_result) -> SeenFile:
    return SeenFile(path, about.st_size, about.st_mtime_ns, about.st_ino)


def _named(file: SeenFile, path: str) -> SeenFile:
    return SeenFile(path, file.size_bytes, file.mtime_ns, file.inode)
