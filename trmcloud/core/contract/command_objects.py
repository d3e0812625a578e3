"""Names of the files of a command's checkpoint, and the objects that a pod may put of them. Pure.

A pod is granted each object of a bucket by its name, before anything is saved: what a script calls
its files, and how many there are, is not known then. They are named by size, so that the grants
of a checkpoint are few: the third largest holds no more than a third of all.
"""

from __future__ import annotations

from trmcloud.core.contract.bucket_layout import (
    GRANTED_TIMES,
    MOST_FILE_BYTES,
    MOST_PIECES,
    PIECE_BYTES,
    puts_of,
    slots_of,
)
from trmcloud.core.contract.command_terms import TREE_NAME
from trmcloud.core.contract.manifest import MANIFEST_NAME

MOST_COMMAND_FILES = 256
"""Files of one checkpoint of a user's command that a pod may put: each has a grant in each slot."""

MOST_COMMAND_PUTS = 1 << 15
"""Requests that a pod's grants may hold for a command: signed one by one, up to 2 kB each."""
_BEYOND = 1.25
"""So many times what is reserved, a checkpoint that is larger than any file may be may hold."""


def granted_bytes_of_command(checkpoint_bytes: int) -> int:
    """The most that a checkpoint may hold to be stored, where ``checkpoint_bytes`` are reserved."""
    most = max(MOST_FILE_BYTES, int(_BEYOND * checkpoint_bytes))
    return max(2 * PIECE_BYTES, min(GRANTED_TIMES * checkpoint_bytes, most))


def why_not_in_bucket(checkpoint_bytes: int, keep_best: int) -> str:
    """Why a pod cannot be granted uploads of such checkpoints; empty where it can."""
    if checkpoint_bytes > MOST_FILE_BYTES:
        return (
            f"a pod uploads files of up to {MOST_FILE_BYTES / 1e9:.0f} GB, but a checkpoint may "
            f"have a file of {checkpoint_bytes / 1e9:.0f} GB"
        )
    puts = len(puts_of_command(granted_bytes_of_command(checkpoint_bytes)))
    needed = puts * len(slots_of(1, keep_best))
    if needed <= MOST_COMMAND_PUTS:
        return ""
    return (
        f"{keep_best} kept checkpoints of {checkpoint_bytes / 1e9:.0f} GB need {needed:,} signed "
        f"requests; a pod takes at most {MOST_COMMAND_PUTS:,}"
    )


def command_file_name(number: int) -> str:
    """Of the ``number``-th largest file of a command's checkpoint, from 1 on."""
    return f"file-{number:04d}.bin"


def puts_of_command(checkpoint_bytes: int) -> tuple[tuple[str, int | None], ...]:
    """(name, exact length) of every object that may be written in a slot for checkpoints of a
    user's command up to ``checkpoint_bytes``."""
    puts: list[tuple[str, int | None]] = [(MANIFEST_NAME, None), (TREE_NAME, None)]
    for number in range(1, MOST_COMMAND_FILES + 1):
        puts += puts_of(command_file_name(number), MOST_PIECES, checkpoint_bytes // number)
    return tuple(puts)
