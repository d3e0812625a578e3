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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

GPUS = {
    "A100-80GB": "NVIDIA A100 80GB PCIe",
    "A100-80GB-SXM": "NVIDIA A100-SXM4-80GB",
    "RTX4090": "NVIDIA GeForce RTX 4090",
}
PATIENCE_S = 120.0
#: What SkyPilot lays into a machine so that it can end itself; here it asks the pod's own tool.
AUTODOWN = """#!/bin/sh
case "$*" in *set_autostop*) exec runpodctl remove pod "$(hostname)" ;; esac
exit 1
"""


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


def make(account: Mapping[str, str], name: str, task: Mapping[str, Any], home: Path) -> str:
    """Ask for the machine; its id."""
    key = home / ".sky" / "key"
    if not key.exists():
        key.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)],
            check=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    ((gpu, count),) = task["resources"]["accelerators"].items()
    body = {
        "name": f"{name}-head",
        "image": "standin/skypilot",
        "gpu": {"id": GPUS[gpu], "count": count},
        "cloud": "SECURE",
        "disk": task["resources"]["disk_size"],
        "mounts": {"persistent": {"size": 10, "path": "/workspace"}},
        "ports": ["22/tcp"],
        "startSsh": False,
        "env": {"PUBLIC_KEY": key.with_suffix(".pub").read_text().strip()},
    }
    return str(ask(account, "POST", "/pods", body)["id"])


def bring_up(account: Mapping[str, str], pod: str, name: str, home: Path) -> None:
    """Wait for its address, and write the way there."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        told = ask(account, "GET", f"/pods/{pod}")
        direct = (told.get("ssh") or {}).get("direct") if told is not None else None
        if direct:
            break
        if told is None or time.monotonic() > deadline:
            raise SystemExit(f"{name} never came up")
        time.sleep(0.1)
    path = config_of(home, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"Host {name}\n  HostName {direct['host']}\n  User root\n  Port {direct['port']}\n"
        f"  IdentityFile {home / '.sky' / 'key'}\n  IdentitiesOnly yes\n"
        "  StrictHostKeyChecking no\n  UserKnownHostsFile=/dev/null\n"
        "  GlobalKnownHostsFile=/dev/null\n"
    )
    while run(path, name, "true") != 0:
        if time.monotonic() > deadline:
            raise SystemExit(f"{name} answers nobody")
        time.sleep(0.1)


def start(name: str, task: Mapping[str, Any], home: Path) -> None:
    """Bring files and SkyPilot's own, then start the job, which goes on by itself."""
    path = config_of(home, name)
    for there, here in task["file_mounts"].items():
        folder = there.rpartition("/")[0]
        run(path, name, f"mkdir -p {folder} && cat > {there}", Path(here).read_bytes())
    python = "~/skypilot-runtime/bin/python"
    script = f"mkdir -p ~/skypilot-runtime/bin && cat > {python} && chmod 755 {python}"
    run(path, name, script, AUTODOWN.encode())
    secrets = "".join(f"export {k}={json.dumps(v)}\n" for k, v in task["secrets"].items())
    # A machine's image says where its Python is; a login does not.
    image = "export PATH=$(tr '\\0' '\\n' < /proc/1/environ | sed -n s/^PATH=//p)\n"
    run(path, name, "cat > ~/job.sh", (image + secrets + task["run"]).encode())
    run(path, name, "setsid bash ~/job.sh > ~/job.log 2>&1 < /dev/null &")


def run(config: Path, name: str, script: str, content: bytes = b"") -> int:
    return subprocess.run(
        ["ssh", "-F", str(config), "-o", "BatchMode=yes", "-o", "LogLevel=ERROR", name, script],
        input=content, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60,
    ).returncode  # fmt: skip
