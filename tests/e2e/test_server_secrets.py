"""A server's sealed secrets: in no answer of any endpoint to any role, and in no file of its home."""

from __future__ import annotations

import datetime as dt
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.test_server import Server, Team, token_of
from tests.e2e.user import LAUNCH
from trmcloud.ports.team import Role
from trmcloud.server.rights import COMMANDS, ENDPOINTS, Where

PLANTED = {
    "RUNPOD_API_KEY": "rpa_" + "S3CRET" * 8,
    "HF_TOKEN": "hf_" + "Planted" * 5,
    "TRMCLOUD_OIDC_SECRET": "planted client secret of the provider",
    "HARMLESS_NAME": "planted without a telling form",
}


@pytest.fixture
def team(tmp_path: Path) -> Iterator[Team]:
    made = Team(tmp_path)
    yield made
    made.end()


def answered(server: Server, method: str, path: str, token: str, body: bytes) -> str:
    """Everything that an answer says: status, headers, body."""
    request = urllib.request.Request(
        server.url + path, method=method, data=body if method == "POST" else None
    )
    request.add_header("Authorization", f"Bearer {token}")
    request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return f"{answer.status} {answer.headers} {answer.read().decode()}"
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.headers} {error.read().decode()}"


def test_no_endpoint_tells_any_role_a_secret(team: Team) -> None:
    key_file = team.folder / "key"
    key_file.write_text(team.host.run("server", "key"))
    key_file.chmod(0o600)
    key = key_file.read_text().strip()
    for name, value in PLANTED.items():
        (team.folder / "value").write_text(value + "\n")
        told = team.host.run(
            "server", "secret", name, "--from", str(team.folder / "value"),
            "--key-file", str(key_file),
        )  # fmt: skip
        assert value not in told
        assert name in told
    for role in Role:
        team.add(role.value, role.value, "5")
    assert "no key is given" in team.host.fails("server", "run", code=15)
    other = team.folder / "other"
    other.write_text(team.host.run("server", "key"))
    other.chmod(0o600)
    err = team.host.fails("server", "run", "--key-file", str(other), code=15)
    assert "does not open with this key" in err

    team.host.hold()
    server = team.serve("--key-file", str(key_file))
    # The provider's key is used: this is what the secrets are for.
    with open(f"/proc/{server.process.pid}/environ", "rb") as environ:
        assert key.encode() not in environ.read()
    tokens = {role: token_of(team.log_in(role.value, server)) for role in Role}
    member = team.users[list(Role).index(Role.MEMBER)]
    run_id = member.json(*LAUNCH, "--budget", "0.30", "--steps", "60", "-d", "--json")["run"]
    month = dt.datetime.now(dt.timezone.utc).strftime("%Y-%m")
    fills = {"run": run_id, "level": "account", "month": month, "id": "c-00000000"}
    body = b'{"words": ["status", "--all"], "amount": "9", "plan": "p-0000", "options": {}}'
    asks = [
        (each.method, re.sub(r"\{(\w+)[^}]*\}", lambda m: fills.get(m[1], "x"), each.path), role)
        for each in sorted(ENDPOINTS, key=lambda each: each.path.endswith(("/stop", "/land")))
        if each.path != "/api/v1/me/token"
        for role in Role
    ]
    lines = [words for words, rule in COMMANDS.items() if rule.where is Where.REMOTE]
    with ThreadPoolExecutor(4) as pool:
        said = list(
            pool.map(lambda ask: answered(server, ask[0], ask[1], tokens[ask[2]], body), asks)
        )
        said += pool.map(
            lambda words: answered(
                server, "POST", "/api/v1/commands", tokens[Role.ADMINISTRATOR],
                f'{{"words": {list(words.split())}}}'.replace("'", '"').encode(),
            ),
            lines,
        )  # fmt: skip
    assert len(said) > 4 * 20 + 30
    ended = subprocess.run(
        [sys.executable, "-m", "trmcloud", "doctor", "--bundle", "bundle.zip"],
        cwd=team.host.folder, env=team.host.env(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    said += [ended.stdout, ended.stderr, team.host.run("server", "secrets")]
    said += [path.read_text() for path in team.folder.glob("server-*.log")]
    for value in (*PLANTED.values(), key):
        assert not [text for text in said if value in text]
        for kept in team.host.home.rglob("*"):
            if kept.is_file():
                assert value.encode() not in kept.read_bytes(), kept
