"""Rows of whole documents: best fit, every row from a document's beginning, no padding.

The rule is nanochat's: a row takes the longest document at hand that fits what is left of it; where
none fits, the shortest one is cut to fill it, and its rest is not read. Each document begins once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

AT_HAND = 1000
"""Documents that a row may choose from."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PackedRows:
    """Row r is made of the pieces ``first[r]`` up to ``first[r + 1]``, each of ``lengths`` ids from
    ``starts`` on."""

    first: Ints
    starts: Ints
    lengths: Ints
    left_out: int = 0
    """Documents that are in no row, as none has room for them."""

    @property
    def count(self) -> int:
        return len(self.first) - 1

    def pieces(self, row: int) -> Iterator[tuple[int, int]]:
        """(start, length) of each piece, in order."""
        for at in range(int(self.first[row]), int(self.first[row + 1])):
            yield int(self.starts[at]), int(self.lengths[at])


def document_starts(tokens: npt.NDArray[np.unsignedinteger], bos: int) -> Ints:
    """Where documents begin: at every ``bos``, and at 0 whatever stands there."""
    starts = np.flatnonzero(tokens == bos).astype(np.int64)
    if len(tokens) and (not len(starts) or starts[0] != 0):
        starts = np.concatenate([np.zeros(1, np.int64), starts])
    return starts


def pack(starts: Ints, total: int, capacity: int) -> PackedRows:
    """Rows of ``capacity`` ids from documents that begin at ``starts`` and end where the next one
    does, the last one at ``total``.

    The last row is filled up with rests of documents that were cut, longest first, and where these
    do not suffice with what follows the first id of any document, so that no beginning is
    read twice.
    """
    lengths = np.diff(np.append(starts, total))
    sizes = lengths.tolist()
    begins = starts.tolist()
    shelves: dict[int, deque[int]] = {}
    mask = 0  # bit n is set where a document of n ids is at hand
    longer: list[tuple[int, int]] = []  # documents that fit no row, the shortest first
    upcoming, at_hand = 0, 0
    first, piece_starts, piece_lengths = [0], [], []
    rests: list[tuple[int, int]] = []
    left = capacity
    while True:
        while at_hand < AT_HAND and upcoming < len(sizes):
            size = sizes[upcoming]
            if size > capacity:
                heappush(longer, (size, upcoming))
            else:
                shelves.setdefault(size, deque()).append(upcoming)
                mask |= 1 << size
            upcoming += 1
            at_hand += 1
        if not at_hand:
            break
        fitting = mask & ((2 << left) - 1)
        if fitting or mask:
            # The longest that fits, else the shortest there is.
            size = (fitting.bit_length() if fitting else (mask & -mask).bit_length()) - 1
            document = shelves[size].popleft()
            if not shelves[size]:
                mask &= ~(1 << size)
        else:
            size, document = heappop(longer)
        at_hand -= 1
        taken = min(size, left)
        piece_starts.append(begins[document])
        piece_lengths.append(taken)
        if taken < size:
            rests.append((size - taken, begins[document] + taken))
        left -= taken
        if left == 0:
            first.append(len(piece_starts))
            left = capacity
    if left < capacity:
        for size, start in _filling(rests, begins, sizes):
            taken = min(size, left)
            piece_starts.append(start)
            piece_lengths.append(taken)
            left -= taken
            if left == 0:
                first.append(len(piece_starts))
                break
    return PackedRows(
        np.array(first, np.int64),
        np.array(piece_starts, np.int64),
        np.array(piece_lengths, np.int64),
    )


def _filling(
    rests: list[tuple[int, int]], begins: list[int], sizes: list[int]
) -> Iterator[tuple[int, int]]:
    yield from sorted(rests, key=lambda rest: (-rest[0], rest[1]))
    bodies = [(size - 1, begin + 1) for size, begin in zip(sizes, begins, strict=True) if size > 1]
    while bodies:
        yield from bodies
