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

from tests.e2e.agents import give, own, script, stdio
from tests.e2e.test_mcp import McpServer, token_of
from tests.e2e.user import ROOT, User, until

PEER = os.environ.get("TRMCLOUD_MCP_PEER", "")
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


def test_the_peer_lists_plans_launches_and_is_refused(user: User) -> None:
    script(user)
    give(user)
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
    quote = planned["structuredContent"]["quote"]

    server = McpServer(user)
    try:
        job = {"url": server.url, "token": token_of(user)}
        wish = {"quote": quote, "idempotency_key": "k"}
        [launched, again] = peer(user, job, [("launch", wish), ("launch", wish)])["answers"]
        run = launched["structuredContent"]["run"]
        assert again["structuredContent"]["run"] == run
        until(lambda: not user.ledger().runs[run].live, what="the run has ended")
        [fetched] = peer(user, job, [("fetch", {"run": run})])["answers"]
        assert fetched["structuredContent"]["verified"]
    finally:
        server.kill()
