"""A trainer of the user's own: any command, and what is agreed on with it.

The agent speaks its contract with one process of ours, ``pod.job``, which starts the command and
knows it by what a program shows anyway: its log, its files, its end. What a command may use beside
stands here once: names in its environment, and lines of a file (``trmcloud_job.py`` does both for a
script in Python). docs/contract.md is drawn from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from trmcloud.core.contract.records import Label, within
from trmcloud.core.values import dataclass

RECIPE = "command"
"""What a plan of a command has for a recipe, a family, and in its manifests."""
PHASE = "train"

# -- environment ------------------------------------------------------------------------------
ENV_STOP_FILE = "TRMCLOUD_STOP_FILE"
ENV_REPORTS = "TRMCLOUD_REPORTS"
ENV_DATA = "TRMCLOUD_DATA"
ENVIRONMENT: Mapping[str, str] = {
    "TRMCLOUD_DEADLINE_AT": "Epoch seconds at which the command is told to stop.",
    ENV_STOP_FILE: "A path: once a file stands there, the command is to save and to leave.",
    ENV_REPORTS: "A path: the command may append lines of JSON to it, as below.",
    ENV_DATA: "The folder or file that --data named, on the machine that runs the command.",
    "TRMCLOUD_ATTEMPT": "1, 2, …: how often the command has been started.",
}
"""What a command finds in its environment, by name; beside them those that --env named."""

# -- lines of the file of reports -----------------------------------------------------------------
REPORT_LINES: Mapping[str, str] = {
    '{"step": 120, "metrics": {"val_loss": 1.87}}': "What step 120 came to.",
    '{"checkpoint": "out/step-120", "step": 120, "metric": 1.87}': (
        "A file or folder is whole now: it is taken at once. step and metric may be left out."
    ),
}
"""What a line of reports may be, and what it says."""

# -- how it is told to stop, and how it ends -----------------------------------------------------
STOPPING: tuple[str, ...] = (
    "At the deadline, or once somebody asks, the files of {stop_file} and --stop-file are made.",
    "One that has imported trmcloud_job, or has a --stop-file, is left half of --grace for that.",
    "Then, or at once where it has neither, --stop-signal goes to it and to all its children.",
    "After --grace it is killed, and every process that it has started, in whichever session.",
)
"""What a command is told, in order."""
ENDS: Mapping[str, str] = {
    "code 0": "finished, by itself",
    "any other code, or a signal": "failed; with --resume it goes on from its last checkpoint",
    "any, once it was told to stop": "landed: what it had saved is kept",
}
"""What its end means, by how it ended."""

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
"""How long a file or folder must not have changed before it is taken for whole."""
STOP_SIGNALS = ("TERM", "INT", "USR1", "USR2", "HUP", "QUIT")
NO_SIGNAL = "none"
CODE_NAME = "code.tar"
"""The working tree as it is sent: one file, regular files alone, relative names."""
OFFSPRING_NAME = "offspring.json"
"""Beside the job: the command's processes, so that an agent can end them whatever they shed."""
PATHS = "TRMCLOUD_JOB_PATHS"
"""Folders of packages that the agent's machine was given, for whoever starts the command."""
GIVEN_NAME = "environment.json"
"""Beside the lease: the values of the variables that --env named, as a JSON object."""
OWN_DIR = "own"
"""Within a fetched checkpoint: its files under their own names."""
TREE_NAME = "tree.json"
"""Among a command's checkpoint: its files' own names, where they are no flat ones."""

_ESCAPE = re.compile(r"\\.")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")


def is_inside(path: str) -> bool:
    """Whether a relative name stays below the folder it is relative to."""
    parts = path.split("/")
    plain = 0 < len(path) <= 512 and "\0" not in path and not path.startswith("/")
    return plain and ".." not in parts and "" not in parts


@dataclass(frozen=True)
class Command:
    """What is run, how it is told to stop, and where its checkpoints and its metric are found.

    ``words`` are run in a copy of the working tree. Names of files are relative to it. ``resume``
    takes the place of ``words`` in an attempt that finds a checkpoint, whose path is
    ``{checkpoint}``.
    """

    words: tuple[str, ...]
    checkpoints: str = ""
    """The folder that is watched for checkpoints; empty: only what the command reports."""
    metric: str = ""
    """A name in lines of JSON or in TensorBoard's event files, or a pattern for lines of the log,
    whose one group is the value."""
    higher_is_better: bool = False
    env: tuple[str, ...] = ()
    """Names of the launching shell's variables that the command is given."""
    stop_signal: str = "TERM"
    stop_file: str = ""
    grace_s: Annotated[float, within(0.0, 86_400.0)] = 60.0
    """From being told to stop until the command is killed."""
    silent_s: Annotated[float, within(0.0, 864_000.0)] = 1800.0
    """Without a line of its log, a report or a checkpoint: then it is taken for hung."""
    resume: tuple[str, ...] = ()
    keep_best: Annotated[int, within(1, 1000)] = 2
    checkpoint_bytes: Annotated[int, within(1, 1 << 42)] = 2_000_000_000
    """The most that one checkpoint may hold: room and money are reserved for it."""
    data: str = ""
    """What --data named, where that is a name in the working tree: there it stands again."""
    image: str = ""
    """What its container is made of, where the provider starts one; empty: the usual."""
    probe_steps: Annotated[int, within(0, 10_000_000)] = 0
    """Steps to measure, and to end with; 0: it is no probe."""
    pip: str = ""
    """A file of requirements that is installed before the first attempt."""

    @property
    def is_pattern(self) -> bool:
        return "(" in self.metric

    @property
    def metric_name(self) -> str:
        """``val_loss`` of ``val_loss=([0-9.]+)``; empty where no metric is named."""
        if not self.is_pattern:
            return self.metric
        before = _ESCAPE.sub(" ", self.metric.partition("(")[0])
        return "_".join(_WORD.findall(before))[:80] or "metric"

    def score(self, value: float) -> float:
        """Lower is better: what stands for the metric wherever checkpoints are compared."""
        return -value if self.higher_is_better else value

    def shown(self, score: float | None) -> float | None:
        """The metric that ``score`` stands for."""
        return None if score is None else self.score(score)


MEASURED = "measured"
"""The kind of a line of metrics that has ``MeasuredSteps``."""


@dataclass(frozen=True)
class MeasuredSteps:
    """What a probe has seen: seconds of a step, of which a tenth took less than ``fast_s`` and a
    tenth more than ``slow_s``; the most bytes of memory that its processes held together, what they
    share counted for each; and how many cores they kept busy."""

    steps: Annotated[int, within(1, 100_000_000)]
    fast_s: Annotated[float, within(0.0, 1e9)]
    step_s: Annotated[float, within(0.0, 1e9)]
    slow_s: Annotated[float, within(0.0, 1e9)]
    memory_bytes: Annotated[int, within(0, 1 << 62)]
    cores: Annotated[float, within(0.0, 1e6)]


@dataclass(frozen=True)
class TreeFile:
    """One file of a command's checkpoint: its own name below the checkpoint's, the flat name it is
    kept under, and what opening it may do."""

    path: Annotated[str, is_inside]
    name: Label
    opens: str = "unknown"
    """``data``: a format that only holds data; ``code``: a pickle, which runs what it holds;
    ``unknown``: neither can be told."""


@dataclass(frozen=True)
class CheckpointTree:
    """``tree.json``: what a checkpoint of a command was called, and its files."""

    source: Annotated[str, is_inside]
    files: tuple[TreeFile, ...]
    is_file: bool = False
    """It was one file, and no folder."""
    version: int = 1

    @property
    def runs_code(self) -> bool:
        """Whether opening some file of it, the usual way, runs what it holds."""
        return any(file.opens == "code" for file in self.files)
