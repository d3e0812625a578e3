"""``trmcloud ui``: runs and their curves in a browser, with buttons."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_PACKAGES = ("starlette", "uvicorn")


def ui(
    run: Annotated[str, typer.Argument(help="The run to show first; all of them otherwise.")] = "",
    host: Annotated[
        str, typer.Option(help="Address to listen at: whoever has the token may steer from there.")
    ] = _LOOPBACK[0],
    port: Annotated[int, typer.Option(help="Port; 0: one that is free.", min=0, max=65535)] = 8765,
    live: Annotated[
        bool, typer.Option("--live", help="Ask SkyPilot, too: seconds, and it starts its server.")
    ] = False,
) -> None:
    """Serve a page on this machine alone, until Ctrl-C: runs, money, curves, and buttons that land,
    save, stop, fetch and raise. Its address holds the token without which nobody sees anything.

    Example: trmcloud ui
    """
    import importlib.util

    from trmcloud.core.errors import MissingExtra

    if any(importlib.util.find_spec(name) is None for name in _PACKAGES):
        raise MissingExtra("trmcloud ui", "ui")
    from trmcloud.app.context import find_run
    from trmcloud.cli.page.server import serve
    from trmcloud.cli.telling import tell
    from trmcloud.wiring import build_context

    context = build_context()
    context.ledger.read()  # one that cannot be used is told here, not on the page
    run_id = find_run(context, run).run_id if run else ""
    if host not in _LOOPBACK:
        print(
            f"warning: {host} is reached from elsewhere, in plain text: whoever sees the token on "
            "its way may steer every run",
            file=sys.stderr,
            flush=True,
        )
    tell(context)  # what is clicked is driven on from here
    serve(None, host, port, run_id=run_id, live=live)
