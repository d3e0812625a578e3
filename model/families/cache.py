"""Keys and values of past tokens, for one text and for the rows of many."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

# Keys and values of past tokens, for models that decode one token after the other.


class Cache:
    """A slot for every place of a model that attends; they share one length and one mask.

    ``begin`` opens a pass over new tokens, ``end`` closes it.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        self._slots: dict[Hashable, Slot] = {}
        self._masks: dict[int, Tensor | None] = {}
        self._new = 0
        self.step: Any = None
        """Of the model that uses it, what it takes single tokens up by."""

    @property
    def place(self) -> int:
        """The position of the next token of its only text."""
        return self.length

    def begin(self, new: int) -> None:
        self._new = new
        self._masks = {}

    def end(self) -> None:
        self.length += self._new

    def slot(self, key: Hashable) -> Slot:
        found = self._slots.get(key)
        if found is None:
            found = self._slots[key] = Slot(self)
        return found

    def slots(self) -> Iterator[tuple[Hashable, Slot]]:
        """Every place that has attended, and what it keeps."""
        yield from self._slots.items()

    def places(self, device: torch.device) -> Tensor:
        """Positions of the new tokens: (new,), or (rows, 1) where each row has a length of its
        own."""
        return torch.arange(self.length, self.length + self._new, device=device)

    def seen(self, device: torch.device, window: int = 0) -> Tensor | None:
        """Which tokens each new one may see: bool, (new, all) or what broadcasts to (B, heads, new,
        all); None: all of them.

        Made once a pass, and once for each ``window`` (tokens seen, itself included; 0: all).
        """
        if window not in self._masks:
            every = self.length + self._new
            mask = None
            if self._new > 1 or 0 < window < every:
                mask = causal_mask(self._new, self.length, window, device)
            self._masks[window] = mask
        return self._masks[window]


class KeptRow(NamedTuple):
    """The keys and values of one row, each (heads, capacity, head_dim): for torch and numpy, in the
    same memory."""

    keys: Tensor
    values: Tensor
    key_array: Any
    value_array: Any


class Slot:
    """One place's keys and values, each (B, heads, capacity, head_dim)."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self._kept: tuple[Tensor, Tensor] | None = None

    @property
    def kept(self) -> tuple[Tensor, Tensor]:
        """Keys and values, those behind the cache's length being nobody's."""
        assert self._kept is not None
        return self._kept

    @cached_property
    def first_row(self) -> KeptRow:
        """Of its first text, on a CPU, once something is kept."""
        keys, values = (each[0] for each in self.kept)
        return KeptRow(keys, values, keys.numpy(), values.numpy())

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Adds k and v (B, heads, new, head_dim) behind those of the cache's tokens; gives all."""
        if self._kept is None:
            shape = (*k.shape[:2], self.cache.capacity, k.shape[3])
            self._kept = k.new_empty(shape), v.new_empty(shape)
        keys, values = self._kept
        past, new = self.cache.length, k.shape[2]
        keys[:, :, past : past + new] = k
        values[:, :, past : past + new] = v
        return keys[:, :, : past + new], values[:, :, : past + new]


def causal_mask(new: int, past: int, window: int, device: torch.device) -> Tensor:
    """(new, past + new) bool: token i of the new ones sees those up to itself, and of them the
    last ``window`` alone where that is not 0."""
    mask = torch.ones(new, past + new, dtype=torch.bool, device=device).tril(past)
    return mask.triu(past - window + 1) if window else mask


# Keys and values of several texts of lengths of their own, which are decoded together.
#
# A text comes in by the cache that its beginning went through alone, and from then on takes up
# one token a pass, as all the others do. What a row attends to is itself alone: the others'
# tokens and what lies behind its own are masked out.


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

    @property
    def place(self) -> int:
        return self.lengths[0]

    def begin(self, new: int) -> None:
        assert new == 1, "the beginning of a row needs its own cache"
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
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = RowSlot(self)
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
