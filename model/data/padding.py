"""Rows of one document each, filled up: a document is seen whole, or not at all.

A row is the special id, the text, the special id again as its end, and padding. Where a model makes
blocks of tokens at once, the end fills its block: what stands in a block is to be learnt whole.
"""

from __future__ import annotations

import numpy as np

from model.data.packing import Ints, PackedRows

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


def fill_up(row: Ints, at: int, end: int, block: int) -> None:
    """Ends the text of which ``row`` holds the first ``at`` ids, the special one before it among
    them, and fills up the rest."""
    # Targets are shifted by one: the text's last target stands at at − 2, its end at at − 1.
    stop = 1 + -(-at // block) * block
    row[at:stop] = end
    row[stop:] = PAD
