"""A command's processes: the one that was started, and whatever it started, in whichever session.

Orphans come to the process that waits for the command (it is a subreaper), so that a child that
left its group and its parents is found by walking up from it all the same.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from trmcloud.pod.machine import processes

_ROUND_S = 0.02


def offspring(root: int) -> dict[int, str]:
    """Every live descendant of the process ``root``: pid → start time."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                stat = _stat(entry)
                parents[int(entry)] = int(stat[stat.rindex(b")") + 2 :].split(None, 2)[1])
    found: dict[int, str] = {}
    for pid in parents:
        above, seen = pid, set()
        while above in parents and above not in seen and above != root:
            seen.add(above)
            above = parents[above]
        if above == root and pid != root and (started := processes.started(pid)) is not None:
            found[pid] = started
    return found


def newest() -> str | None:
    """The id of the process or thread that was started last on this machine, as this container
    counts them; None where its kernel does not tell."""
    try:
        with open("/proc/loadavg", encoding="ascii") as file:
            told = file.read().split()[-1]
    except (OSError, ValueError, IndexError):
        return None
    return told if told.isdigit() and told != "0" else None


def _stat(pid: str) -> bytes:
    """As cheaply as it can be read: once a second for every process of the machine."""
    handle = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    try:
        return os.read(handle, 2048)
    finally:
        os.close(handle)


def signal_all(root: int, signum: int) -> int:
    """Send ``signum`` to every descendant; returns to how many."""
    return sum(processes.send(pid, started, signum) for pid, started in offspring(root).items())


def kill_all(root: int, within_s: float) -> bool:
    """SIGKILL to every descendant until none is left, and collect them; False where some still
    live after ``within_s``, as one that hangs in a driver does."""
    give_up_at = time.monotonic() + within_s
    while True:
        left = offspring(root)
        for pid, started in left.items():
            processes.send(pid, started, signal.SIGKILL)
        reap()
        if not offspring(root):
            return True
        if time.monotonic() >= give_up_at:
            return False
        time.sleep(_ROUND_S)


def reap(own: int = -1) -> None:
    """Collect inherited children that ended; the process ``own`` stays with whoever waits for
    it."""
    while True:
        try:
            info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if info is None or info.si_pid == own:
            return
        with contextlib.suppress(ChildProcessError):
            os.waitpid(info.si_pid, os.WNOHANG)
