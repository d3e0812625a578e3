"""Workers of a simulated controller: what is sent and pulled takes time, and may be cut off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from trmcloud.core.control.action_key import ActionKey
from trmcloud.core.errors import ProviderError, TrmcloudError
from trmcloud.ports.work import Progress, WorkDone

if TYPE_CHECKING:
    from trmcloud.sim.world.controllers import Process

_SHORTEST_S, _LONGEST_S = 2.0, 90.0


def _unheard(done: int, total: int) -> None:
    """Nobody watches a simulated copy."""


class SimWorkers:
    """``Workers`` of one process; what it carries dies with it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._running: dict[ActionKey, object] = {}
        self._finished: list[WorkDone] = []

    def start(self, key: ActionKey, work: Callable[[Progress], None]) -> None:
        sim = self._process.sim
        token = object()
        self._running[key] = token
        seconds = sim.rng.uniform(_SHORTEST_S, _LONGEST_S)
        sim.queue.after(seconds, partial(self._end, key, token, work))

    def _end(self, key: ActionKey, token: object, work: Callable[[Progress], None]) -> None:
        process = self._process
        if not process.alive or self._running.get(key) is not token:
            return
        if not process.up:
            process.sim.queue.after(30.0, partial(self._end, key, token, work))
            return
        del self._running[key]
        error: list[TrmcloudError | None] = [ProviderError("the copy was cut off")]

        def carry() -> None:
            process.cross("work.mid")
            try:
                work(_unheard)
                error[0] = None
            except TrmcloudError as problem:
                error[0] = problem

        process.do(carry)
        if process.alive:
            self._finished.append(WorkDone(key, error[0]))
            process.soon(0.5)

    def running(self) -> frozenset[ActionKey]:
        return frozenset(self._running)

    def finished(self) -> Sequence[WorkDone]:
        done, self._finished = self._finished, []
        return done

    def progress(self, key: ActionKey) -> tuple[int, int] | None:
        return None

    def cancel(self) -> None:
        self._running.clear()
