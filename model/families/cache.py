"""Keys and values of past tokens, for models that decode one token after the other."""

from __future__ import annotations

from typing import Hashable, Iterator

import torch
from torch import Tensor


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

    def begin(self, new: int) -> None:
        self._new = new
        self._masks = {}

    def end(self) -> None:
        self.length += self._new

    def slot(self, key: Hashable) -> Slot:
        return self._slots.setdefault(key, Slot(self))

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
