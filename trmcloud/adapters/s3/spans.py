"""Spans of a file that travel side by side."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from trmcloud.core.values import dataclass

PART_BYTES = 64 << 20
LANES = 4
BLOCK = 1 << 20

_Job = TypeVar("_Job")


@dataclass(frozen=True)
class Source:
    """Bytes ``start`` to ``end`` of a file are those of the object ``key`` from ``offset`` on."""

    key: str
    start: int
    end: int
    offset: int = 0


class Meter:
    """Bytes moved by several threads, told to one ``progress``, which may raise to end it all."""

    def __init__(self, progress: Callable[[int, int], None], whole: int) -> None:
        self._progress, self._whole = progress, whole
        self._done, self._lock = 0, threading.Lock()

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            self._progress(self._done, self._whole)


def run_in_parallel(
    jobs: Sequence[_Job],
    work: Callable[[_Job], None],
    then: Callable[[_Job], None],
    lanes: int,
) -> None:
    """``work`` on several jobs at a time, ``then`` on each in their order, once it is done.

    What fails first ends the others and is raised.
    """
    with ThreadPoolExecutor(lanes) as pool:
        futures: list[Future[None]] = [pool.submit(work, job) for job in jobs]
        try:
            for job, future in zip(jobs, futures, strict=True):
                future.result()
                then(job)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


# -- down -------------------------------------------------------------------------------------
