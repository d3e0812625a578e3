"""Tokens in a bucket for the next machine that trains on the same data: where they lie. Pure.

    <prefix>/tokens/<key>/<pod>/slot-0000 …       files of a pod's token cache, each whole
    <prefix>/tokens/<key>/<pod>/slot-0000.json    which file that is, put after it

``<key>`` stands for the source and all that shapes its tokens. A file's own name is a hash of what
it was made of, which no presigned request can know beforehand: hence slots, as for checkpoints. A
pod may write below its own name alone, each object once. All of it is a pod's text: the ledger pins
the hash of every file when it first sees it, and later pods are given the pinned hashes. A pin
freezes what a pod stored and does not make it true: a reader holds the tokens to their source.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from trmcloud.core.contract.bucket import CachedFile
from trmcloud.core.contract.bucket_layout import MAX_PUT_BYTES
from trmcloud.core.contract.records import ContractError, load

TOKENS_DIR = "tokens"
"""Of a bucket's prefix."""
ENTRY_VERSION = 1
MAX_ENTRY_BYTES = 1 << 12
MOST_SLOTS = 1024
_MAX_JSON_BYTES = 64 << 20
"""Of a tokenizer or a record, which are read whole."""
_OTHERS = 6
"""Beside two files a shard: validation and the tokenizer, and room for another tokenizer's."""

_SLOT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,79})/slot-[0-9]{4}", re.ASCII)
_FILE = re.compile(r"tokens/[0-9a-f]{32}\.(bin|json)|tokenizers/[0-9a-f]{64}\.json", re.ASCII)


def load_entry(text: bytes, slot: str, size_bytes: int) -> CachedFile:
    """What a pod says of the ``size_bytes`` in ``slot``, which is ``<pod>/slot-0000``.

    Raises:
        ContractError: it is no entry, that of another slot, or names what no cache holds.
    """
    file = load(CachedFile, ENTRY_VERSION, text, most=MAX_ENTRY_BYTES)
    most = MAX_PUT_BYTES if file.name.endswith(".bin") else _MAX_JSON_BYTES
    if not is_cache_file(file.name) or not is_slot(slot) or file.slot != slot:
        raise ContractError("CachedFile: a file that no cache of tokens holds")
    if file.size_bytes != size_bytes or size_bytes > most:
        raise ContractError("CachedFile: of another size than its object")
    return file


def is_cache_file(name: str) -> bool:
    """Whether a file of a cache, by its path in it, is one that is kept in a bucket."""
    return _FILE.fullmatch(name) is not None


def is_slot(name: str) -> bool:
    """Whether it is a slot with its pod's name before it."""
    return _SLOT.fullmatch(name) is not None


def entry_of(slot: str) -> str:
    return f"{slot}.json"


def slots_for(pod_name: str, shards: int) -> tuple[str, ...]:
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
        if is_slot(slot)
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
