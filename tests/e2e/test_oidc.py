"""Logging in at an OpenID provider that another project wrote (oidc-provider), by a real server and
the real command. make oidc"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from html import unescape
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode, urljoin

import pytest

from tests.e2e.test_server import Server, Team, token_of
from tests.e2e.user import ROOT, User

PEER = os.environ.get("TRMCLOUD_OIDC_PEER", "")
pytestmark = pytest.mark.skipif(not PEER, reason="oidc-provider is not here: make oidc")
SECRET = "a secret of this client, and of the provider"
CALLBACK = "/api/v1/oidc/callback"


@pytest.fixture
def team(tmp_path: Path) -> Iterator[Team]:
    made = Team(tmp_path)
    yield made
    made.end()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Provider:
    def __init__(self, redirect: str) -> None:
        port = free_port()
        self.issuer = f"http://127.0.0.1:{port}"
        script = str(Path(__file__).with_name("openid_provider.mjs"))
        modules = str((ROOT / PEER / "node_modules").resolve())
        self.process = subprocess.Popen(
            ["node", script, modules, str(port), redirect, SECRET],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == self.issuer

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Browser:
    """Opens an address and fills in the forms, as a person does in a browser."""

    def __init__(self) -> None:
        jar = urllib.request.HTTPCookieProcessor(CookieJar())
        self._opener = urllib.request.build_opener(jar)

    def ask(self, url: str, site: str = "", **form: str) -> tuple[int, str, str]:
        """(status, address, page) after all redirects. ``site``: that of the page that asks."""
        request = urllib.request.Request(url, data=urlencode(form).encode() if form else None)
        if site:
            request.add_header("Sec-Fetch-Site", site)
        if form:
            request.add_header("Origin", "/".join(url.split("/")[:3]))
        try:
            with self._opener.open(request, timeout=60) as answer:
                return answer.status, answer.geturl(), answer.read().decode()
        except HTTPError as error:
            return error.code, error.geturl(), error.read().decode()

    def log_in(self, url: str, email: str) -> tuple[int, str]:
        """(status, page) once the provider has sent the browser back"""
        status, at, page = self.ask(url)
        for prompt in ("login", "consent"):
            if f'value="{prompt}"' not in page:
                continue
            action = re.search(r'<form[^>]* action="([^"]+)"', page)
            assert action is not None, page
            fields = {"prompt": prompt, "login": email, "password": "any"}
            status, at, page = self.ask(urljoin(at, unescape(action[1])), **fields)
        return status, page


def serve(team: Team, *options: str) -> tuple[Server, Provider]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    provider = Provider(f"{url}{CALLBACK}")
    team.host.environment["TRMCLOUD_OIDC_SECRET"] = SECRET
    server = team.serve(
        "--port", str(port), "--public-url", url, "--oidc", provider.issuer,
        "--oidc-client", "trmcloud", *options,
    )  # fmt: skip
    return server, provider


def log_in_terminal(team: Team, server: Server, browser: Browser, email: str) -> tuple[User, str]:
    """Run ``trmcloud login`` while its person uses a browser elsewhere; (user, what it printed)"""
    folder = team.folder / f"terminal-{len(team.users)}"
    folder.mkdir()
    user = User(folder, trainer=None, warm=False)
    team.users.append(user)
    process = user.start("login", server.url)
    assert process.stderr is not None
    first = process.stderr.readline()
    address = process.stderr.readline().strip()
    code = first.rstrip().rstrip(":").rpartition(" ")[2]
    status, page = browser.log_in(address, email)
    assert status == 200, page
    assert code in page
    assert email in page
    status, _, page = browser.ask(f"{server.url}/api/v1/oidc/confirm", code=code, answer="yes")
    assert (status, "the terminal continues" in page) == (200, True)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return user, out


def test_people_of_an_independent_provider_log_in(team: Team) -> None:
    team.add("leo@example.com", "administrator")
    server, provider = serve(team, "--oidc-domain", "example.com", "--oidc-role", "lead=ml-leads")
    try:
        browser = Browser()
        ada, shown = log_in_terminal(team, server, browser, "ada@example.com")
        assert f"logged in to {server.url} as ada@example.com (lead)" in shown
        assert "account cap: $5.00" in ada.run("budget", "set", "account", "5")
        assert server.asked("GET", "/api/v1/me", token_of(ada))[1]["person"] == "ada@example.com"

        # A browser gets a session alone, and another person of the domain is a viewer.
        other = Browser()
        status, page = other.log_in(f"{server.url}/api/v1/oidc/start", "bob@example.com")
        assert (status, "url=/" in page) == (200, True)
        me = json.loads(other.ask(f"{server.url}/api/v1/me", "same-origin")[2])
        assert (me["person"], me["role"]) == ("bob@example.com", "viewer")
        assert other.ask(f"{server.url}/api/runs", "same-origin")[0] == 200, "what its page asks"
        assert other.ask(f"{server.url}/api/runs")[0] == 401
        found = {
            row["person"]: row["role"] for row in ada.json("server", "people", "--json")["people"]
        }
        assert found["bob@example.com"] == "viewer"

        # Unverified addresses, and those of other domains, are refused.
        for email, why in (
            ("eve@example.com", "not verified"), ("mal@example.org", "no person of this server"),
        ):  # fmt: skip
            status, page = Browser().log_in(f"{server.url}/api/v1/oidc/start", email)
            assert (status, why in page) == (401, True), page
        refused = [row for row in team.audit() if row["decision"] == "refused"]
        assert "mal@example.org" in {row["person"] for row in refused}
        assert SECRET not in json.dumps(team.audit())

        # Its logins end with the person, at once.
        team.host.run("server", "remove", "ada@example.com")
        assert "not known here" in ada.fails("status", code=15)
        status, page = browser.log_in(f"{server.url}/api/v1/oidc/start", "ada@example.com")
        assert (status, "may not log in" in page) == (401, True)
    finally:
        provider.end()
    assert server.asked("GET", "/api/v1/health")[0] == 200
    leo = team.log_in("leo@example.com", server)
    assert "no runs yet" in leo.run("status"), "the provider is gone, and a password is enough"
