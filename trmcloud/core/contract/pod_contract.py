"""The data that agent and controller share: leases, jobs, reports, pod names, and the files
of a run.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

from trmcloud.core.contract.gate import StopRules, Verdict
from trmcloud.core.contract.records import MAX_JSON_BYTES as MAX_JSON_BYTES
from trmcloud.core.contract.records import Asks, Instant, Label, Restarts, Sha256, Step, load
from trmcloud.core.contract.records import ContractError as ContractError
from trmcloud.core.contract.records import dump as dump
from trmcloud.core.contract.recovery import Plain, Recoveries, Seconds
from trmcloud.core.text import strip_control as strip_control
from trmcloud.core.values import Value, replace

# Where data is really fetched from, on this machine and on a pod.
#
# By itself, so that a catalogue of data sets is read without the rest of the contract.

ENV_DATA_HOSTS = "TRMCLOUD_DATA_HOSTS"
"""``host=base`` pairs with spaces between: where a data host's files are really fetched from."""

# How a pod's name tells whose it is: the one thing of ours that every provider shows.

POD_PREFIX = "trmc"
_POD_NAME = re.compile(r"trmc-([0-9a-f]{8})-([a-z0-9]{1,20})-g([0-9]{1,4})-([0-9]{9,11})")


class PodName(Value):
    """The owner and the hard stop of a pod, at the latest that it may be moved to: readable by a
    reaper without the ledger."""

    ledger: str
    run_id: str
    generation: int
    hard_stop_at: int

    def __str__(self) -> str:
        run = self.run_id.replace("-", "")
        return f"{POD_PREFIX}-{self.ledger}-{run}-g{self.generation}-{self.hard_stop_at}"


@lru_cache(maxsize=256)
def parse_pod_name(text: str) -> PodName | None:
    """The parts of one of our pod names; None for anything else, which is never touched."""
    match = _POD_NAME.fullmatch(text)
    if match is None:
        return None
    ledger, run, generation, hard_stop = match.groups()
    name = PodName(ledger, run, int(generation), int(hard_stop))
    return name if str(name) == text else None


# What a machine's GPUs say of themselves while it trains: a note of the agent's report.
#
# The note is JSON: ``{"samples": 40, "over_s": 585.0, "gpus": [[busy, used, total, clock], …]}``,
# a row for each GPU in nvidia-smi's order; null stands for what it did not say. ``"idle_s": 30.0``
# stands beside them where the agent says for how long no GPU has computed.

GPU_NOTE = "gpus"
"""The topic of that note."""
MOST_GPUS = 64
LEAST_SAMPLES = 8
"""Before which nothing is judged by a window."""
_MOST = 1e9
_MOST_CHARS = 8192


class GpuCounters(NamedTuple):
    """One GPU: percent of the time in which it computed, MiB of its memory, MHz of its
    multiprocessors. Over a window: the mean, the most, and the mean."""

    busy_percent: float | None
    used_mib: float | None
    total_mib: float | None
    clock_mhz: float | None


class GpuWindow(Value):
    """The last ``over_s`` seconds of training, sampled so often. ``idle_s``: for how long before
    the last sample no GPU computed, which may be longer; None: it is not known."""

    samples: int
    over_s: float
    gpus: tuple[GpuCounters, ...]
    idle_s: float | None = None

    def memory_share(self) -> float | None:
        """The used share of the fullest GPU's memory; None where no GPU reports it, or too little
        was sampled."""
        if self.samples < LEAST_SAMPLES:
            return None
        shares = [
            g.used_mib / g.total_mib for g in self.gpus if g.used_mib is not None and g.total_mib
        ]
        return max(shares, default=None)

    def to_text(self) -> str:
        rows = [[_short(value) for value in gpu] for gpu in self.gpus]
        record: dict[str, Any] = {"samples": self.samples, "over_s": round(self.over_s, 1)}
        record["gpus"] = rows
        if self.idle_s is not None:
            record["idle_s"] = round(self.idle_s, 1)
        return json.dumps(record, separators=(",", ":"))


def window_from(text: str) -> GpuWindow | None:
    """The window that a note tells of; None where it is none, as a pod may write anything."""
    if not text or len(text) > _MOST_CHARS:
        return None
    try:
        data = json.loads(text, parse_int=float)
        gpus = tuple(GpuCounters(*map(_counter, row)) for row in data["gpus"])
        samples, over_s = _counter(data["samples"]), _counter(data["over_s"])
        idle_s = _counter(data.get("idle_s"))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if samples is None or over_s is None or not 0 < len(gpus) <= MOST_GPUS:
        return None
    return GpuWindow(int(samples), over_s, gpus, idle_s)


def summed_up(
    samples: Sequence[Sequence[GpuCounters]], over_s: float, idle_s: float | None = None
) -> GpuWindow:
    """``samples``, each of the same number of GPUs, as one window."""
    return GpuWindow(
        len(samples),
        over_s,
        tuple(
            GpuCounters(
                _mean([gpu.busy_percent for gpu in rows]),
                max((g.used_mib for g in rows if g.used_mib is not None), default=None),
                rows[-1].total_mib,
                _mean([gpu.clock_mhz for gpu in rows]),
            )
            for rows in zip(*samples, strict=True)
        ),
        idle_s,
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _short(value: float | None) -> float | None:
    return round(value, 1) if value is not None else None


def _counter(value: Any) -> float | None:
    """
    Raises:
        ValueError: it is none that any GPU could give.
    """
    if value is None:
        return None
    if type(value) is not float or not (math.isfinite(value) and 0 <= value < _MOST):
        raise ValueError("no counter")
    return value


# All that the agent on the pod and the controller share, and where the files of a run lie.
#
# They meet in the lease, the orders and the agent's report; trainer and agent in what
# ``trainer_contract`` has. Everything read here may come from a machine somebody else owns, so
# reading is strict.
#
# Folders, on a pod below /workspace/trmcloud and here below the user's trmcloud home:
#
#     pods/<pod name>/                  dies with the pod
#         pod.json  lease.json  orders.json  agent.json  ended.json  guardian.log
#         check.json  staged.json  grants.json  uploads.json  told.json  notes.json
#         termination.json  install.log  sshd.log  upload.log
#         webhook.json  notices.json  notices.log
#     runs/<run id>/<phase>/            survives where the Plan says so
#         job.json  heartbeat.json  metrics.jsonl  train.log  tensorboard/
#         checkpoints/step-00000120/    manifest.json and the files it names

CONTRACT_VERSION = 1

# -- environment of a pod's processes -------------------------------------------------------
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
"""The port of the pod's SSH server; 22 where it is not set."""

ENV_SSH_LISTEN = "TRMCLOUD_SSH_LISTEN"
"""The address the pod's SSH server listens at; all of them where it is not set."""

ENV_INSTALL_PREFIX = "TRMCLOUD_INSTALL_"
"""The prefix of settings for the package installer on the pod: UV_DEFAULT_INDEX, HTTPS_PROXY, …;
TRMCLOUD_INSTALL_TORCH is the version of torch."""
ENV_NODES = "TRMCLOUD_NODES"
"""The machines of a pod that has several: their number, this one's index (0 is the first) and the
first one's address, with a space between."""
ENV_PROVIDER = "TRMCLOUD_PROVIDER"
"""The ways in which the pod may end itself: none, or one or more of runpod, skypilot (its autodown,
at once) and shutdown (power the machine off), joined by +."""
ENV_LINGER_S = "TRMCLOUD_LINGER_S"
"""Seconds a pod whose work is done stays, so that its last report can be read; its hard stop and
whoever ends it cut that short."""
ENV_GPU_SAMPLE_S = "TRMCLOUD_GPU_SAMPLE_S"
"""Seconds between two looks at the GPUs' counters."""
ENV_HEAD_LOST_S = "TRMCLOUD_HEAD_LOST_S"
"""Seconds for which a pod's first machine may answer no other one; then it is lost."""

POD_ROOT = "/workspace/trmcloud"
POD_SSH_PORT = 22
INNER_SSH_PORT = 10022
"""The port of a pod's SSH server beside the machine's own server, on its loopback."""

# -- names of files -------------------------------------------------------------------------
JOB_NAME = "job.json"
HEARTBEAT_NAME = "heartbeat.json"
DEADLINE_NAME = "deadline"
"""Beside its job: the epoch second that takes the place of the deadline in a trainer's
environment, once that was moved."""
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
_MOST_PATH_BYTES = 3800
"""Of a relative name: Linux takes 4096 of a whole path."""
SENDABLE = f"a name has no line break, and a path at most {_MOST_PATH_BYTES} bytes"


def is_sendable(name: str) -> bool:
    """Whether a file of this relative name can be sent to a pod, which lists names by lines."""
    size = len(name.encode("utf-8", "surrogateescape"))
    plain = not {"", ".", ".."} & set(name.split("/")) and not set("\n\r\0") & set(name)
    return plain and size <= _MOST_PATH_BYTES


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


class PhaseLease(Value):
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
    """The phase's settings that recovery may change; empty: none."""
    stop: StopRules = field(default_factory=StopRules)


BUDGET, HOURS = "budget", "hours"


class Lease(Value):
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
    """The time after the agent's start within which code and data must arrive; 0: they are in
    place."""
    ends_by: str = BUDGET
    """What the soft stop comes from: ``budget``, or ``hours``, the run's limit on them."""
    limit_at: Instant = 0.0
    """No order moves the hard stop beyond this; 0: none moves it at all."""
    version: int = CONTRACT_VERSION

    def extended(self, orders: Orders) -> Lease | None:
        """This lease with the later stops of ``orders``, under their epoch; None where they give
        none, or more than it allows. The time between the two stops stays, and a phase that has
        a share of its own may last as much longer."""
        later_s = orders.hard_stop_at - self.hard_stop_at
        if orders.epoch <= self.epoch or not 0 < later_s <= self.limit_at - self.hard_stop_at:
            return None
        return replace(
            self,
            epoch=orders.epoch,
            soft_stop_at=self.soft_stop_at + later_s,
            hard_stop_at=orders.hard_stop_at,
            phases=tuple(
                replace(each, allowed_s=each.allowed_s + later_s if each.allowed_s else 0.0)
                for each in self.phases
            ),
        )


class Orders(Value):
    """``orders.json``: what the controller asks of the agent; newer epochs win.

    ``finished`` are phases that were finished on this very pod, by the controller's records: one
    that was restarted without its disk does not train them again. ``save`` is how often this pod
    was asked for a checkpoint: it owes one while its report has answered fewer. ``hard_stop_at``:
    the hard stop that a machine has in place of its lease's, since that was moved; 0: its lease's
    stands.
    """

    epoch: int
    land: bool = False
    reason: str = ""
    finished: tuple[str, ...] = ()
    save: Asks = 0
    hard_stop_at: Instant = 0.0
    version: int = CONTRACT_VERSION


class StagedFiles(Value):
    """``staged.json``, written last by the sender of the files: all that it names is whole.

    ``code`` is the folder to import the trainer from; ``data`` are folders of prepared data and
    of weights to start from. Absolute paths.
    """

    code: str
    data: tuple[str, ...] = ()
    version: int = CONTRACT_VERSION


class PhaseState(str, Enum):
    """The state of a phase."""

    WAITING = "waiting"
    RUNNING = "running"
    """Until its process's end is on its account: it may be no more."""
    ENDED = "ended"


class PhaseReport(Value):
    """The progress of one phase, as the agent sees it."""

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
    """Seconds that the attempt that ended last had trained, and spent, since its last
    checkpoint."""
    recoveries: Recoveries = ()
    stopping: str = ""
    """Why it no longer pays, once its trainer was told to come to an end."""
    climbing: Label | None = None
    """The level of ``climbing`` that it goes on with once its trainer, told so, has landed."""


_STEP_DIR = re.compile(r"step-([0-9]{8})")


def step_dir_name(step: int) -> str:
    return f"step-{step:08d}"


def parse_step_dir(name: str) -> int | None:
    """The step of a checkpoint folder's name; None where the name is not one."""
    match = _STEP_DIR.fullmatch(name)
    return int(match.group(1)) if match else None


class CheckpointRef(Value):
    """What names a whole checkpoint, and what it is chosen by: as an agent reports it, and as its
    manifest says, which was written last."""

    phase: Label
    step: Step
    sha256: Sha256
    size_bytes: int
    val_bpb: float | None = None
    cooldown_from: Step | None = None
    """See ``manifest.CheckpointManifest``."""
    is_output: bool = False
    """An archive of unjudged files."""
    is_named_best: bool = False
    """Its script itself names it best."""

    @property
    def bits(self) -> tuple[str, int, str]:
        """The checkpoint's identity, the same before and after an evaluation or the loss of its
        optimizer."""
        return self.phase, self.step, self.sha256

    @property
    def label(self) -> str:
        return f"{self.phase}/{step_dir_name(self.step)}"


class SaveAnswers(Value):
    """``answered``: the last request for a checkpoint that came to something, or could not be met:
    ``why`` then says so, else it lies at ``phase`` and ``step``."""

    answered: Asks = 0
    phase: Label | None = None
    step: Step | None = None
    why: str = ""


class AgentReport(Value):
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
    """Further notes: the pod's ``ssh``, its own ``termination``, the ``data`` that it makes."""
    waiting: str = ""
    kept: tuple[CheckpointRef, ...] = ()
    uploaded: tuple[CheckpointRef, ...] = ()
    """Checkpoints that are whole in the bucket, every part answered for."""
    granted_until: Instant | None = None
    """Epoch s until when it may upload; None where it may not."""
    uploading: bool = False
    """Its work is done but for uploads, which the result waits for."""
    trouble: str = ""
    """Why the last upload failed; empty since one succeeded."""
    saves: SaveAnswers | None = None
    """The answers to requests to save; None: an agent that does not know such requests."""
    version: int = CONTRACT_VERSION


# -- JSON -------------------------------------------------------------------------------------
@lru_cache(maxsize=1)  # it is read several times a second, and written a few times a minute
def load_lease(text: str | bytes) -> Lease:
    return load(Lease, CONTRACT_VERSION, text)


def load_staged(text: str | bytes) -> StagedFiles:
    record = load(StagedFiles, CONTRACT_VERSION, text)
    for path in (record.code, *record.data):
        if not path.startswith("/") or ".." in path.split("/") or "\0" in path:
            raise ContractError(f"Staged: {path!r} is no plain absolute path")
    return record


def load_orders(text: str | bytes) -> Orders:
    return load(Orders, CONTRACT_VERSION, text, finished=tuple)


def load_report(text: str | bytes) -> AgentReport:
    return load(AgentReport, CONTRACT_VERSION, text)
