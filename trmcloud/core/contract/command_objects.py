"""Names of the files of a command's checkpoint, and the objects that a pod may put of them. Pure.

A pod is granted each object of a bucket by its name, before anything is saved: what a script calls
its files, and how many there are, is not known then. They are named by size, so that the grants
of a checkpoint are few: the third largest holds no more than a third of all.
"""

from __future__ import annotations

from trmcloud.core.contract.bucket_layout import MOST_PIECES, puts_of
from trmcloud.core.contract.command_terms import TREE_NAME
from trmcloud.core.contract.manifest import MANIFEST_NAME

MOST_COMMAND_FILES = 256
"""Files of one checkpoint of a user's command that a pod may put: each has a grant in each slot."""


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
