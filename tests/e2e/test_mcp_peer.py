"""``trmcloud mcp`` by a client that another project wrote: the TypeScript SDK's. make mcp-peer"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest

pytest.importorskip("mcp", reason="the SDK of the Model Context Protocol is not installed")

from tests.e2e.agents import RECIPE, give, own, script, stdio, verify_layers
from tests.e2e.test_mcp import McpServer, launchers_end, token_of
from tests.e2e.user import ROOT, User, until
from tests.standins.runpod.standin import StandIn

PEER = os.environ.get("TRMCLOUD_MCP_PEER", "")
__all__ = ["launchers_end"]
pytestmark = pytest.mark.skipif(not PEER, reason="the TypeScript SDK is not here: make mcp-peer")
Call = tuple[str, dict[str, Any]]


def peer(user: User, job: dict[str, Any], calls: Sequence[Call]) -> dict[str, Any]:
    path = user.folder / "job.json"
    path.write_text(json.dumps({**job, "calls": calls}))
    modules = str((ROOT / PEER).resolve())
    done = subprocess.run(
        ["node", str(Path(__file__).with_name("mcp_peer.mjs")), modules, str(path)],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_the_peer_lists_plans_launches_and_is_refused(user: User, paper: StandIn) -> None:
    script(user)
    give(user)
    verify_layers(user)
    transport = stdio(user)
    job = {
        "command": transport.command, "args": transport.args, "env": transport.env,
        "cwd": transport.cwd,
    }  # fmt: skip
    first = peer(user, job, [("plan", own()), ("plan", {"budgett": "1"}), ("lunch", {})])
    assert first["server"]["name"] == "trmcloud"
    for tool in first["tools"]:
        jsonschema.Draft202012Validator.check_schema(tool["inputSchema"])
    schema = {tool["name"]: tool["inputSchema"] for tool in first["tools"]}
    jsonschema.validate(own(), schema["plan"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**own(), "budget": 0.05}, schema["plan"])
    planned, misspelt, unknown = first["answers"]
    assert misspelt["isError"]
    assert "did you mean budget?" in misspelt["content"][0]["text"]
    assert "did you mean launch?" in unknown["message"]
    words = {"command": ["python3", "train.py"], "metric": "val_loss", "for_s": 3}
    quote = planned["structuredContent"]["quote"]
    wish = {"quote": quote, "idempotency_key": "k"}
    tried, launched, again = peer(user, job, [("try", words), ("launch", wish), ("launch", wish)])[
        "answers"
    ]
    assert tried["structuredContent"]["passed"]
    run = launched["structuredContent"]["run"]
    assert again["structuredContent"]["run"] == run
    until(lambda: not user.ledger().runs[run].live, what="the run has ended")
    [fetched] = peer(user, job, [("fetch", {"run": run})])["answers"]
    assert fetched["structuredContent"]["verified"]

    server = McpServer(user)
    try:
        job = {"url": server.url, "token": token_of(user)}
        [rented] = peer(user, job, [("plan", RECIPE)])["answers"]
        wish = {"quote": rented["structuredContent"]["quote"], "idempotency_key": "k2"}
        [begun, stopped] = peer(user, job, [("launch", wish), ("stop", {"run": "r-0"})])["answers"]
        quoted = rented["structuredContent"]["reserves_usd"]
        assert begun["structuredContent"]["reserved_usd"] == quoted
        assert stopped["isError"]
    finally:
        server.kill()
