"""The guardian: the pod's first process, and the last one to die.

It starts the agent, starts it again when it dies without a result, inherits whatever loses its
parent, and at the hard stop kills everything by itself. On this machine it *is* the pod; on a
rented one it is the entry command, so that "the command exited, the container restarts, billing
goes on" cannot happen.

    python -m trmcloud.pod.guardian --root /workspace/trmcloud --pod NAME
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
from pathlib import Path

from trmcloud.core import pod_contract as contract
from trmcloud.core.clock import Instant
from trmcloud.pod import processes
from trmcloud.pod.files import read_small, write_atomic
from trmcloud.pod.mind import GuardMind

_TICK_S = 0.25


def watch(root: Path, pod_name: str) -> None:
    """Guard the pod until its work is done, its hard stop comes, or it is told to end."""
    pod_dir = root / contract.PODS_DIR / pod_name
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda signum, frame: told.append(signum))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    processes.adopt_orphans()
    mind = GuardMind()
    agent: subprocess.Popen[bytes] | None = None
    while True:
        runs = agent is not None and agent.poll() is None
        act = mind.look(
            _now(),
            _lease(pod_dir),
            agent_runs=runs,
            agent_done=agent is not None and agent.poll() == 0,
            told=bool(told),
            result=None if runs else _result(pod_dir),
        )
        if act == GuardMind.END:
            return _end(pod_dir, pod_name, mind.why)
        if act == GuardMind.START:
            agent = _start_agent(root, pod_name)
        _reap(agent)
        time.sleep(_TICK_S)


def _start_agent(root: Path, pod_name: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "trmcloud.pod.agent", "--root", str(root), "--pod", pod_name],
        stdin=subprocess.DEVNULL,
    )


def _end(pod_dir: Path, pod_name: str, reason: str) -> None:
    keep = frozenset({os.getpid()})
    while processes.kill_pod(pod_name, excluding=keep):
        _reap(None)
        time.sleep(0.02)
    record = {"at": time.time(), "reason": reason}
    # A full disk must not keep the pod alive; its end shows by its absence too.
    with contextlib.suppress(OSError):
        write_atomic(pod_dir / contract.ENDED_NAME, json.dumps(record))


def _reap(agent: subprocess.Popen[bytes] | None) -> None:
    """Collect inherited children that ended; the agent's own status stays with ``agent``."""
    while True:
        try:
            info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if info is None:
            return
        if agent is not None and info.si_pid == agent.pid:
            agent.poll()
            continue
        with contextlib.suppress(ChildProcessError):
            os.waitpid(info.si_pid, os.WNOHANG)


def _lease(pod_dir: Path) -> contract.Lease | None:
    with contextlib.suppress(ValueError):
        text = read_small(pod_dir / contract.LEASE_NAME)
        return contract.load_lease(text) if text is not None else None
    return None


def _result(pod_dir: Path) -> str | None:
    with contextlib.suppress(ValueError):
        text = read_small(pod_dir / contract.REPORT_NAME)
        return contract.load_report(text).result if text is not None else None
    return None


def _now() -> Instant:
    return processes.read_clocks(time.time, lambda: time.clock_gettime(time.CLOCK_BOOTTIME))


def main() -> None:
    parser = argparse.ArgumentParser(prog="trmcloud.pod.guardian", description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--pod", required=True)
    arguments = parser.parse_args()
    watch(arguments.root, arguments.pod)


if __name__ == "__main__":
    main()
