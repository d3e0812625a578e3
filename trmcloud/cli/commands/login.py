"""``trmcloud login`` and ``logout``: work through a server, or on this machine again."""

from __future__ import annotations

import getpass
import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from trmcloud.app.home import close_home, make_home
from trmcloud.cli import documents as doc
from trmcloud.cli import options
from trmcloud.cli.remote import Login, call, login_here, login_path, server_url
from trmcloud.cli.views.json_output import print_document
from trmcloud.core.errors import AuthError, NotFoundError, TrmcloudError, UsageError
from trmcloud.io.files import write_atomic
from trmcloud.server.rights import V1


def secret_from(source: str, what: str) -> str:
    """The first line of a file, or of standard input for ``-``.

    Raises:
        UsageError: it cannot be read, or is empty.
    """
    try:
        text = sys.stdin.read() if source == "-" else Path(source).expanduser().read_text()
    except (OSError, UnicodeDecodeError):
        raise UsageError(f"the {what} cannot be read from {source}") from None
    found = text.strip().splitlines()
    if not found:
        raise UsageError(f"there is no {what} in {source}")
    return found[0].strip()


def login(
    url: Annotated[str, typer.Argument(help="Address of the server.", metavar="URL")],
    name: Annotated[str, typer.Option("--name", help="Your name there; asks for a password.")] = "",
    password_from: Annotated[
        str,
        typer.Option("--password-from", help="File with the password; - : stdin.", metavar="FILE"),
    ] = "",
    token_from: Annotated[
        str,
        typer.Option("--token-from", help="File with a token; - : stdin.", metavar="FILE"),
    ] = "",
    as_json: options.Json = False,
) -> None:
    """Log in to a team's server: from then on commands run there, under your grant.

    Without --name, it prints an address at which you log in with a browser, on any
    machine, if the server has an identity provider. Commands about files of this
    machine (try, sample, serve, verify) stay here. Provider keys are only on the
    server. The token is kept in this home.

    Example: trmcloud login https://trmcloud.example.com --name ada
    """
    where = server_url(url)
    if token_from and name:
        raise UsageError(
            "give either a name or a token",
            next_step=f"trmcloud login {where} --name NAME, or --token-from FILE",
        )
    if not token_from and not name:
        token = _token_by_browser(where)
    elif token_from:
        token = secret_from(token_from, "token")
    else:
        if password_from:
            password = secret_from(password_from, "password")
        elif sys.stdin.isatty() and not as_json:
            password = getpass.getpass(f"password of {name} at {where}: ")
        else:
            raise UsageError("not a terminal", next_step="--password-from FILE, or -")
        made = call(Login(where, ""), "POST", f"{V1}/login", {"name": name, "password": password})
        token = str(made["token"])
    me = call(Login(where, token), "GET", f"{V1}/me")
    path = login_path(os.environ)
    make_home(path.parent)
    close_home(os.environ)
    kept = {"url": where, "token": token, "person": me["person"]}
    write_atomic(path, json.dumps(kept) + "\n", mode=0o600)
    if as_json:
        print_document(doc.LoggedIn(url=where, person=me["person"], role=me["role"]))
        return
    print(f"logged in to {where} as {me['person']} ({me['role']}); commands run there from now on")


def _token_by_browser(where: str) -> str:
    """The token of a login in a browser, on this machine or another.

    Raises:
        UsageError: the server has no identity provider. AuthError: the login was denied, or did not
            come in time.
    """
    at = Login(where, "")
    try:
        begun = call(at, "POST", f"{V1}/oidc/device", {})
    except NotFoundError:
        raise UsageError(
            "give a name or a token: this server has no identity provider",
            next_step=f"trmcloud login {where} --name NAME, or --token-from FILE",
        ) from None
    print(
        f"open this address in a browser, and check that it shows {begun['code']}:\n"
        f"  {begun['url']}",
        file=sys.stderr,
        flush=True,
    )
    until = time.monotonic() + float(begun["expires_s"])
    while time.monotonic() < until:
        time.sleep(float(begun["poll_every_s"]))
        told = call(at, "POST", f"{V1}/oidc/device/token", {"device": begun["device"]})
        if "token" in told:
            return str(told["token"])
    raise AuthError("that address was not used to log in in time", next_step="trmcloud login URL")


def logout(as_json: options.Json = False) -> None:
    """Revoke this home's token, and run commands on this machine again.

    Example: trmcloud logout
    """
    here = login_here(os.environ)
    if here is None:
        raise NotFoundError("this home is not logged in", next_step="trmcloud login URL")
    told = ""
    try:
        call(here, "DELETE", f"{V1}/me/token")
    except TrmcloudError as error:
        told = f"; its token was not revoked: {error}"
    login_path(os.environ).unlink(missing_ok=True)
    if as_json:
        print_document(doc.LoggedOut(url=here.url, revoked=not told))
        return
    print(f"logged out of {here.url}{told}")
