"""A server's sealed secrets: in no answer of any endpoint to any role, in no file of its home."""

from __future__ import annotations

import datetime as dt
import json
import re
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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


@dataclass
class Planted:
    server: Server
    tokens: dict[Role, str]
    run_id: str
    key: str

    def require_unsaid(self, team: Team, said: list[str]) -> None:
        """No planted value is in what was said, in the server's log, or in a file of its home."""
        said += [path.read_text() for path in team.folder.glob("server-*.log")]
        for value in (*PLANTED.values(), self.key):
            assert not [text for text in said if value in text]
            for kept in team.host.home.rglob("*"):
                if kept.is_file():
                    assert value.encode() not in kept.read_bytes(), kept


@pytest.fixture
def planted(team: Team) -> Planted:
    """A server with sealed secrets, a person of each role, and a live run."""
    key_file = team.folder / "key"
    key_file.write_text(team.host.run("server", "key"))
    key_file.chmod(0o600)
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
    team.host.hold()
    server = team.serve("--key-file", str(key_file))
    tokens = {role: token_of(team.log_in(role.value, server)) for role in Role}
    member = team.users[list(Role).index(Role.MEMBER)]
    run_id = member.json(*LAUNCH, "--budget", "0.30", "--steps", "60", "-d", "--json")["run"]
    return Planted(server, tokens, run_id, key_file.read_text().strip())


def test_no_endpoint_tells_any_role_a_secret(team: Team, planted: Planted) -> None:
    month = dt.datetime.now(dt.timezone.utc).strftime("%Y-%m")
    fills = {"run": planted.run_id, "level": "account", "month": month, "id": "c-00000000"}
    body = b'{"words": ["status", "--all"], "amount": "9", "plan": "p-0000", "options": {}}'
    asks = [
        (each.method, re.sub(r"\{(\w+)[^}]*\}", lambda m: fills.get(m[1], "x"), each.path), role)
        for each in sorted(ENDPOINTS, key=lambda each: each.path.endswith(("/stop", "/land")))
        if each.path != "/api/v1/me/token"
        for role in Role
        # Of what starts a process, those whom it answers and those whom it refuses.
        if not each.command or role in (each.role, Role.ADMINISTRATOR, Role.VIEWER)
    ]
    with ThreadPoolExecutor(4) as pool:
        said = list(
            pool.map(
                lambda ask: answered(planted.server, ask[0], ask[1], planted.tokens[ask[2]], body),
                asks,
            )
        )
    assert len({ask[:2] for ask in asks}) == len(ENDPOINTS) - 1
    assert len([text for text in said if text.startswith("200")]) > 20
    # The server's own process holds the secrets, and not the key that opens them.
    environ = Path(f"/proc/{planted.server.process.pid}/environ").read_bytes()
    assert planted.key.encode() not in environ
    said.append(team.host.run("server", "secrets"))
    planted.require_unsaid(team, said)

    assert "no key is given" in team.host.fails("server", "run", code=15)
    other = team.folder / "other"
    other.write_text(team.host.run("server", "key"))
    other.chmod(0o600)
    err = team.host.fails("server", "run", "--key-file", str(other), code=15)
    assert "does not open with this key" in err


@pytest.mark.more
def test_no_command_tells_an_administrator_a_secret(team: Team, planted: Planted) -> None:
    lines = [words for words, rule in COMMANDS.items() if rule.where is Where.REMOTE]

    def ask(words: str) -> str:
        body = json.dumps({"words": words.split()}).encode()
        token = planted.tokens[Role.ADMINISTRATOR]
        return answered(planted.server, "POST", "/api/v1/commands", token, body)

    with ThreadPoolExecutor(4) as pool:
        said = list(pool.map(ask, [words for words in lines if words != "attach"]))
    bundle = team.folder / "bundle.tar.gz"
    said.append(team.host.run("doctor", "--bundle", "--into", str(bundle)))
    with tarfile.open(bundle) as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member)
            said.append(file.read().decode(errors="replace") if file is not None else "")
    planted.require_unsaid(team, said)
