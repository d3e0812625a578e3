"""Where what a run stores lies in a bucket, and how a file is cut into objects. Pure.

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

import re
from collections.abc import Mapping

from trmcloud.core.contract.manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES
from trmcloud.core.contract.records import MAX_JSON_BYTES
from trmcloud.core.contract.shard_names import parse_shard_name, shard_name
from trmcloud.core.errors import UsageError
from trmcloud.core.values import dataclass

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
OWNER_NAME = "owner.json"
DATA_INDEX_NAME = "data.json"
#: What a trainer's checkpoint is made of; the pieces that each may come in.
CHECKPOINT_NAMES: Mapping[str, int] = {
    "weights.safetensors": MOST_PIECES,
    "optimizer.safetensors": MOST_PIECES,
    "state.json": 0,
    "tokenizer.json": 0,
    MANIFEST_NAME: 0,
}
SHARDED_KINDS = ("weights", "optimizer")
"""What each rank of a sharded training saves of its own."""

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


def puts_in_slot(file_bytes: int, shards: int = 0) -> tuple[tuple[str, int | None], ...]:
    """(name, exact length) of every object that may be written in a slot, for files up to
    ``file_bytes``, and for ``shards`` of them, of which each holds its share. None: its length is
    known to nobody before it is there."""
    puts: list[tuple[str, int | None]] = []
    for name, most in CHECKPOINT_NAMES.items():
        puts += _puts_of(name, most, file_bytes)
    for kind in SHARDED_KINDS if shards else ():
        # Shares are even but for whole rows; what is not twice one goes in.
        share = max(2 * PIECE_BYTES, 2 * file_bytes // shards)
        for number in range(1, shards + 1):
            puts += _puts_of(shard_name(kind, number, shards), MOST_PIECES, share)
    return tuple(puts)


def _puts_of(name: str, most: int, file_bytes: int) -> list[tuple[str, int | None]]:
    puts: list[tuple[str, int | None]] = [(name, None)]
    for size in piece_sizes(file_bytes) if most else ():
        puts += [(part_name(name, n), size) for n in range(min(most, file_bytes // size))]
    return puts


def is_checkpoint_name(name: str) -> bool:
    """Whether a checkpoint of our trainer has a file of this name, whole or in shards."""
    shard = parse_shard_name(name)
    return name in CHECKPOINT_NAMES or (shard is not None and shard.kind in SHARDED_KINDS)


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
    if any(more) or not is_slot(slot) or not is_checkpoint_name(whole):
        return False
    if name == MANIFEST_NAME:
        return size_bytes > MAX_MANIFEST_BYTES
    pieces = part or CHECKPOINT_NAMES.get(whole, MOST_PIECES)
    largest = piece_sizes(file_bytes.get(phase, MOST_FILE_BYTES))[-1] if pieces else PIECE_BYTES
    return size_bytes > largest
