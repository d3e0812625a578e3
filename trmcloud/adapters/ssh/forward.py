"""A port of the pod's loopback, on the loopback of this machine."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from trmcloud.adapters.ssh.connection import SshConnection
from trmcloud.core.errors import LinkError

_TRIES = 5


@contextlib.contextmanager
def forward(connection: SshConnection, remote_port: int, *, local_port: int = 0) -> Iterator[int]:
    """The local port, bound to 127.0.0.1, that leads to the pod's ``remote_port`` meanwhile;
    a free one where ``local_port`` is 0.

    Raises:
        LinkError: the pod is out of reach, or does not forward.
    """
    connection.connect()
    for _ in range(_TRIES):
        port = local_port or _free_port()
        way = f"127.0.0.1:{port}:127.0.0.1:{remote_port}"
        answer = connection.control("forward", "-L", way)
        if answer.code == 0:
            break
    else:
        raise LinkError(f"no port could be forwarded: {answer.said[:200]}", where=connection.where)
    try:
        yield port
    finally:
        with contextlib.suppress(LinkError):
            connection.control("cancel", "-L", way)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
