"""A client that opens many connections and completes no request; and a command with few files."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

_SENT = (b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"POST /api/runs HTT")


def no_more_files(command: list[str], most: int = 1024) -> list[str]:
    """The same command, which may open no more than so many files."""
    return ["/bin/sh", "-c", f'ulimit -n {most} && exec "$@"', "sh", *command]


@contextmanager
def half_open_at(port: int, count: int) -> Iterator[list[socket.socket]]:
    """So many connections to a port of this machine, each with no request, or a part of one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 512
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, wanted), hard), hard))
    try:
        with ExitStack() as stack:
            made = []
            for number in range(count):
                one = socket.create_connection(("127.0.0.1", port), timeout=30)
                made.append(stack.enter_context(one))
                with suppress(ConnectionError):  # it gave way already
                    one.sendall(_SENT[number % len(_SENT)])
            yield made
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
