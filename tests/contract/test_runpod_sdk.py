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

from tests.standins.runpod.client import eventually
from tests.standins.runpod.standin import StandIn

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("runpod") is None, reason="the runpod SDK is not installed"
)

LIFE = """
import json, os, runpod
runpod.api_key = os.environ["RUNPOD_API_KEY"]
made = runpod.create_pod(
    "by-sdk", "an/image:1", "NVIDIA L4", cloud_type="SECURE", gpu_count=2, volume_in_gb=20,
    volume_mount_path="/workspace", ports="22/tcp,8888/http", env={"A": "b c"},
    docker_args="sleep 600", data_center_id="US-KS-2", allowed_cuda_versions=["12.8"],
)
seen = {
    "made": made,
    "listed": runpod.get_pods(),
    "got": runpod.get_pod(made["id"]),
    "gpu": runpod.get_gpu("NVIDIA L4"),
    "gpus": runpod.get_gpus(),
    "user": runpod.get_user(),
    "terminated": runpod.terminate_pod(made["id"]),
    "after": runpod.get_pod(made["id"]),
}
print(json.dumps(seen))
"""

ERRORS = """
import json, os, runpod
runpod.api_key = os.environ["RUNPOD_API_KEY"]
seen = {}
def tried(name, call):
    try:
        call()
    except Exception as caught:
        seen[name] = [type(caught).__name__, str(caught)]
tried("unknown gpu", lambda: runpod.create_pod("a", "i", "NVIDIA NONE"))
tried("no capacity", lambda: runpod.create_pod("a", "i", "NVIDIA B200"))
tried("unknown pod", lambda: runpod.terminate_pod("nothing"))
tried("bad field", lambda: runpod.create_pod("a", 'i", bogus: "x', "NVIDIA L4"))
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


def test_a_pods_life_by_the_sdk(runpod_on_paper: StandIn) -> None:
    seen = with_sdk(runpod_on_paper, LIFE)
    assert seen["made"]["env"] == ["A=b c"]
    assert [pod["name"] for pod in seen["listed"]] == ["by-sdk"]
    assert seen["got"]["costPerHr"] == pytest.approx(2 * 0.49)
    assert (seen["got"]["gpuCount"], seen["got"]["volumeInGb"]) == (2, 20)
    assert seen["got"]["dockerArgs"] == "sleep 600"
    assert seen["gpu"]["securePrice"] == 0.49
    assert {"id", "displayName", "memoryInGb"} == set(seen["gpus"][0])
    assert seen["user"]["networkVolumes"] == []
    assert seen["after"] is None
    assert eventually(lambda: not runpod_on_paper.control.live())
    asked = [request.operation for request in runpod_on_paper.requests]
    assert asked[:3] == ["gpuTypes", "podFindAndDeployOnDemand", "myself"]


def test_the_sdk_understands_what_it_is_refused(runpod_on_paper: StandIn) -> None:
    runpod_on_paper.control.set(no_capacity=["NVIDIA B200"])
    seen = with_sdk(runpod_on_paper, ERRORS)
    assert seen["unknown gpu"][0] == "ValueError"
    assert seen["no capacity"][0] == "QueryError"
    assert "no longer any instances available" in seen["no capacity"][1]
    assert seen["unknown pod"] == ["QueryError", "pod not found to terminate"]
    assert seen["bad field"][0] == "QueryError"
    assert "bogus" in seen["bad field"][1]
    assert seen["wrong key"][0] == "AuthenticationError"
    assert runpod_on_paper.control.live() == []
