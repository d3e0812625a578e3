"""RunPod's own SDK against the stand-in: each understands the other.

The SDK runs in a process of its own: it reads its address from the environment, and importing it
costs more than a second.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.standins.runpod.client import Client, eventually
from tests.standins.runpod.standin import StandIn

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("runpod") is None, reason="the runpod SDK is not installed"
)

TALK = """
import json, os, runpod
runpod.api_key = os.environ["RUNPOD_API_KEY"]
seen = {"listed": runpod.get_pods()}
made = seen["listed"][0]["id"]
seen["got"] = runpod.get_pod(made)
seen["terminated"] = runpod.terminate_pod(made)
seen["after"] = runpod.get_pod(made)
def tried(name, call):
    try:
        call()
    except Exception as caught:
        seen[name] = [type(caught).__name__, str(caught)]
tried("unknown pod", lambda: runpod.terminate_pod("nothing"))
runpod.api_key = "rpa_wrong"
tried("wrong key", runpod.get_pods)
print(json.dumps(seen))
"""


def with_sdk(standin: StandIn, script: str) -> dict[str, Any]:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/"),
        "RUNPOD_API_KEY": standin.api_key,
        "RUNPOD_API_BASE_URL": standin.url,
    }
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    data: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return data


def test_the_sdk_reads_ends_and_is_refused(runpod_on_paper: StandIn) -> None:
    more: dict[str, Any] = {
        "mounts": {"persistent": {"size": 20, "path": "/workspace"}},
        "env": {"A": "b c"},
    }
    made = Client(runpod_on_paper).rent("by-v2", args="sleep 600", **more)
    seen = with_sdk(runpod_on_paper, TALK)
    assert [pod["name"] for pod in seen["listed"]] == ["by-v2"]
    got = seen["got"]
    assert (got["id"], got["costPerHr"], got["volumeInGb"]) == (made["id"], 0.49, 20)
    assert (got["dockerArgs"], got["env"]) == ("sleep 600", ["A=b c"])
    assert seen["after"] is None
    assert eventually(lambda: not runpod_on_paper.control.live())
    assert seen["unknown pod"] == ["QueryError", "pod not found to terminate"]
    assert seen["wrong key"][0] == "AuthenticationError"
