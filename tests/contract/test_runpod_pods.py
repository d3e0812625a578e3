"""The RunPod stand-in's pods: commands that really run, and really die."""

from __future__ import annotations

import functools
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.standins.runpod.client import Client, eventually
from tests.standins.runpod.fixture import judged
from tests.standins.runpod.machines import no_namespaces
from tests.standins.runpod.standin import API_KEY, StandIn
from tests.standins.sshd import find_sshd

NO_NAMESPACES = no_namespaces()
needs_sshd = pytest.mark.skipif(find_sshd() is None, reason="no openssh-server")
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


def test_stop_and_restart_keep_the_workspace(standin: StandIn) -> None:
    ask = Client(standin)
    script = 'echo x >> "$TRMCLOUD_ROOT/n"; echo "seen $(wc -l < $TRMCLOUD_ROOT/n)"; sleep 600'
    root = "/workspace"
    pod = ask.rent(args=shell(script), mounts=WORKSPACE, env={"TRMCLOUD_ROOT": root})
    said(standin, "seen 1")
    action = f"/v2/pods/{pod['id']}/action"
    assert ask("POST", action, {"action": "restart"}).status == 200
    said(standin, "seen 2")
    assert ask("POST", action, {"action": "stop"}).data["status"] == "EXITED"
    assert ask("POST", action, {"action": "start"}).status == 200
    said(standin, "seen 3")


def test_the_gpus_that_are_there_need_not_be_those_rented(standin: StandIn) -> None:
    ask = Client(standin)
    fields = "driver_version,name,memory.total,memory.used,utilization.gpu"
    script = f"nvidia-smi --query-gpu={fields} --format=csv,noheader,nounits; echo end; sleep 60"
    ask.rent("right", gpu="NVIDIA H100 80GB HBM3", args=shell(script))
    said(standin, "end", "right")
    assert lines(standin, "right")[:-1] == ["570.124.06, NVIDIA H100 80GB HBM3, 81559, 0, 0"]
    standin.control.set(
        fewer_gpus=1, other_gpu="NVIDIA L4", gpu_memory_used_mib=900, gpu_util=50, driver="535.1"
    )
    wish = {"id": "NVIDIA H100 80GB HBM3", "count": 3}
    body = {"name": "wrong", "image": "i", "gpu": wish, "args": shell(script)}
    assert ask("POST", "/v2/pods", body).data["gpu"]["count"] == 3
    said(standin, "end", "wrong")
    assert lines(standin, "wrong")[:-1] == ["535.1, NVIDIA L4, 23034, 900, 50"] * 2


WAYS = {
    "old": ("runpodctl remove pod $RUNPOD_POD_ID", {"runpodctl": "old"}),
    "new": ("runpodctl pod delete $RUNPOD_POD_ID", {"runpodctl": "new"}),
    "graphql": (
        'curl -s -H "Authorization: Bearer $RUNPOD_API_KEY" $RUNPOD_API_BASE_URL/graphql '
        '-H "Content-Type: application/json" -d '
        r'"{\"query\":\"mutation{podTerminate(input:{podId:\\\"$RUNPOD_POD_ID\\\"})}\"}"',
        {"runpodctl": "absent"},
    ),
}


def test_a_pod_that_may_not_end_itself_is_told_so(standin: StandIn) -> None:
    standin.control.set(self_graphql=False, self_delete=False)
    script = "runpodctl remove pod $RUNPOD_POD_ID; runpodctl pod delete $RUNPOD_POD_ID; "
    script += "runpodctl end pod; echo end; sleep 600"
    Client(standin).rent(args=shell(script))
    said(standin, "end")
    first, second, third = lines(standin)[:3]
    assert first == "Error: Unauthorized"
    assert second.startswith("Error: 403")
    assert third.startswith('Error: unknown command "end pod"')
    assert len(standin.control.live()) == 1


def test_a_restart_loop_goes_on_and_on(standin: StandIn) -> None:
    standin.control.set(restart_loop=True, restart_loop_s=0.1)
    Client(standin).rent(args="sleep 600")
    eventually(lambda: standin.control.pod("a-pod").boots >= 3)
    assert standin.control.pod("a-pod").status == "RUNNING"


def test_a_command_that_cannot_start_leaves_a_pod_that_costs(standin: StandIn) -> None:
    ask = Client(standin)
    pod = ask.rent(args="no-such-command")
    log = standin.control.pod("a-pod").log
    eventually(lambda: any("no-such-command" in line for *_, line in list(log)))
    assert ask.pod(pod["id"])["status"] == "RUNNING"


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


def test_an_isolated_pods_disk_can_be_full(standin: StandIn) -> None:
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("no mkfs.ext4")
    standin.control.set(workspace_mib=8)
    script = "head -c 20M /dev/zero > /workspace/big || echo full; echo end; sleep 600"
    Client(standin).rent(args=shell(script), mounts=WORKSPACE)
    said(standin, "end")
    assert "full" in lines(standin)


@needs_sshd
def test_ssh_into_a_pod_whose_command_starts_sshd(standin: StandIn, tmp_path: Path) -> None:
    ask, key = Client(standin), tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    public = key.with_suffix(".pub").read_text().strip()
    pod = ask.rent(env={"PUBLIC_KEY": public})
    direct = eventually(lambda: ask.pod(pod["id"])["ssh"]["direct"])
    command = [
        *("ssh", "-i", str(key), "-F", "none", "-o", "StrictHostKeyChecking=no"),
        *("-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "-o", "BatchMode=yes"),
        *("-p", str(direct["port"]), f"{os.environ.get('USER', 'root')}@{direct['host']}"),
    ]

    def over_ssh(script: str, **more: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, script], capture_output=True, text=True, timeout=20, check=False, **more
        )

    eventually(lambda: over_ssh("true").returncode == 0)
    assert over_ssh("nvidia-smi -L").stdout.startswith("GPU 0: NVIDIA L4")
    assert over_ssh("wc -c", input="x" * 3_000_000).stdout.strip() == "3000000"
    session = subprocess.Popen([*command, "sleep 600"])
    time.sleep(0.2)
    assert session.poll() is None
    ask("DELETE", f"/v2/pods/{pod['id']}")
    assert session.wait(20) == 255
    assert over_ssh("true").returncode == 255


def test_a_lost_host_takes_its_processes_and_stays_on_the_list(standin: StandIn) -> None:
    ask = Client(standin)
    marker = f"{300000 + os.getpid()}.{time.time_ns() % 10**6}"
    pod = ask.rent(args=f"sleep {marker}")
    eventually(lambda: running_with(marker))
    standin.control.lose_host("a-pod")
    assert running_with(marker) == []
    shown = ask.pod(pod["id"])
    assert (shown["status"], shown["ssh"]["direct"]) == ("RUNNING", None)


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


def test_a_cut_line_drops_sessions_and_takes_new_ones(standin: StandIn) -> None:
    ask = Client(standin)
    greet = "import socket as s;l=s.create_server(('127.0.0.1',22));held=[]\n"
    greet += "while 1: c=l.accept()[0];c.send(b'hi');held.append(c)"
    pod = ask.rent(args=f"python3 -c {shlex.quote(f'exec({greet!r})')}")
    direct = eventually(lambda: ask.pod(pod["id"])["ssh"]["direct"])

    def connect() -> socket.socket | None:
        line = socket.create_connection((direct["host"], direct["port"]), 5)
        return line if line.recv(2) == b"hi" else None

    line = eventually(connect)
    standin.control.cut("a-pod")
    assert line.recv(1) == b""
    assert connect() is not None


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
