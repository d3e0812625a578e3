"""Rows of a question, a plan and an execution, each in a segment of its own length.

On disk each of the three stands behind the special id, as a document does. In a row each has that
id once behind it, as its end, and what its segment has left is padding. The question is given: a
model sees it, and no loss counts it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from model.data.packing import Ints, PackedRows
from model.data.padding import PAD
from trmcloud.core.errors import DataError

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
            f"{len(lengths)} parts are no whole number of texts with {parts} parts each",
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
