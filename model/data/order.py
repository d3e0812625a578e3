"""Which row each sample reads: a pure function of the seed and of how many rows there are.

The training tokens are cut into windows of T inputs and T targets (T + 1 tokens, the last one
shared with the next window), or packed into rows of as many. Rows lie in blocks, one a shard. In
the first epoch blocks come in their order, so that what a sample reads is known as soon as its
block is; later epochs permute the blocks. Within a block, rows are permuted anew in every epoch.
Each row is read once an epoch, no two ranks read the same one, and a run resumed at sample g
continues as if it had never stopped, without any generator's state.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

_ROUNDS = 6
_MASK64 = (1 << 64) - 1
_BLOCK_SEED = 0x632BE59BD9B4E019

Tokens = npt.NDArray[np.int64]


class RowPosition(NamedTuple):
    """A row of a block."""

    block: int
    row: int


class SampleOrder:
    """The place of each sample of a run, as far as blocks are known.

    Blocks are added in their order; with ``finish`` it is known that no further one comes, and
    so where the first epoch ends.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._counts: list[int] = []
        self._ends: list[int] = []
        self._finished = False
        self._epoch: tuple[int, list[int], list[int]] = (0, [], [])

    @property
    def rows(self) -> int:
        """Of all blocks that were added."""
        return self._ends[-1] if self._ends else 0

    @property
    def blocks(self) -> int:
        return len(self._counts)

    def add(self, rows: int) -> None:
        self._counts.append(rows)
        self._ends.append(self.rows + rows)

    def finish(self) -> None:
        self._finished = True

    def knows(self, samples: range) -> bool:
        """Whether ``place`` has an answer for each of them."""
        if self._finished:
            return self.rows > 0
        return samples.stop <= self.rows

    def place(self, sample: int) -> RowPosition:
        """The row that the run's ``sample``, counted over all ranks and epochs, reads.

        Raises:
            IndexError: not known yet.
        """
        if not self.knows(range(sample, sample + 1)):
            raise IndexError(f"sample {sample} does not exist: there are {self.rows} rows")
        epoch, index = divmod(sample, self.rows) if self._finished else (0, sample)
        sequence, ends = self._blocks_of(epoch)
        at = bisect_right(ends, index)
        block = sequence[at] if sequence else at
        count = self._counts[block]
        row = permuted(
            index - (ends[at] - count), count, self._seed + block * _BLOCK_SEED, epoch=epoch
        )
        return RowPosition(block, row)

    def _blocks_of(self, epoch: int) -> tuple[list[int], list[int]]:
        """The blocks in this epoch's sequence (empty: their own), and where each one ends."""
        if epoch == 0:
            return [], self._ends
        if self._epoch[0] != epoch:
            number = len(self._counts)
            sequence = [permuted(each, number, self._seed, epoch) for each in range(number)]
            ends = list(accumulate(self._counts[block] for block in sequence))
            self._epoch = (epoch, sequence, ends)
        return self._epoch[1], self._epoch[2]


def window_count(tokens: int, sequence: int) -> int:
    """Windows of ``sequence`` inputs with their targets in a file of ``tokens`` ids."""
    return max(0, (tokens - 1) // sequence)


def read_windows(tokens: npt.NDArray[Any], windows: npt.ArrayLike, sequence: int) -> Tokens:
    """(len(windows), sequence + 1) ids; the inputs are all but the last, the targets all but
    the first."""
    starts = np.asarray(windows, dtype=np.int64) * sequence
    return tokens[starts[:, None] + np.arange(sequence + 1)].astype(np.int64)


def batch_samples(first: int, micro: int, rank: int, world_size: int, batch: int) -> range:
    """The samples of one micro-batch on one rank.

    A step takes batch · accumulation · world_size samples from ``first`` on; micro-batch by
    micro-batch, and within one rank by rank.
    """
    start = first + (micro * world_size + rank) * batch
    return range(start, start + batch)


def permuted(index: int, size: int, seed: int, epoch: int) -> int:
    """Return the place of ``index`` in a pseudo-random permutation of range(size).

    A balanced Feistel network over the next even number of bits, walked until it lands inside
    (Black & Rogaway 2002, "Ciphers with arbitrary finite domains"): constant memory for any size,
    and no dependence on a library's generator, whose stream may change between versions.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    keys = [_mix(seed * 0x9E3779B97F4A7C15 + epoch * _ROUNDS + each) for each in range(_ROUNDS)]
    while True:
        left, right = index >> half, index & mask
        for key in keys:
            left, right = right, left ^ (_mix(right ^ key) & mask)
        index = left << half | right
        if index < size:
            return index


def _mix(value: int) -> int:
    """SplitMix64's finaliser (Steele et al. 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK64
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & _MASK64
    return value ^ value >> 31
