"""Virtual time: one heap of events, and machines with clocks of their own: right,
skewed, jumping, asleep.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trmcloud.core.clock import Instant
from trmcloud.ports.ledger import Intent

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


class KeptIntents:
    """``Intents`` of a machine: in its memory, whatever becomes of the ledger's disk."""

    def __init__(self) -> None:
        self._kept: dict[str, Intent] = {}

    def keep(self, intent: Intent) -> str:
        self._kept[intent.run_id] = intent
        return "memory"

    def kept(self) -> Sequence[Intent]:
        return tuple(self._kept.values())

    def drop(self, intent: Intent) -> None:
        self._kept.pop(intent.run_id, None)


class Machine:
    """A laptop, a server or a pod. ``offset_s`` is how far its wall clock is ahead of the truth."""

    def __init__(self, queue: EventQueue, name: str, offset_s: float = 0.0) -> None:
        self._queue = queue
        self.name = name
        self.offset_s = offset_s
        self.intents = KeptIntents()
        self.awake = True
        self.online = True
        self.boot_at = queue.now - 1000.0
        self.boot_id = f"{name}-1"
        self._read_at = self._read_offset_s = math.nan
        self._instant = self.now()

    def now(self) -> Instant:
        true, offset_s = self._queue.now, self.offset_s
        # Asked many times at one instant.
        if true != self._read_at or offset_s != self._read_offset_s:
            self._read_at, self._read_offset_s = true, offset_s
            self._instant = Instant(true + offset_s, true - self.boot_at, self.boot_id)
        return self._instant

    def sleep(self, seconds: float) -> None:
        """A simulated process never sleeps: what comes later is an event."""
        raise NotImplementedError("a simulated process never sleeps")

    def rename_boot(self, more: str) -> None:
        """Its boot clock is another one from now on."""
        self.boot_id += more
        self._read_at = math.nan
