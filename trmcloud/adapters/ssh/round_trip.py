"""A file that goes to a pod and comes back by the roads that training data and checkpoints take."""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from trmcloud.adapters.ssh.connection import SshConnection
from trmcloud.adapters.ssh.pull import pull
from trmcloud.adapters.ssh.push import parcel_of, push, verify
from trmcloud.app.smoke.watch import RoundTrip
from trmcloud.core.contract.manifest import CheckpointFile
from trmcloud.core.contract.pod_contract import POD_ROOT
from trmcloud.core.errors import LinkError
from trmcloud.pod.agent.terminate import TERMINATION_NAME

if TYPE_CHECKING:
    from trmcloud.adapters.ssh.link import SshPodLink

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
        has_rsync = connection.run("command -v rsync >/dev/null").code == 0
        parcel = parcel_of(sent, {_NAME: sha256})
        began = time.monotonic()
        push(connection, parcel, remote, _unseen, rsync=has_rsync)
        sent_s = time.monotonic() - began
        if verify(connection, parcel, remote):
            raise LinkError("the file is not what was sent", where=connection.where)
        began = time.monotonic()
        file = CheckpointFile(_NAME, "weights", size_bytes, sha256)
        pull(connection, remote, [file], Path(folder) / "fetched", _unseen)
        fetched_s = time.monotonic() - began
        connection.run(["rm", "-rf", "--", remote])
    return RoundTrip(size_bytes, sent_s, fetched_s)


def _unseen(done: int, whole: int) -> None: ...
