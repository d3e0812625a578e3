"""Workers as threads: what they carry dies with the process, and is begun again by the next."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from trmcloud.core.control.events import ActionKey
from trmcloud.core.errors import ProviderError, TrmcloudError
from trmcloud.ports.work import Progress, WorkDone


class _Cancelled(TrmcloudError):
    """The work is no longer wanted."""


class ThreadWorkers:
    """One thread for each piece of work; daemons, so that leaving never waits for a copy."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[ActionKey, threading.Event] = {}
        self._progress: dict[ActionKey, tuple[int, int]] = {}
        self._finished: list[WorkDone] = []

    def start(self, key: ActionKey, work: Callable[[Progress], None]) -> None:
        cancelled = threading.Event()
        with self._lock:
            self._running[key] = cancelled
            self._progress[key] = (0, 0)
        thread = threading.Thread(target=self._carry, args=(key, work, cancelled), daemon=True)
        thread.start()

    def _carry(
        self, key: ActionKey, work: Callable[[Progress], None], cancelled: threading.Event
    ) -> None:
        def progress(done: int, total: int) -> None:
            if cancelled.is_set():
                raise _Cancelled("it is no longer wanted")
            self._progress[key] = (done, total)

        error: TrmcloudError | None = None
        try:
            work(progress)
        except TrmcloudError as problem:
            error = problem
        except Exception as problem:  # a thread's failure must not be lost
            error = ProviderError(f"{type(problem).__name__}: {problem}")
        with self._lock:
            mine = self._running.get(key) is cancelled
            if mine:
                del self._running[key]
                self._progress.pop(key, None)
                self._finished.append(WorkDone(key, error))

    def running(self) -> frozenset[ActionKey]:
        with self._lock:
            return frozenset(self._running)

    def finished(self) -> Sequence[WorkDone]:
        with self._lock:
            done, self._finished = self._finished, []
        return done

    def progress(self, key: ActionKey) -> tuple[int, int] | None:
        return self._progress.get(key)

    def cancel(self) -> None:
        with self._lock:
            for cancelled in self._running.values():
                cancelled.set()
            self._running.clear()
            self._progress.clear()
