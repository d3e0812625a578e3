"""``trmcloud server`` and its clients: people with homes of their own, and one ledger."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.documents import document_in
from tests.e2e.user import LAUNCH, User
from tests.postgres import PostgresServer, require_postgres
from tests.standins import scripts
from trmcloud.adapters.ledger.place import open_ledger
from trmcloud.adapters.ledger.postgres import PostgresLedger
from trmcloud.app.reap import GUARD_NOTE_NAME
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import Outcome
from trmcloud.core.money import Usd

#: Its loss is least at 0.01.
SWEPT = """
import json, math, os, sys, time
lr = float(sys.argv[1])
os.makedirs("out", exist_ok=True)
for step in range(1, 100000):
    time.sleep(0.05)
    print(f"step {step} val_loss={1 + abs(math.log10(lr) + 2) + 5 / (5 + step):.5f}", flush=True)
    if step % 5 == 0:
        with open("saving", "w") as file:
            json.dump({"step": step}, file)
        os.rename("saving", f"out/step-{step}.pt")
"""
PASSWORD = "correct horse battery staple"
_WAIT_S = 300.0


@dataclass
class Server:
    process: subprocess.Popen[str]
    url: str
    token: str | None = None

    def kill(self) -> None:
        """As a machine that is lost: the server and each command that it runs."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def asked(
        self, method: str, path: str, token: str = "", body: Any = None, **headers: str
    ) -> tuple[int, Any]:
        """(status, JSON)"""
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={name.replace("_", "-"): text for name, text in headers.items()},
        )
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())


class Team:
    """A server's home, and people with homes of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "server").mkdir()
        self.host = User(folder / "server", warm=False)
        self.servers: list[Server] = []
        self.users: list[User] = []

    def serve(self, *options: str) -> Server:
        with open(self.folder / f"server-{len(self.servers)}.log", "w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "trmcloud", "server", "run", "--port", "0", "--json",
                 "--no-prices", *options],
                cwd=self.host.folder, env=self.host.env(), stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
            )  # fmt: skip
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (self.folder / f"server-{len(self.servers)}.log").read_text()
        told = json.loads(line)
        made = Server(process, told["url"], told["token"])
        self.servers.append(made)
        return made

    def add(self, name: str, role: str, grant: str = "", *options: str) -> None:
        (self.folder / "password").write_text(PASSWORD + "\n")
        self.host.run(
            "server", "add", name, "--role", role,
            "--password-from", str(self.folder / "password"), *options,
        )  # fmt: skip
        if grant:
            self.host.run("grant", "give", name, grant)

    def runs(self) -> Mapping[str, RunState]:
        """What the ledger says, in its file or its database."""
        env = self.host.env()
        ledger = open_ledger(Path(env["TRMCLOUD_HOME"]), env)
        try:
            return ledger.read().runs
        finally:
            if isinstance(ledger, PostgresLedger):
                ledger.close()

    def log_in(self, name: str, server: Server) -> User:
        folder = self.folder / f"{name}-{len(self.users)}"
        folder.mkdir()
        user = User(folder, trainer=None, warm=False)
        self.users.append(user)
        user.run(
            "login", server.url, "--name", name,
            "--password-from", str(self.folder / "password"),
        )  # fmt: skip
        return user

    def audit(self) -> list[Any]:
        document = document_in(self.host.run("server", "audit", "--json"))
        assert document["whole"]
        return list(document["records"])

    def end(self) -> None:
        for server in self.servers:
            server.kill()
        for user in (*self.users, self.host):
            user.end_everything()


@pytest.fixture
def team(tmp_path: Path) -> Iterator[Team]:
    made = Team(tmp_path)
    yield made
    made.end()


@pytest.fixture(params=["sqlite", "postgres"])
def either(request: pytest.FixtureRequest, team: Team) -> Team:
    """A team on each of both ledgers."""
    if request.param == "postgres":
        team.host.environment["TRMCLOUD_LEDGER"] = request.getfixturevalue("postgres_url")
    return team


def wait_for(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + _WAIT_S
    while not holds():
        assert time.monotonic() < until, "it did not come in time"
        time.sleep(0.2)


def token_of(user: User) -> str:
    path = user.home / "server.json"
    assert path.stat().st_mode & 0o777 == 0o600
    return str(json.loads(path.read_text())["token"])


def test_two_people_with_two_homes_share_a_cap(either: Team) -> None:
    team = either
    team.add("ada", "lead", "5")
    team.add("bob", "member", "5")
    server = team.serve()
    ada, bob = team.log_in("ada", server), team.log_in("bob", server)
    assert "account cap: $0.50" in ada.run("budget", "set", "account", "0.50")

    shown = bob.run(*LAUNCH, "--budget", "0.30", "--steps", "60")
    assert "finished: every step was trained" in shown
    runs = ada.json("status", "--all", "--json")["runs"]
    assert [run["state"] for run in runs] == ["finished"], "ada sees what bob has trained"
    run_id = runs[0]["run"]
    spent = Usd(runs[0]["settled_usd"]) if "settled_usd" in runs[0] else None

    # What bob has spent is missing to ada: the cap is one.
    err = ada.fails(*LAUNCH, "--budget", "0.50", "--steps", "60", code=4)
    assert "account budget of $0.50" in err
    assert spent is None or spent > Usd("0")
    assert not (ada.home / "ledger.db").exists(), "the one ledger is the server's"
    assert not (bob.home / "ledger.db").exists()

    # The checkpoint comes to the client, each file by its hash.
    bob.run("fetch-best", run_id, "--into", "mine")
    manifest = json.loads((bob.folder / "mine" / "manifest.json").read_text())
    assert manifest["run_id"] == run_id
    assert (bob.folder / "mine" / "weights.safetensors").stat().st_size > 0
    assert bob.fails("fetch-best", run_id, "--into", "mine", code=8)

    # Who did what to which dollars.
    (done,) = [
        row for row in team.audit() if row["decision"] == "done" and row["facts"].get("runs")
    ]
    assert (done["person"], list(done["facts"]["runs"])) == ("bob", [run_id])
    assert Usd(done["facts"]["runs"][run_id]["settled_usd"]) > Usd("0")
    assert [run.principal for run in team.runs().values()] == ["bob"]


def test_a_server_that_is_killed_in_mid_training_is_replaced_by_another(either: Team) -> None:
    team = either
    team.host.hold()
    team.add("bob", "member", "5")
    first = team.serve()
    bob = team.log_in("bob", first)
    launched = bob.start(*LAUNCH, "--budget", "0.30", "--steps", "60")
    wait_for(lambda: any(run.trains for run in team.runs().values()))
    (run_id,) = team.runs()
    second = team.serve()
    first.kill()
    _, err = launched.communicate(timeout=_WAIT_S)
    assert launched.returncode == 13, err
    assert "runs continue on the server" in err
    (team.host.folder / "hold").unlink()

    wait_for(lambda: not team.runs()[run_id].live)
    run = team.runs()[run_id]
    assert run.outcome is not None
    assert run.outcome.value == "finished"
    again = team.log_in("bob", second)
    assert "finished" in again.run("status", run_id)


def test_a_script_is_sent_from_the_clients_folder(team: Team) -> None:
    """Its files come from there, its checkpoint goes back there, and links stay where they are."""
    team.add("bob", "member", "5")
    bob = team.log_in("bob", team.serve("--local-commands"))
    project = bob.folder / "project"
    (project / "lib").mkdir(parents=True)
    (project / "train.py").write_text("import lib.told\n" + scripts.PLAIN)
    (project / "lib" / "told.py").write_text("print('told by', __file__)\n")
    (project / "passwd").symlink_to("/etc/passwd")
    (project / "id_ed25519").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    bob.cwd = project
    shown = bob.run(
        "run", "local", "--rate", "3.60", "--budget", "0.05", "--checkpoints", "out",
        "--checkpoint-gb", "0.001", "--grace", "2", "--metric", "val_loss=([0-9.]+)", "-y",
        "--", "python3", "train.py", code=(0, Outcome.LANDED.exit_code),
    )  # fmt: skip
    assert "its checkpoints are kept" in shown or "finished" in shown
    (run_id,) = team.runs()
    assert "told by" in bob.run("logs", run_id)
    bob.run("fetch-best", run_id)
    (fetched,) = [path for path in project.iterdir() if path.name.startswith(run_id)]
    assert list((fetched / "own").rglob("*")), "under the names that the script gave"
    (sent,) = (team.host.home / "code").rglob("code.tar")
    with tarfile.open(sent) as archive:
        assert set(archive.getnames()) == {"train.py", "lib/told.py"}
    err = bob.fails("run", "local", "--env", "HOME", "--budget", "1", "--", "true", code=2)
    assert "does not work through a server" in err
    bob.cwd = bob.folder
    assert not list((team.host.home / "server").rglob("train.py")), "what was sent is removed"


def test_a_sweep_of_a_command_runs_at_the_server_with_the_clients_files(team: Team) -> None:
    """Its space is a file outside of the tree: the content goes, no path of either machine."""
    team.add("bob", "member", "5")
    bob = team.log_in("bob", team.serve("--local-commands"))
    project = bob.folder / "project"
    project.mkdir()
    (project / "train.py").write_text(SWEPT)
    (bob.folder / "space.toml").write_text("lr = {log = [1e-4, 1]}\n")
    bob.cwd = project
    words = (
        *("sweep", "local", "--rate", "36", "--budget", "0.60", "-y", "--slots", "2"),
        *("--grace", "2", "--checkpoint-gb", "0.001", "--checkpoints", "out"),
        *("--metric", "val_loss", "--space", "../space.toml", "--", "python3", "train.py", "{lr}"),
    )
    shown = bob.run(*words)
    assert "for the winner" in shown
    (run_id,) = team.runs()
    assert [run.principal for run in team.runs().values()] == ["bob"]
    assert team.runs()[run_id].settled <= Usd("0.60")
    bob.run("fetch-best", run_id, "--into", "best")
    manifest = json.loads((project / "best" / "manifest.json").read_text())
    assert 1e-4 <= manifest["extra"]["sweep"]["point"]["lr"] <= 1
    (sent,) = (team.host.home / "code").rglob("code.tar")
    with tarfile.open(sent) as archive:
        assert set(archive.getnames()) >= {"train.py"}
        assert not [name for name in archive.getnames() if "space" in name or "input" in name]
    (project / "bad.toml").write_text("lr = 3 = 4\n")
    bad = [("bad.toml" if word == "../space.toml" else word) for word in words]
    err = bob.fails(*bad, code=2)
    assert "--space bad.toml: it cannot be read" in err, "by the name that was typed"
    bad = [("missing.toml" if word == "../space.toml" else word) for word in words]
    assert "--space missing.toml: it cannot be read" in bob.fails(*bad, code=2)
    of_recipe = ("sweep", "local", "--recipe", "trm-tiny", "--budget", "1", "--rate", "36", "-y")
    (project / "paths.toml").write_text('data = ["/etc/passwd", "x"]\n')
    assert "no path" in bob.fails(*of_recipe, "--space", "paths.toml", code=2)
    assert "no path" in bob.fails(*of_recipe, "data=/etc/passwd,x", code=2)
    scratch = [*(team.host.home / "server").rglob("*")]
    assert not [path for path in scratch if path.name.startswith(("inputs-", "train.py"))]


def test_a_members_guesses_and_tokens_that_were_revoked_are_refused(team: Team) -> None:
    team.host.hold()
    team.add("ada", "member", "5")
    team.add("eve", "member", "5")
    team.add("vic", "viewer")
    team.add("lea", "lead")
    server = team.serve("--four-eyes", "100")
    ada, eve, vic, lea = (team.log_in(name, server) for name in ("ada", "eve", "vic", "lea"))
    launched = ada.run(*LAUNCH, "--budget", "0.30", "--steps", "60", "-d", "--json")
    run_id = json.loads(launched)["run"]

    assert "another person's run" in eve.fails("stop", run_id, "-y", "--now", code=16)
    assert "no run" in eve.fails("stop", "r-ffffff", "-y", code=3)
    assert "role member" in vic.fails("stop", run_id, "-y", code=16)
    assert "role lead" in eve.fails("budget", "raise", "account", "9", code=16)
    assert "role administrator" in lea.fails("server", "add", "mal", code=16)
    assert "at least" not in vic.run("status")

    # Two people who raise: one asks, the other agrees, and nobody agrees with themselves.
    ada_token, eve_token = token_of(ada), token_of(eve)
    lea.run("budget", "set", "account", "50")
    assert "second lead" in lea.fails("budget", "raise", "account", "150", code=4)
    (waits,) = lea.json("server", "raises", "--json")["raises"]
    assert "another lead" in lea.fails("server", "approve", waits["id"], code=8)
    team.add("leo", "lead")
    leo = team.log_in("leo", server)
    assert "account cap: $150.00" in leo.run("server", "approve", waits["id"])
    assert "answered before" in leo.fails("server", "approve", waits["id"], code=8)

    # A token is refused from the moment that it is revoked, on any server.
    other = team.serve()
    assert other.asked("GET", "/api/v1/me", eve_token)[0] == 200
    team.host.run("server", "revoke", "eve")
    for each in (server, other):
        status, told = each.asked("GET", "/api/v1/runs", eve_token)
        assert (status, told["error"]) == (401, "this token is revoked")
    assert "revoked" in eve.fails("status", code=15)

    # The JSON API answers with the commands' own documents, and judges as they are judged.
    status, told = server.asked("GET", f"/api/v1/runs/{run_id}", ada_token)
    assert (status, told["schema"].partition("/")[0]) == (200, "status")
    assert document_in(json.dumps(told))
    assert server.asked("GET", "/api/v1/runs/r-ffffff", ada_token)[0] == 404
    assert server.asked("GET", "/api/v1/runs/--all-of", ada_token)[0] == 422
    assert server.asked("GET", "/api/v1/audit", ada_token)[0] == 403
    assert server.asked("GET", "/api/v1/runs")[0] == 401
    assert server.asked("GET", "/api/runs")[0] == 401, "the page's own requests, too"
    assert server.asked("GET", "/api/runs", ada_token)[0] == 200
    assert server.asked("POST", f"/api/runs/{run_id}/do", ada_token, {"verb": "stop"})[0] == 403
    assert server.asked("GET", "/api/v1/me", ada_token, Host="evil.example")[0] == 421
    assert server.asked("GET", "/api/v1/me", ada_token, Origin="http://evil.example")[0] == 403

    told = lea.run("stop", run_id, "-y", "--now")
    decisions = {(row["person"], row["decision"]) for row in team.audit()}
    assert {
        ("eve", "refused"),
        ("vic", "refused"),
        ("lea", "waits"),
        ("leo", "approved"),
    } <= decisions


def test_secrets_of_the_server_reach_no_client(team: Team) -> None:
    key = "rpa_" + "S3CRET" * 8
    team.host.environment["RUNPOD_API_KEY"] = key
    team.add("ada", "administrator", "5")
    server = team.serve()
    ada = team.log_in("ada", server)
    token = token_of(ada)
    for words in (
        ["launch", "local", "--data", "/etc/passwd", "--budget", "1"],
        ["launch", "local", "--recipe", "../../../etc/passwd", "--budget", "1"],
        ["launch", "local", "--recipe", f"{team.host.home}/x.toml", "--budget", "1"],
        ["launch", "local", "--from", str(team.host.home), "--budget", "1"],
        ["report", "--html", str(team.host.home / "x.html")],
        ["run", "any", "--env", "RUNPOD_API_KEY", "--budget", "1", "--", "env"],
        ["run", "local", "--rate", "1", "--budget", "1", "--", "env"],
        ["data", "check", "/etc"],
        ["server", "add", "mal", "--password-from", "/etc/passwd"],
        ["ssh", "r-000001"],
        ["server", "run"],
    ):
        status, told = server.asked("POST", "/api/v1/commands", token, {"words": words})
        assert status in (403, 422), (words, told)
        assert told["next"], words
        assert "\n" not in told["error"]
        assert key not in json.dumps(told)
    # Files that a client sends are read by its own command alone, not as a recipe, say.
    for more in ({"upload": "0" * 32}, {"below": "x"}):
        asked = {"words": ["launch", "local", "--recipe", "mine.toml"], **more}
        assert server.asked("POST", "/api/v1/commands", token, asked)[0] == 422
    for kept in team.host.home.rglob("*"):
        if kept.is_file():
            content = kept.read_bytes()
            assert PASSWORD.encode() not in content
            assert token.encode() not in content


def test_a_proxys_header_counts_from_the_proxy_alone(team: Team) -> None:
    team.add("ada", "lead")
    trusting = team.serve("--trust-proxy", "X-Forwarded-User", "--proxy-address", "127.0.0.1/32")
    status, told = trusting.asked("GET", "/api/v1/me", X_Forwarded_User="ada")
    assert (status, told["person"]) == (200, "ada")
    status, told = trusting.asked("GET", "/api/v1/me", X_Forwarded_User="nobody")
    assert status == 401
    far = team.serve("--trust-proxy", "X-Forwarded-User", "--proxy-address", "10.9.0.0/16")
    status, told = far.asked("GET", "/api/v1/me", X_Forwarded_User="ada")
    assert status == 403
    assert "taken only from the proxy, not from 127.0.0.1" in told["error"]
    plain = team.serve()
    assert plain.asked("GET", "/api/v1/me", X_Forwarded_User="ada")[0] == 401
    assert "any client could send" in team.host.fails(
        "server", "run", "--trust-proxy", "X-Forwarded-User", code=2
    )


def test_bad_logins_and_lost_servers_are_told_in_one_line(team: Team) -> None:
    team.add("ada", "member")
    server = team.serve()
    ada = team.log_in("ada", server)
    wrong = team.folder / "wrong"
    wrong.write_text("not the password\n")
    for name in ("ada", "nobody"):
        err = ada.fails("login", server.url, "--name", name, "--password-from", str(wrong), code=15)
        assert "wrong name or password" in err
    assert "only over https" in ada.fails("login", "http://example.com", "--name", "a", code=2)
    assert "no address" in ada.fails("login", "ftp://x", "--name", "a", code=2)
    (ada.home / "server.json").chmod(0o644)
    assert "can be read by others" in ada.fails("status", code=15)
    (ada.home / "server.json").chmod(0o600)
    assert "does not work through a server" in ada.fails("ssh", code=16)
    server.kill()
    err = ada.fails("status", code=13)
    assert "no answer from" in err
    assert "its token was not revoked" in ada.run("logout")
    assert "no runs yet" in ada.run("status"), "this machine's own ledger again"


def test_a_database_that_is_down_is_told_in_one_line_and_forgiven(team: Team) -> None:
    require_postgres()
    database = PostgresServer()
    try:
        team.host.environment["TRMCLOUD_LEDGER"] = database.new_database()
        team.add("ada", "lead")
        server = team.serve()
        ada = team.log_in("ada", server)
        database.stop()
        assert server.asked("GET", "/api/v1/health") == (503, {"status": "unavailable"})
        assert "the database does not answer" in ada.fails("status", code=7)
        database.start()
        assert server.asked("GET", "/api/v1/health")[0] == 200
        assert "no runs yet" in ada.run("status")
    finally:
        team.end()
        database.remove()


def test_a_server_without_people_starts_with_its_first_administrator(team: Team) -> None:
    assert "there are no people yet" in team.host.fails("server", "run", code=3)
    assert "no name" in team.host.fails("server", "run", "--administrator", "../x", code=2)
    server = team.serve("--administrator", "ada")
    assert server.token is not None
    status, told = server.asked("GET", "/api/v1/me", server.token)
    assert (status, told["person"], told["role"]) == (200, "ada", "administrator")
    again = team.serve("--administrator", "mal")
    assert again.token is None, "there is one already"
    assert again.asked("GET", "/api/v1/me", server.token)[0] == 200
    assert [row["command"] for row in team.audit()] == ["server run --administrator ada"]
    # The server is the guard, too: no timer of the system is needed beside it.
    note = team.host.home / GUARD_NOTE_NAME
    wait_for(note.exists)
    assert json.loads(note.read_text())["every_s"] == 300.0
