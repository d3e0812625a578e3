"""The terms for a user's own command: its environment, what is read of it, how it is stopped."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Annotated

from trmcloud.core.contract.command import Command, is_inside
from trmcloud.core.contract.records import Label, within
from trmcloud.core.values import Value

# Names in its environment and lines of a file (``trmcloud_job.py`` does both for a script in
# Python), how it is told to stop, what its end means, and what bounds its log and its
# checkpoints. docs/contract.md is drawn from it. The agent needs none of this.

# -- environment ------------------------------------------------------------------------------
ENV_STOP_FILE = "TRMCLOUD_STOP_FILE"
ENV_REPORTS = "TRMCLOUD_REPORTS"
ENV_DATA = "TRMCLOUD_DATA"
ENVIRONMENT: Mapping[str, str] = {
    "TRMCLOUD_DEADLINE_AT": "Time at which the command is asked to stop, in epoch seconds, as it "
    "began. It may be moved: `trmcloud_job.deadline()` has the time of now.",
    ENV_STOP_FILE: "A path: when a file exists there, the command must save and exit.",
    ENV_REPORTS: "A path: the command may append JSON lines to it, as below.",
    ENV_DATA: "The folder or file of --data, on the machine that runs the command.",
    "TRMCLOUD_ATTEMPT": "1, 2, …: number of the present start of the command.",
}
"""The environment variables of a command and their meaning; those of --env are added to them."""

ON_SEVERAL: Mapping[str, str] = {
    "MASTER_ADDR": "Address of the first machine for the others.",
    "MASTER_PORT": "Port of the first machine for the command's rendezvous.",
    "NNODES": "Number of machines.",
    "NODE_RANK": (
        "0 on the first machine, whose checkpoints are kept; 1, 2, … on the others, which send it"
        " their files of a distributed checkpoint (DCP)."
    ),
    "NPROC_PER_NODE": "Number of GPUs of each machine.",
}
"""Of a command that is started on several machines, on each of them. torchrun knows them by itself:
each is there once more as PET_NNODES, …, the names of its own options."""

PARTS_KEY_NAME = "parts.key"
"""Beside the lease, on each of several machines: the key by which they know each other."""

# -- lines of the file of reports -----------------------------------------------------------------
REPORT_LINES: Mapping[str, str] = {
    '{"step": 120, "metrics": {"val_loss": 1.87}}': "The metrics of step 120.",
    '{"checkpoint": "out/step-120", "step": 120, "metric": 1.87}': (
        "This file or folder is complete: it is copied at once. Optional: step, metric, and at, the"
        " epoch second of this line: a file that changed since has another metric."
    ),
    '{"step": 120, "metrics": {"val_loss": 1.87}, "checkpoint": "out/step-120"}': (
        "Both in one line: the file was saved at step 120 and has these metrics."
    ),
    '{"rank": 1, "step": 120, "metrics": {"val_loss": 1.87}}': (
        "Of another rank than 0: it counts only while no lower rank has written a line."
    ),
}
"""The forms of a line of reports, each with its meaning."""

# -- how it is told to stop, and how it ends -----------------------------------------------------
STOPPING: tuple[str, ...] = (
    "At the deadline, or on request, the files of {stop_file} and --stop-file are created.",
    "A command that has imported trmcloud_job, or has a --stop-file, then has half of --grace.",
    "Then, or at once if it has neither, it and all its children get the --stop-signal.",
    "After --grace it is killed, with all processes that it has started, in any session.",
)
"""The steps of stopping a command, in order."""
ENDS: Mapping[str, str] = {
    "code 0": "finished",
    "any other code, or a signal": "failed; with --resume it continues from its last checkpoint",
    "in its first 10 minutes, by an error that a new start repeats": "failed; it is not restarted",
    "any, after it was asked to stop": "landed: its checkpoints are kept",
}
"""The meaning of a command's end, by how it ended."""

# -- bounds ---------------------------------------------------------------------------------------
MOST_FILES = 1024
"""Files of one checkpoint."""
MOST_DEPTH = 6
"""Folders between a checkpoint's name and a file of it."""
MOST_LINE_CHARS = 4096
"""Of a line of the log, as far as a metric is looked for in it."""
MOST_PATTERN_S = 0.25
"""Seconds that a pattern may take for one line."""
PATTERN_STRIKES = 3
"""Lines that took longer, after which the pattern is not asked any more."""
MOST_LOG_BYTES = 64 << 20
"""Of train.log: what a command writes beyond is left out, but for its end."""
SETTLED_S = 2.0
"""The time that a file or folder must stay unchanged before it counts as complete."""
OWN_DIR = "own"
"""Within a fetched checkpoint: its files under their own names."""
TREE_NAME = "tree.json"
"""Among a command's checkpoint: its files' own names, where they are no flat ones."""
MEASURED = "measured"
"""The kind of a line of metrics that has ``MeasuredSteps``."""


class MeasuredSteps(Value):
    """A probe's measurements: seconds of a step, of which a tenth took less than ``fast_s`` and a
    tenth more than ``slow_s``; the most bytes of memory that its processes held together, shared
    memory counted for each; and how many cores they kept busy."""

    steps: Annotated[int, within(1, 100_000_000)]
    fast_s: Annotated[float, within(0.0, 1e9)]
    step_s: Annotated[float, within(0.0, 1e9)]
    slow_s: Annotated[float, within(0.0, 1e9)]
    memory_bytes: Annotated[int, within(0, 1 << 62)]
    cores: Annotated[float, within(0.0, 1e6)]


class TreeFile(Value):
    """One file of a command's checkpoint: its own name below the checkpoint's, and the flat name
    that it is kept under."""

    path: Annotated[str, is_inside]
    name: Label
    opens: str = "unknown"
    """Written by earlier versions, and read by none: the pod's opinion of what opening it does."""


class CheckpointTree(Value):
    """``tree.json``: what a checkpoint of a command was called, and its files."""

    source: Annotated[str, is_inside]
    files: tuple[TreeFile, ...]
    is_file: bool = False
    """Its files stood beside each other, in no folder of their own."""
    place: str = ""
    """The folder outside the working tree that ``source`` is below, as it was named."""
    version: int = 1


# When a command is told to stop, by what, and when it is killed: arithmetic, so that a simulated
# world can ask it of a thousand scripts.


class Act(Enum):
    """An act of stopping a command."""

    FILES = "make the files that tell it"
    SIGNAL = "send its signal to it and all its children"
    KILL = "kill it, and whatever it has started"


class CommandStopper:
    """One attempt's. ``deadline_at`` is in epoch seconds, and may be moved until it has passed;
    infinite where nothing stops it."""

    def __init__(self, command: Command, deadline_at: float) -> None:
        self._command, self.deadline_at = command, deadline_at
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
            if not asked and now < self.deadline_at:
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
