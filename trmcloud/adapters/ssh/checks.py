"""Checks of the way to a pod: OpenSSH's programs, and a file's round trip."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from trmcloud.adapters.ssh.connection import SshConnection, control_dir
from trmcloud.adapters.ssh.pull import pull
from trmcloud.adapters.ssh.push import parcel_of, push, verify
from trmcloud.adapters.ssh.session import INSTALL_SSH, environment
from trmcloud.core.contract.manifest import CheckpointFile
from trmcloud.core.contract.pod_contract import POD_ROOT
from trmcloud.core.errors import LinkError
from trmcloud.core.text import strip_control
from trmcloud.operations.checks.smoke_watch import RoundTrip
from trmcloud.operations.machines import Need
from trmcloud.pod.agent.terminate import TERMINATION_NAME

if TYPE_CHECKING:
    from trmcloud.adapters.ssh.link import SshPodLink

# The needs of the way to a pod: OpenSSH's programs, and that they take our options.
#
# Tried with ``ssh -G``, which reads the user's configuration and every option that a connection
# is made with, and connects to nothing.

_TIMEOUT_S = 10.0
_OLDEST = "8.5"
"""The first OpenSSH with KnownHostsCommand, which must be switched off."""


def ssh_needs(home: Path) -> tuple[Need, ...]:
    """``ssh``, ``ssh-keygen``, and a folder for the sockets of shared connections."""
    keygen = Need("ssh-keygen", "makes a host key for each pod")
    if shutil.which("ssh-keygen") is None:
        keygen = Need("ssh-keygen", "it is not installed", True, INSTALL_SSH)
    try:
        sockets = Need("sockets", f"SSH's sockets are kept in {control_dir(home)}")
    except LinkError as error:
        sockets = Need("sockets", str(error), True, error.next_step)
    return (_ssh(home), keygen, sockets)


def _ssh(home: Path) -> Need:
    if shutil.which("ssh") is None:
        return Need("ssh", "it is not installed", True, INSTALL_SSH)
    version = _first_line("ssh", "-V")
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
        fix = f"correct ~/.ssh/config, or install OpenSSH {_OLDEST} or newer"
        return Need("ssh", f"{version}: {trouble}", True, fix)
    return Need("ssh", version)


def _first_line(*command: str) -> str:
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


# A file that goes to a pod and comes back by the roads that training data and checkpoints take.

_NAME = "weights.safetensors"


def answers(link: SshPodLink, pod_name: str) -> str:
    """Why a pod's SSH server does not let us in; empty where it does."""
    return "" if link.answers(pod_name) else str(link.trouble(pod_name) or "no answer")


def termination(link: SshPodLink, pod_name: str) -> str:
    """A pod's record of how it tries to end itself; empty where that cannot be read."""
    try:
        return link.read_pod_file(pod_name, TERMINATION_NAME)
    except LinkError:
        return ""


def round_trip(connection: SshConnection, size_bytes: int, root: str = POD_ROOT) -> RoundTrip:
    """Send ``size_bytes`` of noise to a folder below ``root``, have it hashed there, fetch it.

    Raises:
        LinkError, CheckpointError: it did not arrive, or not as it was sent.
        DoesNotFit: too little room here.
    """
    remote = f"{root}/smoke/{secrets.token_hex(4)}"
    with tempfile.TemporaryDirectory(prefix="trmcloud-smoke-") as folder:
        sent = Path(folder) / "sent" / _NAME
        sent.parent.mkdir()
        content = os.urandom(size_bytes)
        sent.write_bytes(content)
        sha256 = hashlib.sha256(content).hexdigest()
        del content
        parcel = parcel_of(sent, {_NAME: sha256})
        began = time.monotonic()
        push(connection, parcel, remote, _unseen)
        sent_s = time.monotonic() - began
        if verify(connection, parcel, remote):
            raise LinkError("the received file differs from the one sent", where=connection.where)
        began = time.monotonic()
        file = CheckpointFile(_NAME, "weights", size_bytes, sha256)
        pull(connection, remote, [file], Path(folder) / "fetched", _unseen)
        fetched_s = time.monotonic() - began
        connection.run(["rm", "-rf", "--", remote])
    return RoundTrip(size_bytes, sent_s, fetched_s)


def _unseen(done: int, whole: int) -> None: ...
