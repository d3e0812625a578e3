"""A Python that has what macOS has of the standard library, and none of Linux's own files.

Importing it takes away, in this process, the names that CPython has on Linux alone, answers
"darwin" for the platform, and makes every file below /proc and /sys missing. It stands in for a Mac
where there is none: what a Mac's own kernel does differently, it cannot show.

``python -m pytest -p tests.standins.not_linux tests/unit/core`` runs tests so.
"""

from __future__ import annotations

import os
import resource
import select
import selectors
import shutil
import signal
import socket
import sys
import sysconfig
import tempfile
import time
import types
from contextlib import suppress
from typing import Any

LINUX_ONLY: dict[Any, tuple[str, ...]] = {
    os: (
        "sched_getaffinity", "sched_setaffinity", "sched_getparam", "sched_setscheduler",
        "posix_fadvise", "posix_fallocate", "memfd_create", "pidfd_open", "eventfd",
        "copy_file_range", "splice", "getrandom", "setns", "unshare", "getxattr", "setxattr",
        "listxattr", "removexattr", "O_TMPFILE", "O_PATH", "O_NOATIME", "O_DIRECT", "GRND_NONBLOCK",
        "preadv2", "getresuid", "setresuid", "POSIX_FADV_DONTNEED", "POSIX_FADV_SEQUENTIAL",
    ),
    time: ("CLOCK_BOOTTIME", "CLOCK_TAI", "pthread_getcpuclockid"),
    select: ("epoll", "EPOLLIN"),
    signal: ("SIGPWR", "SIGSTKFLT", "SIGRTMIN", "SIGRTMAX", "sigtimedwait", "sigwaitinfo",
             "pidfd_send_signal", "SIGPOLL"),
    socket: ("AF_NETLINK", "AF_VSOCK", "AF_PACKET", "SO_BINDTODEVICE", "SOCK_CLOEXEC",
             "SOCK_NONBLOCK", "TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "SO_MARK"),
    resource: ("prlimit", "RLIMIT_MSGQUEUE", "RLIMIT_NICE", "RLIMIT_RTPRIO", "RLIMIT_SIGPENDING"),
}  # fmt: skip
LINUX_FILES = ("/proc", "/sys")
_MODULES = ("spwd", "ossaudiodev")


def leave_linux() -> None:
    """Take Linux away from this process; it does not come back."""
    for module, names in LINUX_ONLY.items():
        for name in names:
            with suppress(AttributeError):
                delattr(module, name)
    for name in _MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    # Of macOS alone, and asked by urllib for its proxies.
    proxies = types.ModuleType("_scproxy")
    proxies._get_proxy_settings = lambda: {}  # type: ignore[attr-defined]
    proxies._get_proxies = lambda: {}  # type: ignore[attr-defined]
    sys.modules["_scproxy"] = proxies
    # What they found at their import, which may have been before.
    tempfile._O_TMPFILE_WORKS = False  # type: ignore[attr-defined]
    shutil._copyxattr = lambda *_, **__: None  # type: ignore[attr-defined]
    selectors.DefaultSelector = selectors.PollSelector  # type: ignore[assignment,misc]
    sysconfig.get_config_vars()  # read from a file that is named by the platform
    sys.platform = "darwin"
    sys.addaudithook(_without_files)
    _without_stat()


def _is_linux_file(path: object) -> bool:
    if not isinstance(path, (str, bytes, os.PathLike)):
        return False
    text = os.fsdecode(path)
    return any(text == each or text.startswith(f"{each}/") for each in LINUX_FILES)


def _without_files(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir") and arguments and _is_linux_file(arguments[0]):
        raise FileNotFoundError(2, "No such file or directory", str(arguments[0]))


def _without_stat() -> None:
    """``stat`` raises no audit event."""
    real_stat, real_readlink, real_lstat = os.stat, os.readlink, os.lstat

    def missing(real: Any) -> Any:
        def asked(path: Any, *more: Any, **named: Any) -> Any:
            if _is_linux_file(path):
                raise FileNotFoundError(2, "No such file or directory", str(path))
            return real(path, *more, **named)

        return asked

    os.stat, os.readlink, os.lstat = map(missing, (real_stat, real_readlink, real_lstat))


leave_linux()
