"""A web server of one process, which says nothing of its own."""

from __future__ import annotations

import socket
from typing import Any

_MOST_HEADER_BYTES = 1 << 14


def silent_server(
    application: Any, *, leave_within_s: int, requests: int = 0, ends: bool = False
) -> Any:
    """uvicorn's server of an ASGI application; ``run(sockets=[one])`` serves until it has to end,
    and gives requests under way so many seconds. Its connections are bounded in number and time;
    ``requests`` is how many may be under way at once where that is more than usual. ``ends``: some
    of its requests end a run, and connections are kept in reserve for them."""
    import uvicorn

    from trmcloud.io.web_connections import (
        SPARE_CONNECTIONS,
        BoundedServer,
        Connections,
        most_connections,
    )

    most = most_connections(requests)
    spare = min(SPARE_CONNECTIONS, most // 2) if ends else 0

    return BoundedServer(
        uvicorn.Config(
            application,
            http="h11",
            h11_max_incomplete_event_size=_MOST_HEADER_BYTES,
            ws="none",
            loop="asyncio",
            lifespan="on",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=leave_within_s,
        ),
        Connections(most, spare=spare),
    )


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens there, at a free port where it is 0.

    Raises:
        OSError: the port is taken, or there is no such address.
    """
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    made = socket.create_server((host, port), family=family, backlog=128)
    made.setblocking(False)
    # Its connections inherit it; without, each piece of an answer waits 40 ms for its reader.
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made
