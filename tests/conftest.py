"""What every test process begins with."""

from __future__ import annotations

import gc
import os
import re
import signal
import socket
import socketserver
import sys
from collections.abc import Iterator
from typing import Any

if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    # What is started hundreds of times, and rewritten for its assertions, is compiled once.
    sys.dont_write_bytecode = False

# Workers share the cores: torch's threads would wait for one another on those that others need.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings

import tests.registered  # noqa: F401  providers and families
from tests.postgres import postgres_server, postgres_url
from tests.scheduling import (
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_terminal_summary,
    pytest_unconfigure,
    pytest_xdist_make_scheduler,
)
from tests.standins.receiver import receiver

__all__ = [
    "postgres_server",
    "postgres_url",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_terminal_summary",
    "pytest_unconfigure",
    "pytest_xdist_make_scheduler",
    "receiver",
]

# Property tests are judged by what they find, not by how long a busy machine takes to find it.
settings.register_profile("ours", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ours")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So it is where tests are started in the background; what they start would be deaf to Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)


_look_up = socket.getaddrinfo
_tell_error = socketserver.BaseServer.handle_error


def _pass_over_hang_ups(server: Any, request: Any, address: Any) -> None:
    """A client of a stand-in that hangs up is no news: its traceback would be told by whichever
    command runs in this process at that moment."""
    if not isinstance(sys.exc_info()[1], ConnectionError):
        _tell_error(server, request, address)


setattr(socketserver.BaseServer, "handle_error", _pass_over_hang_ups)  # noqa: B010


def _look_up_here(host: Any, *rest: Any, **named: Any) -> Any:
    """``socket.getaddrinfo`` for this machine's own names and for addresses: a test that asks for
    another host would wait for it where there is no network, and depend on it where there is."""
    name = host.decode() if isinstance(host, bytes) else host
    if name in (None, "", "localhost", socket.gethostname()) or not re.search("[g-z]", name, re.I):
        return _look_up(host, *rest, **named)
    raise socket.gaierror(socket.EAI_NONAME, f"a test asked for {name}")


socket.getaddrinfo = _look_up_here


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is collected stays to the end: nobody looks through it for what could be freed, neither
    while it comes to a million objects nor from then on."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()
