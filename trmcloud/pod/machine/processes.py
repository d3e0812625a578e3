"""Processes by identity, and commands that run beside the agent."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from trmcloud.core.clock import Instant
from trmcloud.core.contract.pod_contract import ENV_BESIDE, ENV_POD

# Processes by identity: a pid alone may belong to somebody else by now.
#
# A process is (pid, start time). All processes of a pod bear its name in their environment, so
# that they are found even after every parent between them and the watchdog has died. On this
# machine they bear a limit as well, which stays where the environment is emptied.

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_ESTABLISHED = "01"
_LOOPBACK = (
    *("0100007F:", "0000000000000000FFFF00000100007F:"),
    "00000000000000000000000001000000:",
)
"""As /proc/net writes 127.0.0.1, and ::1 last."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_NAMES_POD = f"{ENV_POD}=".encode()


def read_clocks(wall: Callable[[], float], boot: Callable[[], float]) -> Instant:
    """Both clocks of this machine in one reading."""
    return Instant(wall(), boot(), boot_id())


def clocks_here() -> Instant:
    """Both clocks, read now."""
    return read_clocks(time.time, lambda: time.clock_gettime(time.CLOCK_BOOTTIME))


@lru_cache(maxsize=1)
def boot_id() -> str:
    """Return the id of this boot of this machine (and this container)."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _stat(pid: int) -> list[str] | None:
    """The fields of ``/proc/PID/stat`` after the name: state, parent, …; None without a process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")  # a name may be any bytes
        return text.rpartition(")")[2].split()
    except OSError:
        return None


def cpu_s(pid: int) -> float | None:
    """Return the processor time of a process in seconds; None where there is none."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else None


def resident_bytes(pid: int) -> int:
    """Return the memory of a process that is resident; 0 where there is no such process."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0


def moved_bytes(pid: int) -> int:
    """Return the bytes that a process has read and written by calls of files and pipes; 0 where
    that is not known."""
    try:
        rows = Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines()
        return sum(int(row.split()[1]) for row in rows[:2])
    except (OSError, ValueError, IndexError):
        return 0


def is_connected(pids: Iterable[int]) -> bool:
    """Whether one of the processes has a TCP connection to another machine."""
    inodes: set[str] = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    inodes.add(os.readlink(entry.path))
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for row in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
                words = row.split()
                is_away = not words[2].startswith(_LOOPBACK)
                if words[3] == _ESTABLISHED and is_away and f"socket:[{words[9]}]" in inodes:
                    return True
    return False


def started(pid: int) -> str | None:
    """The start time of a live process in clock ticks since boot; None for a dead one."""
    stat = _stat(pid)
    return None if stat is None or stat[0] in ("Z", "X") else stat[19]


def stopped(pid: int) -> bool:
    """Whether the process is held by SIGSTOP, Ctrl-Z or a debugger: it lives, and does nothing."""
    stat = _stat(pid)
    return stat is not None and stat[0] in ("T", "t")


def alive(pid: int, started_ticks: str) -> bool:
    """Whether the process that had this pid and start time still runs."""
    return pid > 0 and started_ticks != "" and started(pid) == started_ticks


def send(pid: int, started_ticks: str, signum: int) -> bool:
    """Signal exactly that process; False where it is gone."""
    if not alive(pid, started_ticks):
        return False
    try:
        os.kill(pid, signum)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def of_pod(
    pod_name: str, *, excluding: frozenset[int] = frozenset(), beside: bool = True
) -> list[int]:
    """The pids of all live processes that belong to the pod; without ``beside``, of those that
    need not outlive its trainer."""
    mark = f"{ENV_POD}={pod_name}".encode()
    limit = f" {_limit(pod_name)} ".encode()
    spared = f"{ENV_BESIDE}=".encode()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) in excluding:
            continue
        try:
            environment = Path(f"/proc/{entry}/environ").read_bytes()
        except OSError:
            continue
        variables = environment.split(b"\0")
        if mark not in variables and (_NAMES_POD in environment or not _bears(entry, limit)):
            continue
        if started(int(entry)) is None:
            continue
        if beside or not any(variable.startswith(spared) for variable in variables):
            found.append(int(entry))
    return found


def bear_limit(pod_name: str) -> None:
    """Give this process, and so its descendants, a limit that tells their pod and limits nothing:
    the CPU time of a real-time process, 73,000 years of it. ``env -i`` and ``setsid`` keep it."""
    value = _limit(pod_name)
    with contextlib.suppress(OSError, ValueError, AttributeError):
        resource.setrlimit(resource.RLIMIT_RTTIME, (value, value))


def _limit(pod_name: str) -> int:
    return 1 << 61 | int(hashlib.sha256(pod_name.encode()).hexdigest()[:12], 16)


def _bears(pid: str, limit: bytes) -> bool:
    try:
        return limit in Path(f"/proc/{pid}/limits").read_bytes()
    except OSError:
        return False


def kill_pod(pod_name: str, *, excluding: frozenset[int] = frozenset(), beside: bool = True) -> int:
    """SIGKILL to everything that belongs to the pod, ``of_pod`` says what; returns how many
    processes that was."""
    pids = of_pod(pod_name, excluding=excluding, beside=beside)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return len(pids)


def lineage() -> frozenset[int]:
    """This process and all its ancestors: a wrapper that started the pod bears its name too, and
    killing it would end the pod's first process with it."""
    pids = set()
    pid = os.getpid()
    while pid > 0 and pid not in pids:
        pids.add(pid)
        stat = _stat(pid)
        pid = int(stat[1]) if stat is not None else 0
    return frozenset(pids)


def die_with_parent() -> None:
    """For a child's ``preexec_fn``: SIGTERM to it when the process that started it dies."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)


def adopt_orphans() -> bool:
    """Let this process inherit its descendants whose parents die, as a container's pid 1 does."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        return bool(libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


# A command that runs beside the agent: looked at, never waited for.

_MAX_OUTPUT = 65_536


class Command:
    """Started at once, in a session of its own; killed with its children at ``give_up_at``.

    What it prints goes to ``log`` where one is given, and is in ``output`` otherwise. Both are on
    the clock of ``poll``'s ``now``. One that cannot be started has ended with code 127.
    """

    def __init__(
        self,
        words: Sequence[str],
        give_up_at: float,
        log: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._give_up_at = give_up_at
        self._file = open(log, "ab") if log is not None else tempfile.TemporaryFile()  # noqa: SIM115
        self._log = log
        self._child: subprocess.Popen[bytes] | None = None
        self.timed_out = False
        try:
            self._child = subprocess.Popen(
                list(words),
                stdin=subprocess.DEVNULL,
                stdout=self._file,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            self._file.write(f"{words[0]}: {error.strerror}\n".encode())
            self._file.flush()

    def poll(self, now: float) -> int | None:
        """Its exit code, None while it runs."""
        if self._child is None:
            return 127
        code = self._child.poll()
        if code is None and now >= self._give_up_at:
            self.timed_out = True
            self.kill()
            code = self._child.poll()
            return code if code is not None else -int(signal.SIGKILL)
        return code

    def kill(self) -> None:
        if self._child is not None and self._child.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, signal.SIGKILL)

    def output(self) -> str:
        """Return its output, if not to a log; the beginning, where that is long."""
        if self._log is not None:
            return ""
        self._file.seek(0)
        return self._file.read(_MAX_OUTPUT).decode("utf-8", "replace")
