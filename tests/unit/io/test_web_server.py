"""Where the page and ``trmcloud serve`` listen."""

from __future__ import annotations

import socket

from trmcloud.io.web_server import listening


def test_no_part_of_an_answer_waits_for_an_acknowledgement() -> None:
    with listening("127.0.0.1", 0) as sock, socket.create_connection(sock.getsockname()):
        sock.setblocking(True)
        connection, _ = sock.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
