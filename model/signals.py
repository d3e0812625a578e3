"""SIGTERM and SIGINT become a flag, from the first line of the process on, without torch."""

from __future__ import annotations

import signal
from types import FrameType


class SignalFlag:
    """Whether this process was told to land."""

    def __init__(self) -> None:
        self.raised = False

    def install(self) -> SignalFlag:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._raise)
        return self

    def _raise(self, number: int, frame: FrameType | None) -> None:
        self.raised = True
