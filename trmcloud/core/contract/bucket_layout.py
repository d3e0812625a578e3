"""The layout and terms of a bucket: object names, prices, speeds and grants, and cached
tokens. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from trmcloud.core.contract.bucket import CachedFile
from trmcloud.core.contract.manifest import (
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    parse_shard_name,
    shard_name,
)
from trmcloud.core.contract.records import MAX_JSON_BYTES, ContractError, load
from trmcloud.core.errors import UsageError
from trmcloud.core.values import Value

# Prices, speeds and grants of a bucket: all that plans and budgets need.

AFTER_HARD_STOP_S = 60.0
"""Grants end so long after it. A pod's clock may be slow, and its last answer late; nothing runs
there any more by then."""
LONGEST_GRANT_S = 7 * 86_400.0
"""SigV4 signs nothing for longer."""
BUCKET_BYTES_PER_S = 50e6
"""From a pod to a bucket, when nothing was measured."""
BUCKET_MICROS_PER_GB_MONTH = 23_000
"""S3 Standard, us-east-1, first 50 TB: $0.023 per GB and month, read 2026-11-21."""
BUCKET_PRICE_AS_OF = "2026-11-21"

# Object names of a run in a bucket, and how a file is cut into objects. Pure.
#
#     <prefix>/runs/<run id>/owner.json                              whose run this is
#     <prefix>/runs/<run id>/<phase>/g<n>-slot-<m>/<file>            manifest.json last
#     <prefix>/runs/<run id>/g<n>-report.json                        what its agent said last
#     <prefix>/data/<content key>/<file>                             prepared data, data.json last
#     <prefix>/tokens/<key>/slot-<m>                                 see ``token_cache``
#
# A pod writes into slots, since every object that it may write must be granted one by one, before
# it knows its steps. Slots belong to a generation: a pod that was given up and writes on cannot
# touch what a later one has stored. A file beyond ``PIECE_BYTES`` lies in full pieces, each an
# object of its own whose length is known when its upload is granted, and bound by the signature;
# the rest of it lies under its own name. How it is cut follows from its size alone. What has no
# known length has a limit: what is larger is found by listing.

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
"""The kinds of files that each rank of a sharded training saves for itself."""

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")
_SEGMENT = re.compile(r"[A-Za-z0-9_=+@,-][A-Za-z0-9._=+@,-]{0,120}")
_REPORT = re.compile(r"g[0-9]{1,4}-report\.json")
_COMMAND_FILE = re.compile(r"file-[0-9]{4}\.bin|tree\.json")
_SLOT = re.compile(r"g([0-9]{1,4})-slot-([0-9]{1,3})")


class Place(Value):
    """A bucket and a prefix in it, without slashes at its ends."""

    bucket: str
    prefix: str = ""

    def key(self, *parts: str) -> str:
        return "/".join(part for part in (self.prefix, *parts) if part)

    def run(self, run_id: str, *parts: str) -> str:
        return self.key("runs", run_id, *parts)

    def __str__(self) -> str:
        return SCHEME + self.bucket + (f"/{self.prefix}" if self.prefix else "")


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
            f"{text!r:.200} is not a bucket", next_step="--bucket s3://my-bucket/my-prefix"
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


class Piece(Value):
    """Bytes ``start`` to ``end`` of a file, under the object name ``name``."""

    name: str
    start: int
    end: int

    @property
    def length(self) -> int | None:
        """The length that its grant is bound to; None for the last piece, whose length was not
        known."""
        return self.end - self.start if ".part-" in self.name else None


def pieces_of(name: str, size_bytes: int) -> tuple[Piece, ...]:
    """Cut a file of this size into pieces.

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
    not known before it is there."""
    puts: list[tuple[str, int | None]] = []
    for name, most in CHECKPOINT_NAMES.items():
        puts += puts_of(name, most, file_bytes)
    for kind in SHARDED_KINDS if shards else ():
        # Shares are even but for whole rows; what is not twice one goes in.
        share = max(2 * PIECE_BYTES, 2 * file_bytes // shards)
        for number in range(1, shards + 1):
            puts += puts_of(shard_name(kind, number, shards), MOST_PIECES, share)
    return tuple(puts)


def puts_of(name: str, most: int, file_bytes: int) -> list[tuple[str, int | None]]:
    """Return (name, exact length) of each object that may hold a part of a file of up to
    ``file_bytes``, in at most ``most`` full pieces."""
    puts: list[tuple[str, int | None]] = [(name, None)]
    for size in piece_sizes(file_bytes) if most else ():
        puts += [(part_name(name, n), size) for n in range(min(most, file_bytes // size))]
    return puts


def is_checkpoint_name(name: str) -> bool:
    """Whether a checkpoint has a file of this name: of our trainer, whole or in shards, or of a
    user's command."""
    if _COMMAND_FILE.fullmatch(name):
        return True
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


# Tokens in a bucket for the next machine that trains on the same data: where they lie. Pure.
#
#     <prefix>/tokens/<key>/<pod>/slot-0000 …       files of a pod's token cache, each whole
#     <prefix>/tokens/<key>/<pod>/slot-0000.json    which file that is, put after it
#
# ``<key>`` stands for the source and all that shapes its tokens. A file's own name is a hash of
# what it was made of, which no presigned request can know beforehand: hence slots, as for
# checkpoints. A pod may write below its own name alone, each object once. All of it is a pod's
# text: the ledger pins the hash of every file when it first sees it, and later pods are given the
# pinned hashes. A pin freezes what a pod stored and does not make it true: a reader holds the
# tokens to their source.

TOKENS_DIR = "tokens"
"""Of a bucket's prefix."""
ENTRY_VERSION = 1
MAX_ENTRY_BYTES = 1 << 12
MOST_SLOTS = 1024
_MAX_JSON_BYTES = 64 << 20
"""Of a tokenizer or a record, which are read whole."""
_OTHERS = 6
"""Beside two files a shard: validation and the tokenizer, and room for another tokenizer's."""

_TOKEN_SLOT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,79})/slot-[0-9]{4}", re.ASCII)
_FILE = re.compile(r"tokens/[0-9a-f]{32}\.(bin|json)|tokenizers/[0-9a-f]{64}\.json", re.ASCII)


def load_entry(text: bytes, slot: str, size_bytes: int) -> CachedFile:
    """Read a pod's entry about the ``size_bytes`` in ``slot``, which is ``<pod>/slot-0000``.

    Raises:
        ContractError: it is no entry, that of another slot, or names what no cache holds.
    """
    file = load(CachedFile, ENTRY_VERSION, text, most=MAX_ENTRY_BYTES)
    most = MAX_PUT_BYTES if file.name.endswith(".bin") else _MAX_JSON_BYTES
    if not is_cache_file(file.name) or not is_token_slot(slot) or file.slot != slot:
        raise ContractError("CachedFile: a file that no cache of tokens holds")
    if file.size_bytes != size_bytes or size_bytes > most:
        raise ContractError("CachedFile: of another size than its object")
    return file


def is_cache_file(name: str) -> bool:
    """Whether a file of a cache, by its path in it, is one that is kept in a bucket."""
    return _FILE.fullmatch(name) is not None


def is_token_slot(name: str) -> bool:
    """Whether it is a slot with its pod's name before it."""
    return _TOKEN_SLOT.fullmatch(name) is not None


def entry_of(slot: str) -> str:
    return f"{slot}.json"


def token_slots_for(pod_name: str, shards: int) -> tuple[str, ...]:
    """As many as the tokens of so many shards need, or may."""
    count = min(MOST_SLOTS, 2 * shards + _OTHERS)
    return tuple(f"{pod_name}/slot-{n:04d}" for n in range(count))


def unpinned(
    sizes: Mapping[str, int], pods: Collection[str], pins: Iterable[CachedFile]
) -> tuple[str, ...]:
    """Slots that ``pods`` have filled and no pin covers, of objects with these sizes by name."""
    pinned = {file.slot for file in pins}
    return tuple(
        slot
        for slot in sorted(sizes)
        if is_token_slot(slot)
        and slot.partition("/")[0] in pods
        and slot not in pinned
        and entry_of(slot) in sizes
    )


def offered(pins: Iterable[CachedFile], sizes: Mapping[str, int]) -> tuple[CachedFile, ...]:
    """Pinned files that may be fetched: of each name the bytes that were pinned first and are
    still in the bucket, in every slot that has them."""
    copies: dict[str, dict[str, list[CachedFile]]] = {}
    for file in pins:
        of_name = copies.setdefault(file.name, {}).setdefault(file.sha256, [])
        if sizes.get(file.slot) == file.size_bytes:
            of_name.append(file)
    first = (next(filter(None, of_name.values()), []) for of_name in copies.values())
    return tuple(file for found in first for file in found)
