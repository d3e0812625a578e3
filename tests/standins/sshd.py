"""A real ``sshd`` on a loopback port: what answers where a rented pod would.

It runs as the current user, without PAM and without touching the system's own server or keys. Its
connections can be cut, it can be stopped and started again on the same port, and its ``PATH`` can
be narrowed to a machine that lacks some tools.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.standins.loopback import free_port

_DEADLINE_S = 20.0
ENV_NO_SBIN = "TRMCLOUD_TEST_NO_SBIN"


def find_sshd() -> str | None:
    """The server's absolute path, which it insists on being started by; None without one.

    Folders that a user's PATH may lack are searched too. With ``TRMCLOUD_TEST_NO_SBIN`` set they
    are not: so a test takes the server away by its PATH.
    """
    if ENV_NO_SBIN in os.environ:
        return shutil.which("sshd")
    return shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin")


def make_key(path: Path) -> str:
    """A new key pair at ``path``; its public line."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path)],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return path.with_name(path.name + ".pub").read_text().strip()


class Sshd:
    """``host_private`` and ``user_public`` are texts of keys; ``path`` is the ``PATH`` of sessions
    (the machine's own where empty)."""

    def __init__(
        self,
        folder: Path,
        host_private: str,
        user_public: str,
        *,
        path: str = "",
        settings: Sequence[str] = (),
    ) -> None:
        program = find_sshd()
        if program is None:
            raise FileNotFoundError("sshd")
        self._program = program
        self.folder = folder
        self.port = free_port()
        self.user = getpass.getuser()
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self.set_host_key(host_private)
        (folder / "authorized_keys").write_text(user_public + "\n")
        (folder / "config").write_text(
            "\n".join(
                [
                    f"Port {self.port}",
                    "ListenAddress 127.0.0.1",
                    f"HostKey {folder / 'host_key'}",
                    f"AuthorizedKeysFile {folder / 'authorized_keys'}",
                    f"PidFile {folder / 'sshd.pid'}",
                    "AuthenticationMethods publickey",
                    "PasswordAuthentication no",
                    "KbdInteractiveAuthentication no",
                    "PermitRootLogin prohibit-password",
                    "StrictModes no",
                    "UsePAM no",
                    "PrintMotd no",
                    "MaxStartups 100",
                    "Subsystem sftp internal-sftp",
                    *([f"SetEnv PATH={path}"] if path else []),
                    *settings,
                ]
            )
            + "\n"
        )

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    def set_host_key(self, private: str) -> None:
        """Takes effect when the server is started."""
        path = self.folder / "host_key"
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(private)

    def start(self) -> None:
        with contextlib.suppress(OSError):
            # Debian's build wants the folder of its system service even where none runs.
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        self._process = subprocess.Popen(
            [
                *(self._program, "-D", "-f", str(self.folder / "config")),
                *("-E", str(self.folder / "log")),
            ],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + _DEADLINE_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(self.address, 1) as probe:
                if probe.recv(4) == b"SSH-":
                    return
            if self._process.poll() is not None:
                break
            time.sleep(0.02)
        raise RuntimeError(f"sshd did not start: {(self.folder / 'log').read_text()[-500:]}")

    def cut(self) -> int:
        """Kill what serves connections, not the server; how many there were."""
        assert self._process is not None
        served = children(self._process.pid)
        for pid in served:
            for grandchild in children(pid):
                _kill(grandchild)
            _kill(pid)
        return len(served)

    def stop(self) -> None:
        """End the server and every connection that it serves.

        It is halted first: a client that is cut off connects again at once, and a connection that
        the server accepted after the others were killed would outlive it.
        """
        if self._process is None:
            return
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self.cut()
        self._process.kill()
        self._process.wait(_DEADLINE_S)
        self._process = None


@contextlib.contextmanager
def running(server: Sshd) -> Iterator[Sshd]:
    server.start()
    try:
        yield server
    finally:
        server.stop()


def children(pid: int) -> list[int]:
    """Processes whose parent is ``pid``, as /proc has them now."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) == pid:
                    found.append(int(entry.name))
    return found


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
