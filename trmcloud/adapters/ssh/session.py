"""One ``ssh`` process: bytes in, bytes out, never more than was asked for, never for ever.

What it prints comes from a machine somebody else owns. Its errors are turned into ours here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from trmcloud.core.errors import ConnectionDropped, HostKeyChanged, LinkError, LoginRefused
from trmcloud.core.text import strip_control

_READ_BYTES = 1 << 16
_KEPT_STDERR_BYTES = 1 << 13
_END_WAIT_S = 2.0
_PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031
SSH_FAILED = 255
"""ssh's own exit code where the connection, and not the command, went wrong."""


class Session:
    """A running ``ssh``; closing it ends it. ``where`` names the pod in errors."""

    def __init__(self, argv: Sequence[str], where: str) -> None:
        self._where = where
        try:
            # In a session of its own, since Ctrl-C is for us to handle: what was brought so far
            # is kept.
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=environment(),
                start_new_session=True,
            )
        except FileNotFoundError:
            raise no_ssh() from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.stdin = self._process.stdin
        self._stdout = self._process.stdout
        self._poll = select.poll()
        self._poll.register(self._stdout, select.POLLIN | select.POLLHUP)
        self._widen()
        # From the pipe to the file within the kernel, where it can.
        self._splice: Callable[..., int] | None = getattr(os, "splice", None)
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._stderr = bytearray()
        self._drain = threading.Thread(target=self._keep_stderr, daemon=True)
        self._drain.start()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read_into(self, view: memoryview, idle_s: float) -> int:
        """Bytes read, 0 at the end.

        Raises:
            Dropped: nothing came for ``idle_s`` seconds.
        """
        if not self._poll.poll(idle_s * 1000):
            raise ConnectionDropped(f"no data came for {idle_s:.0f} s", where=self._where)
        return self._stdout.readinto(view) or 0  # type: ignore[attr-defined]

    def read_to_file(self, handle: int, at: int, most: int, idle_s: float) -> int:
        """At most ``most`` bytes, written to an open file at ``at``; how many, 0 at the end.

        Raises:
            Dropped: nothing came for ``idle_s`` seconds. OSError: the file cannot be written.
        """
        if self._splice is None:
            count = self.read_into(self._buffer[: min(most, len(self._buffer))], idle_s)
            written = 0
            while written < count:
                written += os.pwrite(handle, self._buffer[written:count], at + written)
            return count
        if not self._poll.poll(idle_s * 1000):
            raise ConnectionDropped(f"no data came for {idle_s:.0f} s", where=self._where)
        try:
            return self._splice(self._stdout.fileno(), handle, most, offset_dst=at)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._splice = None  # not every file system takes it
            return self.read_to_file(handle, at, most, idle_s)

    def read_all(self, max_bytes: int, deadline: float) -> bytes:
        """Everything until the end.

        Raises:
            Dropped: ``deadline`` (monotonic) came first. LinkError: more than ``max_bytes`` came.
        """
        content = bytearray()
        buffer = memoryview(bytearray(_READ_BYTES))
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise ConnectionDropped("the pod did not answer in time", where=self._where)
            with contextlib.suppress(ConnectionDropped):
                count = self.read_into(buffer, left)
                if count == 0:
                    return bytes(content)
                content += buffer[:count]
                if len(content) > max_bytes:
                    raise LinkError(
                        f"the pod answered with more than {max_bytes} bytes", where=self._where
                    )

    def feed(self, content: bytes) -> None:
        """Write ``content`` and close, beside whatever is read meanwhile."""

        def write() -> None:
            with contextlib.suppress(OSError, ValueError):
                view = memoryview(content)
                while view:
                    view = view[self.stdin.write(view) :]
            with contextlib.suppress(OSError):
                self.stdin.close()

        if len(content) < select.PIPE_BUF:
            write()
        else:
            threading.Thread(target=write, daemon=True).start()

    def end(self, deadline: float) -> int:
        """The command's exit code once it has ended.

        Raises:
            LinkError: the connection failed; ``ConnectionDropped`` where trying again may help.
        """
        code = self.wait(deadline - time.monotonic())
        if code == SSH_FAILED or code < 0:
            raise explain(self.stderr_text(), self._where)
        return code

    def wait(self, seconds: float) -> int:
        """The process's own exit code, whatever it means."""
        try:
            return self._process.wait(max(0.1, seconds))
        except subprocess.TimeoutExpired:
            raise ConnectionDropped("the pod did not answer in time", where=self._where) from None

    def stderr_text(self) -> str:
        """The end of what came on stderr, fit for a terminal."""
        self._drain.join(_END_WAIT_S)
        return strip_control(self._stderr.decode("utf-8", "replace")).strip()

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def interrupt(self) -> None:
        """From another thread: a reader comes to the end."""
        with contextlib.suppress(OSError):
            self._process.terminate()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.stdin.close()
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_END_WAIT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._drain.join(_END_WAIT_S)
        self._stdout.close()

    def _keep_stderr(self) -> None:
        stream = self._process.stderr
        assert stream is not None
        with stream:
            while chunk := stream.read(_READ_BYTES):
                self._stderr += chunk
                del self._stderr[:-_KEPT_STDERR_BYTES]

    def _widen(self) -> None:
        """Fewer turns between ssh and us; only Linux lets a pipe be sized."""
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            fcntl.fcntl(self._stdout.fileno(), _F_SETPIPE_SZ, _PIPE_BYTES)


_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)


def environment() -> Mapping[str, str]:
    """The user's, in plain English and without secrets: a ``SendEnv`` in the user's configuration
    would hand them to the pod."""
    kept = {name: value for name, value in os.environ.items() if not _SECRET.search(name)}
    return {**kept, "LC_ALL": "C"}


_CHANGED = (
    "IDENTIFICATION HAS CHANGED",
    "Host key verification failed",
    "no matching host key type",
    "host key is known for",
)
_NOT_FROM_HERE = re.compile(
    r"connect to (?:host|address) .*: (?:Permission denied|Operation not permitted)"
)
"""Said of a connection that this machine itself forbids; of a login it is said without the host."""
_OWN_CONFIGURATION = ("Bad configuration option", "Bad owner or permissions", "bad configuration")
_REFUSED_LOGIN = ("Permission denied", "Too many authentication failures")
_LET_OUT = "allow SSH to that address (firewall, VPN, proxy), or set a ProxyJump in ~/.ssh/config"
NOTHING_ANSWERS = "no connection to its address: a firewall may block it"
_CUT_OFF = "the connection is closed before an SSH server answers"
_REASONS = (
    (
        "Connection refused",
        "it refuses connections: its SSH server is not up, or a firewall blocks it",
    ),
    ("Connection timed out", NOTHING_ANSWERS),
    ("Operation timed out", NOTHING_ANSWERS),
    ("No route to host", "there is no route to the pod"),
    ("Network is unreachable", "the network is not reachable from here"),
    ("Could not resolve", "its address cannot be resolved"),
    ("kex_exchange_identification", _CUT_OFF),
    (r"connect to host .*: Connection reset", _CUT_OFF),
    ("banner", _CUT_OFF),
)
INSTALL_SSH = "install OpenSSH's client (Debian: apt install openssh-client)"


def no_ssh() -> LinkError:
    return LinkError("there is no ssh on this machine", next_step=INSTALL_SSH)


def nothing_answers(where: str) -> ConnectionDropped:
    """For a caller that gave up before ssh itself did."""
    return ConnectionDropped(NOTHING_ANSWERS, where=where, next_step=_LET_OUT)


def explain(said: str, where: str) -> LinkError:
    """Explain ssh's last words to the user."""
    if any(sign in said for sign in _CHANGED):
        return HostKeyChanged(
            "another machine answers at the pod's address: its host key is not the pod's; nothing "
            "was sent to it",
            where=where,
            next_step="trmcloud stop RUN, then check the provider's console",
        )
    words = [line for line in said.splitlines() if not line.startswith("Warning: ")]
    last = words[-1][:200] if words else ""
    if _NOT_FROM_HERE.search(said):
        what = "this machine blocks outgoing SSH: a firewall or a sandbox"
        return ConnectionDropped(what, where=where, next_step=_LET_OUT)
    if any(sign in said for sign in _OWN_CONFIGURATION):
        return LinkError(f"ssh rejects its configuration: {last}", next_step="trmcloud doctor")
    if any(sign in said for sign in _REFUSED_LOGIN):
        return LoginRefused(
            "the pod does not accept this home's key",
            where=where,
            next_step="use the TRMCLOUD_HOME that launched the run",
        )
    for sign, meaning in _REASONS:
        if re.search(sign, said):
            return ConnectionDropped(meaning, where=where, next_step=_LET_OUT)
    if not words:
        # OpenSSH 9 says nothing of a reset that comes before it looks whom it is connected to.
        what = "the connection was closed: ssh gave no reason"
        return ConnectionDropped(what, where=where, next_step=_LET_OUT)
    return ConnectionDropped(f"the connection was lost: {last}", where=where)
