"""docs/team/nginx.conf as it is, in a real nginx with TLS, and the real client behind it.

The ports, the certificate's paths and, where a test says so, one line are replaced; nothing else.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_server import PASSWORD, Server, Team, team, token_of, wait_for
from tests.e2e.user import LAUNCH, ROOT, User
from tests.standins.loopback import free_port

__all__ = ["team"]

EXAMPLE = ROOT / "docs" / "team" / "nginx.conf"
NAME = "trmcloud.example.com"

pytestmark = [
    pytest.mark.more,
    pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed here"),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed here"),
]


class Proxy:
    """nginx with the example in front of ``server``; ``replaced``: lines of it, by others."""

    def __init__(self, folder: Path, server: Server, replaced: dict[str, str]) -> None:
        self.folder = folder
        self.port = free_port()
        self.certificate = folder / "fullchain.pem"
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
                *("-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME},DNS:localhost"),
                *("-keyout", str(folder / "privkey.pem"), "-out", str(self.certificate)),
            ],
            check=True,
            capture_output=True,
        )
        text = EXAMPLE.read_text()
        for old, new in {
            "listen 443 ssl;": f"listen 127.0.0.1:{self.port} ssl;",
            f"server_name {NAME};": f"server_name {NAME} localhost;",
            f"/etc/letsencrypt/live/{NAME}/": f"{folder}/",
            "http://127.0.0.1:8750": server.url,
            **replaced,
        }.items():
            assert old in text, old
            text = text.replace(old, new)
        temporary = "".join(
            f"{each}_temp_path {folder}/{each};\n"
            for each in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        (folder / "nginx.conf").write_text(
            f"{'user root;' if os.getuid() == 0 else ''} daemon off; pid {folder}/pid;\n"
            f"error_log {folder}/error.log;\n"
            f"events {{}}\nhttp {{\naccess_log off;\n{temporary}{text}}}\n"
        )
        self.process = subprocess.Popen(["nginx", "-p", str(folder), "-c", "nginx.conf"])
        wait_for(lambda: self.asked("/api/v1/health")[0] in (200, 401))

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    def opened(self, path: str, token: str = "", **headers: str) -> Any:
        request = urllib.request.Request(self.url + path)
        for name, value in headers.items():
            request.add_header(name.replace("_", "-"), value)
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        trusted = ssl.create_default_context(cafile=str(self.certificate))
        return urllib.request.urlopen(request, timeout=60, context=trusted)

    def asked(self, path: str, token: str = "", **headers: str) -> tuple[int, Any]:
        try:
            with self.opened(path, token, **headers) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            text = error.read()
            return error.code, json.loads(text) if text[:1] == b"{" else text.decode()
        except urllib.error.URLError:
            return 0, None

    def end(self) -> None:
        self.process.terminate()
        self.process.wait()


@pytest.fixture
def behind(team: Team, tmp_path: Path) -> Iterator[Callable[..., Proxy]]:
    made: list[Proxy] = []

    def start(server: Server, replaced: dict[str, str] | None = None) -> Proxy:
        folder = tmp_path / f"nginx-{len(made)}"
        folder.mkdir()
        made.append(Proxy(folder, server, replaced or {}))
        return made[-1]

    yield start
    for each in made:
        each.end()


def log_in(team: Team, name: str, proxy: Proxy) -> User:
    folder = team.folder / f"{name}-proxied"
    folder.mkdir()
    user = User(folder, trainer=None, warm=False)
    user.environment["SSL_CERT_FILE"] = str(proxy.certificate)
    team.users.append(user)
    user.run(
        "login", proxy.url, "--name", name, "--password-from", str(team.folder / "password")
    )  # fmt: skip
    return user


def test_a_team_works_through_the_example(team: Team, behind: Callable[..., Proxy]) -> None:
    team.host.hold()
    team.add("bob", "member", "5")
    server = team.serve("--name", NAME, "--local-commands")
    proxy = behind(server, {"client_max_body_size 1100m;": "client_max_body_size 2m;"})
    bob = log_in(team, "bob", proxy)

    # Output comes while the command runs, and the page's news as they happen.
    launched = bob.start(*LAUNCH, "--budget", "0.30", "--steps", "60")
    assert launched.stdout is not None
    shown = ""
    while "reserved" not in shown:
        line = launched.stdout.readline()
        assert line, shown
        shown += line
    assert launched.poll() is None, "it trains"
    with proxy.opened("/api/stream", token_of(bob)) as news:
        assert news.readline()
    (team.host.folder / "hold").unlink()
    out, err = launched.communicate(timeout=300)
    assert launched.returncode == 0, out + err
    (run,) = team.runs()
    bob.run("fetch-best", run, "--into", "best")
    assert (bob.folder / "best" / "weights.safetensors").stat().st_size > 0
    assert proxy.asked("/api/v1/health", Host=NAME)[0] == 200
    assert proxy.asked("/api/v1/health", Host="evil.example")[0] in (400, 421)

    # More than the proxy lets through is said by what refused it.
    project = bob.folder / "project"
    project.mkdir()
    (project / "train.py").write_text("print(1)\n")
    (project / "large.bin").write_bytes(os.urandom(3 << 20))
    bob.cwd = project
    err = bob.fails(
        "run", "local", "--rate", "1", "--budget", "0.01", "-y", "--", "python3", "train.py",
        code=13,
    )  # fmt: skip
    assert "413" in err, err


def test_a_name_is_taken_from_the_proxy_that_checked_it(
    team: Team, behind: Callable[..., Proxy]
) -> None:
    """nginx's own passwords stand for an identity provider's module: the line that the example has
    as a comment passes on who it has checked."""
    for name in ("ada", "lea"):
        team.add(name, "lead")
    trusting = ("--trust-proxy", "X-Forwarded-User", "--proxy-address", "127.0.0.2/32")
    server = team.serve(*trusting)
    checked = team.folder / "checked"
    made = subprocess.run(
        ["openssl", "passwd", "-apr1", PASSWORD], check=True, capture_output=True, text=True
    )
    checked.write_text(f"ada:{made.stdout.strip()}\n")
    with_users = behind(
        server,
        {
            '        proxy_set_header X-Forwarded-User "";': "proxy_bind 127.0.0.2; auth_basic x; "
            f"auth_basic_user_file {checked}; proxy_set_header Authorization '';\n"
            "proxy_set_header X-Forwarded-User $remote_user;",
        },
    )
    basic = base64.b64encode(f"ada:{PASSWORD}".encode()).decode()
    status, told = with_users.asked(
        "/api/v1/me", Authorization=f"Basic {basic}", X_Forwarded_User="lea"
    )
    assert (status, told["person"]) == (200, "ada"), "what the client sends is replaced"
    assert with_users.asked("/api/v1/me", X_Forwarded_User="lea")[0] == 401

    plain = behind(
        server, {"proxy_http_version 1.1;": "proxy_http_version 1.1; proxy_bind 127.0.0.2;"}
    )
    assert plain.asked("/api/v1/me", X_Forwarded_User="lea")[0] == 401, "the example drops it"
    status, told = server.asked("GET", "/api/v1/me", X_Forwarded_User="lea")
    assert (status, "taken only from the proxy" in told["error"]) == (403, True)
