"""The user's own OpenSSH, pinned to one pod, over one multiplexed connection.

``~/.ssh/config`` is honoured where it says how to get there (ProxyJump, ProxyCommand, timeouts);
what decides whom we trust, which key logs in and what is forwarded is said on the command line,
where OpenSSH lets it win.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from trmcloud.adapters.ssh.session import Session, environment, explain, no_ssh, nothing_answers
from trmcloud.core.errors import ConnectionDropped, LinkError
from trmcloud.core.text import strip_control
from trmcloud.core.values import Value

CONNECT_TIMEOUT_S = 10
_ALIVE_EVERY_S = 5
_ALIVE_MISSED = 3
_PERSIST_S = 60
_MAX_ANSWER_BYTES = 1 << 20
_CONTROL_TIMEOUT_S = 5.0
#: A unix socket's path has at most 104 bytes on some systems, and ssh first makes it with a
#: suffix of 17.
_MAX_SOCKET_PATH = 104 - 17 - 1
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,252}|[0-9a-fA-F:]{2,45}")


class CommandOutput(Value):
    """The output of a command on the pod, and its exit code. ``said`` is the end of its stderr."""

    code: int
    out: bytes
    said: str


class SshConnection:
    """Runs commands on one pod. ``address`` is (host, port); ``alias`` is the name under which
    ``known_hosts`` pins the host's key, so that a new address keeps the pin."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        identity: Path,
        known_hosts: Path,
        alias: str,
        control_dir: Path,
        user: str = "root",
        proxy: str = "",
    ) -> None:
        """``proxy`` is ssh's ProxyCommand, where the address is one of another machine's; empty
        leaves it to the user's configuration."""
        host, port = address
        if not _HOST.fullmatch(host) or not 0 < port < 65536:
            raise LinkError(f"{host!r:.80}:{port} is not a valid address")
        self.where = f"{alias} at {host}:{port}"
        self._host, self._port, self._user = host, port, user
        self._proxy = proxy
        self._identity, self._known_hosts, self._alias = identity, known_hosts, alias
        way = f"{known_hosts}\n{user}@{host}:{port}\n{proxy}"
        named = hashlib.sha256(way.encode()).hexdigest()
        self._socket = control_dir / named[:12]

    # -- commands -----------------------------------------------------------------------------

    def run(
        self,
        command: str | Sequence[str],
        *,
        content: bytes = b"",
        timeout_s: float = 30.0,
        max_bytes: int = _MAX_ANSWER_BYTES,
        again: bool = True,
    ) -> CommandOutput:
        """Run a shell script (or a list of words) there, with ``content`` as its input.

        A connection that drops is made anew once, where ``again`` says that running the command
        twice does no harm. Where the second try runs out of time, the first one's error is raised:
        it is what ssh said, and not that we gave up.

        Raises:
            HostKeyChanged, LoginRefused: nothing was run. Dropped: it may have run, or not.
            LinkError: it answered with more than ``max_bytes``.
        """
        deadline = time.monotonic() + timeout_s
        try:
            return self._run_once(command, content, deadline, max_bytes)
        except ConnectionDropped as first:
            self.close()
            if not again or time.monotonic() >= deadline:
                raise
            try:
                return self._run_once(command, content, deadline, max_bytes)
            except ConnectionDropped:
                if time.monotonic() >= deadline:
                    raise first from None
                raise

    def open(self, command: str, *, own: bool = False, timeout_s: float = 30.0) -> Session:
        """A command whose bytes are read and written as they come; ``own`` gives it a connection
        that nothing else shares, so that its bulk delays no orders."""
        if not own:
            self.connect(timeout_s)
        # One word that any login shell hands to a plain ``sh`` unchanged.
        script = f"exec sh -c {shlex.quote(command)}"
        return Session(self._argv(own, "-T", "--", self._host, script), self.where)

    def login_command(self, command: Sequence[str] = (), *, terminal: bool) -> list[str]:
        """ssh as somebody at a terminal has it, on a connection of its own: what is typed waits
        behind no file, and may be left with ``~.``."""
        mode = {"EscapeChar": "~", "RequestTTY": "yes"} if terminal else {}
        words = [shlex.join(command)] if command else []
        return self._argv(True, "--", self._host, *words, instead=mode)

    # -- the connection itself ----------------------------------------------------------------

    def connect(self, timeout_s: float = 30.0) -> None:
        """Make the shared connection where there is none.

        Raises:
            HostKeyChanged, LoginRefused, Dropped: as ssh said.
        """
        if self._socket.exists():
            return
        deadline = time.monotonic() + timeout_s
        with self._alone(deadline):
            if not self._socket.exists():
                self._start_master(deadline)

    def control(self, verb: str, *options: str) -> CommandOutput:
        """``ssh -O VERB``: a word to the shared connection's own process."""
        try:
            words = ("-O", verb, *options, "--", self._host)
            done = _run(self._argv(False, *words, forwards=bool(options)), _CONTROL_TIMEOUT_S)
        except (subprocess.TimeoutExpired, FileNotFoundError) as error:
            raise ConnectionDropped(
                f"ssh -O {verb} did not end: {error}", where=self.where
            ) from None
        return CommandOutput(
            done.returncode, done.stdout, done.stderr.decode("utf-8", "replace").strip()
        )

    def misconfigured(self, timeout_s: float) -> str:
        """Return ssh's complaint about the options of a connection, or the user's own; "" if none.
        It connects to nothing."""
        try:
            done = _run(self._argv(True, "-G", "--", self._host), timeout_s)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"it cannot be run ({error})"
        if done.returncode == 0:
            return ""
        text = strip_control(done.stderr.decode("utf-8", "replace")).strip()
        return text.partition("\n")[0][:200] or f"it ends with {done.returncode}"

    def close(self) -> None:
        """End the shared connection, for all its users; the next command makes a new one."""
        if self._socket.exists():
            with contextlib.suppress(LinkError):
                self.control("exit")
            self._socket.unlink(missing_ok=True)

    def _run_once(
        self, command: str | Sequence[str], content: bytes, deadline: float, max_bytes: int
    ) -> CommandOutput:
        script = command if isinstance(command, str) else shlex.join(command)
        left = max(0.5, deadline - time.monotonic())
        with self.open(script, timeout_s=left) as session:
            session.feed(content)
            out = session.read_all(max_bytes, deadline)
            code = session.end(deadline)
            return CommandOutput(code, out, session.stderr_text())

    def _start_master(self, deadline: float) -> None:
        # Its errors go to a file: a pipe would stay open in the background for as long as it lives.
        with tempfile.TemporaryFile() as said:
            argv = self._argv(
                False,
                "-o",
                "ControlMaster=yes",
                "-o",
                f"ControlPersist={_PERSIST_S}",
                "-f",
                "-N",
                "-T",
                "--",
                self._host,
                master=True,
            )
            try:
                code = subprocess.run(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=said,
                    env=environment(),
                    timeout=max(0.5, deadline - time.monotonic()),
                ).returncode
            except subprocess.TimeoutExpired:
                raise nothing_answers(self.where) from None
            except FileNotFoundError:
                raise no_ssh() from None
            if code != 0:
                said.seek(0)
                text = said.read(1 << 16).decode("utf-8", "replace")
                raise explain(text.strip(), self.where)

    @contextlib.contextmanager
    def _alone(self, deadline: float) -> Iterator[None]:
        """Only one process makes the connection: a second master would stay behind, unused."""
        import fcntl

        lock = self._socket.with_suffix(".lock")
        with open(os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "wb") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        raise ConnectionDropped(
                            "the pod did not answer in time", where=self.where
                        ) from None
                    time.sleep(0.05)
            yield

    def _argv(
        self,
        own: bool,
        *rest: str,
        master: bool = False,
        forwards: bool = False,
        instead: Mapping[str, str] = MappingProxyType({}),
    ) -> list[str]:
        options = {
            # whom we trust
            "StrictHostKeyChecking": "yes",
            "UserKnownHostsFile": _quoted(self._known_hosts),
            "GlobalKnownHostsFile": "/dev/null",
            "KnownHostsCommand": "none",
            "HostKeyAlias": self._alias,
            "HostKeyAlgorithms": "ssh-ed25519",
            "CheckHostIP": "no",
            "VerifyHostKeyDNS": "no",
            "UpdateHostKeys": "no",
            # who we are
            "User": self._user,
            "IdentitiesOnly": "yes",
            "IdentityAgent": "none",
            "PreferredAuthentications": "publickey",
            "BatchMode": "yes",
            # what the pod gets to see and reach of this machine: nothing
            "ForwardAgent": "no",
            "ForwardX11": "no",
            "Tunnel": "no",
            "PermitLocalCommand": "no",
            "RemoteCommand": "none",
            "RequestTTY": "no",
            "EscapeChar": "none",
            "ClearAllForwardings": "no" if forwards else "yes",
            # when it counts as lost
            "ConnectTimeout": str(CONNECT_TIMEOUT_S),
            "ConnectionAttempts": "1",
            "ServerAliveInterval": str(_ALIVE_EVERY_S),
            "ServerAliveCountMax": str(_ALIVE_MISSED),
            "LogLevel": "ERROR",
            # weights do not compress, and this cipher is the quickest where processors have AES
            "Compression": "no",
            "Ciphers": "^aes128-gcm@openssh.com,aes256-gcm@openssh.com",
            "ControlPath": "none" if own else _quoted(self._socket),
        }
        if not master:
            options["ControlMaster"] = "no"
        if self._proxy:
            options["ProxyCommand"] = self._proxy
        options |= instead
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        return ["ssh", *words, "-i", _escaped(self._identity), "-p", str(self._port), *rest]


def _run(argv: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=environment(),
        timeout=timeout_s,
    )


def control_dir(home: Path) -> Path:
    """A folder of the user's own for the shared connections' sockets, short enough for them.

    Raises:
        LinkError: there is none that is the user's alone.
    """
    candidates = [home / "ssh"]
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        candidates.append(Path(runtime) / "trmcloud")
    own = f"trmc-{os.getuid()}"
    candidates += [Path(tempfile.gettempdir()) / own, Path("/tmp") / own]
    for folder in candidates:
        if len(os.fsencode(folder / "0123456789ab")) > _MAX_SOCKET_PATH:
            continue
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            about = os.lstat(folder)
            if about.st_uid == os.getuid() and folder.is_dir() and not folder.is_symlink():
                folder.chmod(0o700)
                return folder
    raise LinkError(
        "there is no private folder for SSH's sockets",
        where=", ".join(str(folder) for folder in candidates),
        next_step="set TMPDIR to a folder that you own, with a short path",
    )


def _escaped(path: Path) -> str:
    """ssh expands % in file names."""
    return str(path).replace("%", "%%")


def _quoted(path: Path) -> str:
    return '"' + _escaped(path) + '"'
