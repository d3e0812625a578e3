"""Holds together the processes of a pod that has no namespaces: whatever its command starts stays
below this process, daemons too, and ends with the command, with a SIGTERM, or with the stand-in."""

import contextlib
import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def below(pid: int) -> set[int]:
    """All live descendants."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as stat:
            state, parent = stat.read().rpartition(")")[2].split()[:2]
            if state not in "ZX":
                parents[int(name)] = int(parent)
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def kill_all() -> None:
    while pids := below(os.getpid()):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def ended(number: int, frame: object) -> None:
    kill_all()
    os._exit(128 + number)


def main() -> None:
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.signal(signal.SIGTERM, ended)
    command = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ, setsid=True)
    while True:
        pid, status = os.wait()
        if pid == command:
            break
    kill_all()
    sys.exit(os.waitstatus_to_exitcode(status) & 0xFF)


main()
