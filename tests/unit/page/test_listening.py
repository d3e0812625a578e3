"""Where the page and ``trmcloud serve`` listen."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from model.serve import listening as model_listening
from trmcloud.cli.page.server import listening as page_listening


@pytest.mark.parametrize("listening", [page_listening, model_listening], ids=["page", "model"])
def test_no_part_of_an_answer_waits_for_an_acknowledgement(
    listening: Callable[[str, int], socket.socket],
) -> None:
    with listening("127.0.0.1", 0) as sock, socket.create_connection(sock.getsockname()):
        sock.setblocking(True)
        connection, _ = sock.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
