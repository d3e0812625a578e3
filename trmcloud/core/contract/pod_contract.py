"""All that the trainer, the agent on the pod and the controller share.

Trainer and agent meet in five places: environment names, signals, exit codes (as the heartbeat's
``outcome``, since torchrun swallows a rank's own code), ``heartbeat.json`` + ``metrics.jsonl``,
and checkpoint manifests. Controller and agent meet in the lease, the orders and the agent's
report. Everything read here may come from a machine somebody else owns, so reading is strict.

Folders, on a pod below /workspace/trmcloud and here below the user's trmcloud home:

    pods/<pod name>/                  dies with the pod
        pod.json  lease.json  orders.json  agent.json  ended.json  guardian.log
        check.json  staged.json  grants.json  uploads.json  told.json  notes.json
        termination.json  install.log  sshd.log  upload.log
    runs/<run id>/<phase>/            survives where the Plan says so
        job.json  heartbeat.json  metrics.jsonl  train.log  tensorboard/
        checkpoints/step-00000120/    manifest.json and the files it names
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from typing import Any

from trmcloud.core.contract.gate import Verdict
from trmcloud.core.contract.pod_names import POD_PREFIX as POD_PREFIX
from trmcloud.core.contract.pod_names import PodName as PodName
from trmcloud.core.contract.pod_names import parse_pod_name as parse_pod_name
from trmcloud.core.contract.records import MAX_JSON_BYTES as MAX_JSON_BYTES
from trmcloud.core.contract.records import Asks, Instant, Label, Restarts, Sha256, Step, load
from trmcloud.core.contract.records import ContractError as ContractError
from trmcloud.core.contract.records import dump as dump
from trmcloud.core.contract.recovery import Plain, Recoveries, Seconds
from trmcloud.core.contract.worth import Curve, StopRules
from trmcloud.core.plain_text import strip_control as strip_control
from trmcloud.core.values import dataclass

CONTRACT_VERSION = 1

# -- environment of the trainer -------------------------------------------------------------
ENV_JOB = "TRMCLOUD_JOB"
"""Path of ``job.json``."""
ENV_DEADLINE_AT = "TRMCLOUD_DEADLINE_AT"
"""Epoch seconds at which training steps end and landing begins; absent means no deadline."""
ENV_ACCEPT_CHANGE = "TRMCLOUD_ACCEPT_CHANGE"
"""Set: a trainer goes on though settings have changed that decide what is trained."""
ENV_ATTEMPT = "TRMCLOUD_ATTEMPT"
"""1, 2, …: how often this phase has been started."""
ENV_OVERRIDES = "TRMCLOUD_OVERRIDES"
"""A JSON object of settings that take the place of the job's in this attempt: see ``recovery``."""

ENV_POD = "TRMCLOUD_POD"
"""The pod's name, in the environment of every process that belongs to it."""
ENV_BESIDE = "TRMCLOUD_BESIDE"
"""Set in the environment of a pod's processes that are to outlive its trainer."""

# -- environment of a rented pod's first process ---------------------------------------------
ENV_BOOT = "TRMCLOUD_BOOT"
"""Base64 of a tar.gz of the sources that the agent needs."""
ENV_LEASE = "TRMCLOUD_LEASE"
"""Base64 of ``lease.json``."""
ENV_JOBS = "TRMCLOUD_JOBS"
"""Base64 of a JSON list of ``job.json`` records, in the order of the lease's phases."""
ENV_CHECK = "TRMCLOUD_CHECK"
"""Base64 of a JSON object: what the agent must find before it trains."""
ENV_ROOT = "TRMCLOUD_ROOT"
"""The folder that stands for the user's trmcloud home."""
ENV_HOST_KEY = "TRMCLOUD_HOST_KEY"
"""Base64 of the pod's own private SSH host key, in OpenSSH's format."""
ENV_AUTHORIZED_KEY = "TRMCLOUD_AUTHORIZED_KEY"
"""The one public key, as a line of ``authorized_keys``, that may log in."""
ENV_SSH_PORT = "TRMCLOUD_SSH_PORT"
"""Where the pod's SSH server listens; 22 where it is not set."""

ENV_SSH_LISTEN = "TRMCLOUD_SSH_LISTEN"
"""The address the pod's SSH server listens at; all of them where it is not set."""

ENV_INSTALL_PREFIX = "TRMCLOUD_INSTALL_"
"""What follows it is set for what installs packages on the pod: UV_DEFAULT_INDEX, HTTPS_PROXY, …;
TRMCLOUD_INSTALL_TORCH is the version of torch."""
ENV_NODES = "TRMCLOUD_NODES"
"""Where a pod has several machines: how many, which one this is (0 is the first) and the first
one's address, with a space between."""
ENV_PROVIDER = "TRMCLOUD_PROVIDER"
"""How the pod may end itself: none, or one or more of runpod, skypilot (its autodown, at once) and
shutdown (power the machine off), joined by +."""
ENV_LINGER_S = "TRMCLOUD_LINGER_S"
"""Seconds a pod whose work is done stays, so that its last report can be read; its hard stop and
whoever ends it cut that short."""

POD_ROOT = "/workspace/trmcloud"
POD_SSH_PORT = 22
INNER_SSH_PORT = 10022
"""Where a pod's SSH server listens beside a machine's own, on its loopback."""

# -- signals --------------------------------------------------------------------------------
# SIGTERM to any rank = land now: end the step, save, evaluate, leave with exit code 0.
# SIGUSR1 to rank 0 = save now, after the step, and go on. Only one whose heartbeat says how many
# such saves it has made (``Heartbeat.saves``) knows it; any other would die of it.
# SIGUSR2 to rank 0 = come to an end: cool down now where the schedule has a cooldown, then save,
# evaluate, leave. Only one whose heartbeat has a ``curve`` knows it; it has none once it cools.

# -- names of files -------------------------------------------------------------------------
JOB_NAME = "job.json"
HEARTBEAT_NAME = "heartbeat.json"
METRICS_NAME = "metrics.jsonl"
TRAIN_LOG_NAME = "train.log"
CHECKPOINTS_DIR = "checkpoints"
TENSORBOARD_DIR = "tensorboard"

LEASE_NAME = "lease.json"
ORDERS_NAME = "orders.json"
REPORT_NAME = "agent.json"
ENDED_NAME = "ended.json"
CHECK_NAME = "check.json"
STAGED_NAME = "staged.json"
PODS_DIR = "pods"
RUNS_DIR = "runs"

DATA_DIR = "data"
"""Holds prepared data, a folder each, below a home or a pod's root."""
DATA_CACHE_DIR = "data-cache"
"""Holds downloads and tokens that more than one folder of prepared data may share."""
DATA_META_NAME = "meta.json"
DATA_TRAIN_NAME = "train.bin"
DATA_VALIDATION_NAME = "validation.bin"
DATA_TOKENIZER_NAME = "tokenizer.json"


MAX_METRICS_BYTES = 64 << 20
"""Of one phase's metrics.jsonl, as far as anybody reads it."""


DATA_NOTE = "data"
"""The topic of a report's note about the data that its machine makes."""


# -- how a trainer ends ---------------------------------------------------------------------
OUTCOMES: Mapping[str, str] = {
    "finished": "all steps done",
    "stopped_paying": "further steps no longer paid; cooled down, evaluated and saved",
    "landed_deadline": "the deadline came; evaluated and saved",
    "landed_signal": "told to land; evaluated and saved",
    "non_finite": "loss or gradients became NaN or infinite",
    "diverged": "the loss rose and did not come down again",
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


@dataclass(frozen=True)
class DataJob:
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


@dataclass(frozen=True)
class PhaseJob:
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
    """How ``data_dir`` comes to be where this machine is to make it; None: it was brought."""
    accept_change: bool = False
    """Go on though settings have changed that decide what is trained."""
    version: int = CONTRACT_VERSION


@dataclass(frozen=True)
class Heartbeat:
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
    """What the loss is made of, by the family's own names, as far as it is finite."""
    best_bpb: float | None = None
    best_step: int | None = None
    saved_step: int | None = None
    cooldown_from: int | None = None
    finite: bool = True
    seconds: Mapping[str, float] = field(default_factory=dict)
    saves: int | None = None
    """How often this attempt has saved because it was asked to; None where it cannot be asked."""
    skipped: Step = 0
    """Steps of this attempt whose update was left out: their gradients or loss were not sound."""
    skipped_step: Step | None = None
    """The last of them."""
    curve: Curve | None = None
    """None while too little is known, and once it cools down."""
    version: int = CONTRACT_VERSION


@dataclass(frozen=True)
class PhaseLease:
    """A phase's share of the lease: at most ``allowed_s`` seconds from its start (0: as long as
    the lease lasts).

    ``expected_s`` is the Plan's P50 for the whole phase; ``flops`` its training FLOPs, so that a
    measured phase can reprice the next one. ``stop``: when it no longer pays.
    """

    name: Label
    allowed_s: float
    expected_s: float
    flops: float
    settings: Plain = field(default_factory=dict)
    """What recovery may change of the phase's settings; empty: nothing of them."""
    stop: StopRules = field(default_factory=StopRules)


@dataclass(frozen=True)
class Lease:
    """The agent's right to spend: what to run, and when it must have ended.

    Instants are epoch seconds. Only a lease of a newer epoch replaces this one. ``landing_s`` is
    reserved between soft and hard stop for the last evaluation and save. ``fits_budget`` says
    that the Plan expects every phase to finish; where it is False the last phase is meant to be
    cut short by the soft stop, and is entered as long as ``min_useful_s`` seconds are left.
    """

    run_id: Label
    pod_name: Label
    epoch: int
    granted_at: Instant
    soft_stop_at: Instant
    hard_stop_at: Instant
    landing_s: float
    phases: tuple[PhaseLease, ...]
    fits_budget: bool
    min_useful_s: float
    strict_gate: bool = False
    hang_after_s: float = 300.0
    max_restarts: Restarts = 3
    """Attempts in a row without a newer checkpoint before the phase counts as failed."""
    hold: bool = False
    """Only what the controller pulls survives this pod: its work done, it stays for that until the
    controller ends it, or the hard stop does."""
    uploads: bool = False
    """Checkpoints go from here to a bucket: training waits for the grants, and the result for what
    is best and what is latest, as long as bytes arrive and the hard stop is not there."""
    ready_within_s: float = 0.0
    """How long after the agent's start code and data may take to arrive; 0: they are in place."""
    version: int = CONTRACT_VERSION


@dataclass(frozen=True)
class Orders:
    """``orders.json``: what the controller asks of the agent; newer epochs win.

    ``finished`` are phases that were finished on this very pod, by the controller's records: one
    that was restarted without its disk does not train them again. ``save`` is how often this pod
    was asked for a checkpoint: it owes one while its report has answered fewer.
    """

    epoch: int
    land: bool = False
    reason: str = ""
    finished: tuple[str, ...] = ()
    save: Asks = 0
    version: int = CONTRACT_VERSION


@dataclass(frozen=True)
class Staged:
    """``staged.json``, written last by whoever sent the files: all that it names is whole.

    ``code`` is the folder to import the trainer from; ``data`` are folders of prepared data and
    of weights to start from. Absolute paths.
    """

    code: str
    data: tuple[str, ...] = ()
    version: int = CONTRACT_VERSION


class PhaseState(str, Enum):
    """How a phase stands."""

    WAITING = "waiting"
    RUNNING = "running"
    """Until its process's end is on its account: it may be no more."""
    ENDED = "ended"


@dataclass(frozen=True)
class PhaseReport:
    """How one phase stands, as the agent sees it."""

    name: Label
    state: PhaseState = PhaseState.WAITING
    started_at: Instant | None = None
    ended_at: Instant | None = None
    outcome: Label | None = None
    attempts: int = 0
    fruitless: int = 0
    """Attempts in a row that ended without a newer checkpoint."""
    saved_step: Step | None = None
    """The furthest that any attempt has saved here."""
    step: int | None = None
    val_bpb: float | None = None
    gate: Verdict | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    message: str = ""
    lost_steps: Step = 0
    lost_s: Seconds = 0.0
    """What the attempt that ended last had trained, and taken, since its last checkpoint."""
    recoveries: Recoveries = ()
    stopping: str = ""
    """Why it no longer pays, once its trainer was told to come to an end."""


@dataclass(frozen=True)
class Kept:
    """A whole checkpoint on the pod: its manifest was written last."""

    phase: Label
    step: Step
    sha256: Sha256
    size_bytes: int
    val_bpb: float | None = None
    cooldown_from: Step | None = None
    """See ``manifest.CheckpointManifest``."""

    @property
    def bits(self) -> tuple[str, int, str]:
        """What it is, whether or not it was evaluated yet, or has lost its optimizer since."""
        return self.phase, self.step, self.sha256


@dataclass(frozen=True)
class Saves:
    """``answered``: the last request for a checkpoint that came to something, or could not be met:
    ``why`` then says so, else it lies at ``phase`` and ``step``."""

    answered: Asks = 0
    phase: Label | None = None
    step: Step | None = None
    why: str = ""


@dataclass(frozen=True)
class AgentReport:
    """``agent.json``: the agent's heartbeat, and its account of the lease.

    ``result`` is set once nothing more will happen: the run outcome's name. ``waiting`` is what it
    does before it can train: checking, installing, or files and grants (for what the controller
    sends), or data (that comes from the bucket); empty once it is ready. ``kept`` are the
    checkpoints that can be pulled.
    """

    run_id: Label
    pod_name: Label
    epoch: int
    pid: int
    started_at: Instant
    at: Instant
    phases: tuple[PhaseReport, ...]
    soft_stop_at: Instant
    hard_stop_at: Instant
    landing: bool = False
    result: str | None = None
    message: str = ""
    restarts: int = 0
    notes: Mapping[str, str] = field(default_factory=dict)
    """What else there is to tell: of the pod's ``ssh``, of its own ``termination``, of the ``data``
    that it makes."""
    waiting: str = ""
    kept: tuple[Kept, ...] = ()
    uploaded: tuple[Kept, ...] = ()
    """Checkpoints that are whole in the bucket, every part answered for."""
    granted_until: Instant | None = None
    """Epoch s until when it may upload; None where it may not."""
    uploading: bool = False
    """Its work is done but for uploads, which the result waits for."""
    trouble: str = ""
    """Why the last upload failed; empty since one succeeded."""
    saves: Saves | None = None
    """What came of requests to save; None: an agent that knows of none."""
    version: int = CONTRACT_VERSION


# -- JSON -------------------------------------------------------------------------------------
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


def load_lease(text: str | bytes) -> Lease:
    return load(Lease, CONTRACT_VERSION, text)


def load_staged(text: str | bytes) -> Staged:
    record = load(Staged, CONTRACT_VERSION, text)
    for path in (record.code, *record.data):
        if not path.startswith("/") or ".." in path.split("/") or "\0" in path:
            raise ContractError(f"Staged: {path!r} is no plain absolute path")
    return record


def load_orders(text: str | bytes) -> Orders:
    return load(Orders, CONTRACT_VERSION, text, finished=tuple)


def load_report(text: str | bytes) -> AgentReport:
    return load(AgentReport, CONTRACT_VERSION, text)
