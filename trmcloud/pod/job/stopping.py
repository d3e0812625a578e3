"""When a command is told to stop, by what, and when it is killed: arithmetic, so that a simulated
world can ask it of a thousand scripts."""

from __future__ import annotations

from enum import Enum

from trmcloud.core.contract.command import Command


class Act(Enum):
    """An act of stopping a command."""

    FILES = "make the files that tell it"
    SIGNAL = "send its signal to it and all its children"
    KILL = "kill it, and whatever it has started"


class CommandStopper:
    """One attempt's. ``deadline_at`` is in epoch seconds; infinite where nothing stops it."""

    def __init__(self, command: Command, deadline_at: float) -> None:
        self._command, self._deadline_at = command, deadline_at
        self.told = ""
        """Why it was told to stop: ``deadline`` or ``signal``; empty while it was not."""
        self.killed = False
        self._told_at = 0.0
        self._signalled = False

    def acts(self, now: float, steady: float, *, asked: bool, listens: bool) -> tuple[Act, ...]:
        """Return the acts that are due now: called several times a second.

        Args:
            now: epoch seconds, for the deadline.
            steady: seconds of a clock that cannot be set, for the grace.
            asked: whether somebody has asked for a stop.
            listens: whether the command has said that it looks for one.
        """
        if not self.told:
            if not asked and now < self._deadline_at:
                return ()
            self.told, self._told_at = "signal" if asked else "deadline", steady
            # One that looks for a file is not to be cut off by a signal before it has looked.
            if listens or self._command.stop_file:
                return (Act.FILES,)
            self._signalled = True
            return Act.FILES, Act.SIGNAL
        waited_s = steady - self._told_at
        if waited_s >= self._command.grace_s:
            self.killed = True
            return (Act.KILL,)
        if not self._signalled and waited_s >= self._command.grace_s / 2:
            self._signalled = True
            return (Act.SIGNAL,)
        return ()

    def waited_s(self, steady: float) -> float:
        """Since it was told."""
        return steady - self._told_at
