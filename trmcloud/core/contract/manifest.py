"""Checkpoint manifests and the names of a checkpoint's shards: content, choice of the best,
pruning.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, field
from typing import Annotated, Any, NamedTuple, TypeVar

from trmcloud.core.contract.command import RECIPE
from trmcloud.core.contract.pod_contract import CheckpointRef
from trmcloud.core.contract.pod_contract import parse_step_dir as parse_step_dir
from trmcloud.core.contract.pod_contract import step_dir_name as step_dir_name
from trmcloud.core.contract.records import (
    MAX_ITEMS,
    ContractError,
    Instant,
    Label,
    Sha256,
    Step,
    load,
    within,
)
from trmcloud.core.errors import CheckpointError
from trmcloud.core.text import one_line
from trmcloud.core.values import Value, replace

# Names of a checkpoint's shards: all that whoever keeps, sends or fetches them need know. Pure.

MOST_SHARDS = 1 << 10
_NAME = re.compile(r"([a-z]+)-([0-9]{5})-of-([0-9]{5})\.safetensors")


class ShardName(NamedTuple):
    """The ``number``-th of ``among`` files of this kind, from 1 on."""

    kind: str
    number: int
    among: int


def shard_name(kind: str, number: int, count: int) -> str:
    return f"{kind}-{number:05d}-of-{count:05d}.safetensors"


def whole_name(kind: str) -> str:
    """Of the one file that all shards of this kind make up."""
    return f"{kind}.safetensors"


def parse_shard_name(name: str) -> ShardName | None:
    """None: it is not a shard's."""
    match = _NAME.fullmatch(name)
    return ShardName(match[1], int(match[2]), int(match[3])) if match else None


def is_complete(names: Sequence[str], kind: str) -> bool:
    """Whether these files of one kind are a single whole one, or every shard of it."""
    found = [parse_shard_name(name) for name in names]
    if len(names) == 1 and found[0] is None:
        return True
    count = len(names)
    return 0 < count <= MOST_SHARDS and {each and tuple(each) for each in found} == {
        (kind, number, count) for number in range(1, count + 1)
    }


# Checkpoint manifests: what a checkpoint is, which one is best, which ones may go.
#
# A checkpoint is a folder ``<run>/<phase>/checkpoints/step-00000120/`` whose files are all named,
# sized and hashed in its ``manifest.json``. The manifest is written last: without it there is no
# checkpoint. Everything here treats a manifest as hostile text, since it may come from a machine
# somebody else owns.

MANIFEST_NAME = "manifest.json"
MANIFEST_VERSION = 1
MAX_MANIFEST_BYTES = 1 << 20
MAX_FILES = MAX_ITEMS
MAX_FILE_BYTES = 1 << 42
PROVENANCE = "provenance"
"""The key in ``extra`` of what a checkpoint was trained with, as its trainer says: ``python``,
``torch``, and the SHA-256 of its own sources and of the list of packages that were installed."""
GATHERED = "gathered_from"
"""The key in ``extra`` of what was put together from shards: their ``sha256``."""

LAYOUT = "layout"
"""The key in ``extra`` of a command's checkpoint: the layout by which it was recognised."""
FINAL_AT = "final_at"
"""The key in ``extra`` of a final model that was saved at the step of another checkpoint: that
step. Its own number is the next free one."""
METRIC = "metric"
"""The key in ``extra`` of a command's checkpoint: what its metric is called, its value, and how
that was found."""
SURE = frozenset(("report", "state", "layout", "step", "epoch", "same weights"))
"""How the value of a command's checkpoint was found, where that ties the two: by its own report, by
the state of its weights, by its own files, by the step or epoch that both name, or by a checkpoint
of the same weights. Anything else, as the order of lines and files, is a guess."""
BEGUN_AT = "begun_at"
"""The key in ``extra`` of a command's checkpoint: the epoch second at which the training that saved
it began at its beginning. An attempt that continues from a checkpoint is of the same training."""
NAMED_BEST = "named_best"
"""The key in ``extra`` of a command's checkpoint that its script itself names best: its name."""
OUTPUTS = "outputs"
"""The layout of an archive of files that no layout recognised."""
OUTPUTS_AT = 1.0
"""The time at which such an archive counts as made: it is never the latest beside another one."""

KINDS = ("weights", "optimizer", "state", "tokenizer")
_FILE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,80}\.(safetensors|json|bin)")
_ANY_FORMAT = ".bin"
"""The suffix of files in a command's checkpoint; this package opens none of them."""


def allowed_name(name: str) -> bool:
    """Whether a checkpoint's file may have this name: flat, of a known kind, not the manifest's."""
    return bool(_FILE_NAME.fullmatch(name)) and name != MANIFEST_NAME


class CheckpointFile(Value):
    """One file of a checkpoint: flat name, size in bytes, SHA-256 in hex."""

    name: Annotated[str, allowed_name]
    kind: Annotated[str, KINDS.__contains__]
    size_bytes: Annotated[int, within(0, MAX_FILE_BYTES)]
    sha256: Sha256


class CheckpointManifest(Value):
    """A checkpoint's content and quality.

    ``val_bpb`` is the final supervision step's validation bits per byte at ``step`` (None where it
    was not evaluated, or not finite); ``step_losses`` are validation nats per token of every
    supervision step. ``cooled`` says that the learning rate had decayed to its end,
    ``cooldown_from`` at which step it had begun to; None: it had not. What was saved at that very
    step is kept beside this one, for a run that is topped up: see ``is_before_cooldown``.

    A checkpoint is saved before it is evaluated: its manifest is replaced once, by the same one
    with the metric. Until then it counts as the latest, and never as the best.
    """

    run_id: Label
    phase: Label
    step: Step
    tokens: int
    created_at: Instant
    recipe: Label
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
    cooldown_from: Step | None = None

    @property
    def ref(self) -> CheckpointRef:
        """What names it, as its pod's agent reports it."""
        made = self.phase, self.step, self.sha256, self.size_bytes, self.val_bpb
        return CheckpointRef(*made, self.cooldown_from, self.is_output, self.is_named_best)

    @property
    def bits(self) -> tuple[str, int, str]:
        """As ``CheckpointRef.bits``."""
        return self.phase, self.step, self.sha256

    @property
    def is_output(self) -> bool:
        """Whether it is an archive of unjudged files: never the best, and never resumed from."""
        return self.extra.get(LAYOUT) == OUTPUTS

    @property
    def is_named_best(self) -> bool:
        """Whether its script itself names it best: see ``own_bests``."""
        return NAMED_BEST in self.extra

    @property
    def own_metric(self) -> tuple[str, float | None] | None:
        """The name and the value of a command's own metric, as it logged it; None where it has
        none."""
        told = self.extra.get(METRIC) if self.recipe == RECIPE else None
        if not isinstance(told, Mapping):
            return None
        name, value = str(told.get("name", METRIC)), told.get("value")
        return name, float(value) if isinstance(value, (int, float)) else None

    @property
    def is_sure(self) -> bool:
        """Whether its metric is known to be of these weights: see ``SURE``."""
        told = self.extra.get(METRIC) if self.recipe == RECIPE else None
        return not isinstance(told, Mapping) or told.get("by") in SURE

    @property
    def begun_at(self) -> float:
        """Which training of its run saved it: see ``BEGUN_AT``; 0 where that is not known."""
        told = self.extra.get(BEGUN_AT)
        return told if type(told) is float and math.isfinite(told) else 0.0

    @property
    def final_at(self) -> int | None:
        """The step at which a final model was saved, where another checkpoint has its number."""
        told = self.extra.get(FINAL_AT)
        return told if type(told) is int and 0 <= told <= self.step else None

    @property
    def trained_to(self) -> int:
        """The step that was trained to: its number, but of such a final model."""
        return self.step if self.final_at is None else self.final_at

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def weights(self) -> tuple[CheckpointFile, ...]:
        """One file, or every shard of it, in their order."""
        return tuple(
            sorted((f for f in self.files if f.kind == "weights"), key=lambda file: file.name)
        )

    @property
    def is_sharded(self) -> bool:
        return len(self.weights) > 1 or parse_shard_name(self.weights[0].name) is not None

    @property
    def sha256(self) -> str:
        """The hash a person compares: that of the weights file; of shards, that of their hashes,
        a line each."""
        weights = self.weights
        if len(weights) == 1:
            return weights[0].sha256
        lines = "".join(f"{file.sha256}\n" for file in weights)
        return hashlib.sha256(lines.encode()).hexdigest()

    @property
    def sha256s(self) -> frozenset[str]:
        """Its hash, and that of the shards that it was put together from."""
        return frozenset({self.sha256, str(self.extra.get(GATHERED, self.sha256))})

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
    try:
        manifest = load(CheckpointManifest, MANIFEST_VERSION, text, most=MAX_MANIFEST_BYTES)
    except ContractError as error:
        raise CheckpointError(f"the manifest is malformed: {error}", where=where) from None
    files = manifest.files
    if len({file.name for file in files}) != len(files):
        raise CheckpointError("the manifest names a file twice", where=where)
    for kind, least in (("weights", 1), ("optimizer", 0)):
        names = [file.name for file in files if file.kind == kind]
        if (names or least) and not is_complete(names, kind):
            raise CheckpointError(
                f"the manifest does not name exactly one {kind} file, nor every shard of it",
                where=where,
            )
    if manifest.recipe != RECIPE and any(file.name.endswith(_ANY_FORMAT) for file in files):
        raise CheckpointError("the manifest names a file of no known format", where=where)
    return manifest


def with_metric(
    manifest: CheckpointManifest, val_bpb: float, step_losses: Iterable[float]
) -> CheckpointManifest:
    """The same checkpoint once it was evaluated; one that has its metric keeps it."""
    if manifest.val_bpb is not None:
        return manifest
    return replace(manifest, val_bpb=val_bpb, step_losses=tuple(step_losses))


KnownCheckpoint = CheckpointManifest | CheckpointRef
"""A checkpoint by its manifest, or by what its pod reported of it."""
Known = TypeVar("Known", bound=KnownCheckpoint)


def pick_best(every: Iterable[Known]) -> Known | None:
    """The lowest finite ``val_bpb``; of equal ones one that is sure to have it, then the later
    step, then the newer; never NaN."""
    scored = [m for m in every if _finite(m.val_bpb)]
    return min(scored, key=lambda m: (*goodness(m), -saved_at(m)), default=None)


def goodness(made: KnownCheckpoint) -> tuple[int, float, bool, int]:
    """Return the sort key of a checkpoint in a folder, a bucket or a report; the best is the
    least. Values of a held-out split are not compared with a training's, but come before them."""
    score = made.val_bpb if made.val_bpb is not None else math.inf
    is_guess = isinstance(made, CheckpointManifest) and not made.is_sure
    return -_source_of(made), score, is_guess, -made.step


def _source_of(made: KnownCheckpoint) -> int:
    """The rank of what told its metric; the highest where that is not noted."""
    told = made.extra.get(METRIC) if isinstance(made, CheckpointManifest) else None
    source = told.get("source") if isinstance(told, Mapping) else None
    return source if type(source) is int else 9


def pick_latest(every: Iterable[Known]) -> Known | None:
    """The one that was saved last; among those whose time is not known, the highest step."""
    return max(every, key=lambda m: (saved_at(m), m.step), default=None)


def saved_at(made: KnownCheckpoint) -> float:
    """When it was saved, epoch s; 0 where only its pod's report of it is known."""
    return made.created_at if isinstance(made, CheckpointManifest) else 0.0


def of_last_phase(every: Sequence[Known]) -> list[Known]:
    """Those of the phase that saved last."""
    last = pick_latest(every)
    return [m for m in every if last is not None and m.phase == last.phase]


MOST_CANDIDATES = 3
"""Checkpoints that are brought home where it is not known which of them is the best."""


def rivals(
    best: CheckpointManifest, every: Iterable[CheckpointManifest]
) -> list[CheckpointManifest]:
    """Return the checkpoints that may be better than ``best``, the likeliest first: none where its
    metric is known to be of it and no other could have a better one.

    Where a value could be assigned to either of two checkpoints, the better one counts for both."""
    if best.val_bpb is None:
        return []
    others = [
        m
        for m in every
        if (m.phase, m.begun_at) == (best.phase, best.begun_at)
        and m.bits != best.bits
        and not m.is_output
    ]
    source = _source_of(best)

    def may_reach(made: CheckpointManifest) -> float:
        of_another = made.val_bpb is not None and _source_of(made) < source
        return -math.inf if of_another else _may_reach(made)

    if best.is_sure and not any(may_reach(m) < best.val_bpb for m in others):
        return []
    latest = pick_latest(others)
    ranked = sorted(others, key=lambda m: (may_reach(m), m != latest, -m.step))
    return ranked[: MOST_CANDIDATES - 1]


def _may_reach(made: CheckpointManifest) -> float:
    """The best score that a checkpoint may have."""
    told, score = made.extra.get(METRIC), made.val_bpb
    if score is None or made.is_sure or not isinstance(told, Mapping):
        return math.inf if score is None else score
    other, value = told.get("other"), told.get("value")
    if type(other) is not float or type(value) is not float or not math.isfinite(other):
        return score
    return min(score, other if score == value else -other)  # as its own score has it


def own_name(best: KnownCheckpoint) -> str:
    """Return the name that its script gave to a checkpoint which it calls its best; empty where
    its manifest was not read."""
    named = best.extra.get(NAMED_BEST, "") if isinstance(best, CheckpointManifest) else ""
    return one_line(str(named))[:80]


def own_bests(made: Sequence[Known], count: int = 1) -> list[Known]:
    """Return the checkpoints to keep for the name that their script gave them, the best first: of
    the newest ``count`` that it names best those without a metric; and, where there is one, the
    newest that it does not name so, since the last of a training is kept beside its best."""
    newest = sorted(made, key=lambda m: -m.step)
    own = [m for m in [m for m in newest if m.is_named_best][:count] if m.val_bpb is None]
    return own and own + [m for m in newest if not (m.is_named_best or m.is_output)][:1]


def is_before_cooldown(made: KnownCheckpoint, latest: KnownCheckpoint | None) -> bool:
    """Whether the cooldown that ``latest`` was saved in began with ``made``: a run that is given
    more goes on from there, at the full rate. Steps are counted on then, so no other has that
    step, and once it has saved again nothing goes on from it any more."""
    if latest is None or made.step >= latest.step:
        return False
    return (made.phase, made.step) == (latest.phase, latest.cooldown_from)


class Pruning(Value):
    """The deletable parts of a run: whole checkpoints, and files of checkpoints that stay."""

    checkpoints: tuple[CheckpointManifest, ...]
    kept: tuple[CheckpointManifest, ...]

    @property
    def freed_bytes(self) -> int:
        return sum(m.size_bytes for m in self.checkpoints)


def to_prune(manifests: Iterable[CheckpointManifest], keep_best: int) -> Pruning:
    """Everything but, in each phase, the ``keep_best`` best by metric, the latest, *and* what was
    saved before the cooldown that the latest is in; and the ``own_bests`` of a command, as many as
    its metric leaves room for, but one at least."""
    every = list(manifests)
    kept: list[CheckpointManifest] = []
    for phase in {m.phase for m in every}:
        mine = [m for m in every if m.phase == phase]
        ranked = sorted((m for m in mine if _finite(m.val_bpb)), key=goodness)
        kept += ranked[: max(1, keep_best)]
        kept += [m for m in mine if m.is_output and m not in kept]
        own = own_bests(mine, max(1, keep_best - len(ranked)))
        latest = pick_latest(mine)
        also = [m for m in mine if m == latest or is_before_cooldown(m, latest)]
        kept += [m for m in (*own, *also) if m not in kept]
    gone = tuple(m for m in every if m not in kept)
    return Pruning(checkpoints=gone, kept=tuple(kept))


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
