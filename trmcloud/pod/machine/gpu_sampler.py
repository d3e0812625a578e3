"""The GPUs' counters, looked at now and then while the trainer trains."""

from __future__ import annotations

import re
import shutil
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from trmcloud.core.contract.pod_contract import (
    GPU_NOTE,
    MOST_GPUS,
    GpuCounters,
    GpuWindow,
    summed_up,
)
from trmcloud.pod.machine.command import Command

QUERY = (
    "nvidia-smi",
    "--query-gpu=utilization.gpu,memory.used,memory.total,clocks.sm",
    "--format=csv,noheader,nounits",
)
SAMPLE_EVERY_S = 15.0
WINDOW_S = 600.0
_ANSWER_WITHIN_S = 10.0
_FIELDS = 4


class GpuSampler:
    """Asks nvidia-smi and never waits for it; without one there is nothing to tell.

    Args:
        ask: starts a command that is given up at an instant of the same clock as ``tend``'s.
    """

    def __init__(
        self,
        has_gpus: bool | None = None,
        ask: Callable[[Sequence[str], float], Command] = Command,
        every_s: float = SAMPLE_EVERY_S,
    ) -> None:
        self._has = shutil.which(QUERY[0]) is not None if has_gpus is None else has_gpus
        self._ask, self._every_s = ask, every_s
        self._asked: Command | None = None
        self._asked_at = -every_s
        self._samples: deque[tuple[float, tuple[GpuCounters, ...]]] = deque()

    def tend(self, now: float, *, trains: bool) -> None:
        """Go on as far as is possible without waiting. ``now``: seconds on a steady clock; what is
        seen while it does not train (it compiles, evaluates, saves) counts for nothing."""
        if not self._has:
            return
        if self._asked is not None:
            code = self._asked.poll(now)
            if code is None:
                return
            asked, self._asked = self._asked, None
            if code == 0 and trains:
                self._take(parse(asked.output()), now)
        if trains and now - self._asked_at >= self._every_s:
            self._asked, self._asked_at = self._ask(QUERY, now + _ANSWER_WITHIN_S), now

    def forget(self) -> None:
        """Another attempt begins: what the one before did says nothing of it."""
        self._samples.clear()

    def window(self) -> GpuWindow | None:
        """None before the first sample."""
        if not self._samples:
            return None
        over_s = self._samples[-1][0] - self._samples[0][0]
        return summed_up([gpus for _, gpus in self._samples], over_s)

    def notes(self) -> Mapping[str, str]:
        """For the report."""
        window = self.window()
        return {GPU_NOTE: window.to_text()} if window is not None else {}

    def _take(self, gpus: tuple[GpuCounters, ...], now: float) -> None:
        if not gpus:
            return
        if self._samples and len(self._samples[-1][1]) != len(gpus):
            self._samples.clear()  # one has fallen off its bus, or is back
        self._samples.append((now, gpus))
        while now - self._samples[0][0] > WINDOW_S:
            self._samples.popleft()


def parse(text: str) -> tuple[GpuCounters, ...]:
    """Rows of ``QUERY``; a line that is none (a GPU that fell off its bus is a sentence) is passed
    over, and so is a field that is no number."""
    rows = [[part.strip() for part in line.split(",")] for line in text.splitlines()]
    read = [GpuCounters(*map(_number, row)) for row in rows if len(row) == _FIELDS]
    return tuple(read[:MOST_GPUS])


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d{1,7}(\.\d{1,4})?", text) else None
