"""What a command has saved is taken beside it, and whatever is left out is told of once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from trmcloud.core.contract.command_terms import is_inside
from trmcloud.core.contract.manifest import CheckpointManifest
from trmcloud.core.plain_text import one_line
from trmcloud.pod.job.shelf import Shelf
from trmcloud.pod.job.telling import Telling
from trmcloud.pod.job.watch import Candidate, Refused, Watcher

_MOST_LEFT_OUT = 1000
_LONGEST_NAME = 200


class Taking:
    """``say`` puts a line into the log."""

    def __init__(
        self, work: Path, watcher: Watcher, shelf: Shelf, tell: Telling, say: Callable[[str], None]
    ) -> None:
        self._work, self._watcher, self._shelf = work, watcher, shelf
        self._tell, self._say = tell, say
        self._under_way: dict[Candidate, Future[CheckpointManifest | None]] = {}
        self._taker = ThreadPoolExecutor(max_workers=1)
        self._left_out: dict[str, str] = {}

    @property
    def changes(self) -> int:
        """Grows with whatever changes in the folder that is watched."""
        return self._watcher.changes

    @property
    def left_out(self) -> str:
        """What was left out last, and why; empty where nothing was."""
        if not self._left_out:
            return ""
        name, why = next(reversed(self._left_out.items()))
        return f"left out {name}: {why}"

    def settled(self, steady: float, after_s: float) -> None:
        """Whatever has stood still for so many seconds."""
        for found in self._watcher.settled(steady, after_s):
            if not isinstance(found, Candidate):
                self._refuse(*found)
                continue
            saved_at = max(file.mtime_ns for file in found.files) / 1e9
            step = self._tell.step_at(saved_at) if found.step is None else found.step
            self._take(found, step, self._tell.metric_of(found.step, saved_at))

    def named(self, path: str, step: int | None, metric: float | None) -> None:
        """What the command says is whole."""
        root = os.path.realpath(self._work)
        name = os.path.relpath(os.path.realpath(self._work / path), root)
        if name == "." or not is_inside(name):
            self._refuse(path, "it is not in the working folder")
            return
        try:
            if (candidate := self._watcher.look(name)) is not None:
                self._take(candidate, step, metric)
            else:
                self._refuse(name, "no such file or folder, or an empty one")
        except Refused as why:
            self._refuse(name, str(why))

    def _take(self, candidate: Candidate, step: int | None, metric: float | None) -> None:
        """Have it copied beside: a large one must not keep the command from being stopped."""
        if candidate not in self._under_way:
            work = self._taker.submit(self._shelf.take, candidate, step, metric)
            self._under_way[candidate] = work

    def collect(self, *, to_the_end: bool = False) -> None:
        """What has come of those that were being taken; ``to_the_end``: of all of them."""
        if to_the_end:
            wait(self._under_way.values())
        for candidate, work in list(self._under_way.items()):
            if not work.done():
                continue
            del self._under_way[candidate]
            try:
                made = work.result()
            except Refused as why:
                if (self._work / candidate.source).exists():  # or the command has removed it itself
                    self._refuse(candidate.source, str(why))
                continue
            except OSError as error:
                self._refuse(candidate.source, f"it could not be kept: {error.strerror or error}")
                continue
            self._watcher.done(candidate)
            self._left_out.pop(candidate.source, None)
            if made is not None:
                self._tell.saved(made.step, made.val_bpb, time.time())
                self._say(f"took {candidate.source} as {made.label}, {made.size_bytes} bytes")

    def _refuse(self, name: str, why: str) -> None:
        if self._left_out.get(name) != why and len(self._left_out) < _MOST_LEFT_OUT:
            self._left_out[name] = why
            self._say(f"left out {one_line(name)[:_LONGEST_NAME]}: {one_line(why)}")
