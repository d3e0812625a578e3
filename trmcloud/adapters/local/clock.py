"""The real clocks of this machine."""

from __future__ import annotations

import time

from trmcloud.core.clock import Instant
from trmcloud.pod.machine.processes import read_clocks


class SystemClock:
    """Wall time, and time since boot that counts suspension."""

    def now(self) -> Instant:
        return read_clocks(time.time, _since_boot)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def _since_boot() -> float:
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.clock_gettime(clock) if clock is not None else time.monotonic()
