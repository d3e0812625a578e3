"""What block diffusion hides of a row: at which times, and which tokens.

Each block has a time t of its own, and each of its tokens is hidden with probability t. The times
of all blocks of a step lie evenly over the range: one in every n-th part of it, dealt out at
random. All of it follows from the numbers in ``Draws``.
"""

from __future__ import annotations

from typing import NamedTuple, Sequence

import numpy as np
import torch
from torch import Tensor

from model.data.batch import Draws

LEAST = 1e-3
"""Time at which the bound is cut: a token's weight is 1/t."""
LEAST_TALLIED = 64
"""Blocks within a range without which nothing is known of its variance."""


class Span(NamedTuple):
    """Times that are drawn from."""

    low: float
    high: float


WHOLE = Span(LEAST, 1.0)
SPANS = tuple(
    Span(max(LEAST, start / 10), (start + width) / 10)
    for width in range(10, 4, -1)
    for start in range(11 - width)
)
"""Those that training may be clipped to: half of the times at least."""


def times(draws: Draws, blocks: int, span: Span) -> Tensor:
    """(rows, blocks) float32 times in ``span``, antithetic over the group's rows and blocks."""
    chance = np.random.default_rng([draws.seed, draws.group])
    number = draws.of * blocks
    even = (chance.permutation(number) + chance.random(number)) / number
    mine = even.reshape(draws.of, blocks)[list(draws.rows)]
    return torch.from_numpy((span.low + (span.high - span.low) * mine).astype(np.float32))


def thresholds(draws: Draws, tokens: int) -> Tensor:
    """(rows, tokens) float32 in [0, 1): a token is hidden where its time is above."""
    seeds = ([draws.seed, draws.group, 1 + row] for row in draws.rows)
    rows = [np.random.default_rng(seed).random(tokens, dtype=np.float32) for seed in seeds]
    return torch.from_numpy(np.stack(rows))


def tally(nats: Tensor, at: Tensor) -> Tensor:
    """For every span how many of the blocks have a time in it, and the sums of their nats and
    squares: (3 · spans,).

    Args:
        nats: (blocks,) the bound that each block gave by itself.
        at: (blocks,) its time, drawn from ``WHOLE``: those within a span are draws from that one.
    """
    low, high = torch.tensor(SPANS, dtype=at.dtype, device=at.device).unbind(1)
    inside = ((at[:, None] >= low) & (at[:, None] <= high)).double()
    each = nats.double()
    return torch.cat([inside.sum(0), each @ inside, each.square() @ inside])


def least_variance(tallies: Sequence[float]) -> Span | None:
    """The span whose blocks' bounds vary least; None where too few were tallied."""
    count, total, squares = np.array(tallies, dtype=np.float64).reshape(3, len(SPANS))
    known = count >= LEAST_TALLIED
    if not known.any():
        return None
    count = np.maximum(count, 1.0)
    variance = squares / count - (total / count) ** 2
    return SPANS[int(np.where(known, variance, np.inf).argmin())]
