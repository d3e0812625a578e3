"""Muon where each rank holds some rows of every matrix: whole matrices are dealt out to the ranks.

Newton–Schulz needs a matrix whole. Each rank is sent the rows of its own matrices, works on those
alone, and sends the updates back: two exchanges of what a rank holds, instead of every rank
gathering and working on everything. Rounds bound what is in memory.
"""

from __future__ import annotations

from typing import Callable, Iterator, NamedTuple, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from model.rows import Span
from model.sharding import Peers

_ROUND_VALUES = 1 << 27
"""Of one rank in one round: 512 MiB in float32."""


class Matrix(NamedTuple):
    """Rows ``start`` to ``stop`` of a parameter that has ``rows``."""

    name: str
    start: int
    stop: int
    rows: int

    def held(self, peers: Peers, rank: int) -> Span:
        """Which of its rows ``rank`` holds, counted in the parameter."""
        return peers.span(self.rows, rank).within(self.start, self.stop)


Update = Callable[[Tensor], Tensor]
"""(count, rows, columns) → the same shape."""


def dealt(
    matrices: Sequence[Matrix], mine: Sequence[Tensor], peers: Peers, update: Update
) -> Iterator[Tensor]:
    """``update`` of every matrix in order, as the rows of it that this rank holds. A collective
    call, round by round: what is taken is not kept.

    Args:
        matrices: all of one shape.
        mine: (held rows, columns) of each, on this rank.
        update: of a stack of whole matrices.
    """
    columns = mine[0].shape[1]
    size = (matrices[0].stop - matrices[0].start) * columns
    in_round = max(1, _ROUND_VALUES // size) * peers.size
    for first in range(0, len(matrices), in_round):
        some = slice(first, first + in_round)
        yield from _round(matrices[some], mine[some], peers, update)


def _round(
    matrices: Sequence[Matrix], mine: Sequence[Tensor], peers: Peers, update: Update
) -> list[Tensor]:
    columns, ranks = mine[0].shape[1], range(peers.size)
    # Matrix i is worked on by rank i modulo their number.
    own = matrices[peers.rank :: peers.size]
    given = [[m.held(peers, peers.rank).length for m in matrices[r :: peers.size]] for r in ranks]
    taken = [[m.held(peers, rank).length for m in own] for rank in ranks]
    rows_given, rows_taken = [sum(each) for each in given], [sum(each) for each in taken]

    order = [index for r in ranks for index in range(r, len(matrices), peers.size)]
    arrived = mine[0].new_empty(sum(rows_taken), columns)
    _exchange(arrived, torch.cat([mine[i] for i in order]), rows_taken, rows_given, peers)
    if own:
        by_rank = [list(part.split(taken[r])) for r, part in enumerate(arrived.split(rows_taken))]
        whole = torch.stack([torch.cat([by_rank[r][i] for r in ranks]) for i in range(len(own))])
        done = update(whole)
        back = [each.split([taken[r][i] for r in ranks]) for i, each in enumerate(done)]
        arrived = torch.cat([back[i][r] for r in ranks for i in range(len(own))])
    returned = mine[0].new_empty(sum(rows_given), columns)
    _exchange(returned, arrived, rows_given, rows_taken, peers)
    rows = returned.split([count for each in given for count in each])
    made: list[Tensor] = [returned] * len(matrices)
    for index, part in zip(order, rows, strict=True):
        made[index] = part
    return made


def _exchange(
    into: Tensor, out: Tensor, rows_in: list[int], rows_out: list[int], peers: Peers
) -> None:
    dist.all_to_all_single(into, out.contiguous(), rows_in, rows_out, group=peers.group)
