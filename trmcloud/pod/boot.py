"""The entry command of a rented container: lays out what the agent needs, guards it, ends the pod.

    python3 -m trmcloud.pod.boot

All it is told stands in the environment. It never exits: a container whose command has ended is
started again by its provider, and billed. Whatever it cannot make sense of, it ends the pod.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import os
import re
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.trainer_contract import PhaseJob, load_job
from trmcloud.core.values import Value
from trmcloud.io.files import load_small, write_atomic
from trmcloud.pod.agent.boot_messages import BootMessages
from trmcloud.pod.agent.nodes import (
    ALONE,
    HEAD_LOOK_EVERY_S,
    HEAD_LOST_S,
    HeadWatch,
    Nodes,
    head_answers,
    lease_of_other,
    parse_nodes,
    write_nodes,
)
from trmcloud.pod.agent.terminate import TERMINATION_NAME, SelfEnd, own_ways_of, ways_of
from trmcloud.pod.agent.watchdog import HARD_STOP, Watch, listen
from trmcloud.pod.machine import processes
from trmcloud.pod.machine.environment import agent_environment, for_trainers, pod_environment
from trmcloud.pod.machine.hardware import load_check
from trmcloud.pod.machine.sshd import Sshd

_LINGER_S = 15.0
_SHOWN_S = 2.0
"""The lifetime of a pod that trains nothing: it shows which way of ending it works."""
_WRITE_TRIES = 3
_FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class BootInput(Value):
    """The provider's settings for this pod, parsed."""

    root: Path
    lease: contract.Lease
    jobs: tuple[PhaseJob, ...]
    check: str
    """JSON text of what is to be found here."""
    linger_s: float
    nodes: Nodes = ALONE

    @property
    def pod_dir(self) -> Path:
        return self.root / contract.PODS_DIR / self.lease.pod_name


def read_boot_input(environment: Mapping[str, str]) -> BootInput:
    """
    Raises:
        ValueError: something is missing, damaged, or not about this pod.
    """
    lease = contract.load_lease(_decoded(environment, contract.ENV_LEASE))
    nodes = parse_nodes(environment.get(contract.ENV_NODES, ""))
    name = environment.get(contract.ENV_POD, "")
    if contract.parse_pod_name(name) is None or lease.pod_name != name:
        raise ValueError(f"{contract.ENV_POD} {name!r} is not the pod of this lease")
    rows = json.loads(_decoded(environment, contract.ENV_JOBS))
    if not isinstance(rows, list):
        raise ValueError(f"{contract.ENV_JOBS} is no list")
    jobs = tuple(load_job(json.dumps(row)) for row in rows)
    for job in jobs:
        if job.run_id != lease.run_id:
            raise ValueError(f"{contract.ENV_JOBS} has a job of another run")
        for folder in (job.run_id, job.phase):
            if not _FOLDER_NAME.fullmatch(folder):
                raise ValueError(f"{folder!r} cannot be a folder's name")
    if missing := {phase.name for phase in lease.phases} - {job.phase for job in jobs}:
        raise ValueError(f"{contract.ENV_JOBS} lacks {', '.join(sorted(missing))}")
    if nodes.rank:
        lease = lease_of_other(lease, of_a_command=any(job.command for job in jobs))
    check = _decoded(environment, contract.ENV_CHECK) if contract.ENV_CHECK in environment else "{}"
    load_check(check)
    linger_s = float(environment.get(contract.ENV_LINGER_S, _LINGER_S))
    root = Path(environment.get(contract.ENV_ROOT, contract.POD_ROOT))
    if not root.is_absolute():
        raise ValueError(f"{contract.ENV_ROOT} {str(root)!r} is no absolute path")
    return BootInput(root, lease, jobs, check, max(0.0, min(linger_s, 1e6)), nodes)


def lay_out(given: BootInput) -> None:
    """Write lease, check and jobs; nothing that is newer, or the same, is written over.

    Raises:
        OSError: the disk refused.
    """
    given.pod_dir.mkdir(parents=True, exist_ok=True)
    there = load_small(given.pod_dir / contract.LEASE_NAME, contract.load_lease)
    if there is None or there.epoch <= given.lease.epoch:
        _put(given.pod_dir / contract.LEASE_NAME, contract.dump(given.lease))
    _put(given.pod_dir / contract.CHECK_NAME, given.check)
    write_nodes(given.pod_dir, given.nodes)
    for job in given.jobs:
        phase_dir = given.root / contract.RUNS_DIR / job.run_id / job.phase
        phase_dir.mkdir(parents=True, exist_ok=True)
        Path(job.out_dir).mkdir(parents=True, exist_ok=True)
        _put(phase_dir / contract.JOB_NAME, contract.dump(job))


class Pod:
    """A pod from its first process's side."""

    def __init__(self, environment: Mapping[str, str], told: list[int]) -> None:
        self._environment = environment
        self._told = told
        self._ways = ways_of(environment)
        self._watch: Watch | None = None
        self._notes: BootMessages | None = None
        self._pod_dir: Path | None = None
        self._shown_s = 0.0
        self._head_lost = False

    def run(self) -> None:
        """Guard the pod to its end, then end it; never returns."""
        try:
            why = self._guard()
        except Exception as error:
            why = f"its guard failed: {type(error).__name__}: {error}"
        _say(f"the pod ends: {why}")
        self._end(why)

    def _guard(self) -> str:
        try:
            given = read_boot_input(self._environment)
        except ValueError as error:
            self._note_below_root()
            return f"what it was started with is damaged: {error}"
        if failure := _laid_out(given):
            return f"nothing can be written below {given.root}: {failure}"
        self._pod_dir = given.pod_dir
        if given.nodes.rank:
            self._ways = own_ways_of(self._environment)
        self._shown_s = 0.0 if given.lease.phases else _SHOWN_S
        self._notes = BootMessages(given.pod_dir)
        self._watch = Watch(
            given.root,
            given.lease.pod_name,
            self._told,
            granted=given.lease,
            environment=agent_environment(self._environment, given.lease.pod_name),
            beside=self._sshd(given.pod_dir),
        )
        if (given.pod_dir / contract.ENDED_NAME).exists():
            return "it had ended before its container was started again"
        if given.nodes.rank:
            self._look_after_head(given)
        why = self._watch.run_on(_say)
        if given.nodes.rank and (self._head_lost or why == HARD_STOP):
            self._ways = own_ways_of(self._environment, whole=True)
        self._linger(given.linger_s)
        return "the first machine is lost" if self._head_lost else why

    def _look_after_head(self, given: BootInput) -> None:
        """Beside the guard: a machine that has done its part stays for the first one no longer than
        that is there. With it went who would have ended them all."""
        lost_after_s = float(self._environment.get(contract.ENV_HEAD_LOST_S, HEAD_LOST_S))
        watch = HeadWatch(
            lambda: head_answers(given.nodes), lambda: processes.clocks_here().boot, lost_after_s
        )

        def look() -> None:
            while not self._told:
                watch.look()
                if watch.is_lost and _has_result(given.pod_dir):
                    self._head_lost = True
                    self._told.append(0)
                time.sleep(min(HEAD_LOOK_EVERY_S, lost_after_s / 4))

        threading.Thread(target=look, name="head", daemon=True).start()

    def _note_below_root(self) -> None:
        """Leave an account of the pod's end where only its name can be trusted."""
        name = self._environment.get(contract.ENV_POD, "")
        root = Path(self._environment.get(contract.ENV_ROOT, contract.POD_ROOT))
        if contract.parse_pod_name(name) is not None and root.is_absolute():
            self._pod_dir = root / contract.PODS_DIR / name
            with contextlib.suppress(OSError):
                self._pod_dir.mkdir(parents=True, exist_ok=True)
            self._notes = BootMessages(self._pod_dir)

    def _linger(self, seconds: float) -> None:
        """Stay, idle, for the last report to be read; not past the hard stop, nor once told."""
        assert self._watch is not None
        until = processes.clocks_here().boot + seconds
        while not self._told:
            now = processes.clocks_here()
            left_s = self._watch.mind.seconds_left(now)
            if now.boot >= until or left_s is None or left_s <= 0:
                return
            self._watch.pause()

    def _sshd(self, pod_dir: Path) -> Sshd | None:
        def tell(text: str) -> None:
            _say(text)
            assert self._notes is not None
            self._notes.tell("ssh", text)

        try:
            port = int(self._environment.get(contract.ENV_SSH_PORT, contract.POD_SSH_PORT))
            host_key = _decoded(self._environment, contract.ENV_HOST_KEY)
            user_key = self._environment.get(contract.ENV_AUTHORIZED_KEY, "")
            listen = self._environment.get(contract.ENV_SSH_LISTEN, "")
            return Sshd(port, host_key, user_key, pod_dir / "sshd.log", tell, listen=listen)
        except ValueError as error:
            tell(f"no SSH: {error}")
            return None

    def _end(self, why: str) -> None:
        def tell(text: str) -> None:
            _say(text)
            if self._notes is not None:
                self._notes.tell("termination", text)
                self._notes.into_report()

        if self._watch is not None:
            self._watch.kill()
        record = self._pod_dir / TERMINATION_NAME if self._pod_dir is not None else None
        while True:
            with contextlib.suppress(Exception):
                chain = SelfEnd(
                    self._ways, record, why, sleep=self._sleep, tell=tell, shown_s=self._shown_s
                )
                chain.run()
            time.sleep(1.0)

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self._watch is not None:
                self._watch.pause()
            else:
                time.sleep(0.25)


def _laid_out(given: BootInput) -> str:
    """Lay out, patiently: a network volume may come up a moment later. Returns why it failed."""
    failure = ""
    for _ in range(_WRITE_TRIES):
        try:
            lay_out(given)
            return ""
        except OSError as error:
            failure = str(error)
            time.sleep(1.0)
    return failure


def _has_result(pod_dir: Path) -> bool:
    """Whether its agent has said how its part ended."""
    report = load_small(pod_dir / contract.REPORT_NAME, contract.load_report)
    return report is not None and report.result is not None


def _put(path: Path, text: str) -> None:
    if load_small(path, str) != text:
        write_atomic(path, text)


def _decoded(environment: Mapping[str, str], name: str) -> str:
    try:
        return base64.b64decode(environment[name], validate=True).decode("utf-8")
    except KeyError:
        raise ValueError(f"{name} is missing") from None
    except (binascii.Error, UnicodeDecodeError):
        raise ValueError(f"{name} is not base64 of text") from None


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        print(f"{time.time():.3f} boot: {text}", file=sys.stderr, flush=True)


def main() -> Any:
    told = listen()
    environment = pod_environment(os.environ)
    hidden = set(os.environ) - set(for_trainers(os.environ))
    for name in hidden:
        del os.environ[name]
    Pod(environment, told).run()


if __name__ == "__main__":
    main()
