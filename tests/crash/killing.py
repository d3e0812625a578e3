"""``kill -9`` at a chosen instant: at a random moment, or at a process's n-th write.

A process under ``ptrace`` stops at every system call. Killed as it enters its n-th call that
changes anything on the disk, it leaves exactly what the calls before had made; all n together are
every state that a kill between two calls can leave.
"""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import signal
import time
from collections.abc import Callable

_TRACEME, _SYSCALL, _SETOPTIONS, _GET_SYSCALL_INFO = 0, 24, 0x4200, 0x420E
_OPTIONS = 0x1 | 0x100000  # mark stops at system calls; kill the child should we die first
_SYSCALL_STOP = signal.SIGTRAP | 0x80
_ENTRY = 1
_O_CREAT, _O_TRUNC = 0o100, 0o1000

#: Calls that change files, by machine: number → which argument holds open's flags (None: none).
_WRITES: dict[str, dict[int, int | None]] = {
    "x86_64": {
        **dict.fromkeys((1, 18, 20, 74, 75, 76, 77, 82, 83, 84, 86, 87, 88), None),
        **dict.fromkeys((258, 263, 264, 265, 266, 285, 296, 316, 328), None),
        **{2: 1, 257: 2},
    },
    "aarch64": {
        **dict.fromkeys((34, 35, 36, 37, 38, 45, 46, 47, 64, 66, 68, 70, 82, 83, 276, 287), None),
        **{56: 2},
    },
}


class _SyscallInfo(ctypes.Structure):
    _fields_ = [
        ("op", ctypes.c_uint8),
        ("pad", ctypes.c_uint8 * 3),
        ("arch", ctypes.c_uint32),
        ("instruction_pointer", ctypes.c_uint64),
        ("stack_pointer", ctypes.c_uint64),
        ("nr", ctypes.c_uint64),
        ("args", ctypes.c_uint64 * 6),
        ("more", ctypes.c_uint64 * 4),
    ]


_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]

Work = Callable[[Callable[[], None]], None]
"""What a child does; it is given a function that tells its parent: one more is done."""


class Child:
    """A forked process at work; ``acknowledged`` is known once it has been reaped."""

    def __init__(self, work: Work, *, traced: bool = False) -> None:
        read_end, write_end = os.pipe()
        gc.collect()
        gc.freeze()
        self._pipe = read_end
        self.pid = os.fork()
        self.acknowledged = 0
        if self.pid == 0:
            code = 99
            try:
                os.close(read_end)
                if traced:
                    _libc.ptrace(_TRACEME, 0, None, None)
                    os.kill(os.getpid(), signal.SIGSTOP)
                work(lambda: _tell(write_end))
                code = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(write_end)

    def wait_for_first(self) -> None:
        """Until it has acknowledged something, or ended."""
        self.acknowledged += len(os.read(self._pipe, 1))

    def kill(self) -> bool:
        """Whether the kill came before it had ended by itself."""
        os.kill(self.pid, signal.SIGKILL)
        return self.reap() == -signal.SIGKILL

    def kill_at_write(self, number: int) -> bool:
        """Kill it as it is about to change the disk for the ``number``-th time (from 1 on);
        whether that came before it had ended by itself."""
        if not _stopped_by(self.pid, signal.SIGSTOP):
            raise OSError("the child cannot be traced here")
        if _libc.ptrace(_SETOPTIONS, self.pid, None, _OPTIONS) != 0:
            raise OSError(ctypes.get_errno(), "the child cannot be traced here")
        info = _SyscallInfo()
        writes = 0
        while True:
            _libc.ptrace(_SYSCALL, self.pid, None, None)
            _, status = os.waitpid(self.pid, 0)
            if not os.WIFSTOPPED(status):
                self._drain()
                self._fail_unless(os.waitstatus_to_exitcode(status), 0)
                return False
            if os.WSTOPSIG(status) != _SYSCALL_STOP:
                continue
            size = ctypes.sizeof(info)
            _libc.ptrace(_GET_SYSCALL_INFO, self.pid, size, ctypes.byref(info))
            writes += info.op == _ENTRY and _changes_the_disk(info)
            if writes == number:
                return self.kill()

    def reap(self) -> int:
        while True:
            _, status = os.waitpid(self.pid, 0)
            if not os.WIFSTOPPED(status):
                break
        self._drain()
        code = os.waitstatus_to_exitcode(status)
        self._fail_unless(code, 0, -signal.SIGKILL)
        return code

    def _drain(self) -> None:
        while chunk := os.read(self._pipe, 65536):
            self.acknowledged += len(chunk)
        os.close(self._pipe)

    def _fail_unless(self, code: int, *expected: int) -> None:
        assert code in expected, f"the writer ended by itself with {code}"


def _tell(pipe: int) -> None:
    os.write(pipe, b".")


def can_trace() -> bool:
    """Whether this machine lets a process trace its own children."""
    if platform.machine() not in _WRITES:
        return False
    try:
        child = Child(lambda told: os.close(os.open("/dev/null", os.O_CREAT)), traced=True)
        return child.kill_at_write(1)
    except OSError:
        return False


def pause(seconds: float) -> None:
    """Sleep, also for less than the scheduler's grain."""
    until = time.perf_counter() + seconds
    if seconds > 0.002:
        time.sleep(seconds - 0.001)
    while time.perf_counter() < until:
        pass


def _stopped_by(pid: int, signum: int) -> bool:
    _, status = os.waitpid(pid, os.WUNTRACED)
    return os.WIFSTOPPED(status) and os.WSTOPSIG(status) == signum


def _changes_the_disk(info: _SyscallInfo) -> bool:
    table = _WRITES[platform.machine()]
    if info.nr not in table:
        return False
    flags_at = table[info.nr]
    return flags_at is None or bool(info.args[flags_at] & (_O_CREAT | _O_TRUNC))
