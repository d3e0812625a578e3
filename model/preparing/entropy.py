"""The entropy of bytes by their own counts: a model must beat it to have learned anything."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trmcloud.core.errors import DataError


class ByteCounts:
    """Counts of bytes and of neighbouring bytes, taken in piece by piece.

    Pieces of one document follow one another; ``end_document`` breaks the chain of neighbours.
    """

    def __init__(self) -> None:
        self._single = np.zeros(256, dtype=np.int64)
        self._pairs = np.zeros(256 * 256, dtype=np.int64)
        self._last: int | None = None

    def add(self, piece: bytes) -> None:
        if not piece:
            return
        values = np.frombuffer(piece, dtype=np.uint8)
        self._single += np.bincount(values, minlength=256)
        if self._last is not None:
            self._pairs[self._last * 256 + int(values[0])] += 1
        pairs = values[:-1].astype(np.int64) * 256 + values[1:]
        self._pairs += np.bincount(pairs, minlength=256 * 256)
        self._last = int(values[-1])

    def merge(self, other: ByteCounts) -> None:
        """Adds what ``other`` counted in documents of its own."""
        self._single += other._single
        self._pairs += other._pairs
        self._last = None

    def end_document(self) -> None:
        self._last = None

    @property
    def total(self) -> int:
        return int(self._single.sum())

    def unigram_bits(self) -> float:
        """Shannon entropy H(X) of a byte, in bits.

        Raises:
            DataError: nothing was counted.
        """
        if self.total == 0:
            raise DataError("there is no text to measure")
        return _entropy_bits(self._single)

    def bigram_bits(self) -> float:
        """H(X₂ | X₁) = H(X₁, X₂) − H(X₁) over neighbouring bytes, in bits; 0 without any."""
        if self._pairs.sum() == 0:
            return 0.0
        firsts = self._pairs.reshape(256, 256).sum(axis=1)
        return max(0.0, _entropy_bits(self._pairs) - _entropy_bits(firsts))


def _entropy_bits(counts: npt.NDArray[np.int64]) -> float:
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log2(shares)).sum())
