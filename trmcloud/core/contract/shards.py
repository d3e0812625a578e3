"""Checkpoints in shards: each rank's rows of every tensor in a file of its own. Pure.

``weights-00001-of-00008.safetensors`` is a safetensors file whose metadata has one entry more,
``rows``: for each tensor at which row of the whole its first row stands, and the whole's shape. A
tensor that is no row of anything (a counter) stands in the first shard alone. Where the rows of all
shards make up every tensor, each row once, they can be put together to one file, or read by any
other number of ranks. A header is treated as hostile text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from trmcloud.core.errors import CheckpointError

ROWS = "rows"
"""The key in a shard's metadata."""
MAX_HEADER_BYTES = 32 << 20
ITEM_BYTES: Mapping[str, int] = {
    "F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "U8": 1, "I8": 1, "BOOL": 1,
}  # fmt: skip
"""By the names that safetensors has for numbers."""
_LENGTH_BYTES = 8
_MOST_VALUES = 1 << 42


class Part(NamedTuple):
    """Some rows of a tensor in a file: ``begin`` to ``end`` in its data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int
    start: int
    """The row of the whole that the first row of it is."""
    whole: tuple[int, ...]
    """The shape of the whole."""


class Header(NamedTuple):
    """A file's parts in the order of their bytes; its data begin at ``data_at``."""

    parts: tuple[Part, ...]
    data_at: int


def header_bytes(parts: Sequence[Part], *, is_shard: bool) -> bytes:
    """Length and text of a header, filled up so that the data begin at a multiple of 8."""
    entries: dict[str, Any] = {}
    if is_shard:
        rows = {part.name: [part.start, list(part.whole)] for part in parts}
        entries["__metadata__"] = {ROWS: json.dumps(rows, separators=(",", ":"))}
    for part in parts:
        entries[part.name] = {
            "dtype": part.dtype,
            "shape": list(part.shape),
            "data_offsets": [part.begin, part.end],
        }
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def read_header(read: Callable[[int], bytes], size_bytes: int, where: str) -> Header:
    """The header of a file of ``size_bytes``, a shard's or another's, of which ``read`` gives the
    next so many bytes, from the first on.

    Raises:
        CheckpointError: it is not what safetensors, or a shard, may be.
    """
    first = read(_LENGTH_BYTES)
    length = int.from_bytes(first, "little") + _LENGTH_BYTES
    if len(first) < _LENGTH_BYTES or length > min(size_bytes, MAX_HEADER_BYTES):
        raise CheckpointError("it is not safetensors, or only half written", where=where)
    head = first + read(length - _LENGTH_BYTES)
    try:
        entries = json.loads(head[_LENGTH_BYTES:])
        metadata = entries.pop("__metadata__", {})
        rows = json.loads(metadata[ROWS]) if ROWS in metadata else None
        parts = sorted(
            (_part(str(name), entry, rows) for name, entry in entries.items()),
            key=lambda part: (part.begin, part.end),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CheckpointError("its header cannot be read", where=where) from None
    at = 0
    for part in parts:
        if part.begin != at:
            raise CheckpointError(f"{part.name} is not at its place", where=where)
        at = part.end
    if len(head) + at != size_bytes:
        raise CheckpointError(
            f"it has {size_bytes} bytes, its header says {len(head) + at}", where=where
        )
    return Header(tuple(parts), len(head))


def _part(name: str, entry: Mapping[str, Any], rows: Mapping[str, Any] | None) -> Part:
    dtype, shape = str(entry["dtype"]), _shape(entry["shape"])
    begin, end = (int(each) for each in entry["data_offsets"])
    if not 0 <= begin <= end or end - begin != math.prod(shape) * ITEM_BYTES[dtype]:
        raise ValueError(name)
    if rows is None:
        return Part(name, dtype, shape, begin, end, 0, shape)
    start, whole = int(rows[name][0]), _shape(rows[name][1])
    if shape[1:] != whole[1:] or len(shape) != len(whole) or (not whole and start):
        raise ValueError(name)
    if shape and not 0 <= start <= start + shape[0] <= whole[0]:
        raise ValueError(name)
    return Part(name, dtype, shape, begin, end, start, whole)


def _shape(value: Any) -> tuple[int, ...]:
    shape = tuple(int(each) for each in value)
    if len(shape) > 8 or any(each < 0 for each in shape) or math.prod(shape) > _MOST_VALUES:
        raise ValueError(value)
    return shape


class Place(NamedTuple):
    """The file, and the part of it, that holds some rows of a tensor."""

    file: int
    part: Part


def regrouped(headers: Sequence[Header], where: str) -> dict[str, tuple[Place, ...]]:
    """Every tensor's places, in the order of its rows, by its name.

    Raises:
        CheckpointError: rows are missing, are there twice, or are those of another shape.
    """
    places: dict[str, list[Place]] = {}
    for file, header in enumerate(headers):
        for part in header.parts:
            places.setdefault(part.name, []).append(Place(file, part))
    return {name: _tiled(name, places[name], where) for name in sorted(places)}


def _tiled(name: str, places: Iterable[Place], where: str) -> tuple[Place, ...]:
    ordered = sorted(places, key=lambda each: (each.part.start, each.part.shape, each.file))
    first = ordered[0].part
    at = 0
    for _, part in ordered:
        if (part.whole, part.dtype) != (first.whole, first.dtype):
            raise _cannot(f"{name} has another shape or number format in another shard", where)
        if part.whole and part.start != at:
            lacks = "misses rows" if part.start > at else "has rows twice"
            raise _cannot(f"{name} {lacks} at {min(part.start, at)} of {part.whole[0]}", where)
        at += part.shape[0] if part.whole else 1
    if at != (first.whole[0] if first.whole else 1):
        raise _cannot(f"{name} has {at} rows of {first.whole[0] if first.whole else 1}", where)
    return tuple(ordered)


def _cannot(what: str, where: str) -> CheckpointError:
    return CheckpointError(
        f"its shards cannot be combined: {what}",
        where=where,
        next_step="use another checkpoint",
    )


class Copy(NamedTuple):
    """``length`` bytes of a file, from ``offset`` on."""

    file: int
    offset: int
    length: int


def one_file(headers: Sequence[Header], where: str) -> tuple[bytes, list[Copy]]:
    """The header of the file that these shards make up, and what follows it, piece by piece.

    Raises:
        CheckpointError: see ``regrouped``.
    """
    places = regrouped(headers, where)
    parts, copies = [], []
    at = 0
    for name in order({name: of[0].part.dtype for name, of in places.items()}):
        whole, dtype = places[name][0].part.whole, places[name][0].part.dtype
        size = math.prod(whole) * ITEM_BYTES[dtype]
        parts.append(Part(name, dtype, whole, at, at + size, 0, whole))
        at += size
        for file, part in places[name]:
            offset = headers[file].data_at + part.begin
            copies.append(Copy(file, offset, part.end - part.begin))
    return header_bytes(parts, is_shard=False), copies


def order(dtypes: Mapping[str, str]) -> list[str]:
    """Names as safetensors writes them: larger numbers first, so that each is aligned."""
    return sorted(dtypes, key=lambda name: (-ITEM_BYTES[dtypes[name]], name))
