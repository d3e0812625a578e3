"""Curves of the runs that are looked at: sampled at once where their metrics are long, read whole
beside that, and read on as they grow."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from trmcloud.core.control.run_state import RunState
from trmcloud.operations.context import Context
from trmcloud.operations.curves.curves import (
    READ_AT_ONCE_BYTES,
    Curves,
    MetricsFile,
    Phase,
    curves_since,
    metrics_files,
    metrics_paths,
    sample_metrics,
)

_MOST_RUNS = 4
"""A hundred thousand logged steps take about twenty megabytes."""
_DRAWN_WITHIN_S = 1.0
"""After a sample was asked for: until then nothing else takes the interpreter from it."""
_BREATH_S = 0.001
"""After each slice of lines that is read, for other threads."""


class CurveStore:
    """The metrics of runs, read once; safe for several threads. ``read`` is called with a run's id
    when all of its metrics have been read."""

    def __init__(self, read: Callable[[str], None], breath_s: float = _BREATH_S) -> None:
        self._read, self._breath_s = read, breath_s
        self._runs: OrderedDict[str, _Run] = OrderedDict()
        self._lock = threading.Lock()

    def phases(self, context: Context, state: RunState) -> Sequence[Phase]:
        """All of its metrics where that takes no time; else a sample, and soon all of them."""
        run = self._run(context, state)
        with run.lock:
            run.begin_phases(context, state)
            if sum(file.unread_bytes for file in run.files) <= READ_AT_ONCE_BYTES:
                run.read()
                run.note()
                return run.phases
            if not run.reading:
                run.reading = True
                work = threading.Thread(target=self._read_whole, args=(state.run_id, run))
                work.daemon = True
                work.start()
        return [sample_metrics(path, name) for name, path in metrics_paths(context, state).items()]

    def news(self, context: Context, state: RunState) -> Curves | None:
        """Return the news since the last call; None where all of it is to be asked for anew."""
        run = self._run(context, state)
        with run.lock:
            if run.reading or not run.noted:
                return curves_since(state, [], {})
            before = run.phases
            run.begin_phases(context, state)
            run.read()
            if run.phases[: len(before)] != before:
                run.note()
                return None
            made = curves_since(state, run.phases, run.known)
            run.note()
            return made

    def _read_whole(self, run_id: str, run: _Run) -> None:
        time.sleep(_DRAWN_WITHIN_S)
        for file in run.files:
            slices = file.read_on()
            while True:
                with run.lock:
                    if next(slices, _END) is _END:
                        break
                time.sleep(self._breath_s)
        with run.lock:
            run.reading = False
            run.note()
        self._read(run_id)

    def _run(self, context: Context, state: RunState) -> _Run:
        with self._lock:
            run = self._runs.pop(state.run_id, None) or _Run()
            self._runs[state.run_id] = run
            while len(self._runs) > _MOST_RUNS:
                self._runs.popitem(last=False)
        return run


_END: Any = object()


class _Run:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.files: list[MetricsFile] = []
        self.known: dict[str, tuple[int, int]] = {}
        """By phase: how many points of training and of evaluation were told of."""
        self.reading = self.noted = False

    @property
    def phases(self) -> list[Phase]:
        return [file.phase for file in self.files]

    def begin_phases(self, context: Context, state: RunState) -> None:
        """A file for each phase that has begun since."""
        self.files += metrics_files(context, state)[len(self.files) :]

    def read(self) -> None:
        for file in self.files:
            if file.unread_bytes or not file.phase.whole or file.is_another:
                file.read_all()

    def note(self) -> None:
        self.noted = True
        self.known = {p.name: (len(p.train), len(p.evals)) for p in self.phases}
