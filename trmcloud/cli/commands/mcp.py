"""``trmcloud mcp``: a Model Context Protocol server for agents, each under a grant in dollars."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from trmcloud.cli import options
from trmcloud.cli.views.json_output import print_document, print_line
from trmcloud.core.errors import CannotListen, UsageError
from trmcloud.operations import views


def mcp(
    grant: Annotated[
        str, typer.Option("--grant", metavar="NAME", help="Grant that the agent acts under.")
    ] = "",
    http: Annotated[
        bool, typer.Option("--http", help="Serve over HTTP on this machine, a token per grant.")
    ] = False,
    port: Annotated[
        int, typer.Option(help="With --http: port; 0: any free port.", min=0, max=65535)
    ] = 8767,
    folder: Annotated[
        str, typer.Option(metavar="DIR", help="The agent's project (default: this folder).")
    ] = "",
    new_token: Annotated[
        bool,
        typer.Option("--new-token", help="Make a new token of the grant, print it once, and exit."),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Serve agents by the Model Context Protocol: prices, plans, launches, logs, checkpoints,
    within a grant in dollars that no tool can raise.

    Over standard input and output for one client, or over HTTP (--http) for several. A run that an
    agent launched continues when its client ends, and stops at its budget.

    Example: trmcloud mcp --grant research-agent
    """
    if not grant and not http:
        raise UsageError(
            "an agent needs a grant: which dollars are its own",
            next_step="trmcloud grant give NAME USD; then trmcloud mcp --grant NAME",
        )
    if new_token:
        _print_new_token(grant, port, as_json=as_json)
        return
    if http and grant:
        raise UsageError(
            "--http serves every grant that has a token: each request's token names its grant",
            next_step="leave --grant out; trmcloud mcp --grant NAME --new-token makes a token",
        )
    options.require_packages(("mcp", "uvicorn"), "trmcloud mcp", "mcp")
    project = Path(folder or ".").expanduser().resolve()
    if not project.is_dir():
        raise UsageError("--folder takes a folder, which does not exist", where=str(project))
    from trmcloud.api import Home  # each Tab would pay for it
    from trmcloud.mcp.server import desk_of, serve_http, serve_stdio
    from trmcloud.mcp.tokens import Tokens

    home = Home(principal=grant) if grant else Home()
    path = home.context.home
    if grant:
        home.grant()  # one that is not there is reported here, not to the agent
    desk = desk_of(path, grant, project)
    if not http:
        serve_stdio(desk)
        return

    def begun(address: str) -> None:
        if as_json:
            print_line(views.Serving(of="mcp", run=None, url=address, token=None))
        else:
            print(f"{address}\n(Ctrl-C ends the server; runs continue)", flush=True)

    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.default_int_handler)
    try:
        serve_http(desk, Tokens(path), port, begun)
    except OSError as error:
        raise CannotListen(
            "127.0.0.1", port, error, next_step="--port with another, or 0"
        ) from None


def _print_new_token(grant: str, port: int, *, as_json: bool) -> None:
    """
    Raises:
        UsageError: no grant is named. NotFoundError: there is no such grant.
    """
    from trmcloud.api import Home
    from trmcloud.mcp.tokens import Tokens

    if not grant:
        raise UsageError("--new-token needs --grant NAME")
    home = Home()
    home.grant(grant)
    token = Tokens(home.context.home).make(grant)
    if as_json:
        print_document(views.Serving(of="mcp", run=None, url=_url(port), token=token))
        return
    print(
        f"{token}\n(the token of {grant}, shown once: it replaces the earlier one; clients send it "
        "as: Authorization: Bearer TOKEN)"
    )


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}/mcp"
