"""Checkpoint manifests: what a checkpoint is, which one is best, which ones may go.

A checkpoint is a folder ``<run>/<phase>/checkpoints/step-00000120/`` whose files are all named,
sized and hashed in its ``manifest.json``. The manifest is written last: without it there is no
checkpoint. Everything here treats a manifest as hostile text, since it may come from a machine
somebody else owns.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, dataclass, field
from typing import Any, Iterable, Mapping

from trmcloud.core.errors import CheckpointError

MANIFEST_NAME = "manifest.json"
MANIFEST_VERSION = 1
MAX_MANIFEST_BYTES = 1 << 20
MAX_FILES = 4096
MAX_FILE_BYTES = 1 << 42
MAX_STEP = 99_999_999
_MAX_WHOLE = (1 << 63) - 1
BEST_METRIC = "val_bpb"

KINDS = ("weights", "optimizer", "state", "tokenizer")
_FILE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,80}\.(safetensors|json)")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_STEP_DIR = re.compile(r"step-([0-9]{8})")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


def step_dir_name(step: int) -> str:
    return f"step-{step:08d}"


def parse_step_dir(name: str) -> int | None:
    """The step of a checkpoint folder's name; None where the name is not one."""
    match = _STEP_DIR.fullmatch(name)
    return int(match.group(1)) if match else None


def allowed_name(name: str) -> bool:
    """Whether a checkpoint's file may have this name: flat, of a known kind, not the manifest's."""
    return bool(_FILE_NAME.fullmatch(name)) and name != MANIFEST_NAME


@dataclass(frozen=True)
class CheckpointFile:
    """One file of a checkpoint: flat name, size in bytes, SHA-256 in hex."""

    name: str
    kind: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class CheckpointManifest:
    """What a checkpoint holds and how good it is.

    ``val_bpb`` is the final supervision step's validation bits per byte at ``step`` (None where it
    was not evaluated, or not finite); ``step_losses`` are validation nats per token of every
    supervision step. ``cooled`` says that the learning rate had decayed to its end.
    """

    run_id: str
    phase: str
    step: int
    tokens: int
    created_at: float
    recipe: str
    settings: Mapping[str, Any]
    world_size: int
    val_bpb: float | None
    step_losses: tuple[float, ...]
    cooled: bool
    data_sha256: str
    tokenizer_sha256: str
    files: tuple[CheckpointFile, ...]
    version: int = MANIFEST_VERSION
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def weights(self) -> CheckpointFile:
        return next(file for file in self.files if file.kind == "weights")

    @property
    def sha256(self) -> str:
        """The hash a person compares: that of the weights file."""
        return self.weights.sha256

    @property
    def label(self) -> str:
        return f"{self.phase}/{step_dir_name(self.step)}"


def to_json(manifest: CheckpointManifest) -> str:
    return json.dumps(asdict(manifest), indent=1, sort_keys=True, allow_nan=False) + "\n"


def from_json(text: str | bytes, where: str) -> CheckpointManifest:
    """A manifest from untrusted text.

    Raises:
        CheckpointError: anything that is not exactly a manifest this version understands: bad
            JSON, another version, a file name that is not flat and allow-listed, no weights.
    """
    if len(text) > MAX_MANIFEST_BYTES:
        raise CheckpointError("the manifest is larger than any real one", where=where)
    try:
        data = json.loads(text, parse_constant=_refuse, parse_float=_parse_float)
    except (ValueError, RecursionError):
        raise CheckpointError("the manifest is not JSON", where=where) from None
    try:
        return _read(data)
    except CheckpointError as error:
        raise CheckpointError(error.what, where=where) from None
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CheckpointError(f"the manifest is malformed: {error!r:.200}", where=where) from None


def pick_best(manifests: Iterable[CheckpointManifest]) -> CheckpointManifest | None:
    """The lowest finite ``val_bpb``; equal ones go to the later step; NaN never wins."""
    scored = [m for m in manifests if _finite(m.val_bpb)]
    return min(scored, key=lambda m: (m.val_bpb, -m.created_at, -m.step), default=None)


def pick_latest(manifests: Iterable[CheckpointManifest]) -> CheckpointManifest | None:
    return max(manifests, key=lambda m: (m.created_at, m.step), default=None)


@dataclass(frozen=True)
class Pruning:
    """What may be deleted: whole checkpoints, and files of checkpoints that stay."""

    checkpoints: tuple[CheckpointManifest, ...]
    kept: tuple[CheckpointManifest, ...]

    @property
    def freed_bytes(self) -> int:
        return sum(m.size_bytes for m in self.checkpoints)


def to_prune(manifests: Iterable[CheckpointManifest], keep_best: int) -> Pruning:
    """Everything but, in each phase, the ``keep_best`` best by metric *and* the latest."""
    every = list(manifests)
    kept: list[CheckpointManifest] = []
    for phase in {m.phase for m in every}:
        mine = [m for m in every if m.phase == phase]
        ranked = sorted((m for m in mine if _finite(m.val_bpb)), key=lambda m: (m.val_bpb, -m.step))
        kept += ranked[: max(1, keep_best)]
        latest = pick_latest(mine)
        if latest is not None and latest not in kept:
            kept.append(latest)
    gone = tuple(m for m in every if m not in kept)
    return Pruning(checkpoints=gone, kept=tuple(kept))


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _read(data: Any) -> CheckpointManifest:
    if not isinstance(data, dict):
        raise CheckpointError("the manifest is no JSON object")
    if data["version"] != MANIFEST_VERSION:
        raise CheckpointError(f"manifest version {data['version']!r:.80} is not {MANIFEST_VERSION}")
    files = tuple(_read_file(entry) for entry in data["files"])
    if not 0 < len(files) <= MAX_FILES:
        raise CheckpointError(f"the manifest names {len(files)} files")
    if len({file.name for file in files}) != len(files):
        raise CheckpointError("the manifest names a file twice")
    if sum(file.kind == "weights" for file in files) != 1:
        raise CheckpointError("the manifest does not name exactly one weights file")
    bpb = data["val_bpb"]
    for name in ("run_id", "phase", "recipe"):
        if not _LABEL.fullmatch(data[name]):
            raise CheckpointError(f"the manifest's {name} is not a plain name")
    return CheckpointManifest(
        run_id=data["run_id"],
        phase=data["phase"],
        step=_whole(data["step"], most=MAX_STEP),
        tokens=_whole(data["tokens"]),
        created_at=_real(data["created_at"]),
        recipe=data["recipe"],
        settings=_table(data["settings"]),
        world_size=_whole(data["world_size"]),
        val_bpb=None if bpb is None else _real(bpb),
        step_losses=tuple(_real(loss) for loss in data["step_losses"]),
        cooled=bool(data["cooled"]),
        data_sha256=str(data["data_sha256"]),
        tokenizer_sha256=str(data["tokenizer_sha256"]),
        files=files,
        extra=_table(data.get("extra", {})),
    )


def _read_file(entry: Mapping[str, Any]) -> CheckpointFile:
    name, kind, sha256 = entry["name"], entry["kind"], entry["sha256"]
    if not isinstance(name, str) or not allowed_name(name):
        raise CheckpointError(f"file name {name!r:.80} is not allowed in a checkpoint")
    if kind not in KINDS:
        raise CheckpointError(f"file kind {kind!r:.80} is not known")
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise CheckpointError(f"the hash of {name} is not a SHA-256")
    size = _whole(entry["size_bytes"])
    if size > MAX_FILE_BYTES:
        raise CheckpointError(f"{name} claims {size} bytes")
    return CheckpointFile(name=name, kind=kind, size_bytes=size, sha256=sha256)


def _whole(value: Any, most: int = _MAX_WHOLE) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise CheckpointError(f"{value!r:.80} is not a whole number that can be")
    return value


def _real(value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise CheckpointError(f"{value!r:.80} is not a number")
    return _parse_float(value)


def _table(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CheckpointError(f"{value!r:.80} is not a table")
    return value


def _parse_float(value: str | float) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value!r:.80} is not finite")
    return number


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is no JSON")
