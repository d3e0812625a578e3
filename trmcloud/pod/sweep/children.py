"""A trial's process: one trainer or one command, on one slot of the machine, until its rung."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.command import Command
from trmcloud.core.contract.manifest import (
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    CheckpointManifest,
    from_json,
)
from trmcloud.core.contract.trainer_contract import (
    ENV_ATTEMPT,
    ENV_DEADLINE_AT,
    ENV_JOB,
    ENV_LANDING_S,
    ENV_OVERRIDES,
    ENV_PATIENCE,
    Heartbeat,
    PhaseJob,
    load_heartbeat,
)
from trmcloud.core.errors import CheckpointError
from trmcloud.core.sweep.job import ENV_TRIAL, TRIALS_DIR
from trmcloud.core.values import Value, replace
from trmcloud.io.files import load_small, write_atomic
from trmcloud.pod.agent.nodes import trainer_command
from trmcloud.pod.machine import processes

PROCESS = "trmcloud.pod.job.process"
_GPUS = "CUDA_VISIBLE_DEVICES"
_THREADS = "OMP_NUM_THREADS"


class TrialStart(Value):
    """One start of a trial's process: on slot ``slot``, to be asked to land at ``deadline_at`` in
    epoch seconds. ``values`` are those of its point."""

    trial: int
    values: Mapping[str, Any]
    slot: int
    attempt: int
    deadline_at: float
    is_fresh: bool
    """It begins anew, whatever its folder has."""
    most_s: float = math.inf
    """Seconds after which the executor kills it; who runs it elsewhere does so, too."""


class MachineLost(Exception):
    """The machine on which a trial ran is gone, and what it did there with it."""


class TrialCommand(Value):
    """What starts a trial's process in ``folder``, which has its job."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path


class Child(Protocol):
    """A running trial."""

    def poll(self) -> int | None:
        """Return the exit code; None while it runs.

        Raises:
            MachineLost: it ran on a machine that is gone.
        """

    def land(self) -> None:
        """Ask it to save, to evaluate and to leave."""

    def kill(self) -> None:
        """End it and all processes that it started."""


class Children(Protocol):
    """How trials are started, and what their folders hold."""

    def start(self, start: TrialStart) -> Child: ...

    def beat(self, trial: int) -> Heartbeat | None:
        """Return its last heartbeat, of whichever attempt."""

    def manifests(self, trial: int) -> list[CheckpointManifest]:
        """Return its whole checkpoints."""

    def folder(self, trial: int) -> Path: ...


def trial_name(trial: int) -> str:
    return f"t-{trial:03d}"


class TrialProcesses:
    """The trials on the ``slots`` of this machine, below the sweep's folder. ``environment`` is the
    executor's own."""

    def __init__(
        self, job: PhaseJob, slots: int, environment: Mapping[str, str], cores: int
    ) -> None:
        self._job, self._slots, self._cores = job, slots, cores
        self._environment = environment
        self._root = Path(job.out_dir) / TRIALS_DIR
        self._is_recipe = job.settings.get("family") != "command"
        self._beats: dict[int, tuple[tuple[int, int, int], Heartbeat | None]] = {}

    def folder(self, trial: int) -> Path:
        return self._root / trial_name(trial)

    def start(self, start: TrialStart) -> Child:
        """
        Raises:
            OSError: it cannot be started.
        """
        made = self.prepare(start)
        with open(made.folder / contract.TRAIN_LOG_NAME, "ab") as log:
            child = subprocess.Popen(
                made.words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=made.environment,
                cwd=made.folder,
                start_new_session=True,
            )
        return _Process(child)

    def prepare(self, start: TrialStart) -> TrialCommand:
        """Make the trial's folder and job; return the command.

        Raises:
            OSError: they cannot be written.
        """
        folder = self.folder(start.trial)
        if start.is_fresh:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / contract.HEARTBEAT_NAME).unlink(missing_ok=True)
        job = self._trial_job(start, folder)
        write_atomic(folder / contract.JOB_NAME, contract.dump(job), durable=False)
        words, environment = self._words(job, start)
        environment |= {
            ENV_JOB: str(folder / contract.JOB_NAME),
            ENV_DEADLINE_AT: repr(start.deadline_at),
            ENV_ATTEMPT: str(start.attempt),
            ENV_OVERRIDES: "{}",
        }
        if not math.isfinite(start.deadline_at):
            del environment[ENV_DEADLINE_AT]
        for of_the_sweep in (ENV_LANDING_S, ENV_PATIENCE):
            environment.pop(of_the_sweep, None)
        return TrialCommand(tuple(words), environment, folder)

    def beat(self, trial: int) -> Heartbeat | None:
        path = self.folder(trial) / contract.HEARTBEAT_NAME
        try:
            about = path.stat()
        except OSError:
            return None
        seen = (about.st_ino, about.st_mtime_ns, about.st_size)  # each is a new file
        before, beat = self._beats.get(trial, (None, None))
        if seen != before:
            beat = load_small(path, load_heartbeat)
            self._beats[trial] = (seen, beat)
        return beat

    def manifests(self, trial: int) -> list[CheckpointManifest]:
        return manifests_in(self.folder(trial) / contract.CHECKPOINTS_DIR)

    def _trial_job(self, start: TrialStart, folder: Path) -> PhaseJob:
        command = self._job.command if not self._is_recipe else None
        if command is not None:
            command = filled(command, start.values)
        processes_of_slot = max(1, self._job.processes // self._slots)
        settings = dict(self._job.settings)
        if self._is_recipe:
            # A step learns from as many sequences as on all of the machine's GPUs.
            share = self._job.processes // processes_of_slot if self._job.processes > 1 else 1
            settings["accumulation"] = int(settings.get("accumulation", 1)) * share
            settings["keep_best"] = 1
        return replace(
            self._job,
            settings=settings,
            out_dir=str(folder),
            processes=processes_of_slot,
            command=command,
            code_dir=self._job.code_dir if command is not None else "",
        )

    def _words(self, job: PhaseJob, start: TrialStart) -> tuple[Sequence[str], dict[str, str]]:
        environment = dict(self._environment)
        if gpus := slot_gpus(environment.get(_GPUS, ""), self._job.processes, self._slots, start):
            environment[_GPUS] = gpus
        elif self._slots > 1 and _THREADS not in environment:
            environment[_THREADS] = str(max(1, self._cores // self._slots))
        if job.command is not None:
            return (sys.executable, "-m", PROCESS), environment
        environment[ENV_TRIAL] = json.dumps(dict(start.values))
        python = python_of(environment, Path(self._job.out_dir).parents[2])
        return trainer_command(python, job.processes, environment)


def python_of(environment: Mapping[str, str], root: Path) -> str:
    """Return the trainer's interpreter: of the environment that was installed for it below the
    machine's ``root``, which the agent puts first on PATH; else this process's own."""
    folder = environment.get("PATH", "").partition(os.pathsep)[0]
    is_installed = folder.startswith(f"{root}/") and os.path.isfile(f"{folder}/python")
    return f"{folder}/python" if is_installed else sys.executable


def slot_gpus(visible: str, gpus: int, slots: int, start: TrialStart) -> str:
    """Return the GPUs of a slot as CUDA_VISIBLE_DEVICES has them; empty where the machine has none,
    or one slot has all of them."""
    known = [each for each in visible.split(",") if each] or [str(n) for n in range(gpus)]
    if slots <= 1 or len(known) < slots or not (visible or has_gpus()):
        return ""
    each = len(known) // slots
    return ",".join(known[start.slot * each : (start.slot + 1) * each])


def has_gpus() -> bool:
    return os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/dxg")


def filled(command: Command, values: Mapping[str, Any]) -> Command:
    """The command with each ``{name}`` of its words replaced by the value of that name."""

    words, resume = command.words, command.resume
    for name, value in values.items():
        place, text = "{" + name + "}", format_word(value)
        words = tuple(word.replace(place, text) for word in words)
        resume = tuple(word.replace(place, text) for word in resume)
    return replace(command, words=words, resume=resume)


def format_word(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def manifests_in(folder: Path) -> list[CheckpointManifest]:
    """Return the manifests of the whole checkpoints below ``folder``."""
    found = []
    for path in sorted(folder.glob(f"*/{MANIFEST_NAME}")):
        with contextlib.suppress(OSError, CheckpointError):
            found.append(from_json(path.read_bytes()[: MAX_MANIFEST_BYTES + 1], str(path)))
    return found


class _Process:
    """A child in a session of its own."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child
        self._started = processes.started(child.pid) or ""

    def poll(self) -> int | None:
        return self._child.poll()

    def land(self) -> None:
        # torchrun passes SIGTERM on to its ranks.
        processes.send(self._child.pid, self._started, signal.SIGTERM)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout=5)
