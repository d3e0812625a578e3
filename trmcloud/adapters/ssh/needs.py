"""What the way to a pod needs of this machine: OpenSSH's programs, and that they take our options.

Tried with ``ssh -G``, which reads the user's configuration and every option that a connection is
made with, and connects to nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from trmcloud.adapters.ssh.connection import SshConnection, control_dir
from trmcloud.adapters.ssh.session import INSTALL_SSH, environment
from trmcloud.app.context import Need
from trmcloud.core.errors import LinkError
from trmcloud.core.plain_text import strip_control

_TIMEOUT_S = 10.0
_OLDEST = "8.5"
"""The first OpenSSH with KnownHostsCommand, which must be switched off."""


def ssh_needs(home: Path) -> tuple[Need, ...]:
    """``ssh``, ``ssh-keygen``, and a folder for the sockets of shared connections."""
    return (_ssh(home), _keygen(), _sockets(home))


def _ssh(home: Path) -> Need:
    if shutil.which("ssh") is None:
        return Need("ssh", "it is not installed", True, INSTALL_SSH)
    version = _said("ssh", "-V")
    try:
        folder = control_dir(home)
    except LinkError:
        folder = home  # a need of its own
    nowhere = SshConnection(
        ("127.0.0.1", 22),
        identity=Path(os.devnull),
        known_hosts=Path(os.devnull),
        alias="trmcloud",
        control_dir=folder,
    )
    trouble = nowhere.misconfigured(_TIMEOUT_S)
    if trouble:
        fix = f"mend ~/.ssh/config, or install OpenSSH {_OLDEST} or newer"
        return Need("ssh", f"{version}: {trouble}", True, fix)
    return Need("ssh", version)


def _keygen() -> Need:
    if shutil.which("ssh-keygen") is None:
        return Need("ssh-keygen", "it is not installed", True, INSTALL_SSH)
    return Need("ssh-keygen", "makes a host key for each pod")


def _sockets(home: Path) -> Need:
    try:
        return Need("sockets", f"SSH's are kept in {control_dir(home)}")
    except LinkError as error:
        return Need("sockets", str(error), True, error.next_step)


def _said(*command: str) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment(),
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"cannot be run ({error})"
    text = strip_control((done.stderr or done.stdout).decode("utf-8", "replace"))
    return text.strip().partition("\n")[0].partition(",")[0][:80]
