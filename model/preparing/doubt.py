"""Token files that others made, held to their text: all of its counts, and the tokens of one unit.

Who can foresee no unit cannot tell which of them will be tokenized again. What is counted needs
no tokenizing, so it is counted of every unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from model.data.folder import DTYPES
from model.preparing.cache import Tokens
from model.tokenizers import TextTokenizer

_AT_ONCE = 1 << 20


def is_of_its_text(
    record: Tokens,
    path: Path,
    *,
    name: str,
    dtype: str,
    tokenizer: TextTokenizer,
    documents: Sequence[int],
    text_bytes: int,
    chosen: int,
    made: bytes,
    given_bytes: int | None,
    per_document: int,
) -> bool:
    """Whether a token file and its record are what this machine would have made.

    Args:
        documents: of each unit of the source, as counted here.
        text_bytes: of all units, as counted here.
        chosen: the unit that was tokenized here, and ``made`` its tokens.
        given_bytes: bytes of text that all ids stand for; None where not all of them count.
        per_document: how many special ids stand in each document.
    """
    stated = (record.name, record.dtype, record.documents, record.text_bytes)
    if stated != (name, dtype, sum(documents), text_bytes):
        return False
    if [each[1] for each in record.parts] != list(documents):
        return False
    ids = np.memmap(path, DTYPES[dtype], mode="r") if record.tokens else np.zeros(0, DTYPES[dtype])
    start = sum(tokens for tokens, _ in record.parts[:chosen])
    if ids[start : start + record.parts[chosen][0]].tobytes() != made:
        return False
    lengths = tokenizer.byte_lengths()
    largest, stand_for, begun = 0, 0, 0
    for at in range(0, len(ids), _AT_ONCE):
        some = ids[at : at + _AT_ONCE]
        largest = max(largest, int(some.max()))
        if largest >= len(lengths):
            return False
        stand_for += int(lengths[some].sum())
        begun += int(np.count_nonzero(some == tokenizer.bos))
    return (
        largest == record.largest
        and begun == record.documents * per_document
        and (given_bytes is None or stand_for == given_bytes)
    )
