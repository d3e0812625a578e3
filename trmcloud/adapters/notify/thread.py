"""The thread that tells while others control: it is never waited for beyond a deadline."""

from __future__ import annotations

import threading
import time

from trmcloud.app.notifications import Teller
from trmcloud.core.errors import TrmcloudError
from trmcloud.ports.notices import Destination

_EVERY_S = 2.0


class TellingThread:
    """Derives every few seconds; each destination is told by a thread of its own, so that one which
    never answers delays no other. All of them are daemons: no process waits for them to end."""

    def __init__(self, teller: Teller, every_s: float = _EVERY_S) -> None:
        self._teller, self._every_s = teller, every_s
        self._leave = threading.Event()
        self._workers: dict[str, threading.Thread] = {}
        self._loop = threading.Thread(target=self._run, name="telling", daemon=True)
        self.trouble: Exception | None = None
        """What kept the last look from being put into the outbox."""

    def start(self) -> None:
        self._loop.start()

    def finish(self, within_s: float) -> bool:
        """Look once more and tell what is due, for at most so long; whether all of it was tried.
        What is left waits in the outbox."""
        deadline = time.monotonic() + within_s
        self._leave.set()
        self._loop.join(max(0.0, deadline - time.monotonic()))
        for worker in list(self._workers.values()):
            worker.join(max(0.0, deadline - time.monotonic()))
        threads = [self._loop, *self._workers.values()]
        return not any(thread.is_alive() for thread in threads)

    def _run(self) -> None:
        while True:
            leaving = self._leave.is_set()
            self._look()
            if leaving:
                return
            self._leave.wait(self._every_s)

    def _look(self) -> None:
        try:
            self._teller.derive()
            self.trouble = None
        except Exception as error:  # a ledger that is locked, a disk that is full: looked at again
            self.trouble = error
        for destination in self._teller.destinations:
            worker = self._workers.get(destination.name)
            if worker is None or not worker.is_alive():
                worker = threading.Thread(target=self._tell, args=(destination,), daemon=True)
                self._workers[destination.name] = worker
                worker.start()

    def _tell(self, destination: Destination) -> None:
        try:
            while self._teller.deliver(destination):
                pass
        except TrmcloudError as error:
            self.trouble = error
