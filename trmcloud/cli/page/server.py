"""The page's server: one process on loopback, a token made for it alone."""

from __future__ import annotations

import os
import secrets
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

from trmcloud.api import Home
from trmcloud.cli.page.guarded import Guarded
from trmcloud.cli.page.routes import Page, application
from trmcloud.core.catalog.providers import BY_SKYPILOT, RENTABLE
from trmcloud.core.errors import UsageError

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_ANY = ("0.0.0.0", "::")
_TOKEN_BYTES = 24
_LEAVE_WITHIN_S = 1


def page_of(home: Path | None, folder: Path, *, live: bool) -> Page:
    """``live``: SkyPilot is asked about its pods, too."""
    left_alone = () if live else BY_SKYPILOT
    return Page(
        look=lambda: Home(home, unasked=(*RENTABLE, *BY_SKYPILOT)),
        act=lambda: Home(home, unasked=left_alone),
        folder=folder,
        version=_version(),
    )


def new_token() -> str:
    return secrets.token_urlsafe(_TOKEN_BYTES)


def server(page: Page, token: str, host: str = LOOPBACK[0]) -> Any:
    """uvicorn's server of it, silent; ``run(sockets=[…])`` serves until it is told to end."""
    import uvicorn

    names = () if host in (*LOOPBACK, *_ANY) else (host, f"[{host}]")
    own = (socket.gethostname(), socket.getfqdn()) if host in _ANY else ()
    guarded = Guarded(application(page), token, names=(*names, *own), anywhere=host not in LOOPBACK)
    return uvicorn.Server(
        uvicorn.Config(
            guarded,
            http="h11",
            ws="none",
            loop="asyncio",
            lifespan="on",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_LEAVE_WITHIN_S,
        )
    )


def listening(host: str, port: int) -> socket.socket:
    """
    Raises:
        UsageError: the port is taken, or there is no such address.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        made = socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(
            f"cannot listen at {host}:{port}: {reason}", next_step="--port with another, or 0"
        ) from None
    made.setblocking(False)
    # Its connections inherit it; without, each answer's second part waits 40 ms for the browser.
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def serve(home: Path | None, host: str, port: int, *, run_id: str, live: bool) -> None:
    """Until Ctrl-C, or SIGTERM. The address is printed, token and all, and nowhere else.

    Raises:
        UsageError: the port is taken.
    """
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.default_int_handler)
    with listening(host, port) as sock:
        token, page = new_token(), page_of(home, Path.cwd(), live=live)
        made = server(page, token, host)
        shown = f"[{host}]" if ":" in host else socket.gethostname() if host in _ANY else host
        path = f"run/{run_id}" if run_id else ""
        address = f"http://{shown}:{sock.getsockname()[1]}/{path}#token={token}"
        print(f"{address}\n(Ctrl-C ends the page; runs go on)", flush=True)
        with suppress(KeyboardInterrupt):
            made.run(sockets=[sock])
    print("ended", flush=True)
    # What a click began may still wait for its run, which goes on without it.
    os._exit(0)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("trmcloud")
    except PackageNotFoundError:
        return "0"
