"""Virtual time: one heap of events, and nothing that waits."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

Act = Callable[[], None]


@dataclass(slots=True)
class Entry:
    """Something that will happen, unless it is called off."""

    at: float
    act: Act | None

    def cancel(self) -> None:
        self.act = None


class EventQueue:
    """Events in order of time, then of their making. ``now`` is the world's true time (epoch s).

    ``run_until`` may be called from inside an event: that is how a process that is stopped in the
    middle of a call lets the world go on around it.
    """

    def __init__(self, start_at: float) -> None:
        self.now = start_at
        self.count = 0
        self._heap: list[tuple[float, int, Entry]] = []
        self._made = 0

    def at(self, when: float, act: Act) -> Entry:
        if when < self.now:
            when = self.now
        entry = Entry(when, act)
        self._made += 1
        heapq.heappush(self._heap, (when, self._made, entry))
        return entry

    def after(self, seconds: float, act: Act) -> Entry:
        return self.at(self.now + seconds, act)

    def run_until(
        self,
        until: float,
        before: Callable[[], None],
        after: Callable[[], None],
        stop: Callable[[], bool] | None = None,
    ) -> None:
        """Let everything due by ``until`` happen; ``before`` is called when time has come to an
        event, ``after`` when it has happened."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            if stop is not None and stop():
                return
            at, _, entry = heapq.heappop(heap)
            act = entry.act
            if act is None:
                continue
            if at > self.now:
                self.now = at
            self.count += 1
            before()
            act()
            after()
        if until > self.now and (stop is None or not stop()):
            self.now = until
