"""The agent: the one process on the pod that owns the trainer and knows when it must die.

It looks, asks ``supervise``, acts, writes its report, twice a second. All it knows it keeps in
files, so that one started anew after a kill goes on where the last one stood, trainer included.

    python -m trmcloud.pod.agent --root /workspace/trmcloud --pod NAME
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trmcloud.core import gate, supervisor
from trmcloud.core import pod_contract as contract
from trmcloud.core.clock import Anchor, Instant
from trmcloud.pod import processes
from trmcloud.pod.files import read_small, write_atomic

_TICK_S = 0.5
_REPORT_EVERY_S = 2.0
_ANCHOR_NAME = "anchor.json"
_TRAINER_NAME = "trainer.json"


@dataclass
class _Trainer:
    """The trainer's process, as the agent remembers it across its own death."""

    pid: int
    started: str
    phase: str
    attempt: int
    started_at: float
    child: subprocess.Popen[bytes] | None = None
    last_beat: str = ""
    last_progress_boot: float = 0.0
    told_boot: float | None = None


class Agent:
    """One pod's agent. ``now`` reads both clocks; ``root`` holds ``pods/`` and ``runs/``."""

    def __init__(self, root: Path, pod_name: str, now: Any = None) -> None:
        self._root = root
        self._pod_dir = root / contract.PODS_DIR / pod_name
        self._pod_name = pod_name
        self._now = now or (
            lambda: processes.read_clocks(
                time.time, lambda: time.clock_gettime(time.CLOCK_BOOTTIME)
            )
        )
        self._lease = self._read_lease()
        self._orders = contract.Orders(epoch=self._lease.epoch)
        self._anchors = self._read_anchors(self._now())
        self._report = self._first_report(self._now())
        self._trainer = self._find_trainer()
        self._written_boot = -1e9

    def run(self) -> str:
        """Until nothing more is to be done here; returns the result that the report bears."""
        self._write_report(force=True)
        while self._report.result is None:
            self.tick()
            if self._report.result is None:
                time.sleep(_TICK_S)
        self._write_report(force=True)
        return self._report.result

    def tick(self) -> None:
        """Look, decide, act, report: once."""
        now = self._now()
        self._reread(now)
        self._close_ended(now)
        act = supervisor.supervise(self._lease, self._report.phases, self._view(now))
        self._carry_out(act, now)
        self._write_report()

    # -- looking ------------------------------------------------------------------------------

    def _read_lease(self) -> contract.Lease:
        text = read_small(self._pod_dir / contract.LEASE_NAME)
        if text is None:
            raise SystemExit(f"no {contract.LEASE_NAME} in {self._pod_dir}")
        return contract.load_lease(text)

    def _reread(self, now: Instant) -> None:
        """Take a newer lease or newer orders, if any; text that is neither is passed over."""
        with contextlib.suppress(ValueError, SystemExit):
            lease = self._read_lease()
            if lease.epoch > self._lease.epoch:
                self._lease = lease
                self._anchors = self._read_anchors(now)
        with contextlib.suppress(ValueError):
            text = read_small(self._pod_dir / contract.ORDERS_NAME)
            if text is not None:
                orders = contract.load_orders(text)
                if orders.epoch >= self._orders.epoch:
                    self._orders = orders

    def _read_anchors(self, now: Instant) -> tuple[Anchor, Anchor]:
        """Soft and hard stop, anchored at the moment this lease was first seen on this pod."""
        path = self._pod_dir / _ANCHOR_NAME
        with contextlib.suppress(ValueError, KeyError, TypeError):
            data = json.loads(read_small(path) or "{}")
            if data["epoch"] == self._lease.epoch:
                now = Instant(data["wall"], data["boot"], data["boot_id"])
                return self._anchored(now)
        record = {"epoch": self._lease.epoch, "wall": now.wall, "boot": now.boot}
        write_atomic(path, json.dumps({**record, "boot_id": now.boot_id}))
        return self._anchored(now)

    def _anchored(self, seen: Instant) -> tuple[Anchor, Anchor]:
        lease = self._lease
        return Anchor(lease.soft_stop_at, seen), Anchor(lease.hard_stop_at, seen)

    def _first_report(self, now: Instant) -> contract.AgentReport:
        """A new report, or the one a killed agent left, taken over."""
        fresh = contract.AgentReport(
            run_id=self._lease.run_id,
            pod_name=self._pod_name,
            epoch=self._lease.epoch,
            pid=os.getpid(),
            started_at=now.wall,
            at=now.wall,
            phases=tuple(contract.PhaseReport(phase.name) for phase in self._lease.phases),
            soft_stop_at=self._lease.soft_stop_at,
            hard_stop_at=self._lease.hard_stop_at,
        )
        with contextlib.suppress(ValueError):
            text = read_small(self._pod_dir / contract.REPORT_NAME)
            if text is not None:
                left = contract.load_report(text)
                if left.pod_name == self._pod_name:
                    return replace(left, pid=os.getpid(), restarts=left.restarts + 1)
        return fresh

    def _find_trainer(self) -> _Trainer | None:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            data = json.loads(read_small(self._pod_dir / _TRAINER_NAME) or "null")
            if data is not None:
                boot = self._now().boot
                return _Trainer(
                    data["pid"],
                    data["started"],
                    data["phase"],
                    data["attempt"],
                    data["started_at"],
                    last_progress_boot=boot,
                )
        return None

    def _running(self) -> bool:
        if self._trainer is None:
            return False
        if self._trainer.child is not None:
            return self._trainer.child.poll() is None
        return processes.alive(self._trainer.pid, self._trainer.started)

    def _heartbeat(self) -> contract.Heartbeat | None:
        """This attempt's heartbeat; None before its first, or where it cannot be understood."""
        trainer = self._trainer
        if trainer is None:
            return None
        try:
            path = self._phase_dir(trainer.phase) / contract.HEARTBEAT_NAME
            text = read_small(path)
            beat = contract.load_heartbeat(text) if text is not None else None
        except ValueError:
            return None
        return beat if beat is not None and beat.attempt == trainer.attempt else None

    def _view(self, now: Instant) -> supervisor.TrainerView:
        soft, hard = self._anchors
        beat = self._heartbeat()
        trainer = self._trainer
        age = told = None
        if trainer is not None:
            progress = f"{beat.state}/{beat.step}" if beat is not None else ""
            if progress != trainer.last_beat:
                trainer.last_beat = progress
                trainer.last_progress_boot = now.boot
            age = now.boot - trainer.last_progress_boot
            if trainer.told_boot is not None:
                told = now.boot - trainer.told_boot
        return supervisor.TrainerView(
            running=self._running(),
            heartbeat=beat,
            heartbeat_age_s=age or 0.0,
            soft_left_s=soft.seconds_left(now),
            hard_left_s=hard.seconds_left(now),
            told_to_land_s=told,
            land_ordered=self._orders.land,
            land_reason=self._orders.reason,
        )

    def _phase_dir(self, phase: str) -> Path:
        return self._root / contract.RUNS_DIR / self._lease.run_id / phase

    # -- acting -------------------------------------------------------------------------------

    def _carry_out(self, act: supervisor.Act, now: Instant) -> None:
        if isinstance(act, supervisor.StartPhase):
            self._start(act.phase, act.attempt, now)
        elif isinstance(act, supervisor.LandTrainer):
            self._land(act.reason, now)
        elif isinstance(act, supervisor.KillTrainer):
            self._log(f"killing the trainer: {act.reason}")
            self._kill_trainer()
        elif isinstance(act, supervisor.JudgeGate):
            self._judge(act.phase)
        elif isinstance(act, supervisor.EndPod):
            self._kill_trainer()
            self._report = replace(self._report, result=act.result, message=act.message)

    def _start(self, phase: str, attempt: int, now: Instant) -> None:
        folder = self._phase_dir(phase)
        job = contract.load_job(read_small(folder / contract.JOB_NAME) or "")
        share = next(p for p in self._lease.phases if p.name == phase)
        soft, _ = self._anchors
        left_s = soft.seconds_left(now)
        if share.allowed_s:
            left_s = min(left_s, share.allowed_s)
        environment = {
            **os.environ,
            contract.ENV_JOB: str(folder / contract.JOB_NAME),
            contract.ENV_DEADLINE_AT: repr(now.wall + left_s),
            contract.ENV_ATTEMPT: str(attempt),
            contract.ENV_POD: self._pod_name,
        }
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc_per_node", str(job.processes), "-m", "model.train"),
        ]
        with contextlib.suppress(FileNotFoundError):
            os.unlink(folder / contract.HEARTBEAT_NAME)
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
        trainer = _Trainer(
            pid=child.pid,
            started=processes.started(child.pid) or "",
            phase=phase,
            attempt=attempt,
            started_at=now.wall,
            child=child,
            last_progress_boot=now.boot,
        )
        self._trainer = trainer
        record = {"pid": trainer.pid, "started": trainer.started, "phase": phase}
        record |= {"attempt": attempt, "started_at": now.wall}
        write_atomic(self._pod_dir / _TRAINER_NAME, json.dumps(record))
        self._log(f"started {phase}, attempt {attempt}, {left_s:.0f} s to its deadline")
        before = self._phase(phase)
        self._set_phase(
            replace(
                before,
                state="running",
                attempts=attempt,
                started_at=before.started_at or now.wall,
                ended_at=None,
                outcome=None,
            )
        )

    def _land(self, reason: str, now: Instant) -> None:
        """SIGTERM to rank 0, which tells the others; to torchrun while there is no rank yet."""
        trainer = self._trainer
        if trainer is None:
            return
        beat = self._heartbeat()
        if beat is None or not processes.send(beat.pid, beat.pid_started, signal.SIGTERM):
            processes.send(trainer.pid, trainer.started, signal.SIGTERM)
        trainer.told_boot = now.boot
        self._report = replace(self._report, landing=True)
        self._log(f"told the trainer to land: {reason}")

    def _kill_trainer(self) -> None:
        keep = frozenset({os.getpid(), os.getppid()})
        processes.kill_pod(self._pod_name, excluding=keep)
        if self._trainer is not None and self._trainer.child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._trainer.child.wait(timeout=5)

    def _judge(self, phase: str) -> None:
        lines = []
        with contextlib.suppress(OSError):
            path = self._phase_dir(phase) / contract.METRICS_NAME
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                with contextlib.suppress(ValueError):
                    lines.append(json.loads(line))
        verdict = gate.judge(phase, lines, strict=self._lease.strict_gate)
        self._set_phase(replace(self._phase(phase), gate=verdict.to_json()))
        self._log(f"gate after {phase}: {'passed' if verdict.passed else 'failed'}")

    def _close_ended(self, now: Instant) -> None:
        """Turn a trainer that is no more into its phase's account."""
        running = next((p for p in self._report.phases if p.state == "running"), None)
        if running is None or self._running():
            return
        self._kill_trainer()
        closed = supervisor.close_attempt(running, self._heartbeat(), now.wall)
        self._set_phase(closed)
        self._trainer = None
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._pod_dir / _TRAINER_NAME)
        self._log(f"{closed.name} ended: {closed.outcome} {closed.message}".rstrip())
        self._write_report(force=True)

    def _phase(self, name: str) -> contract.PhaseReport:
        return next(p for p in self._report.phases if p.name == name)

    def _set_phase(self, phase: contract.PhaseReport) -> None:
        phases = tuple(phase if p.name == phase.name else p for p in self._report.phases)
        self._report = replace(self._report, phases=phases)

    # -- telling ------------------------------------------------------------------------------

    def _write_report(self, *, force: bool = False) -> None:
        now = self._now()
        if not force and now.boot - self._written_boot < _REPORT_EVERY_S:
            return
        self._written_boot = now.boot
        self._report = replace(
            self._report,
            at=now.wall,
            epoch=self._lease.epoch,
            soft_stop_at=self._lease.soft_stop_at,
            hard_stop_at=self._lease.hard_stop_at,
        )
        # A full disk must not stop the guard: a report that cannot be written is written later.
        with contextlib.suppress(OSError):
            path = self._pod_dir / contract.REPORT_NAME
            write_atomic(path, contract.dump(self._report), durable=force)

    def _log(self, text: str) -> None:
        with contextlib.suppress(OSError):
            print(f"{self._now().wall:.3f} agent: {text}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="trmcloud.pod.agent", description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--pod", required=True)
    arguments = parser.parse_args()
    Agent(arguments.root, arguments.pod).run()


if __name__ == "__main__":
    main()
