"""Workers as threads: they end, fail and are called off without anybody waiting for them."""

from __future__ import annotations

import threading
import time

from trmcloud.adapters.local.workers import ThreadWorkers
from trmcloud.core.control.action_key import ActionKey
from trmcloud.core.errors import CheckpointError
from trmcloud.ports.work import Progress, WorkDone

A, B = (ActionKey("r-1", 1, "pull", 1, name) for name in "ab")


def ended(workers: ThreadWorkers) -> WorkDone:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        done = workers.finished()
        if done:
            (one,) = done
            return one
        time.sleep(0.01)
    raise AssertionError("nothing has ended")


def test_what_is_done_is_told_once() -> None:
    workers, go = ThreadWorkers(), threading.Event()

    def work(progress: Progress) -> None:
        progress(3, 7)
        assert go.wait(10)

    workers.start(A, work)
    deadline = time.monotonic() + 10
    while workers.progress(A) != (3, 7):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert workers.running() == {A}
    go.set()
    assert ended(workers) == WorkDone(A, None)
    assert workers.running() == frozenset()
    assert workers.finished() == []
    assert workers.progress(A) is None


def test_how_it_failed_is_told() -> None:
    workers = ThreadWorkers()
    error = CheckpointError("torn")

    def fail(progress: Progress) -> None:
        raise error

    workers.start(A, fail)
    assert ended(workers).error is error
    nothing: dict[str, None] = {}
    workers.start(B, lambda progress: nothing["nothing"])
    unforeseen = ended(workers).error
    assert unforeseen is not None
    assert "KeyError" in str(unforeseen)


def test_what_is_called_off_ends_and_is_not_told() -> None:
    workers, left = ThreadWorkers(), threading.Event()

    def endless(progress: Progress) -> None:
        try:
            while True:
                progress(0, 1)
                time.sleep(0.01)
        finally:
            left.set()

    workers.start(A, endless)
    workers.cancel()
    assert workers.running() == frozenset()
    assert left.wait(10)
    workers.start(B, lambda progress: None)
    assert ended(workers).key == B
