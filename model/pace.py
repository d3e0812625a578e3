"""How long each rank's own share of a step takes: what tells the one that all others wait for.

Forward passes alone are timed. In them no rank waits for another, as all do in the backward pass,
whose gradients are reduced together: there a slow rank makes every one as slow as itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch


class Pace:
    """This rank's forward passes of one step; ``monotonic`` gives seconds."""

    def __init__(self, device: torch.device, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._on_gpu = device.type == "cuda"
        self._seconds = 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def timed(self) -> Iterator[None]:
        """A forward pass. A GPU is not waited for: events stand in its stream instead."""
        if self._on_gpu:
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            yield
            last.record()
            self._events.append((first, last))
            return
        began = self._monotonic()
        yield
        self._seconds += self._monotonic() - began

    def taken_s(self) -> float:
        """Seconds of the passes since it was last asked; on a GPU once they are behind it, as they
        are where something has been read from it."""
        seconds = self._seconds + sum(a.elapsed_time(b) for a, b in self._events) / 1e3
        self._seconds, self._events = 0.0, []
        return seconds


class Paces:
    """All ranks' seconds, step by step, until they are told."""

    def __init__(self) -> None:
        self._sums: list[float] = []
        self._steps = 0

    def add(self, seconds: Sequence[float]) -> None:
        """Of one step, by rank."""
        self._sums = [
            a + b for a, b in zip(self._sums or [0.0] * len(seconds), seconds, strict=True)
        ]
        self._steps += 1

    def told(self) -> list[float]:
        """Means over the steps since they were last told; empty where there are none."""
        means = [each / self._steps for each in self._sums] if self._steps else []
        self._sums, self._steps = [], 0
        return means
