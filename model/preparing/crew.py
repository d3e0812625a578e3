"""Processes that make tokens, and lines about their progress."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import (
    FIRST_COMPLETED,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from pathlib import Path
from typing import Any, TypeVar

from model.preparing.fetch import PreparationStopped
from model.preparing.folder import GrowingFolder
from model.preparing.work import JobResult, TokenizerSample, start, train

# Threads for downloads and checks, processes for tokenizing, and what follows on each result.
#
# What follows is always done by the one thread that calls ``step``: nothing else changes a state.

DOWNLOADS_AT_ONCE = 8
_CHORES_AT_ONCE = 2
_LOOK_EVERY_S = 0.5

_Result = TypeVar("_Result")


class WorkerPool:
    """``workers`` processes, started once the tokenizer is known."""

    def __init__(self, workers: int, stop: threading.Event) -> None:
        self._worker_count, self.stop = workers, stop
        self._running: dict[Future[Any], Callable[[Any], None]] = {}
        self._downloads = ThreadPoolExecutor(DOWNLOADS_AT_ONCE, "download")
        self._chores = ThreadPoolExecutor(_CHORES_AT_ONCE, "chores")
        self._workers: ProcessPoolExecutor | None = None
        self._school: ProcessPoolExecutor | None = None
        self._at_work = 0

    @property
    def has_room(self) -> bool:
        """Whether a worker would soon take up another job."""
        return self._workers is not None and self._at_work < self._worker_count + 2

    def download(self, task: Callable[[], _Result], then: Callable[[_Result], None]) -> None:
        self._running[self._downloads.submit(task)] = then

    def chore(self, task: Callable[[], _Result], then: Callable[[_Result], None]) -> None:
        """Submit a task that reads or writes much, and computes little."""
        self._running[self._chores.submit(task)] = then

    def work(
        self, then: Callable[[_Result], None], task: Callable[..., _Result], *arguments: Any
    ) -> None:
        """A job for a process."""
        assert self._workers is not None
        self._at_work += 1

        def done(result: _Result) -> None:
            self._at_work -= 1
            then(result)

        self._running[self._workers.submit(task, *arguments)] = done

    def teach(self, lesson: TokenizerSample, then: Callable[[tuple[str, int, int]], None]) -> None:
        """Trains a tokenizer, alone with all cores, in a process whose memory is given back."""
        self._school = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        self._running[self._school.submit(train, lesson)] = then

    def start_workers(self, tokenizer_json: str) -> None:
        if self._school is not None:
            self._school.shutdown(wait=False)
        self._workers = ProcessPoolExecutor(
            self._worker_count,
            multiprocessing.get_context("spawn"),
            start,
            (tokenizer_json,),
        )

    def step(self) -> None:
        """Waits a moment for results, and does what follows on them.

        Raises:
            Stopped: told to.
        """
        if self.stop.is_set():
            raise PreparationStopped
        done, _ = wait(self._running, _LOOK_EVERY_S, FIRST_COMPLETED)
        for future in done:
            self._running.pop(future)(future.result())

    def close(self) -> None:
        """Ends what is still at work."""
        self.stop.set()  # downloads look at it between two pieces
        for pool in (self._workers, self._school):
            if pool is not None:
                processes = list((getattr(pool, "_processes", None) or {}).values())
                pool.shutdown(wait=False, cancel_futures=True)
                for process in processes:
                    process.terminate()
                for process in processes:
                    process.join(5.0)
        for threads in (self._downloads, self._chores):
            threads.shutdown(wait=True, cancel_futures=True)


def cores() -> int:
    """Return the number of cores that this process may use: those it is bound to, or its
    container's share."""
    there = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        there = min(there, max(1, math.ceil(int(quota) / int(period))))
    return there


# What a preparation says of itself: on stdout as it goes, and in ``progress.json``.

Told = Callable[[str, int, int], None]
"""A stage, how much of it is done, and of how much; a line of its own has neither."""


class DownloadCounter:
    """Counts what was downloaded; the rest is the folder's own account."""

    def __init__(self, folder: GrowingFolder, told: Told, wanted_tokens: int) -> None:
        self._folder, self._told, self._wanted = folder, told, wanted_tokens
        self._bytes: dict[str, tuple[int, int]] = {}

    def expects(self, name: str, size: int) -> None:
        """A file of about so many bytes will be downloaded."""
        self._bytes.setdefault(name, (0, size))

    def downloaded(self, name: str, done: int, total: int) -> None:
        self._bytes[name] = (done, total or done)

    def damaged(self, name: str) -> None:
        """Tokens of that file were kept, and are not what they were."""
        self._note(f"{name} in the cache is damaged: it is made again")

    def refused(self, name: str) -> None:
        """Tokens of that file, which others made, are not those of its text."""
        self._note(f"{name} in the cache does not match its text: it is made again")

    def refused_tokenizer(self) -> None:
        """The tokenizer that others trained is not of the form that is trained here."""
        self._note("the tokenizer in the cache loses text: it is trained again")

    def _note(self, note: str) -> None:
        self._told(note, 0, 0)
        self._folder.tell(note=note, at_once=True)

    def trains_a_tokenizer(self) -> None:
        self._folder.tell(stage="tokenizer", at_once=True)
        self._told("tokenizer", 0, 1)

    def trained_a_tokenizer(self, text_bytes: int, peak_bytes: int) -> None:
        self._told("tokenizer", text_bytes, text_bytes)
        self._folder.tell(peaks={**self._folder.now.peaks, "tokenizer": peak_bytes})

    def made(self, made: JobResult) -> None:
        """A worker's own figures."""
        peaks = self._folder.now.peaks
        largest = max(made.peak_bytes, int(peaks.get("worker", 0)))
        self._folder.tell(peaks={**peaks, "worker": largest})

    def now(self, *, may_begin: bool, encodes: bool, planned_shards: int) -> None:
        """Report the progress."""
        done = sum(each[0] for each in self._bytes.values())
        total = sum(each[1] for each in self._bytes.values())
        self._told("download", done, total)
        if may_begin:
            self._told("ready", 1, 1)
        if encodes:
            self._told("encode", self._folder.now.tokens, self._wanted)
        self._folder.tell(
            wanted_tokens=self._wanted,
            downloaded_bytes=done,
            download_bytes=total,
            planned_shards=planned_shards,
            stage=self._folder.now.stage or "download",
        )
