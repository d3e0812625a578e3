"""Agents as tests see them: the Model Context Protocol's official client, over stdio or HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
from anyio.from_thread import start_blocking_portal
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from tests.e2e.user import User
from tests.standins.scripts import LISTENING
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.api import Home
from trmcloud.core.control import events as ev

WITHIN_S = 200.0


def end_launchers(folder: Path) -> None:
    """End the launches' processes of the homes below ``folder``: each stays with its run."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes()
            if b"trmcloud.mcp.launcher" in words and os.fsencode(f"{folder}/") in words:
                os.kill(int(path.parent.name), signal.SIGKILL)


class Agent:
    """A client; ``call`` returns a tool's answer, and fails where the tool refused."""

    def __init__(self, portal: Any, client: Client) -> None:
        self._portal, self.client = portal, client

    def tools(self) -> dict[str, Any]:
        return {tool.name: tool for tool in self._portal.call(self.client.list_tools).tools}

    def raw(self, tool: str, given: dict[str, Any]) -> Any:
        return self._portal.call(self.client.call_tool, tool, given, WITHIN_S)

    def call(self, tool: str, /, **given: Any) -> dict[str, Any]:
        answer = self.raw(tool, given)
        assert not answer.is_error, answer.content[0].text
        return document(answer)

    def refused(self, tool: str, /, **given: Any) -> dict[str, Any]:
        answer = self.raw(tool, given)
        assert answer.is_error, answer.content[0].text
        return document(answer)


def document(answer: Any) -> dict[str, Any]:
    """The answer's document, which its text says, too."""
    told = json.loads(answer.content[0].text)
    assert told == answer.structured_content
    return dict(told)


@contextlib.contextmanager
def connected(transport: Any, **more: Any) -> Iterator[Agent]:
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(Client(transport, **more)) as client,
    ):
        yield Agent(portal, client)


def stdio(user: User, grant: str = "agent", *more: str) -> StdioServerParameters:
    words = ["-m", "trmcloud", "mcp", "--grant", grant, "--folder", str(project(user)), *more]
    return StdioServerParameters(
        command=sys.executable, args=words, env=user.env(), cwd=str(user.folder)
    )


@contextlib.contextmanager
def http(url: str, token: str, **more: Any) -> Iterator[Agent]:
    """An agent whose requests bear ``token``."""
    headers = {"Authorization": f"Bearer {token}"}
    made = httpx2.AsyncClient(headers=headers, timeout=WITHIN_S)
    with connected(streamable_http_client(url, http_client=made), **more) as agent:
        yield agent


def project(user: User) -> Path:
    folder = user.folder / "project"
    folder.mkdir(exist_ok=True)
    return folder


def verify_layers(user: User) -> None:
    """As a smoke run does, so that no one has to accept an exposure."""
    for layer in ("agent", "prepaid"):
        seen = ev.LayerVerified("runpod", layer, "a smoke run")
        SqliteLedger(user.ledger_path).verify_layer(seen, time.time())


def script(user: User, text: str = LISTENING, name: str = "train.py") -> Path:
    path = project(user) / name
    path.write_text(text)
    return path


def give(user: User, usd: str = "2", grant: str = "agent", **terms: Any) -> Home:
    """The owner's home, in which ``grant`` has so much."""
    owner = Home(user.home)
    owner.give_grant(grant, usd, **terms)
    return owner


def tried(agent: Agent, words: Sequence[str] = ("python3", "train.py"), for_s: float = 3) -> None:
    """A grant pays for a command only after this."""
    told = agent.call("try", command=list(words), metric="val_loss", for_s=for_s, grace=2.0)
    assert told["passed"], told


#: The plan that an agent asks for on a rented machine.
RECIPE: dict[str, Any] = {
    "hardware": "1xA100", "recipe": "trm-tiny", "phase": "fast", "data": "python-stdlib",
    "provider": ["runpod"], "budget": "1", "steps": 200,
    "setting": ["depth=1", "width=32", "vocab_size=256", "sequence=64", "eval_tokens=1024"],
}  # fmt: skip


def own(words: Sequence[str] = ("python3", "train.py"), budget: str = "0.05") -> dict[str, Any]:
    """The plan that an agent asks for: a command on this machine."""
    return {
        "command": list(words), "hardware": "local", "rate": "3.60", "budget": budget,
        "grace": 2.0, "checkpoints": "out", "checkpoint_gb": 0.001, "metric": "val_loss",
    }  # fmt: skip
