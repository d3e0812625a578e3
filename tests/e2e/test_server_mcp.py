"""``/mcp`` of a team's server by the official client: a person's token, role and grant."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("mcp", reason="the SDK of the Model Context Protocol is not installed")

import httpx2
from mcp import MCPError

from tests.e2e.agents import RECIPE, end_launchers, http, verify_layers
from tests.e2e.conftest import judged
from tests.e2e.test_server import Team, team, token_of, wait_for
from trmcloud.core.money import Usd
from trmcloud.mcp.tools import tools
from trmcloud.server.rights import TOOLS

__all__ = ["team"]

SWEPT = {**{key: RECIPE[key] for key in ("hardware", "recipe", "phase", "data", "provider")},
         "budget": "1", "setting": RECIPE["setting"]}  # fmt: skip


@pytest.fixture(autouse=True)
def launchers_end(tmp_path: Path) -> Iterator[None]:
    yield
    end_launchers(tmp_path)


@pytest.fixture
def renting(team: Team, tmp_path: Path) -> Iterator[Team]:
    """A team whose server rents at a RunPod on paper."""
    with judged(tmp_path / "runpod", real_pods=False) as standin:
        team.host.environment |= standin.environment
        verify_layers(team.host)
        yield team
        team.end()


def test_a_persons_token_is_its_grant_and_its_role(renting: Team) -> None:
    team = renting
    assert set(tools()) <= set(TOOLS), "each tool has a rule"
    team.add("lea", "lead")
    team.add("bob", "member", "2", "--project", "vision")
    team.add("eve", "member", "2")
    team.add("vic", "viewer", "1")
    team.host.run("server", "add", "ci", "--service", "--role", "member")
    team.host.run("grant", "give", "ci", "2")
    server = team.serve()
    url = f"{server.url}/mcp"
    bob, eve, vic = (token_of(team.log_in(name, server)) for name in ("bob", "eve", "vic"))
    service = team.host.json("server", "token", "ci", "--json")["secret"]

    with http(url, bob) as agent, http(url, eve) as other, http(url, vic) as viewer:
        assert set(agent.tools()) == set(tools())
        assert agent.call("grant")["money"]["grant"] == "bob"
        quote = agent.call("plan", **RECIPE)["quote"]
        run = agent.call("launch", quote=quote, idempotency_key="k")["run"]
        assert agent.call("launch", quote=quote, idempotency_key="k")["run"] == run
        state = team.runs()[run]
        assert (state.principal, state.project) == ("bob", "vision"), "its own project"
        assert state.reserved <= Usd("2")

        # Another's run is as if it were not there; the ledger refuses what the grant does not hold.
        for tool in ("status", "logs", "report", "stop", "land", "save"):
            told = other.refused(tool, run=run)["error"]["message"]
            assert told == other.refused(tool, run="r-ffffff")["error"]["message"].replace(
                "r-ffffff", run
            )
        dear = other.call("plan", **{**RECIPE, "budget": "3"})
        assert dear["launch"]["allowed"] is False
        told = other.refused("launch", quote=dear["quote"], idempotency_key="d")
        assert "grant" in told["error"]["message"]
        assert not [each for each in team.runs().values() if each.principal == "eve"]

        # A viewer looks, and does nothing that costs or ends anything.
        assert viewer.call("prices")["offers"]
        assert viewer.call("plan_sweep", **SWEPT, space=["lr=log:1e-4,1"])["quote"]
        mine = viewer.call("plan", **RECIPE)["quote"]
        for tool, given in (
            ("launch", {"quote": mine, "idempotency_key": "v"}),
            ("stop", {"run": run}),
            ("ask_approval", {"why": "more", "more": "5"}),
        ):
            told = viewer.refused(tool, **given)["error"]
            assert "needs the role member" in told["message"], told

        # Files are those of the client: none of the server's is read, run or written.
        for tool, given in (
            ("try", {"command": ["id"]}),
            ("fetch", {"run": run}),
            ("plan", {"command": ["id"], "hardware": "1xA100", "budget": "1"}),
            ("plan", {**RECIPE, "data": "/etc/passwd"}),
            ("plan_sweep", {**SWEPT, "space": ["data=/etc/passwd,x"]}),
            ("plan_sweep", {**SWEPT, "space": ["lr=1,2"], "command": ["id"]}),
            ("plan", {**RECIPE, "data": team.host.home.name}),
            ("plan", {**RECIPE, "recipe": "../x.toml"}),
            ("plan", {**RECIPE, "setting": ["data=/etc/passwd"]}),
        ):
            told = agent.refused(tool, **given)["error"]
            assert told["next"], (tool, given, told)
        agent.call("stop", run=run)
        wait_for(lambda: team.runs()[run].stop is not None)

        # A token is refused from the moment that it is revoked.
        team.host.run("server", "revoke", "eve")
        with pytest.raises((MCPError, httpx2.HTTPError)):
            other.call("grant")
    with http(url, service) as agent:
        assert agent.call("grant")["money"]["left_usd"] == "2"

    ask = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    accepts = {"Accept": "application/json, text/event-stream"}
    for token, more, status in (
        (eve, {}, 401),
        ("none", {}, 401),
        ("", {}, 401),
        (bob, {"Host": "evil.example"}, 421),
        (bob, {"Origin": "http://evil.example"}, 403),
        (bob, {}, 200),
    ):
        headers = {**accepts, **more, **({"Authorization": f"Bearer {token}"} if token else {})}
        answer = httpx2.post(url, json=ask, headers=headers, timeout=150)
        assert answer.status_code == status, answer.text
    headers = {**accepts, "Authorization": f"Bearer {bob}", "Content-Type": "application/json"}
    large = httpx2.post(url, content=b"x" * 10_000_000, headers=headers, timeout=150)
    assert large.status_code == 413

    acts = [row for row in team.audit() if row["command"].startswith("mcp ")]
    seen = {(row["person"], row["command"].split()[1], row["decision"]) for row in acts}
    assert {
        ("bob", "launch", "allowed"),
        ("bob", "launch", "done"),
        ("bob", "try", "refused"),
        ("vic", "stop", "refused"),
    } <= seen
    (first, *_) = [row for row in acts if row["decision"] == "done" and row["facts"].get("runs")]
    assert list(first["facts"]["runs"]) == [run]
    assert "grant" not in {tool for _, tool, _ in seen}, "looking is no act"
    assert not json.dumps(acts).count(bob)
