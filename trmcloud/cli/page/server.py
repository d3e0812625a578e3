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
from trmcloud.core.catalog.providers import brokered, rentable
from trmcloud.core.errors import CannotListen
from trmcloud.io.web_guard import ANY_ADDRESS, LOOPBACK, names_of
from trmcloud.io.web_server import listening, silent_server

_TOKEN_BYTES = 24
_LEAVE_WITHIN_S = 1


def page_of(home: Path | None, folder: Path, *, live: bool) -> Page:
    """``live``: what takes seconds to ask is asked about its pods, too."""
    left_alone = () if live else brokered()
    return Page(
        look=lambda: Home(home, unasked=rentable()),
        act=lambda: Home(home, unasked=left_alone),
        folder=folder,
        version=_version(),
    )


def new_token() -> str:
    return secrets.token_urlsafe(_TOKEN_BYTES)


def server(page: Page, token: str, host: str = LOOPBACK[0]) -> Any:
    """uvicorn's server of it, silent; ``run(sockets=[…])`` serves until it is told to end."""
    guarded = Guarded(application(page), token, names=names_of(host))
    return silent_server(guarded, leave_within_s=_LEAVE_WITHIN_S)


def open_socket(host: str, port: int) -> socket.socket:
    """
    Raises:
        CannotListen: the port is taken, or there is no such address.
    """
    try:
        return listening(host, port)
    except OSError as error:
        raise CannotListen(host, port, error, next_step="--port with another, or 0") from None


def serve(home: Path | None, host: str, port: int, *, run_id: str, live: bool) -> None:
    """Until Ctrl-C, or SIGTERM. The address is printed, token and all, and nowhere else.

    Raises:
        CannotListen: the port is taken.
    """
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.default_int_handler)
    with open_socket(host, port) as sock:
        token, page = new_token(), page_of(home, Path.cwd(), live=live)
        made = server(page, token, host)
        shown = (
            f"[{host}]" if ":" in host else socket.gethostname() if host in ANY_ADDRESS else host
        )
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
