"""What a click began and takes a while: each in a thread of its own, told of while it works."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from trmcloud.cli.page.feed import Feed
from trmcloud.core.errors import ConflictError, TrmcloudError
from trmcloud.core.plain_text import one_line
from trmcloud.ports.work import Progress

_KEPT = 20
_TELL_EVERY_S = 0.25
WORKING, DONE, FAILED = "working", "done", "failed"


@dataclass(frozen=True)
class Job:
    """``text`` is what came of it; ``next`` what to type, or do, where it failed."""

    number: int
    verb: str
    run: str
    state: str = WORKING
    text: str = ""
    next: str = ""
    done: int = 0
    size: int = 0


class Jobs:
    def __init__(self, feed: Feed, now: Callable[[], float] = time.monotonic) -> None:
        self._feed, self._now = feed, now
        self._jobs: dict[int, Job] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def to_json(self) -> list[dict[str, Any]]:
        with self._lock:
            return [vars(job) for job in self._jobs.values()]

    def start(self, verb: str, run: str, work: Callable[[Progress], str]) -> int:
        """``work`` is given where to tell (done, total) bytes, and returns what came of it.

        Raises:
            ConflictError: the same is being done to the run already.
        """
        with self._lock:
            for job in self._jobs.values():
                if (job.verb, job.run, job.state) == (verb, run, WORKING):
                    raise ConflictError(f"{run}: {verb} is under way already, by a click before")
            number = next(self._numbers)
            self._jobs[number] = Job(number, verb, run)
            for old in list(self._jobs)[:-_KEPT]:
                if self._jobs[old].state != WORKING:
                    del self._jobs[old]
        self._tell()
        threading.Thread(target=self._carry, args=(number, work), daemon=True).start()
        return number

    def _carry(self, number: int, work: Callable[[Progress], str]) -> None:
        told_at = self._now()

        def progress(done: int, size: int) -> None:
            nonlocal told_at
            if self._now() - told_at >= _TELL_EVERY_S:
                told_at = self._now()
                self._change(number, done=done, size=size)

        try:
            self._change(number, state=DONE, text=one_line(work(progress)))
        except TrmcloudError as error:
            what, after = one_line(str(error)), one_line(error.next_step)
            self._change(number, state=FAILED, text=what, next=after)
        except Exception as error:  # told where it was asked for: the server goes on
            what = one_line(f"unexpected {type(error).__name__}: {error}")
            self._change(number, state=FAILED, text=what)

    def _change(self, number: int, **news: Any) -> None:
        with self._lock:
            self._jobs[number] = replace(self._jobs[number], **news)
        self._tell()

    def _tell(self) -> None:
        self._feed.tell("jobs", self.to_json())
