"""Machines behind the stand-in of ``sky``: pods of the RunPod stand-in, reached as SkyPilot would.

Run by ``sky.py`` as what SkyPilot's API server is: a process that outlives the command, makes the
machine, writes an SSH configuration that pins nothing, brings the files and starts the job.
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

GPUS = {
    "A100-80GB": "NVIDIA A100 80GB PCIe",
    "A100-80GB-SXM": "NVIDIA A100-SXM4-80GB",
    "L4": "NVIDIA L4",
    "L40S": "NVIDIA L40S",
    "RTX3090": "NVIDIA GeForce RTX 3090",
    "RTX4090": "NVIDIA GeForce RTX 4090",
}
ADDRESSES = ("10.78.0.1", "10.78.0.2")
PATIENCE_S = 120.0


def ask(account: Mapping[str, str], method: str, path: str, body: Any = None) -> Any:
    """What the RunPod stand-in answers; None where it knows no such thing."""
    request = urllib.request.Request(
        account["url"] + "/v2" + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "Authorization": f"Bearer {account['key']}",
            "Content-Type": "application/json",
            "User-Agent": "SkyPilot",
        },
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or b"{}")
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise


def config_of(home: Path, name: str) -> Path:
    return home / ".sky" / "generated" / "ssh" / name


def make(account: Mapping[str, str], name: str, task: Mapping[str, Any], home: Path) -> list[str]:
    """Ask for the machines; their ids, the first one's first."""
    key = home / ".sky" / "key"
    if not key.exists():
        key.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)],
            check=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    ((gpu, count),) = task["resources"]["accelerators"].items()
    body = {
        "image": "standin/skypilot",
        "gpu": {"id": GPUS[gpu], "count": count},
        "cloud": "SECURE",
        "disk": task["resources"]["disk_size"],
        "mounts": {"persistent": {"size": 10, "path": "/workspace"}},
        "ports": ["22/tcp"],
        "startSsh": False,
        "env": {"PUBLIC_KEY": key.with_suffix(".pub").read_text().strip()},
    }
    names = [f"{name}-head", *(f"{name}-worker{n}" for n in range(1, task["num_nodes"]))]
    return [str(ask(account, "POST", "/pods", {"name": each, **body})["id"]) for each in names]


def bring_up(account: Mapping[str, str], pods: Sequence[str], name: str, home: Path) -> None:
    """Wait for their addresses, and write the way there."""
    deadline = time.monotonic() + PATIENCE_S
    path = config_of(home, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = ""
    for number, pod in enumerate(pods):
        while True:
            told = ask(account, "GET", f"/pods/{pod}")
            direct = (told.get("ssh") or {}).get("direct") if told is not None else None
            if direct:
                break
            if told is None or time.monotonic() > deadline:
                raise SystemExit(f"{name} never came up")
            time.sleep(0.1)
        text += (
            f"Host {machine(name, number)}\n  HostName {direct['host']}\n  User root\n"
            f"  Port {direct['port']}\n"
            f"  IdentityFile {home / '.sky' / 'key'}\n  IdentitiesOnly yes\n"
            "  StrictHostKeyChecking no\n  UserKnownHostsFile=/dev/null\n"
            "  GlobalKnownHostsFile=/dev/null\n"
        )
    path.write_text(text)
    for number in range(len(pods)):
        while run(path, machine(name, number), "true") != 0:
            if time.monotonic() > deadline:
                raise SystemExit(f"{name} answers nobody")
            time.sleep(0.1)
    if len(pods) > 1:
        join(pods, home)


def machine(name: str, number: int) -> str:
    return f"{name}-worker{number}" if number else name


def join(pods: Sequence[str], home: Path) -> None:
    """Two machines that reach one another: a cable between their networks."""
    key = (home / ".sky" / "key.pub").read_text().strip()
    first, second = (_process_of(pod, key) for pod in pods)
    cable = f"ip link add eth0 netns {first} type veth peer name eth0 netns {second}"
    subprocess.run(cable.split(), check=True)
    for process, address in zip((first, second), ADDRESSES, strict=True):
        for words in (f"addr add {address}/24 dev eth0", "link set eth0 up"):
            inside = f"nsenter --target {process} --net ip {words}"
            subprocess.run(inside.split(), check=True)


def _process_of(pod: str, key: str) -> int:
    """One of the machine's own, as this one counts them. Another stand-in's pod may have the same
    id, and not the same key."""
    here = Path("/proc/self/ns/net").readlink()
    wanted = {f"RUNPOD_POD_ID={pod}".encode(), f"PUBLIC_KEY={key}".encode()}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            told = (folder / "environ").read_bytes().split(b"\0")
            if wanted <= set(told) and (folder / "ns" / "net").readlink() != here:
                return int(folder.name)
        except OSError:
            continue
    raise SystemExit(f"{pod} has no network of its own")


def start(
    account: Mapping[str, str],
    pods: Sequence[str],
    name: str,
    task: Mapping[str, Any],
    home: Path,
) -> None:
    """Bring files and SkyPilot's own, then start the job, which goes on by itself."""
    path = config_of(home, name)
    secrets = "".join(f"export {k}={json.dumps(v)}\n" for k, v in task["secrets"].items())
    # A machine's image says where its Python is; a login does not.
    image = "export PATH=$(tr '\\0' '\\n' < /proc/1/environ | sed -n s/^PATH=//p)\n"
    for number in range(len(pods)):
        host = machine(name, number)
        for there, here in task["file_mounts"].items():
            folder = there.rpartition("/")[0]
            run(path, host, f"mkdir -p {folder} && cat > {there}", Path(here).read_bytes())
        told = {"NUM_NODES": len(pods), "NODE_RANK": number, "NODE_IPS": "\n".join(ADDRESSES)}
        own = "".join(f"export SKYPILOT_{key}='{value}'\n" for key, value in told.items())
        run(path, host, "cat > ~/job.sh", (image + own + secrets + task["run"]).encode())
    python = "~/skypilot-runtime/bin/python"
    script = f"mkdir -p ~/skypilot-runtime/bin && cat > {python} && chmod 755 {python}"
    for number in range(len(pods)):
        own = runtime(account, pods, number)
        run(path, machine(name, number), script, own.encode())
    for number in range(len(pods)):
        run(path, machine(name, number), "setsid bash ~/job.sh > ~/job.log 2>&1 < /dev/null &")


def runtime(account: Mapping[str, str], pods: Sequence[str], number: int) -> str:
    """What SkyPilot lays into each of a cluster's machines so that it can end all of them, by the
    cloud's credentials, which lie there too. Its daemon, which looks after autodown, runs on the
    first one alone: on the others that setting is a file that nobody reads."""
    key = f"Bearer {account['key']}"
    last_itself = [*(pod for pod in pods if pod != pods[number]), pods[number]]
    return (
        "#!/usr/bin/env python3\n"
        "import sys\n"
        "from urllib.error import HTTPError\n"
        "from urllib.request import Request, urlopen\n"
        "asked = ' '.join(sys.argv)\n"
        f"if 'set_autostop' in asked and {number > 0}: sys.exit(0)\n"
        "if 'set_autostop' not in asked and 'terminate_instances' not in asked: sys.exit(1)\n"
        f"for pod in {last_itself}:\n"
        f"    url = {account['url'] + '/v2/pods/'!r} + pod\n"
        f"    headers = {{'Authorization': {key!r}, 'User-Agent': 'SkyPilot'}}\n"
        "    try: urlopen(Request(url, headers=headers, method='DELETE'))\n"
        "    except HTTPError as error:\n"
        "        if error.code != 404: raise\n"
    )


def run(config: Path, name: str, script: str, content: bytes = b"") -> int:
    return subprocess.run(
        ["ssh", "-F", str(config), "-o", "BatchMode=yes", "-o", "LogLevel=ERROR", name, script],
        input=content, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60,
    ).returncode  # fmt: skip
