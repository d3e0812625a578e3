"""The watchdog: its decisions, and the pod's first process that carries them out."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from trmcloud.core.clock import Anchor, Instant
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.command import GIVEN_NAME
from trmcloud.io.files import load_small, write_atomic
from trmcloud.pod.agent.follow import GUARDIAN_LOG_NAME
from trmcloud.pod.agent.lease_clock import AnchorFile, AnchorNote, Anchors, anchor_note
from trmcloud.pod.machine import processes

# The watchdog's own thinking, without a file, a process or a clock of its own.
#
# ``Watch`` below gives it the pod's real body; the simulated world gives it another one.

HARD_STOP_GRACE_S = 1.0
HARD_STOP, WORK_DONE, TERMINATED = "hard stop", "its work is done", "terminated"
"""Why it ends a pod."""
RESTART_PAUSE_S = 1.0
NOTE_EVERY_S = 30.0


class Watchdog:
    """The watchdog's thinking: end the pod, start the agent, or go on watching."""

    END, START, WATCH = "end", "start", "watch"

    def __init__(self, anchors: Anchors) -> None:
        self._anchors = anchors
        self._epoch = 0
        self._noted: AnchorNote | None = None
        self._anchor: Anchor | None = None
        self._agent_known = False
        self._restart_boot = 0.0
        self.why = ""

    def look(
        self,
        now: Instant,
        lease: contract.Lease | None,
        *,
        agent_runs: bool,
        agent_done: bool,
        told: bool,
        result: str | None,
    ) -> str:
        """The one next thing to do.

        ``agent_done``: it left of its own will, its work done; on a full disk its report may lack
        the ``result``.
        """
        if lease is not None and (self._anchor is None or lease.epoch > self._epoch):
            self._epoch = lease.epoch
            self._noted = anchor_note(self._anchors, lease, now)
            self._anchor = self._noted.anchor(lease.hard_stop_at, lease.granted_at)
        self._note_time(now)
        held = lease is not None and lease.hold
        if told:
            return self._end(TERMINATED)
        if self._anchor is not None and self._anchor.seconds_left(now) < -HARD_STOP_GRACE_S:
            return self._end(HARD_STOP)
        if self._agent_known and not agent_runs:
            self._agent_known, self._restart_boot = False, now.boot + RESTART_PAUSE_S
        if not self._agent_known:
            done = result is not None or agent_done
            if done and not held:
                return self._end(WORK_DONE)
            if done:
                return self.WATCH  # until the hard stop: the controller has still to pull from it
            if now.boot >= self._restart_boot:
                self._agent_known = True
                return self.START
        return self.WATCH

    def seconds_left(self, now: Instant) -> float | None:
        """Until this watchdog kills by itself; None while it knows no lease."""
        if self._anchor is None:
            return None
        return self._anchor.seconds_left(now) + HARD_STOP_GRACE_S

    def _note_time(self, now: Instant) -> None:
        """A machine that starts anew has lost its boot clock, and its wall clock may be wrong."""
        if self._noted is not None and now.boot - self._noted.seen.boot >= NOTE_EVERY_S:
            self._noted = self._noted.renewed(now)
            self._anchors.write_anchor(self._noted)

    def _end(self, why: str) -> str:
        self.why = why
        return self.END


# The watchdog: the pod's first process, its start, and its record.

# A watchdog with a session of its own, and the record by which it is found again.

POD_NAME = "pod.json"
UNSEEN_S = 2.0
"""The time that a pod whose end was not seen may have lasted beyond its last sign."""


def spawn_watchdog(
    words: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> dict[str, Any]:
    """Start ``words`` in the pod's ``folder``; what its record must tell of the process."""
    with open(folder / GUARDIAN_LOG_NAME, "ab") as log:
        child = subprocess.Popen(
            list(words),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=dict(environment),
            start_new_session=True,
        )
    return {"pid": child.pid, "started": processes.started(child.pid) or ""}


def noted_end(folder: Path) -> float | None:
    """When the pod in ``folder`` ended (epoch s), as its watchdog noted it."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        data: Any = load_small(folder / contract.ENDED_NAME, json.loads)
        return float(data["at"])
    return None


def last_sign_of(folder: Path, run_dir: Path) -> float:
    """A moment after the last that the pod in ``folder`` or a trainer below ``run_dir`` wrote."""
    times = [0.0]
    for path in (*folder.glob("*"), *run_dir.glob(f"*/{contract.HEARTBEAT_NAME}")):
        with contextlib.suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(times) + UNSEEN_S


def watchdog_of(folder: Path) -> tuple[int, str] | None:
    """(pid, start time) of the watchdog that the pod's record names, alive or not."""
    with contextlib.suppress(KeyError, TypeError):
        data: Any = load_small(folder / POD_NAME, json.loads)
        if isinstance(data["pid"], int) and isinstance(data["started"], str):
            return data["pid"], data["started"]
    return None


# The watchdog: the pod's first process, and the last one to die.
#
# It starts the agent, starts it again when it dies without a result, inherits whatever loses its
# parent, and at the hard stop kills everything by itself. On this machine it *is* the pod; on a
# rented one ``boot`` does the same as the entry command, and then ends the pod from within.
#
#     python -m trmcloud.pod.agent.watchdog --root /workspace/trmcloud --pod NAME

_TICK_S = 0.25
_KILL_FOR_S = 5.0
_TRIES = 3


def listen() -> list[int]:
    """Note SIGTERMs instead of dying of them; the list returned grows with each."""
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda signum, frame: told.append(signum))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return told


class SideProcess(Protocol):
    """Another child of the pod's first process, which is to be kept running."""

    child: subprocess.Popen[bytes] | None

    def tend(self) -> None:
        """Start it, or start it again, where that is due."""


class Watch:
    """The watchdog's loop. ``told`` is what ``listen`` returned.

    ``granted`` is the lease as the provider was given it, where its file cannot be read;
    ``environment`` is the agent's, and so the trainer's (this process's own if None).
    """

    def __init__(
        self,
        root: Path,
        pod_name: str,
        told: list[int],
        *,
        granted: contract.Lease | None = None,
        environment: Mapping[str, str] | None = None,
        beside: SideProcess | None = None,
    ) -> None:
        self._root, self._pod_name = root, pod_name
        self._pod_dir = root / contract.PODS_DIR / pod_name
        self._told = told
        self._granted = granted
        self._environment = environment
        self._beside = beside
        self._agent: subprocess.Popen[bytes] | None = None
        self.mind = Watchdog(AnchorFile(self._pod_dir))

    def run(self) -> str:
        """Guard the pod until its work is done, its hard stop comes, or it is told to end.

        By then all its processes are killed. Returns why.
        """
        processes.adopt_orphans()
        self._forget_given()
        while True:
            act = self._look()
            if act == Watchdog.END:
                self.end(self.mind.why)
                return self.mind.why
            if act == Watchdog.START:
                self._agent = self._start_agent()
            self.pause()

    def run_on(self, tell: Callable[[str], None]) -> str:
        """``run``, begun again where it stumbles, twice at most.

        Raises:
            Exception: what it stumbled over last; all is killed by then.
        """
        left = _TRIES
        while True:
            try:
                return self.run()
            except Exception as error:
                tell(f"the guard stumbled: {type(error).__name__}: {error}")
                left -= 1
                if not left:
                    self.end("its guard stumbled")
                    raise
                self.kill()

    def pause(self) -> None:
        """One tick: keep what runs beside, and collect who has ended."""
        if self._beside is not None:
            self._beside.tend()
        self._reap()
        time.sleep(_TICK_S)

    def end(self, reason: str) -> None:
        """Kill all that belongs to the pod but this process, and note that it was done."""
        self.kill()
        self._forget_given(self._pod_name)
        record = {"at": time.time(), "reason": reason}
        # A full disk must not keep the pod alive; its end shows by its absence too.
        with contextlib.suppress(OSError):
            write_atomic(self._pod_dir / contract.ENDED_NAME, json.dumps(record))

    def kill(self) -> None:
        """SIGKILL to all that belongs to the pod but this process."""
        keep = processes.lineage()
        # One that hangs in a driver cannot be killed; the pod must end all the same.
        give_up_at = time.monotonic() + _KILL_FOR_S
        while processes.kill_pod(self._pod_name, excluding=keep):
            self._reap()
            if time.monotonic() > give_up_at:
                break
            time.sleep(0.02)

    def _forget_given(self, ended: str = "") -> None:
        """Delete values that were given to a command's pod, once that has ended or is past its hard
        stop: a network volume outlives pods whose watchdog could not."""
        for path in self._root.glob(f"{contract.PODS_DIR}/*/{GIVEN_NAME}"):
            name = contract.parse_pod_name(path.parent.name)
            past = name is not None and name.hard_stop_at < time.time()
            if past or path.parent.name == ended:
                with contextlib.suppress(OSError):
                    path.unlink()

    def _look(self) -> str:
        agent = self._agent
        runs = agent is not None and agent.poll() is None
        return self.mind.look(
            processes.clocks_here(),
            self._lease(),
            agent_runs=runs,
            agent_done=agent is not None and agent.poll() == 0,
            told=bool(self._told),
            result=None if runs else self._result(),
        )

    def _start_agent(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "trmcloud.pod.agent.process"),
                *("--root", str(self._root), "--pod", self._pod_name),
            ],
            stdin=subprocess.DEVNULL,
            env=self._environment,
        )

    def _reap(self) -> None:
        """Collect inherited children that ended; our own children's status stays with them."""
        own = {
            child.pid: child
            for child in (self._agent, self._beside.child if self._beside else None)
            if child is not None
        }
        while True:
            try:
                info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if info is None:
                return
            if info.si_pid in own:
                own[info.si_pid].poll()
                continue
            with contextlib.suppress(ChildProcessError):
                os.waitpid(info.si_pid, os.WNOHANG)

    def _lease(self) -> contract.Lease | None:
        lease = load_small(self._pod_dir / contract.LEASE_NAME, contract.load_lease)
        return lease if lease is not None else self._granted

    def _result(self) -> str | None:
        report = load_small(self._pod_dir / contract.REPORT_NAME, contract.load_report)
        return report.result if report is not None else None


def main() -> None:
    parser = argparse.ArgumentParser(prog="watchdog", description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--pod", required=True)
    arguments = parser.parse_args()
    processes.bear_limit(arguments.pod)
    Watch(arguments.root, arguments.pod, listen()).run()


if __name__ == "__main__":
    main()
