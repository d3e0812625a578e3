"""Checkpoints in a bucket: where they lie, what a pod is granted, what must be there. Pure.

    <prefix>/runs/<run id>/owner.json                              whose run this is
    <prefix>/runs/<run id>/<phase>/g<n>-slot-<m>/<file>            manifest.json last
    <prefix>/runs/<run id>/g<n>-report.json                        what its agent said last
    <prefix>/data/<content key>/<file>                             prepared data, data.json last
    <prefix>/tokens/<key>/slot-<m>                                 see ``token_cache``

A pod writes into slots, since every object that it may write must be granted one by one, before
it knows its steps. Slots belong to a generation: a pod that was given up and writes on cannot touch
what a later one has stored. A file beyond ``PIECE_BYTES`` lies in full pieces, each an object of
its own whose length is known when its upload is granted, and bound by the signature; the rest of it
lies under its own name. How it is cut follows from its size alone. What has no known length has a
limit: what is larger is found by listing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from math import isfinite

from trmcloud.core.contract.manifest import (
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    goodness,
    is_before_cooldown,
)
from trmcloud.core.contract.pod_contract import CONTRACT_VERSION, ContractError, Kept
from trmcloud.core.contract.records import (
    MAX_JSON_BYTES,
    Instant,
    Label,
    Sha256,
    load,
    parse,
    record_of,
)
from trmcloud.core.errors import UsageError
from trmcloud.core.values import dataclass, replace

SCHEME = "s3://"
PIECE_BYTES = 64 << 20
"""Large enough for a fast link; small enough to be sent again."""
MOST_PIECES = 16
"""Full ones, of one file: beyond that they are twice as large."""
GRANTED_TIMES = 4
"""So many times what the plan takes a checkpoint for, one file of it may hold: a trainer of
somebody's own may save more than ours."""
MAX_PUT_BYTES = 5 << 30
"""S3's own limit of one PUT."""
MOST_FILE_BYTES = 64 << 30
"""Of one file of a checkpoint, where no plan says less: sixteen pieces of 4 GiB."""
RENEW_BEFORE_S = 3600.0
"""How long before its end a grant that ends before the hard stop is renewed."""

GRANTS_NAME = "grants.json"
UPLOADS_NAME = "uploads.json"
TOLD_NAME = "told.json"
"""On the pod: which result the report in the bucket bears."""
OWNER_NAME = "owner.json"
DATA_INDEX_NAME = "data.json"
MAX_GRANTS_BYTES = 16 << 20
_MOST_GRANTED = 1 << 16
#: What a trainer's checkpoint is made of; the pieces that each may come in.
CHECKPOINT_NAMES: Mapping[str, int] = {
    "weights.safetensors": MOST_PIECES,
    "optimizer.safetensors": MOST_PIECES,
    "state.json": 0,
    "tokenizer.json": 0,
    MANIFEST_NAME: 0,
}

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")
_SEGMENT = re.compile(r"[A-Za-z0-9_=+@,-][A-Za-z0-9._=+@,-]{0,120}")
_REPORT = re.compile(r"g[0-9]{1,4}-report\.json")
_SLOT = re.compile(r"g([0-9]{1,4})-slot-([0-9]{1,3})")


@dataclass(frozen=True)
class Place:
    """A bucket and a prefix in it, without slashes at its ends."""

    bucket: str
    prefix: str = ""

    def key(self, *parts: str) -> str:
        return "/".join(part for part in (self.prefix, *parts) if part)

    def run(self, run_id: str, *parts: str) -> str:
        return self.key("runs", run_id, *parts)

    def __str__(self) -> str:
        return SCHEME + self.key_in_bucket()

    def key_in_bucket(self) -> str:
        return f"{self.bucket}/{self.prefix}" if self.prefix else self.bucket


def parse_place(text: str) -> Place:
    """
    Raises:
        UsageError: not of the form s3://bucket/prefix.
    """
    bucket, _, prefix = text.removeprefix(SCHEME).partition("/")
    segments = [part for part in prefix.split("/") if part]
    plain = all(_SEGMENT.fullmatch(part) for part in segments) and len(segments) <= 12
    if not text.startswith(SCHEME) or not _BUCKET.fullmatch(bucket) or not plain:
        raise UsageError(
            f"{text!r:.200} does not name a bucket", next_step="--bucket s3://my-bucket/my-prefix"
        )
    return Place(bucket, "/".join(segments))


def slot_name(generation: int, number: int) -> str:
    return f"g{generation}-slot-{number}"


def report_name(generation: int) -> str:
    return f"g{generation}-report.json"


def is_slot(name: str) -> bool:
    return _SLOT.fullmatch(name) is not None


def slots_of(generation: int, keep_best: int) -> tuple[str, ...]:
    """As many as are kept, one for the latest, one for what was saved before its cooldown, and one
    to write into meanwhile."""
    return tuple(slot_name(generation, number) for number in range(max(1, keep_best) + 3))


@dataclass(frozen=True)
class Piece:
    """Bytes ``start`` to ``end`` of a file, under the object name ``name``."""

    name: str
    start: int
    end: int

    @property
    def length(self) -> int | None:
        """What its grant is bound to; None for the rest of a file, of which none was known."""
        return self.end - self.start if ".part-" in self.name else None


def pieces_of(name: str, size_bytes: int) -> tuple[Piece, ...]:
    """How a file of this size is cut.

    Raises:
        ValueError: it is too large for any cut.
    """
    if size_bytes <= PIECE_BYTES:
        return (Piece(name, 0, size_bytes),)
    each = PIECE_BYTES
    while size_bytes // each > MOST_PIECES:
        each *= 2
    if each > MAX_PUT_BYTES:
        raise ValueError(f"{name} of {size_bytes} bytes is larger than {MOST_PIECES} pieces may be")
    full = size_bytes // each
    pieces = [Piece(part_name(name, n), n * each, (n + 1) * each) for n in range(full)]
    if size_bytes % each:
        pieces.append(Piece(name, full * each, size_bytes))
    return tuple(pieces)


def part_name(name: str, number: int) -> str:
    return f"{name}.part-{number:05d}"


def piece_sizes(file_bytes: int) -> tuple[int, ...]:
    """The lengths that full pieces of files up to ``file_bytes`` have."""
    sizes = [PIECE_BYTES]
    while file_bytes // sizes[-1] > MOST_PIECES and 2 * sizes[-1] <= MAX_PUT_BYTES:
        sizes.append(2 * sizes[-1])
    return tuple(sizes)


def puts_in_slot(file_bytes: int) -> tuple[tuple[str, int | None], ...]:
    """(name, exact length) of every object that may be written in a slot, for files up to
    ``file_bytes``. None: its length is known to nobody before it is there."""
    puts: list[tuple[str, int | None]] = []
    for name, most in CHECKPOINT_NAMES.items():
        puts.append((name, None))
        for size in piece_sizes(file_bytes) if most else ():
            puts += [(part_name(name, n), size) for n in range(min(most, file_bytes // size))]
    return tuple(puts)


def put_key(phase: str, slot: str, name: str, length: int | None) -> str:
    """Under which the request for an object stands in ``Grants.puts``."""
    return f"{phase}/{slot}/{name}" + ("" if length is None else f":{length}")


def is_oversized(path: str, size_bytes: int, file_bytes: Mapping[str, int]) -> bool:
    """Whether an object below a run's folder holds more than any pod was granted for it, where a
    checkpoint's files hold up to ``file_bytes`` by phase. What no pod is granted is none of its."""
    if _REPORT.fullmatch(path):
        return size_bytes > MAX_JSON_BYTES
    phase, slot, name, *more = [*path.split("/"), "", "", ""]
    whole, _, part = name.partition(".part-")
    if any(more) or not is_slot(slot) or whole not in CHECKPOINT_NAMES:
        return False
    if name == MANIFEST_NAME:
        return size_bytes > MAX_MANIFEST_BYTES
    pieces = part or CHECKPOINT_NAMES[whole]
    largest = piece_sizes(file_bytes.get(phase, MOST_FILE_BYTES))[-1] if pieces else PIECE_BYTES
    return size_bytes > largest


# -- what must be there -----------------------------------------------------------------------
def worth_saving(kept: Sequence[Kept]) -> tuple[Kept, ...]:
    """Of each phase the best by its metric, then the latest, and what was saved before its
    cooldown, where these are others."""
    return tuple(each for mine in _by_phase(kept) for each in _wanted(mine, 1))


def unstored(
    kept: Sequence[Kept], uploaded: Sequence[Kept], given_up: Sequence[Kept] = ()
) -> tuple[Kept, ...]:
    """What is worth saving of all that is not ``given_up`` as damaged, and not stored.

    One that was stored before it was evaluated is owed again, for its metric: see ``lacks_metric``.
    A best one is not owed where the bucket has one as good: a pod that lost its disk and trains
    again would write the two in turn into the one slot that is free, for as long as it is paid for.
    """
    stored = {each.bits for each in uploaded}
    scored = {each.bits for each in uploaded if each.val_bpb is not None}
    damaged = {each.bits for each in given_up}
    sound = [each for each in kept if each.bits not in damaged]
    return tuple(
        k
        for mine in _by_phase(sound)
        for k in _wanted(mine, 1)
        if k.bits not in (stored if k.val_bpb is None else scored)
        and (k in _to_go_on_from(mine) or not _is_surpassed(k, uploaded))
    )


def lacks_metric(held: Mapping[str, Kept | None], kept: Kept) -> str | None:
    """The slot that holds ``kept`` as it was before it was evaluated: only its manifest is owed."""
    if kept.val_bpb is None:
        return None
    for name, there in held.items():
        if there is not None and there.bits == kept.bits and there.val_bpb is None:
            return name
    return None


def _is_surpassed(kept: Kept, uploaded: Sequence[Kept]) -> bool:
    best = _best([each for each in uploaded if each.phase == kept.phase], 1)
    mine, there = kept.val_bpb, best[0].val_bpb if best else None
    return mine is not None and there is not None and there <= mine


def _by_phase(kept: Sequence[Kept]) -> list[list[Kept]]:
    phases = dict.fromkeys(each.phase for each in kept)
    return [[each for each in kept if each.phase == phase] for phase in phases]


def free_slot(held: Mapping[str, Kept | None], keep_best: int) -> str:
    """The slot of a phase to write into next: an empty one, else the oldest superseded one.

    There always is one: slots are three more than the best that are kept, and two of these hold
    the latest and what was saved before its cooldown.
    """
    for name, kept in held.items():
        if kept is None:
            return name
    there = {name: kept for name, kept in held.items() if kept is not None}
    needed = _wanted(tuple(there.values()), max(1, keep_best))
    spare = []
    for name, kept in there.items():
        if kept in needed:
            needed.remove(kept)
        else:
            spare.append(name)
    return min(spare, key=lambda name: there[name].step)


def _wanted(kept: Sequence[Kept], count: int) -> list[Kept]:
    """Of one phase the best ``count``, and what is gone on from."""
    best = _best(kept, count)
    return best + [each for each in _to_go_on_from(kept) if each not in best]


def _to_go_on_from(kept: Sequence[Kept]) -> list[Kept]:
    """Of one phase the latest, and what was saved before its cooldown: one, where a pod that lost
    its disk has trained that step again."""
    latest = max(kept, key=lambda each: each.step)
    return [latest, *[each for each in kept if is_before_cooldown(each, latest)][-1:]]


def _best(kept: Sequence[Kept], count: int) -> list[Kept]:
    scored = [k for k in kept if k.val_bpb is not None and isfinite(k.val_bpb)]
    return sorted(scored, key=goodness)[:count]


# -- what a pod is granted --------------------------------------------------------------------
@dataclass(frozen=True)
class PhaseSlots:
    """``held``: what the slots hold by the store's own word, for a pod that lost its notes."""

    keep_best: int
    slots: tuple[str, ...]
    held: Mapping[str, Kept] = field(default_factory=dict)


@dataclass(frozen=True)
class FileGet:
    """One file of a folder to be fetched: flat or relative name, size, SHA-256, and where: one
    object, or the pieces that ``pieces_of`` cuts it into."""

    name: str
    size_bytes: int
    sha256: str
    urls: tuple[str, ...]


@dataclass(frozen=True)
class FolderGet:
    """``folder`` is an absolute path on the pod. Where it is not ``needed``, what cannot be had is
    done without; of several that would lie beside one another the first that can be had is enough,
    and what is to lie ``beside`` it comes with it.
    """

    folder: str
    files: tuple[FileGet, ...]
    needed: bool = True
    beside: bool = False


@dataclass(frozen=True)
class CachedFile:
    """A file of a token cache, by its path in it, and the slot of the bucket that holds it."""

    name: str
    slot: str
    size_bytes: int
    sha256: Sha256


@dataclass(frozen=True)
class CacheGrants:
    """A pod's part in the tokens that a bucket keeps; see ``token_cache``.

    ``folder`` is its own cache, an absolute path. ``gets`` go there, as far as they can be had;
    ``held`` says the same with their slots. ``puts`` go by slot; ``index`` is where the index is
    put.
    """

    folder: str
    gets: tuple[FileGet, ...]
    held: tuple[CachedFile, ...]
    puts: Mapping[str, str]
    index: str


@dataclass(frozen=True)
class Grants:
    """``grants.json``: each URL is one object and one verb, until ``until`` (epoch s).

    ``puts`` go by ``put_key``; ``report`` is where the agent's report is put, ''
    in a record that knows of none; ``cache`` is for a pod that makes tokens.
    """

    pod_name: Label
    until: Instant
    phases: Mapping[str, PhaseSlots]
    puts: Mapping[str, str]
    gets: tuple[FolderGet, ...] = ()
    report: str = ""
    cache: CacheGrants | None = None
    version: int = CONTRACT_VERSION


def dump_grants(grants: Grants) -> str:
    return json.dumps(asdict(grants), sort_keys=True)


def load_grants(text: str | bytes) -> Grants:
    """
    Raises:
        ContractError: it is no such record.
    """
    grants = load(Grants, CONTRACT_VERSION, text, most=MAX_GRANTS_BYTES, items=_MOST_GRANTED)
    folders = [(get.folder, get.files) for get in grants.gets]
    if grants.cache is not None:
        folders.append((grants.cache.folder, grants.cache.gets))
    for folder, files in folders:
        if not folder.startswith("/") or any(not _is_inside(file.name) for file in files):
            raise ContractError("Grants: a path that leads elsewhere")
    return grants


def _is_inside(name: str) -> bool:
    parts = name.split("/")
    return bool(name) and "\0" not in name and not {"", ".", ".."} & set(parts)


# -- what a pod has done with it --------------------------------------------------------------
@dataclass(frozen=True)
class Uploads:
    """``uploads.json``: the transfer process's account to the agent.

    ``given_up`` are damaged on the pod itself, or have a file that no grant covers. ``moved_boot``
    is when a byte last arrived anywhere, on the pod's boot-time clock. ``fetched``: every folder
    that was to be brought is in place.
    """

    uploaded: tuple[Kept, ...] = ()
    given_up: tuple[Kept, ...] = ()
    moved_boot: float = 0.0
    fetched: bool = False
    trouble: str = ""


def dump_uploads(uploads: Uploads) -> str:
    return json.dumps(asdict(uploads), sort_keys=True)


def load_uploads(text: str) -> Uploads:
    """
    Raises:
        ContractError: it is no such record.
    """
    record = record_of(Uploads, parse(text))
    return replace(record, trouble=record.trouble[:200])
