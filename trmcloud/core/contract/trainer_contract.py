"""The interface between a trainer and the agent that starts it: job, metrics, data progress."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from statistics import fmean
from typing import Any

from trmcloud.core.contract.command import Command
from trmcloud.core.contract.gate import Curve
from trmcloud.core.contract.pod_contract import CONTRACT_VERSION
from trmcloud.core.contract.records import ContractError, Instant, Label, Step, load
from trmcloud.core.values import Value

# The progress record of a growing folder of prepared data; see docs/decisions (0014).
#
# Written by the trainer's ``model.prepare``; read by the trainer, by the agent that started both,
# and by whoever shows it. Like everything that may come from a pod it is read strictly.

PROGRESS_VERSION = 1
PROGRESS_NAME = "progress.json"
SHARDS_NAME = "shards.jsonl"

STATES = ("working", "done", "failed", "stopped")

STALE_AFTER_S = 120.0
"""A preparer that has not rewritten its progress for so long is taken for dead."""


class ShardRecord(Value):
    """A line of ``shards.jsonl``: one shard's tokens are whole and in place.

    ``file`` lies in the folder; ``tokens`` ids begin at ``offset_bytes`` in it; ``sha256`` is that
    of those ids' bytes.
    """

    name: str
    file: str
    tokens: int
    documents: int
    sha256: str
    offset_bytes: int = 0
    text_bytes: int = 0
    version: int = PROGRESS_VERSION


class DataProgress(Value):
    """``progress.json``. Instants are epoch seconds.

    ``wanted_tokens`` is how many training tokens were asked for; ``tokens`` how many are in place,
    in ``shards`` shards of about ``planned_shards``. ``message`` and ``next_step`` are the
    failure's; ``again`` says that the same command may succeed, given time or room.
    """

    source: str
    state: str
    at: float
    pid: int
    pid_started: str
    host: str = ""
    """The host on which process ``pid`` runs."""
    stage: str = ""
    wanted_tokens: int = 0
    tokens: int = 0
    shards: int = 0
    planned_shards: int = 0
    downloaded_bytes: int = 0
    download_bytes: int = 0
    """Of all that will be downloaded: counted where a file's length is known, else estimated."""
    message: str = ""
    next_step: str = ""
    again: bool = False
    note: str = ""
    """A note for the user: kept tokens that are damaged and are made again."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Wall seconds since the start by what had been reached: tokenizer, ready, done."""
    peaks: Mapping[str, float] = field(default_factory=dict)
    """Largest resident memory in bytes: of a worker, and of the tokenizer's training."""
    version: int = PROGRESS_VERSION


def load_progress(text: str | bytes) -> DataProgress:
    """
    Raises:
        ContractError: the text is no such record.
    """
    record = load(DataProgress, PROGRESS_VERSION, text)
    if record.state not in STATES:
        raise ContractError(f"unknown state {record.state!r}")
    return record


def load_shard(text: str | bytes) -> ShardRecord:
    """
    Raises:
        ContractError: the text is no such record.
    """
    record = load(ShardRecord, PROGRESS_VERSION, text)
    if "/" in record.file or not record.file.startswith("shard-"):
        raise ContractError(f"ShardRecord: {record.file!r} is no file of the folder")
    if record.tokens < 0 or record.offset_bytes < 0:
        raise ContractError("ShardRecord: a size below zero")
    return record


# The interface between a trainer and the agent that starts it, and the rule for outlying steps.

# What stands out of the steps before it: the trainer leaves such a step out, ``health`` tells it.
#
# OLMo-core's rule, six deviations over 128 steps; ours asks for at least so much of the mean as a
# deviation, so that what hardly scatters at all has no spikes of a thousandth.

DEVIATIONS, OVER = 6.0, 128
LEAST_OF_LOSS = 0.005
"""Of the mean loss, a deviation counts as no less."""


def spike_limit(before: Sequence[float], least: float) -> float:
    """Return the value above which a step is a spike after ``before``, which is not empty.

    ``least``: a deviation is at least so much of the mean.
    """
    mean = fmean(before)
    # Not by ``statistics.pstdev``: exact fractions take twenty times as long, at every step.
    deviation = math.sqrt(math.fsum((each - mean) ** 2 for each in before) / len(before))
    return mean + DEVIATIONS * max(deviation, least * abs(mean))


# What a trainer shares with the agent that starts it, on a pod or here.
#
# They meet in five places: environment names, signals, exit codes (as the heartbeat's
# ``outcome``, since torchrun swallows a rank's own code), ``heartbeat.json`` + ``metrics.jsonl``,
# and checkpoint manifests. ``pod_contract`` says where the files lie.

# -- environment ----------------------------------------------------------------------------
ENV_JOB = "TRMCLOUD_JOB"
"""Path of ``job.json``."""
ENV_DEADLINE_AT = "TRMCLOUD_DEADLINE_AT"
"""Epoch seconds at which training steps end and landing begins; absent means no deadline."""
ENV_LANDING_S = "TRMCLOUD_LANDING_S"
"""Seconds from the deadline to the hard stop, in which the trainer has to evaluate, save and exit;
absent: not known. One that needs more ends its steps so much earlier."""
ENV_PATIENCE = "TRMCLOUD_PATIENCE"
"""Evaluations in a row without a better one after which training comes to an end; absent or 0: any
number may be."""
ENV_ACCEPT_CHANGE = "TRMCLOUD_ACCEPT_CHANGE"
"""Set: a trainer goes on though settings have changed that decide what is trained."""
ENV_ATTEMPT = "TRMCLOUD_ATTEMPT"
"""1, 2, …: how often this phase has been started."""
ENV_OVERRIDES = "TRMCLOUD_OVERRIDES"
"""A JSON object of settings that take the place of the job's in this attempt: see ``recovery``."""

# -- signals --------------------------------------------------------------------------------
# SIGTERM to any rank = land now: end the step, save, evaluate, leave with exit code 0.
# SIGUSR1 to rank 0 = save now, after the step, and go on. Only one whose heartbeat says how many
# such saves it has made (``Heartbeat.saves``) knows it; any other would die of it.
# SIGUSR2 to rank 0 = come to an end: cool down now where the schedule has a cooldown, then save,
# evaluate, leave. Only one whose heartbeat has a ``curve`` knows it; it has none once it cools.

# -- how it ends ----------------------------------------------------------------------------
OUTCOMES: Mapping[str, str] = {
    "finished": "all steps done",
    "stopped_paying": "more steps no longer paid; cooled down, evaluated and saved",
    "landed_deadline": "deadline reached; evaluated and saved",
    "landed_signal": "asked to stop; evaluated and saved",
    "non_finite": "loss or gradients became NaN or infinite",
    "diverged": "the loss rose and did not fall again",
    "out_of_memory": "the device ran out of memory",
    "bad_data": "the prepared data cannot be used",
    "bad_config": "the settings cannot be run",
    "bad_checkpoint": "the checkpoint to resume from is damaged",
    "disk_full": "no room to save a checkpoint",
    "crashed": "an unexpected error",
}
#: Outcomes after which starting again from the last checkpoint can help.
RETRYABLE = frozenset({"crashed", "lost"})
#: Outcomes after which nothing of the phase is left to train.
DONE = frozenset({"finished", "stopped_paying"})
CLEAN = DONE | {"landed_deadline", "landed_signal"}

TRAINER_STATES = (
    "starting", "waiting", "compiling", "training", "evaluating", "saving", "landing", "ended",
)  # fmt: skip
"""``waiting`` is for data that is still being prepared."""


class DataJob(Value):
    """Data that the machine which trains makes for itself, by the trainer's ``model.prepare``.

    ``source`` is a name or an address, ``data_set`` what a name stands for (empty for an address);
    ``tokens`` is the most that a phase reads. A job with one trains while it is made.
    """

    source: str
    tokens: int
    data_set: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: str = ""
    """A tokenizer's file to be used as it is, on this machine; empty: as the settings say."""
    hosts: str = ""
    """``TRMCLOUD_DATA_HOSTS`` of whoever launched it: where hosts' files are really fetched."""


class PhaseJob(Value):
    """``job.json``: one phase, ready to be trained.

    ``settings`` are those of ``recipe.PhaseRecipe``; ``initial_weights`` is a checkpoint folder
    whose weights (not optimizer, not step) a fresh phase starts from.
    """

    run_id: Label
    phase: Label
    settings: Mapping[str, Any]
    data_dir: str
    out_dir: str
    processes: int
    initial_weights: str = ""
    data: DataJob | None = None
    """The job that makes ``data_dir`` on this machine; None: the data was brought."""
    accept_change: bool = False
    """Go on though settings have changed that decide what is trained."""
    command: Command | None = None
    """A trainer of the user's own, in place of the bundled one: see ``command``."""
    code_dir: str = ""
    """The folder of its ``code.tar``."""
    scoring: Mapping[str, Any] = field(default_factory=dict)
    """Tasks that its last checkpoint is scored on; see ``scoring``."""
    version: int = CONTRACT_VERSION


class Heartbeat(Value):
    """``heartbeat.json``, rewritten by rank 0 at step boundaries, at most once a second.

    There is no thread behind it: a trainer that hangs stops beating. ``seconds`` divides the
    attempt's wall time by state; ``step_seconds`` is the median of recent steps;
    ``landing_seconds`` is what one evaluation plus one save took here, measured.
    ``outcome`` is set, once, when ``state`` is ``ended``.
    """

    run_id: Label
    phase: Label
    attempt: int
    pid: int
    pid_started: str
    at: Instant
    state: str
    step: int
    steps: int
    outcome: str | None = None
    message: str = ""
    tokens: int = 0
    step_seconds: float | None = None
    landing_seconds: float | None = None
    tokens_per_second: float | None = None
    loss: float | None = None
    grad_norm: float | None = None
    val_bpb: float | None = None
    step_losses: tuple[float, ...] = ()
    parts: Mapping[str, float] = field(default_factory=dict)
    """The parts of the loss, by the family's own names, as far as they are finite."""
    best_bpb: float | None = None
    best_step: int | None = None
    saved_step: int | None = None
    cooldown_from: int | None = None
    finite: bool = True
    seconds: Mapping[str, float] = field(default_factory=dict)
    saves: int | None = None
    """The number of saves on request in this attempt; None where it cannot be asked."""
    skipped: Step = 0
    """Steps of this attempt whose update was left out: their gradients or loss were not sound."""
    skipped_step: Step | None = None
    """The last of them."""
    curve: Curve | None = None
    """None while too little is known, and once it cools down."""
    note: str = ""
    """A warning for the user, in one line."""
    signs: int = 0
    """Counts what else shows that it gets on where its steps are not known: lines of a log, files
    that change."""
    version: int = CONTRACT_VERSION


# -- JSON -----------------------------------------------------------------------------------
def load_job(text: str | bytes) -> PhaseJob:
    return load(PhaseJob, CONTRACT_VERSION, text)


def load_heartbeat(text: str | bytes) -> Heartbeat:
    # A loss that was not finite is written as null: then none of them is known, and the rest of
    # the heartbeat, which says how it ended, still is.
    record = load(
        Heartbeat,
        CONTRACT_VERSION,
        text,
        step_losses=lambda rows: () if None in rows else tuple(rows),
    )
    if record.state not in TRAINER_STATES:
        raise ContractError(f"unknown trainer state {record.state!r}")
    if record.outcome is not None and record.outcome not in OUTCOMES:
        raise ContractError(f"unknown outcome {record.outcome!r}")
    return record
