"""How tokens become rows of whole documents, padded rows, rows in segments, and conversations."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from model.data.chat import ChatTokens, judged
from trmcloud.core.errors import DataError

# Rows of whole documents: best fit, every row from a document's beginning, no padding.
#
# The rule is nanochat's: a row takes the longest document at hand that fits what is left of it;
# where none fits, the shortest one is cut to fill it, and its rest is not read. Each document
# begins once.

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
    """Return the starts of documents: every ``bos``, and 0 in any case."""
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


# Rows of one document each, filled up: a document is seen whole, or not at all.
#
# A row is the special id, the text, the special id again as its end, and padding. Where a model
# makes blocks of tokens at once, the end fills its block: what stands in a block is to be learnt
# whole.

PAD = -100
"""A target that is no token. torch's losses leave it out, too."""


def rows_of_documents(starts: Ints, total: int, sequence: int) -> PackedRows:
    """A row for each document that fits ``sequence`` targets with its end; documents begin at
    ``starts`` and end where the next one does, the last one at ``total``."""
    lengths = np.diff(np.append(starts, total))
    fitting = lengths <= sequence
    number = int(fitting.sum())
    return PackedRows(
        np.arange(number + 1), starts[fitting], lengths[fitting], left_out=len(lengths) - number
    )


def pad_row(row: Ints, at: int, end: int, block: int) -> None:
    """Ends the text of which ``row`` holds the first ``at`` ids, the special one before it among
    them, and fills up the rest."""
    # Targets are shifted by one: the text's last target stands at at − 2, its end at at − 1.
    stop = 1 + -(-at // block) * block
    row[at:stop] = end
    row[stop:] = PAD


# Rows of a question, a plan and an execution, each in a segment of its own length.
#
# On disk each of the three stands behind the special id, as a document does. In a row each has
# that id once behind it, as its end, and what its segment has left is padding. The question is
# given: a model sees it, and no loss counts it.

GIVEN = PAD - 1
"""A target up to here is an id that is given: GIVEN − id."""


def rows_in_segments(starts: Ints, total: int, segments: Sequence[int]) -> PackedRows:
    """A row for each text whose every part fits its segment with its end; parts begin at ``starts``
    and end where the next one does, the last one at ``total``.

    Raises:
        DataError: the tokens are not made of texts with as many parts.
    """
    lengths: Ints = np.diff(np.append(starts, total))
    parts = len(segments)
    if len(lengths) % parts:
        raise DataError(
            f"{len(lengths)} parts do not make whole texts of {parts} parts each",
            next_step="prepare the data again",
        )
    # The special id before a part takes as much room as the end behind it.
    too_long = (lengths.reshape(-1, parts) > np.array(segments)).any(axis=1)
    chosen = np.repeat(~too_long, parts)
    left_out = int(too_long.sum())
    rows = len(lengths) // parts - left_out
    return PackedRows(np.arange(rows + 1) * parts, starts[chosen], lengths[chosen], left_out)


def lay_out(row: Ints, at: int, segments: Sequence[int]) -> None:
    """Moves the parts that ``row`` begins with, ``at`` ids in all, into their segments."""
    parts = row[:at].copy()
    end = parts[0]
    row[:] = PAD
    row[0] = end
    begins = np.flatnonzero(parts == end)
    place = 1
    for begin, stop, length in zip(begins, [*begins[1:], at], segments, strict=True):
        size = stop - begin
        row[place : place + size - 1] = parts[begin + 1 : stop]
        row[place + size - 1] = end
        place += length
    question = row[1 : 1 + segments[0]]
    question[question != PAD] = GIVEN - question[question != PAD]


# Rows of whole conversations: best fit, every row from a conversation's beginning, padded.
#
# The rule is nanochat's: a row takes the longest conversation at hand that fits what is left of it;
# where none fits, the rest of the row is padding. One that is longer than a row's ids is cut.


def rows_of_conversations(starts: Ints, total: int, sequence: int) -> PackedRows:
    """Rows of ``sequence`` + 1 ids; conversations begin at ``starts`` and end where the next one
    does, the last one at ``total``. No more than ``sequence`` ids of one are taken."""
    sizes = np.minimum(np.diff(np.append(starts, total)), sequence).tolist()
    begins = starts.tolist()
    shelves: dict[int, deque[int]] = {}
    mask = 0  # bit n is set where a conversation of n ids is at hand
    upcoming, at_hand, left = 0, 0, sequence + 1
    first, piece_starts, piece_lengths = [0], list[int](), list[int]()
    while True:
        while at_hand < AT_HAND and upcoming < len(sizes):
            shelves.setdefault(sizes[upcoming], deque()).append(upcoming)
            mask |= 1 << sizes[upcoming]
            upcoming += 1
            at_hand += 1
        fitting = mask & ((2 << left) - 1)
        if not fitting:
            if left <= sequence:
                first.append(len(piece_starts))
                left = sequence + 1
            if not at_hand:
                break
            continue
        size = fitting.bit_length() - 1
        number = shelves[size].popleft()
        if not shelves[size]:
            mask &= ~(1 << size)
        at_hand -= 1
        piece_starts.append(begins[number])
        piece_lengths.append(size)
        left -= size
    return PackedRows(
        np.array(first, np.int64),
        np.array(piece_starts, np.int64),
        np.array(piece_lengths, np.int64),
    )


def mark_given(conversation: Ints, tokens: ChatTokens) -> None:
    """Turns what no loss is held to into ids that are given."""
    given = ~judged(conversation, tokens)
    conversation[given] = GIVEN - conversation[given]
