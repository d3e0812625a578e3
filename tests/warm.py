"""Commands forked from a process that has imported the program already.

Most of what a short command costs is the import of its modules, and of a launch the packing of what
a pod is sent, the same each time; tests start some thousand of them. A ``Warm`` process is one of
its own (pid, signals, standard streams, folder, environment, exit status) and runs the same
``-m module`` from its first line; only the modules were read, and the sources packed, before it was
forked. What an interpreter takes from its environment as it starts cannot be had that way:
``can_warm`` says no to such environments, and ``TRMCLOUD_TEST_COLD=1`` to all.

    python -m tests.warm FD     what forks; FD: where it is asked
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import io
import json
import mmap
import os
import pkgutil
import runpy
import select
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
ENV_COLD = "TRMCLOUD_TEST_COLD"
ENV_CLOCK = "TEST_CLOCK"
"""A file with the seconds that a process is to add to its clocks."""

_KNOWN = frozenset(
    {
        *("PATH", "HOME", "LANG", "TMPDIR", "XDG_RUNTIME_DIR", "NO_COLOR", "OMP_NUM_THREADS"),
        *("TERM", ENV_CLOCK),
    }
)
_OURS = ("TRMCLOUD_", "RUNPOD_", "AWS_", "HF_", "HUGGING")
_LANG = "C.UTF-8"
_MESSAGE_BYTES = 1 << 17
_NOT_IMPORTED = (
    "trmcloud.__main__",
    # For a script of the user's, whose packages they need.
    "trmcloud.pod.job.trmcloud_job_transformers",
    "trmcloud.pod.job.trmcloud_job_lightning",
)
_LIBRARIES = (
    "boto3",
    "httpcore2",
    "rich.console",
    "rich.live",
    "rich.progress",
    "rich.table",
    "typer.rich_utils",
)
_RENT = frozenset({"launch", "resume", "smoke"})
_KEYS = frozenset({"RUNPOD_API_KEY", "TRMCLOUD_SKY"})
_TRAINERS = (None, str(ROOT / "tests" / "standins" / "trainer"))
"""By their variable: those that no test changes."""
_STATUS = struct.Struct("i")


def can_warm(arguments: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether ``python …arguments`` would be the same as a fork."""
    *site, root = env.get("PYTHONPATH", "").split(os.pathsep)
    return (
        len(arguments) >= 2
        and arguments[0] == "-m"
        and not os.environ.get(ENV_COLD)
        and root == str(ROOT)
        and len(site) == (ENV_CLOCK in env)  # the folder of what moves the clocks, and no other
        and env.get("LANG") == _LANG
        and all(n in _KNOWN or n == "PYTHONPATH" or n.startswith(_OURS) for n in env)
    )


class Warm(subprocess.Popen[str]):
    """``python -m module …``, as ``subprocess.Popen`` would have it."""

    def _execute_child(self, args: Any, *given: Any) -> None:
        cwd, env, ends = given[4], given[5], given[9:15]
        child_ends = [end for end in (ends[0], ends[3], ends[5]) if end != -1]
        assert len(child_ends) == 3, "a warm process needs all three streams"
        self._ended, told = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._heeding = threading.Lock()
        asked = {"argv": args[1:], "cwd": str(cwd), "env": dict(env), "session": given[20]}
        with told:
            _Forker.one().ask(asked, [*child_ends, told.fileno()])
        self.pid = _STATUS.unpack(_exactly(self._ended, _STATUS.size))[0]
        self._child_created = True
        self._close_pipe_fds(*ends)  # type: ignore[attr-defined]

    def _internal_poll(self, *_deadstate: Any, **_named: Any) -> int | None:
        return self._heed(0.0)

    def _wait(self, timeout: float | None) -> int:
        code = self._heed(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def _heed(self, timeout: float | None) -> int | None:
        """The exit code, if it comes within ``timeout`` seconds (None: whenever it comes)."""
        if self.returncode is None and select.select([self._ended], [], [], timeout)[0]:
            with self._heeding:
                if self.returncode is None:
                    status = _STATUS.unpack(_exactly(self._ended, _STATUS.size))[0]
                    self.returncode = os.waitstatus_to_exitcode(status)
                    self._ended.close()
        return self.returncode


class _Forker:
    """The process that forks for this one; it leaves when this one does."""

    _made: _Forker | None = None
    _making = threading.Lock()

    def __init__(self) -> None:
        self._asks, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._asks.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MESSAGE_BYTES)
        self._owner = os.getpid()
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.warm", str(other.fileno())],
                cwd=ROOT,
                env={"PATH": os.environ["PATH"], "LANG": _LANG, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
            )

    @classmethod
    def one(cls) -> _Forker:
        with cls._making:
            if cls._made is None or cls._made._owner != os.getpid():
                cls._made = cls()
            return cls._made

    def ask(self, asked: Mapping[str, Any], files: Sequence[int]) -> None:
        message = json.dumps(asked).encode("utf-8", "surrogateescape")
        assert len(message) < _MESSAGE_BYTES
        socket.send_fds(self._asks, [message], files)


def _exactly(stream: socket.socket, wanted: int) -> bytes:
    data = b""
    while len(data) < wanted:
        more = stream.recv(wanted - len(data))
        assert more, "the process that forks has ended"
        data += more
    return data


# -- the process that forks -------------------------------------------------------------------

_page: mmap.mmap | None = None


def _move_clocks() -> None:
    """Before anything keeps a clock of its own."""
    real, real_clock, boot = time.time, time.clock_gettime, time.CLOCK_BOOTTIME

    def added() -> float:
        return float(struct.unpack_from("d", _page)[0]) if _page is not None else 0.0

    time.time = lambda: real() + added()
    time.clock_gettime = lambda clock: real_clock(clock) + (added() if clock == boot else 0.0)


def _import_everything() -> None:
    import trmcloud

    for module in pkgutil.walk_packages(trmcloud.__path__, "trmcloud."):
        if module.name not in _NOT_IMPORTED:
            importlib.import_module(module.name)
    for name in _LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _pack(asked: Mapping[str, Any]) -> None:
    """What this command will send, if it rents; kept for all that come after it."""
    env, own = asked["env"], asked["env"].get("TRMCLOUD_TRAINER")
    if _RENT.isdisjoint(asked["argv"]) or _KEYS.isdisjoint(env) or own not in _TRAINERS:
        return
    from trmcloud.operations.home import bundle_root
    from trmcloud.providers.runpod.create import boot_payload

    boot_payload((Path(own) if own else bundle_root()) / "model")


def _become(asked: Mapping[str, Any], files: Sequence[int]) -> None:
    """In the child: streams, folder, environment and arguments are those of the command."""
    global _page
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.closerange(3, 1 << 16)
    if asked["session"]:
        os.setsid()
        if os.isatty(0):
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    env = asked["env"]
    os.environ.clear()
    os.environ.update(env)
    os.chdir(asked["cwd"])
    if ENV_CLOCK in env:
        with open(env[ENV_CLOCK], "rb") as clock:
            _page = mmap.mmap(clock.fileno(), 8, access=mmap.ACCESS_READ)
    sys.path[0] = asked["cwd"]
    sys.orig_argv = [sys.executable, *asked["argv"]]
    sys.argv = asked["argv"][1:]
    modes = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))
    for number, (name, mode) in enumerate(modes):
        old = getattr(sys, name)
        raw = open(number, f"{mode}b", closefd=False)  # noqa: SIM115
        new = io.TextIOWrapper(
            raw, old.encoding, old.errors, newline=None if mode == "r" else "\n",
            line_buffering=number == 2 or raw.isatty(),
        )  # fmt: skip
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def _fork_until_left(asks: socket.socket) -> Mapping[str, Any] | None:
    """What the child is to run, in the child; None in the parent, once nobody asks any more."""
    poll = select.poll()
    poll.register(asks, select.POLLIN)
    running: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for file, _event in poll.poll():
            if file != asks.fileno():
                pid, told = running.pop(file)
                poll.unregister(file)
                os.close(file)
                _, status = os.waitpid(pid, 0)
                with told, contextlib.suppress(OSError):  # nobody may be left who wants to know
                    told.sendall(_STATUS.pack(status))
                continue
            message, files, _, _ = socket.recv_fds(asks, _MESSAGE_BYTES, 4)
            if not message:
                return None
            asked = json.loads(message.decode("utf-8", "surrogateescape"))
            _pack(asked)
            pid = os.fork()
            if pid == 0:
                for _, told in running.values():
                    told.detach()
                asks.detach()
                _become(asked, files[:3])
                return dict(asked)
            for file in files[:3]:
                os.close(file)
            told = socket.socket(fileno=files[3])
            told.sendall(_STATUS.pack(pid))
            handle = os.pidfd_open(pid)
            running[handle] = pid, told
            poll.register(handle, select.POLLIN)


def main() -> None:
    asks = socket.socket(fileno=int(sys.argv[1]))
    _move_clocks()
    _import_everything()
    try:
        gc.freeze()
        asked = _fork_until_left(asks)
    except KeyboardInterrupt:  # meant for the tests, which are about to leave
        return
    if asked is not None:
        _run(asked["argv"][1])


def _run(module: str) -> NoReturn:
    """Leave as an interpreter does, but for freeing each object, which would copy every page that
    is shared with the process that forked."""
    code: Any = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as left:
        code = left.code
        if code is not None and not isinstance(code, int):
            raise
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # an interpreter says so, with a code of its own
        sys.exit(code)
    os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    main()
