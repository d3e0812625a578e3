"""A trainer of the user's own: any command, as a wish, a plan and a job have it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from trmcloud.core.contract.records import within
from trmcloud.core.values import Value

# The agent speaks its contract with one process of ours, ``pod.job``, which starts the command
# and knows it by what a program shows anyway: its log, its files, its end. What the two say to
# each other is in ``command_terms``.

RECIPE = "command"
"""The recipe and family name in the plan and the manifests of a command."""
PHASE = "train"

STOP_SIGNALS = ("TERM", "INT", "USR1", "USR2", "HUP", "QUIT")
NO_SIGNAL = "none"
CODE_NAME = "code.tar"
"""The working tree as it is sent: one file, regular files alone, relative names."""
PACKAGES_NAME = "packages.txt"
"""Beside ``CODE_NAME``: the packages of --pip as lines for pip, read from whatever file."""
CONSTRAINTS_NAME = "constraints.txt"
"""Beside it: versions that these packages must have where they are installed."""
PINS_NAME = "pins.txt"
"""Beside it: the versions that were resolved where the command was typed, ``name==version``."""
FOLDERS_NAME = "packages.pth"
"""Beside it: folders, relative to where the command starts, that it imports from, a line each."""
OFFSPRING_NAME = "offspring.json"
"""Beside the job: the command's processes, so that an agent can end them whatever they shed."""
PATHS = "TRMCLOUD_JOB_PATHS"
"""Folders of packages that the agent's machine was given, for whoever starts the command."""
GIVEN_NAME = "environment.json"
"""Beside the lease: the values of the variables that --env named, as a JSON object."""
RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT", "NNODES", "NODE_RANK", "NPROC_PER_NODE")
"""The variables of a command on several machines: see ``command_terms.ON_SEVERAL``."""
_ESCAPE = re.compile(r"\\.")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")


class CommandSource(Value):
    """Where a command's files are from: for the manifests of its checkpoints."""

    code_sha256: str = ""
    """Of ``code.tar``, which is the same for the same files."""
    git_commit: str = ""
    """The commit that the files were checked out at; empty where git keeps none."""
    is_dirty: bool = False
    """Whether files that are sent differ from that commit, or are not in it."""
    data_sha256: str = ""
    """Of the names of the files of --data and of their contents; beyond ``MOST_HASHED_BYTES``, of
    their sizes instead."""


MOST_HASHED_BYTES = 8_000_000_000


class Command(Value):
    """A user's command, the way to stop it, and the places of its checkpoints and its metric.

    ``words`` are run in a copy of the working tree. Names of files are relative to it. ``resume``
    takes the place of ``words`` in an attempt that finds a checkpoint, whose path is
    ``{checkpoint}``.
    """

    words: tuple[str, ...]
    checkpoints: str = ""
    """The places that are watched for checkpoints, separated by ``os.pathsep``: in the working
    tree, or absolute, or below ``~``; empty: the whole working tree."""
    metric: str = ""
    """A name in its log, TensorBoard's event files or its checkpoints' own state, or a pattern for
    lines of the log, whose one group is the value."""
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
    """The value of --data, if it is a name in the working tree; the data is laid there again."""
    image: str = ""
    """The image of its container, where the provider starts one; empty: the default image."""
    probe_steps: Annotated[int, within(0, 10_000_000)] = 0
    """Steps to measure, and to end with; 0: it is no probe."""
    pip: str = ""
    """A file of requirements that is installed before the first attempt."""
    folder: Annotated[str, is_folder] = ""
    """The folder that it is started in, below the tree that is sent: names of files are relative to
    it. Empty: the tree itself."""
    unobserved: bool = False
    """Whether its Python processes run without ``pod.job.trmcloud_observer``."""
    source: CommandSource | None = None
    """None where nothing was sent yet."""
    unchecked: bool = False
    """Whether its first minutes are not checked: see ``pod.job.first_checks``."""

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


def shown_metric(command: Command | None, score: float | None) -> float | None:
    """Return the metric that ``score`` stands for: a recipe's own, or a command's as it logged it;
    None of a command without a metric."""
    if command is None:
        return score
    return command.shown(score) if command.metric_name else None


def own_facts(command: Command | None, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``facts`` with a command's own metric, by its name, in the place of its score."""
    made = dict(facts)
    if command is not None and "val_bpb" in made:
        value = shown_metric(command, made.pop("val_bpb"))
        if command.metric_name:
            made["metric"] = {"name": command.metric_name, "value": value}
    return made


MOST_PATH_CHARS = 512
"""Of a file's relative name."""


def is_inside(path: str) -> bool:
    """Whether a relative name stays below the folder it is relative to."""
    parts = path.split("/")
    plain = 0 < len(path) <= MOST_PATH_CHARS and "\0" not in path and not path.startswith("/")
    return plain and ".." not in parts and "" not in parts


def is_folder(path: str) -> bool:
    """Whether a relative name is that of a folder below another one, or is empty."""
    return not path or is_inside(path)
