"""The agent: the one process on the pod that owns the trainer and knows when it must die.

It looks, asks ``supervise``, acts, writes its report, twice a second: see ``loop``, whose body of
files and processes stands here.

    python -m trmcloud.pod.agent.process --root /workspace/trmcloud --pod NAME
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from trmcloud.core.clock import Instant
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.bucket import Uploads
from trmcloud.core.contract.command import OFFSPRING_NAME
from trmcloud.core.contract.manifest import (
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    CheckpointManifest,
    from_json,
)
from trmcloud.core.contract.phase_account import lease_of
from trmcloud.core.contract.trainer_contract import (
    ENV_ATTEMPT,
    ENV_DEADLINE_AT,
    ENV_JOB,
    ENV_LANDING_S,
    ENV_OVERRIDES,
    ENV_PATIENCE,
    Heartbeat,
    load_heartbeat,
    load_job,
)
from trmcloud.core.errors import CheckpointError
from trmcloud.core.values import replace
from trmcloud.io.files import load_small, read_small, write_atomic
from trmcloud.pod.agent.boot_messages import read_notes
from trmcloud.pod.agent.host import Trainer
from trmcloud.pod.agent.lease_clock import AnchorFile
from trmcloud.pod.agent.loop import AgentLoop
from trmcloud.pod.agent.nodes import job_command, read_nodes, trainer_command
from trmcloud.pod.agent.side_processes import DataPreparation, NoticesProcess, Transfer
from trmcloud.pod.agent.terminate import ways_of
from trmcloud.pod.machine import processes
from trmcloud.pod.machine.hardware import SAMPLE_EVERY_S, GpuSampler
from trmcloud.pod.machine.metrics_file import read_metrics
from trmcloud.pod.machine.prepare import Preparation, TrainerSetup
from trmcloud.pod.storage.disk_pressure import make_room

_TICK_S = 0.5
_BRIEF_TICK_S = 0.1
"""While nothing is trained: what was rented is paid for all the same."""
_LINGER_S = 2.0
_KILL_FOR_S = 5.0
_WAITING = {"checking": "checking", "installing": "installing", "waiting": "files", "ready": ""}
_KEPT_EVERY_S = 5.0
_TRAINER_NAME = "trainer.json"
_TRAINER_FIELDS = ("pid", "started", "phase", "attempt", "started_at")
_BALLAST_NAME = ".ballast"
_BALLAST_BYTES = 1 << 18
"""Kept on a rented pod's disk, so that the last report finds room on a full one: a controller that
never reads it would hold the pod until its hard stop."""


class Agent:
    """One pod's agent. ``now`` reads both clocks; ``root`` holds ``pods/`` and ``runs/``."""

    def __init__(self, root: Path, pod_name: str, now: Callable[[], Instant] | None = None) -> None:
        body = _FilesAndProcesses(root, pod_name, now or processes.clocks_here)
        try:
            self._loop = AgentLoop(body, pod_name)
        except ValueError as error:
            raise SystemExit(str(error)) from None

    def run(self) -> str:
        """Until nothing more is to be done here; returns the result that the report bears."""
        loop = self._loop
        loop.write_report(force=True)
        while loop.report.result is None:
            loop.tick()
            if loop.report.result is None:
                time.sleep(_BRIEF_TICK_S if loop.report.waiting else _TICK_S)
        loop.write_report(force=True)
        while loop.linger():
            time.sleep(_BRIEF_TICK_S if loop.telling else _LINGER_S)
        return loop.report.result


class _FilesAndProcesses(AnchorFile):
    """A pod's real body: its files below ``root`` and the processes that bear its name."""

    def __init__(self, root: Path, pod_name: str, now: Callable[[], Instant]) -> None:
        self._root = root
        self._pod_dir = root / contract.PODS_DIR / pod_name
        super().__init__(self._pod_dir)
        self._pod_name = pod_name
        self._run_id = ""
        self._child: subprocess.Popen[bytes] | None = None
        self._watchdog = os.getppid()
        self._kept: tuple[contract.CheckpointRef, ...] = ()
        self._kept_boot = -1e9
        self._preparation = Preparation(root, pod_name)
        self._transfer = Transfer(root, pod_name, self._preparation.trainer)
        self._data = DataPreparation(root, pod_name, self._trainer_setup, self.log)
        every_s = float(os.environ.get(contract.ENV_GPU_SAMPLE_S, SAMPLE_EVERY_S))
        self._gpus = GpuSampler(every_s=every_s)
        self._notices = NoticesProcess(root, pod_name, self._trainer_setup)
        self._ready = False
        self.now = now
        if (self._pod_dir / contract.CHECK_NAME).exists():
            with contextlib.suppress(OSError):
                write_atomic(self._pod_dir / _BALLAST_NAME, "." * _BALLAST_BYTES)

    def pid(self) -> int:
        return os.getpid()

    # -- files --------------------------------------------------------------------------------

    def read_lease(self) -> contract.Lease | None:
        lease = load_small(self._pod_dir / contract.LEASE_NAME, contract.load_lease)
        if lease is not None:
            self._run_id = lease.run_id
        return lease

    def write_lease(self, lease: contract.Lease) -> None:
        with contextlib.suppress(OSError):
            write_atomic(self._pod_dir / contract.LEASE_NAME, contract.dump(lease))

    def read_orders(self) -> contract.Orders | None:
        return load_small(self._pod_dir / contract.ORDERS_NAME, contract.load_orders)

    def read_report(self) -> contract.AgentReport | None:
        return load_small(self._pod_dir / contract.REPORT_NAME, contract.load_report)

    def write_report(self, report: contract.AgentReport, *, durable: bool) -> None:
        notes = {**read_notes(self._pod_dir), **self._preparation.notes(), **self._data.notes()}
        report = replace(report, notes={**notes, **self._gpus.notes()})
        path, text = self._pod_dir / contract.REPORT_NAME, contract.dump(report)
        # A full disk must not stop the guard: a report that cannot be written is written later.
        with contextlib.suppress(OSError):
            try:
                write_atomic(path, text, durable=durable)
            except OSError:
                if report.result is None:
                    raise  # a trainer that still runs would fill the ballast's place, too
                os.unlink(self._pod_dir / _BALLAST_NAME)
                write_atomic(path, text, durable=durable)
        self._notices.tend()

    def read_trainer(self) -> Trainer | None:
        with contextlib.suppress(KeyError, TypeError):
            data = load_small(self._pod_dir / _TRAINER_NAME, json.loads)
            return Trainer(*(data[name] for name in _TRAINER_FIELDS)) if data is not None else None
        return None

    def write_trainer(self, trainer: Trainer | None) -> None:
        path = self._pod_dir / _TRAINER_NAME
        if trainer is None:
            # What it saved last must stand in the very report that tells of its end: a controller
            # that finds nothing to pull ends the pod.
            self._kept_boot = -1e9
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            return
        record = {name: getattr(trainer, name) for name in _TRAINER_FIELDS}
        # Nor must a full disk end the agent; should it die, the next one ends this trainer.
        with contextlib.suppress(OSError):
            write_atomic(path, json.dumps(record))

    def read_heartbeat(self, phase: str) -> Heartbeat | None:
        return load_small(self._phase_dir(phase) / contract.HEARTBEAT_NAME, load_heartbeat)

    def read_metrics(self, phase: str) -> Iterable[Mapping[str, Any]]:
        return read_metrics(self._phase_dir(phase) / contract.METRICS_NAME)

    # -- processes ----------------------------------------------------------------------------

    def start_trainer(
        self, phase: str, attempt: int, deadline_at: float, overrides: Mapping[str, Any]
    ) -> tuple[int, str]:
        self._gpus.forget()
        folder = self._phase_dir(phase)
        job = load_job(read_small(folder / contract.JOB_NAME) or "")
        setup = self._preparation.trainer()
        nodes = read_nodes(self._pod_dir)
        if job.command is not None:
            command, environment = job_command(
                setup, job.code_dir, os.environ, job.processes, nodes
            )
        else:
            command, environment = trainer_command(
                setup.python, job.processes, setup.over(os.environ), nodes
            )
        environment |= {
            ENV_JOB: str(folder / contract.JOB_NAME),
            ENV_DEADLINE_AT: repr(deadline_at),
            ENV_ATTEMPT: str(attempt),
            ENV_OVERRIDES: contract.dump(overrides),
            **_limits(self.read_lease(), phase),
            contract.ENV_POD: self._pod_name,
        }
        for name in (contract.HEARTBEAT_NAME, contract.DEADLINE_NAME):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(folder / name)
        with open(folder / contract.TRAIN_LOG_NAME, "ab") as log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )
        self._child = child
        return child.pid, processes.started(child.pid) or ""

    def move_deadline(self, trainer: Trainer, deadline_at: float) -> None:
        path = self._phase_dir(trainer.phase) / contract.DEADLINE_NAME
        with contextlib.suppress(OSError):
            write_atomic(path, repr(deadline_at))

    def trainer_runs(self, trainer: Trainer) -> bool:
        if self._child is not None and self._child.pid == trainer.pid:
            return self._child.poll() is None
        return processes.alive(trainer.pid, trainer.started)

    def ask_to_land(self, trainer: Trainer, beat: Heartbeat | None) -> None:
        if beat is None or not processes.send(beat.pid, beat.pid_started, signal.SIGTERM):
            processes.send(trainer.pid, trainer.started, signal.SIGTERM)

    def ask_to_save(self, trainer: Trainer, beat: Heartbeat) -> None:
        processes.send(beat.pid, beat.pid_started, signal.SIGUSR1)

    def ask_to_finish(self, trainer: Trainer, beat: Heartbeat) -> None:
        processes.send(beat.pid, beat.pid_started, signal.SIGUSR2)

    def kill_trainer(self) -> None:
        spared = processes.lineage() | self._transfer.pids()
        processes.kill_pod(self._pod_name, excluding=spared, beside=False)
        self._kill_offspring()
        if self._child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(timeout=5)

    def _kill_offspring(self) -> None:
        """Of a command that shed the pod's name: they were noted while it was watched over."""
        for path in (self._root / contract.RUNS_DIR / self._run_id).glob(f"*/{OFFSPRING_NAME}"):
            with contextlib.suppress(ValueError, TypeError, OSError):
                for pid, started in json.loads(read_small(path) or "[]"):
                    processes.send(int(pid), str(started), signal.SIGKILL)
                path.unlink(missing_ok=True)

    # -- what a rented pod has beside ------------------------------------------------------------

    def prepare(self, now: Instant) -> tuple[str, str]:
        progress = self._preparation.poll(now.boot)
        self._ready = progress.state == "ready"
        if progress.state == "refused":
            return "", progress.message
        return _WAITING[progress.state], ""

    def kept(self, now: Instant) -> tuple[contract.CheckpointRef, ...]:
        """Read anew every few seconds: manifests are small, and are written last. Where the disk
        runs low, some of what was kept goes."""
        if now.boot - self._kept_boot >= _KEPT_EVERY_S:
            self._kept_boot = now.boot
            run_dir = self._root / contract.RUNS_DIR / self._run_id
            manifests = _manifests(run_dir)
            with contextlib.suppress(OSError):
                if make_room(run_dir, manifests, self.log):
                    manifests = _manifests(run_dir)
            self._kept = tuple(manifest.ref for manifest in manifests)
        return self._kept

    def make_data(self, now: Instant, phases: tuple[str, ...]) -> None:
        self._data.tend(now, self._run_id, phases)

    def watch_gpus(self, now: Instant, *, trains: bool) -> None:
        self._gpus.tend(now.boot, trains=trains)

    def memory_share(self) -> float | None:
        window = self._gpus.window()
        return window.memory_share() if window is not None else None

    def stop_data(self) -> None:
        self._data.stop()

    def _trainer_setup(self) -> TrainerSetup | None:
        # An agent that was started anew while its trainer runs need not ask again.
        ready = self._ready or (self._pod_dir / _TRAINER_NAME).exists()
        return self._preparation.trainer() if ready else None

    def uploads(self, now: Instant) -> tuple[float | None, Uploads]:
        self._transfer.tend(now.boot)
        return self._transfer.granted_until(), self._transfer.uploads()

    def stored_result(self) -> str:
        return self._transfer.stored_result()

    def has_watchdog(self) -> bool:
        return os.getppid() == self._watchdog and not processes.stopped(self._watchdog)

    def end_pod(self) -> bool:
        """On the user's own machine the pod is its processes: this one kills all others, and is the
        last. A machine that has ways to end is ended by its watchdog, which is made to run again.
        """
        if ways_of(os.environ):
            if os.getppid() != self._watchdog:
                return True
            os.kill(self._watchdog, signal.SIGCONT)
            return False
        give_up_at = time.monotonic() + _KILL_FOR_S
        own = frozenset((os.getpid(),))
        while processes.kill_pod(self._pod_name, excluding=own) and time.monotonic() < give_up_at:
            time.sleep(0.02)
        record = json.dumps({"at": self.now().wall, "reason": "its agent ended it"})
        with contextlib.suppress(OSError):
            write_atomic(self._pod_dir / contract.ENDED_NAME, record)
        return True

    def log(self, text: str) -> None:
        with contextlib.suppress(OSError):
            print(f"{self.now().wall:.3f} agent: {text}", file=sys.stderr, flush=True)

    def _phase_dir(self, phase: str) -> Path:
        return self._root / contract.RUNS_DIR / self._run_id / phase


def _limits(lease: contract.Lease | None, phase: str) -> dict[str, str]:
    """Return the environment that tells a trainer its landing time and its patience."""
    if lease is None:
        return {}
    return {
        ENV_LANDING_S: repr(lease.hard_stop_at - lease.soft_stop_at),
        ENV_PATIENCE: str(lease_of(lease, phase).stop.patience),
    }


def _manifests(run_dir: Path) -> list[CheckpointManifest]:
    found = []
    for path in sorted(run_dir.glob(f"*/{contract.CHECKPOINTS_DIR}/*/{MANIFEST_NAME}")):
        with contextlib.suppress(OSError, CheckpointError):
            found.append(from_json(path.read_bytes()[: MAX_MANIFEST_BYTES + 1], str(path)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="trmcloud.pod.agent.process", description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--pod", required=True)
    arguments = parser.parse_args()
    Agent(arguments.root, arguments.pod).run()


if __name__ == "__main__":
    main()
