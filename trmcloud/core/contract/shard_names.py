"""Names of a checkpoint's shards: all that whoever keeps, sends or fetches them need know. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

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
