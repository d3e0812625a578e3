"""Tokens in a bucket for the next machine that trains on the same data: what lies where. Pure.

    <prefix>/tokens/<key>/slot-0000 …      files of a pod's token cache, each whole
    <prefix>/tokens/<key>/index.json       which slot holds which file, written after it

``<key>`` stands for the source and all that shapes its tokens. A file's own name is a hash of what
it was made of, which no presigned request can know beforehand: hence slots, as for checkpoints.
The index is a pod's text, and so are the tokens: who fetches one believes it by its SHA-256 alone,
and what is not as the index says is made anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from trmcloud.core.contract.bucket import CachedFile
from trmcloud.core.contract.bucket_layout import MAX_PUT_BYTES
from trmcloud.core.contract.records import MAX_JSON_BYTES, ContractError, load
from trmcloud.core.values import dataclass

TOKENS_DIR = "tokens"
"""Of a bucket's prefix."""
INDEX_NAME = "index.json"
INDEX_VERSION = 1
MOST_SLOTS = 1024
_OTHERS = 6
"""Beside two files a shard: validation and the tokenizer, and room for another tokenizer's."""

_SLOT = re.compile(r"slot-[0-9]{4}", re.ASCII)
_FILE = re.compile(r"tokens/[0-9a-f]{32}\.(bin|json)|tokenizers/[0-9a-f]{64}\.json", re.ASCII)


@dataclass(frozen=True)
class CacheIndex:
    """``index.json``."""

    files: tuple[CachedFile, ...]
    version: int = INDEX_VERSION


def load_index(text: bytes) -> tuple[CachedFile, ...]:
    """What an index says, each name and each slot once.

    Raises:
        ContractError: it is no index, or names what no cache holds.
    """
    files = load(CacheIndex, INDEX_VERSION, text, most=MAX_JSON_BYTES).files
    for file in files:
        if not _FILE.fullmatch(file.name) or not _SLOT.fullmatch(file.slot):
            raise ContractError("CacheIndex: a file that no cache of tokens holds")
        if file.size_bytes > MAX_PUT_BYTES:
            raise ContractError("CacheIndex: a file larger than any")
    for each in ("name", "slot"):
        if len({getattr(file, each) for file in files}) != len(files):
            raise ContractError(f"CacheIndex: a {each} twice")
    return files


def is_cache_file(name: str) -> bool:
    """Whether a file of a cache, by its path in it, is one that is kept in a bucket."""
    return _FILE.fullmatch(name) is not None


def slots_for(shards: int) -> tuple[str, ...]:
    """As many as the tokens of so many shards need, or may."""
    return tuple(f"slot-{n:04d}" for n in range(min(MOST_SLOTS, 2 * shards + _OTHERS)))


def slot_for(name: str, held: Iterable[CachedFile], slots: Mapping[str, str]) -> str:
    """Where a file goes: where it lay before, else the first slot that is free; '' for none."""
    there = {file.name: file.slot for file in held}
    if name in there:
        return there[name]
    return next((slot for slot in slots if slot not in there.values()), "")
