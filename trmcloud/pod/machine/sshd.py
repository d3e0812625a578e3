"""The pod's SSH server: its own host key, one user key, and no more than control needs of it.

Its settings are a file of our own, since an image's may allow passwords. It stands outside the
pod's marked processes: ending the trainer must not cut off a controller that fetches its work.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from trmcloud.io.files import write_atomic
from trmcloud.pod.machine import processes

_KEY_BEGINS = "-----BEGIN OPENSSH PRIVATE KEY-----"
_ADDRESS = re.compile(r"[0-9a-fA-F.:]{2,45}")
_USER_KEY_KINDS = ("ssh-", "ecdsa-", "sk-")
_PAUSES_S = (0.5, 2.0, 10.0, 30.0)
_SETTLED_S = 60.0
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

#: Forwarding reaches this machine's loopback alone: that is where TensorBoard listens. Many
#: sessions over one connection, since files travel in parallel streams.
_CONFIG = """\
Port {port}
{listen}\
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
PermitRootLogin prohibit-password
PubkeyAuthentication yes
PasswordAuthentication no
KbdInteractiveAuthentication no
HostbasedAuthentication no
PermitEmptyPasswords no
UsePAM no
StrictModes no
AllowTcpForwarding local
PermitOpen localhost:* 127.0.0.1:*
AllowStreamLocalForwarding no
AllowAgentForwarding no
X11Forwarding no
PermitTunnel no
GatewayPorts no
PermitUserEnvironment no
PermitUserRC no
PrintMotd no
UseDNS no
MaxSessions 64
MaxStartups 32:30:100
ClientAliveInterval 15
ClientAliveCountMax 8
Subsystem sftp internal-sftp
"""


class Sshd:
    """``watchdog.Beside``: sshd on ``port``, started again when it ends.

    ``log`` takes what sshd says; ``tell`` is given one line whenever something changes.
    """

    def __init__(
        self,
        port: int,
        host_key: str,
        user_key: str,
        log: Path,
        tell: Callable[[str], None],
        *,
        program: str | None = None,
        listen: str = "",
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """``listen``: an address; all of them where it is empty.

        Raises:
            ValueError: a key that is none.
        """
        if listen and not _ADDRESS.fullmatch(listen):
            raise ValueError(f"{listen!r} is no address to listen at")
        self._listen = f"ListenAddress {listen}\n" if listen else ""
        if not host_key.startswith(_KEY_BEGINS):
            raise ValueError("the host key is no OpenSSH private key")
        if "\n" in user_key.strip() or not user_key.startswith(_USER_KEY_KINDS):
            raise ValueError("the user's key is no line of authorized_keys")
        self._port, self._log, self._tell, self._now = port, log, tell, now
        self._host_key, self._user_key = host_key, user_key
        self._program = program or shutil.which("sshd", path=f"{os.environ.get('PATH')}:{_PATH}")
        self._folder: Path | None = None
        self._started_at = 0.0
        self._next_at = 0.0
        self._ends = 0
        self.child: subprocess.Popen[bytes] | None = None
        if self._program is None:
            tell("no sshd on this image: this pod cannot be reached by SSH")

    def tend(self) -> None:
        """Start sshd where it does not run, with growing pauses while it does not stay up."""
        now = self._now()
        if self._program is None or now < self._next_at:
            return
        if self.child is not None:
            code = self.child.poll()
            if code is None:
                return
            self._ends = 1 if now - self._started_at > _SETTLED_S else self._ends + 1
            self._tell(f"sshd ended with code {code}, {self._ends} in a row; it is started again")
            self.child = None
            self._next_at = now + _PAUSES_S[min(self._ends, len(_PAUSES_S)) - 1]
            return
        try:
            self._start()
        except OSError as error:
            self._next_at = now + _PAUSES_S[-1]
            self._tell(f"sshd could not be started: {error}")
            return
        self._started_at = now
        self._tell(f"sshd runs on port {self._port}")

    def stop(self) -> None:
        if self.child is not None:
            self.child.terminate()
            self.child.wait()

    def _start(self) -> None:
        assert self._program is not None
        if self._folder is None:
            self._folder = self._lay()
        # Without the pod's mark and keys, which a login would inherit.
        with _log_to(self._log) as log:
            self.child = subprocess.Popen(
                [self._program, "-D", "-e", "-f", str(self._folder / "sshd_config")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": os.environ.get("PATH", _PATH), "LANG": "C.UTF-8"},
                preexec_fn=processes.die_with_parent,
            )

    def _lay(self) -> Path:
        """Keys and settings, on the container's own disk: a volume is shared with other pods."""
        folder = Path(tempfile.mkdtemp(prefix="trmcloud-ssh-"))
        with contextlib.suppress(OSError):
            os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
        for name, text in (
            ("host_key", self._host_key.rstrip("\n") + "\n"),
            ("authorized_keys", self._user_key.strip() + "\n"),
            ("sshd_config", _CONFIG.format(port=self._port, listen=self._listen, folder=folder)),
        ):
            write_atomic(folder / name, text)
            os.chmod(folder / name, 0o600)
        return folder


def _log_to(path: Path) -> IO[bytes]:
    try:
        return open(path, "ab")
    except OSError:
        return open(os.devnull, "ab")
