"""The RunPod stand-in's pods: commands that really run, and really die."""

from __future__ import annotations

import functools
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.standins.runpod.client import Client, eventually
from tests.standins.runpod.fixture import judged
from tests.standins.runpod.machines import no_namespaces
from tests.standins.runpod.standin import API_KEY, StandIn

NO_NAMESPACES = no_namespaces()
pytestmark = pytest.mark.skipif(bool(NO_NAMESPACES), reason=f"pods: {NO_NAMESPACES}")
WORKSPACE = {"persistent": {"size": 10, "path": "/workspace"}}


@pytest.fixture
def standin(tmp_path: Path) -> Iterator[StandIn]:
    with judged(tmp_path / "runpod") as one:
        one.control.set(restart_after_s=0.05)
        yield one


def shell(script: str) -> str:
    return f"bash -c {shlex.quote(script)}"


def lines(standin: StandIn, pod: str = "a-pod") -> list[str]:
    """What the pod's command has written, over all its starts."""
    return [
        line for *_, source, line in list(standin.control.pod(pod).log) if source == "container"
    ]


def said(standin: StandIn, word: str, pod: str = "a-pod") -> str:
    """The first line that begins with ``word``, once it is there."""
    found: str = eventually(
        lambda: next((line for line in lines(standin, pod) if line.startswith(word)), None)
    )
    return found


def running_with(marker: str) -> list[int]:
    """This machine's processes with the marker among their arguments."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and marker.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_a_command_finds_its_environment_and_its_words_reach_the_logs(standin: StandIn) -> None:
    ask = Client(standin)
    script = 'echo "got $RUNPOD_POD_ID $RUNPOD_DC_ID $RUNPOD_GPU_COUNT $MINE"; sleep 60'
    pod = ask.rent(args=shell(script), env={"MINE": "a b"}, gpu="NVIDIA L4")
    assert said(standin, "got") == f"got {pod['id']} US-KS-2 1 a b"


def test_a_command_that_ends_is_started_again_and_billed_on(standin: StandIn) -> None:
    ask = Client(standin)
    script = (
        'date +%N >> "$TRMCLOUD_ROOT/starts"; ls "$HOME"; echo > "$HOME/left-behind"; '
        'echo "start $(wc -l < $TRMCLOUD_ROOT/starts)"'
    )
    root = "/workspace"
    pod = ask.rent(args=shell(script), mounts=WORKSPACE, env={"TRMCLOUD_ROOT": root})
    said(standin, "start 3")
    assert "left-behind" not in lines(standin)
    shown = ask.pod(pod["id"])
    assert (shown["status"], shown["cost"]) == ("RUNNING", 0.49)
    assert standin.control.pod("a-pod").boots >= 3


def test_deleting_a_pod_kills_all_that_it_ever_started(standin: StandIn, tmp_path: Path) -> None:
    ask = Client(standin)
    marker = f"{100000 + os.getpid()}.{time.time_ns() % 10**6}"
    script = f"(setsid setsid sleep {marker} &) ; nohup sleep {marker} & echo up; sleep {marker}"
    pod = ask.rent(args=shell(script))
    said(standin, "up")
    eventually(lambda: len(running_with(marker)) >= 3)
    assert ask("DELETE", f"/v2/pods/{pod['id']}").status == 204
    assert running_with(marker) == []
    assert not (tmp_path / "runpod" / "pods" / pod["id"]).exists()


def test_an_isolated_pod_is_a_machine_of_its_own(standin: StandIn) -> None:
    ask = Client(standin)
    standin.control.set(absent_commands=["rsync"])
    script = (
        "echo pid $$; echo host $(hostname); echo tmp $(find /tmp -xdev -type f | wc -l);"
        "touch /usr/bin/planted;"
        "echo keys $(ls /etc/ssh/ssh_host_* 2>/dev/null | wc -l); command -v rsync;"
        "tr '\\0' '\\n' < /proc/1/environ | grep -c ^RUNPOD_API_KEY=rpa_pod_;"
        "python3 -c 'import sys; print(\"python\", sys.prefix)'; echo end; sleep 600"
    )
    pod = ask.rent(args=shell(script))
    said(standin, "end")
    prefix = f"python {sys.prefix}"
    wanted = ["pid 1", f"host {pod['id']}", "tmp 0", "keys 0", "1", prefix, "end"]
    assert lines(standin) == wanted
    assert not Path("/usr/bin/planted").exists()


def test_an_isolated_pod_has_no_code_that_was_not_sent(tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.mkdir()
    (image / "baked.py").write_text("said = 'baked in'")
    with judged(tmp_path / "runpod", keep=[image], image_env={"PYTHONPATH": str(image)}) as one:
        tried = "python3 -c 'import {0}; print({0}.said)' 2>&1 | tail -n 1; "
        script = "".join(tried.format(name) for name in ("trmcloud.core", "model", "baked"))
        here = Path(__file__).parents[2]
        script += f"ls {here}/trmcloud/core 2>&1; echo end; sleep 60"
        Client(one).rent(args=shell(script))
        said(one, "end")
        first, second, third, fourth = lines(one)[:4]
        assert first == "ModuleNotFoundError: No module named 'trmcloud.core'"
        assert second == "ModuleNotFoundError: No module named 'model'"
        assert third == "baked in"
        assert "No such file" in fourth


def test_a_test_may_reach_into_a_pod(standin: StandIn) -> None:
    ask = Client(standin)
    ask.rent(args="sleep 600", mounts=WORKSPACE)
    eventually(lambda: standin.control.pod("a-pod").boots == 1)
    (standin.control.workspace("a-pod") / "planted").write_text("by the test")
    reach = functools.partial(standin.control.inside, "a-pod")
    assert eventually(lambda: runs(standin)) is not None
    assert reach("cat /workspace/planted") == "by the test"
    with pytest.raises(ValueError, match="code 3"):
        reach("exit 3")


def runs(standin: StandIn) -> str | None:
    try:
        return standin.control.inside("a-pod", "echo yes")
    except ValueError:
        return None


def test_pods_die_with_a_stand_in_that_is_killed(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.standins.runpod", "--folder", str(tmp_path / "runpod")],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        marker = f"{200000 + os.getpid()}.{time.time_ns() % 10**6}"
        body = {"name": "a", "image": "i", "gpu": {"id": "NVIDIA L4"}, "args": f"sleep {marker}"}
        headers = {"Authorization": f"Bearer {API_KEY}", "User-Agent": "a-test"}
        request = urllib.request.Request(
            f"{url}/v2/pods", data=json.dumps(body).encode(), headers=headers
        )
        urllib.request.urlopen(request, timeout=10).close()
        eventually(lambda: running_with(marker))
        process.send_signal(signal.SIGKILL)
        eventually(lambda: not running_with(marker))
    finally:
        process.kill()
        process.wait()
        process.stdout.close() if process.stdout is not None else None
