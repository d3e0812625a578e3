"""Signals become flags, from the first line of the process on, without torch."""

from __future__ import annotations

import signal
from types import FrameType


class SignalFlag:
    """Flags of signals: this process must land (SIGTERM, SIGINT), save now (SIGUSR1), or end
    because it no longer pays (SIGUSR2)."""

    def __init__(self) -> None:
        self.raised = False
        self.save = False
        self.finish = False

    def install(self) -> SignalFlag:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._raise)
        signal.signal(signal.SIGUSR1, self._save)
        signal.signal(signal.SIGUSR2, self._finish)
        return self

    def _raise(self, number: int, frame: FrameType | None) -> None:
        self.raised = True

    def _save(self, number: int, frame: FrameType | None) -> None:
        self.save = True

    def _finish(self, number: int, frame: FrameType | None) -> None:
        self.finish = True
