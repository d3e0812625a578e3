"""Run a command with a time limit, and end every process that it leaves behind.

    python -IS keeper.py SECONDS REPORT COMMAND…

Orphans below it become its children. REPORT gets the exit status, the seconds of real and of CPU
time, and whether the limit was exceeded, as JSON. It imports nothing of this repository.
"""

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import sys
import time

_PR_SET_CHILD_SUBREAPER = 36
_MOST_BYTES = 2 << 30
"""Of memory of a process, and of a file: one that reads an endless file does not harm others."""


def main() -> None:
    most_s, report, command = float(sys.argv[1]), sys.argv[2], sys.argv[3:]
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for limit in (resource.RLIMIT_DATA, resource.RLIMIT_FSIZE):
        resource.setrlimit(limit, (_MOST_BYTES, resource.getrlimit(limit)[1]))
    began = time.monotonic()
    child = os.posix_spawn(command[0], command, os.environ)
    handle = os.pidfd_open(child)
    is_over_time = not _ends_within(handle, most_s)
    if is_over_time:
        _end([pid for pid in _descendants() if pid != child])
        if not _ends_within(handle, 10.0):  # strace ends when all that it follows has
            os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    while left := _descendants():
        _end(left)
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.005)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    made = {
        "code": os.waitstatus_to_exitcode(status),
        "wall_s": time.monotonic() - began,
        "cpu_s": used.ru_utime + used.ru_stime,
        "is_over_time": is_over_time,
    }
    with open(report, "w") as file:
        json.dump(made, file)


def _ends_within(handle: int, seconds: float) -> bool:
    return bool(select.select([handle], [], [], seconds)[0])


def _end(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _descendants() -> list[int]:
    """Processes below this one, its own zombies too."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    found, todo = [], [os.getpid()]
    while todo:
        above = todo.pop()
        below = [pid for pid, parent in parents.items() if parent == above]
        found += below
        todo += below
    return found


if __name__ == "__main__":
    main()
