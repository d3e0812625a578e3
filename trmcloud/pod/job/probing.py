"""What a command's first steps cost here: their pace, its memory, its share of the processors."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from trmcloud.core.contract.command_terms import MeasuredSteps

_WINDOW_S = 1.0
"""A log is looked at a few times a second: a pace over less would be one of the looks."""
_LEAST_S = 5.0
_WARM_UP_S = 2.0
"""After the first step that is told, of which compiling and filling caches is a part."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_S = os.sysconf("SC_CLK_TCK")


class Probing:
    """Until ``wanted`` steps behind the warm-up are measured; times are of a steady clock."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._points: list[tuple[float, int]] = []
        self._began: float | None = None
        self._memory_bytes = 0
        self._cpu: dict[int, float] = {}
        self._cpu_before_s = 0.0

    def stepped(self, step: int, now: float) -> None:
        """The newest step that the command has told by ``now``."""
        if self._began is None and step > 0:
            self._began = now
        if self._began is None or now - self._began < _WARM_UP_S:
            return
        if not self._points:
            self._cpu_before_s = sum(self._cpu.values())
        if not self._points or (
            step > self._points[-1][1] and now - self._points[-1][0] >= _WINDOW_S
        ):
            self._points.append((now, step))

    def look(self, pids: Iterable[int]) -> None:
        """At the command's processes: now and then."""
        resident = 0
        for pid in pids:
            try:
                stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                fields = stat.rpartition(")")[2].split()
                self._cpu[pid] = (int(fields[11]) + int(fields[12])) / _TICKS_S
            except (OSError, ValueError, IndexError):
                continue
            resident += pages * _PAGE_BYTES
        self._memory_bytes = max(self._memory_bytes, resident)

    @property
    def done(self) -> bool:
        if len(self._points) < 2:
            return False
        (began, first), (ended, last) = self._points[0], self._points[-1]
        return last - first >= self._wanted and ended - began >= _LEAST_S

    def measured(self) -> MeasuredSteps | None:
        """None where too few steps were told to know a pace."""
        if len(self._points) < 2:
            return None
        (began, first), (ended, last) = self._points[0], self._points[-1]
        between = zip(self._points, self._points[1:], strict=False)
        paces = sorted((b[0] - a[0]) / (b[1] - a[1]) for a, b in between)
        used_s = sum(self._cpu.values()) - self._cpu_before_s
        return MeasuredSteps(
            steps=last - first,
            fast_s=paces[len(paces) // 10],
            step_s=(ended - began) / (last - first),
            slow_s=paces[-1 - len(paces) // 10],
            memory_bytes=self._memory_bytes,
            cores=max(0.0, used_s / (ended - began)),
        )
