"""A model's input: rows of ids, and the numbers that seed its random draws."""

from __future__ import annotations

from typing import NamedTuple, Sequence

import torch
from torch import Tensor

from model.data.packing import GIVEN, PAD


class RowSelection(NamedTuple):
    """Which rows a batch holds, of those that are drawn for together: a step's, an evaluation's.

    Whatever chance a family needs it draws by these numbers and by no generator's state. So noise
    does not depend on how rows are dealt out to micro-batches and ranks, and is the same again
    after a resume.
    """

    seed: int
    group: int
    """The number that identifies this group of rows: the sample that a step begins with."""
    rows: Sequence[int]
    """Each row's number within the group, from 0 on."""
    of: int
    """Rows in the group."""

    @classmethod
    def alone(cls, rows: int, seed: int = 0) -> RowSelection:
        """A batch that is a group by itself."""
        return cls(seed, 0, range(rows), rows)


class Batch(NamedTuple):
    """A model's input."""

    ids: Tensor
    targets: Tensor
    """(B, T) like ``ids``, each the id that follows."""
    draws: RowSelection


def ids_and_targets(rows: Tensor, *, is_chat: bool) -> tuple[Tensor, Tensor]:
    """(B, T) ids and the targets that follow them, of (B, T + 1) rows.

    Args:
        is_chat: rows of conversations, where a model is given all ids but is judged on some: the
            targets of the others are padding. Without it, rows are taken as they are.
    """
    if not is_chat:
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
    ids = torch.where(rows <= GIVEN, GIVEN - rows, rows.clamp_min(0))
    targets = rows.where(rows >= 0, PAD)
    return ids[:, :-1].contiguous(), targets[:, 1:].contiguous()
