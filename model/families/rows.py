"""Keys and values of several texts of lengths of their own, which are decoded together.

A text comes in by the cache that its beginning went through alone, and from then on takes up one
token a pass, as all the others do. What a row attends to is itself alone: the others' tokens and
what lies behind its own are masked out.
"""

from __future__ import annotations

from typing import Hashable

import torch
from torch import Tensor

from model.families.cache import Cache, Slot


class RowCache(Cache):
    """Up to ``rows`` texts, in the first of its rows; ``lengths`` are how many tokens of each."""

    def __init__(self, rows: int, capacity: int) -> None:
        super().__init__(capacity)
        self.rows = rows
        self.lengths: list[int] = []
        self._at: Tensor | None = None

    def append(self, alone: Cache) -> None:
        """Takes up a text of one row behind the others."""
        for key, slot in alone.slots():
            self._slot(key).take(len(self.lengths), *slot.kept, alone.length)
        self.lengths.append(alone.length)

    def remove(self, row: int) -> None:
        """Forgets a text; the last one takes its place."""
        last = len(self.lengths) - 1
        if row < last:
            for slot in self._slots.values():
                assert isinstance(slot, RowSlot)
                slot.move(last, row, self.lengths[last])
            self.lengths[row] = self.lengths[last]
        self.lengths.pop()

    def begin(self, new: int) -> None:
        assert new == 1, "a row's beginning goes through a cache of its own"
        super().begin(new)
        self._at = None

    def end(self) -> None:
        self.lengths = [length + 1 for length in self.lengths]

    def slot(self, key: Hashable) -> Slot:
        return self._slot(key)

    def places(self, device: torch.device) -> Tensor:
        """(rows, 1), made once a pass."""
        if self._at is None:
            self._at = torch.tensor(self.lengths, device=device).unsqueeze(1)
        return self._at

    def seen(self, device: torch.device, window: int = 0) -> Tensor | None:
        """(rows, 1, 1, all), or None."""
        if window not in self._masks:
            every = max(self.lengths) + 1
            mask = None
            if min(self.lengths) + 1 < every or 0 < window < every:
                own, columns = self.places(device), torch.arange(every, device=device)
                mask = columns <= own
                if window:
                    mask &= columns > own - window
                mask = mask[:, None, None]
            self._masks[window] = mask
        return self._masks[window]

    def _slot(self, key: Hashable) -> RowSlot:
        slot = self._slots.setdefault(key, RowSlot(self))
        assert isinstance(slot, RowSlot)
        return slot


class RowSlot(Slot):
    """One place's keys and values, each (rows, heads, capacity, head_dim)."""

    cache: RowCache

    def take(self, row: int, k: Tensor, v: Tensor, length: int) -> None:
        """A text's first ``length`` keys and values, from tensors of one row."""
        if self._kept is None:
            # Zeros, since what is masked out is weighted by 0, which NaN would survive.
            shape = (self.cache.rows, k.shape[1], self.cache.capacity, k.shape[3])
            self._kept = k.new_zeros(shape), v.new_zeros(shape)
        for kept, given in zip(self._kept, (k, v), strict=True):
            kept[row, :, :length] = given[0, :, :length]

    def move(self, row: int, to: int, length: int) -> None:
        for kept in self.kept:
            kept[to, :, :length] = kept[row, :, :length]

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = self.kept
        count, every = len(k), max(self.cache.lengths) + 1
        at = self.cache.places(k.device)[:, 0]
        rows = torch.arange(count, device=k.device)
        keys[rows, :, at] = k[:, :, 0]
        values[rows, :, at] = v[:, :, 0]
        return keys[:count, :, :every], values[:count, :, :every]
