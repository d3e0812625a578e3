"""A stand-in of SkyPilot's ``sky`` command: no cloud, no server, one JSON file for its memory.

    python tests/standins/sky.py STATE.json status -o json

It prints what 0.14.1 was seen to print. ``STATE.json`` also takes ``fail``: a word of a command →
what it prints before it ends with 1; ``then``: likewise → what has changed once it was carried out;
``at``, epoch seconds: a launch asked for before then is up, or has failed, where ``none_left`` says
why; ``from``: of each command the folder, the server that it would speak to and the names of its
variables; ``exited``: names of clusters whose pod has; ``said``: what a list prints instead of
rows; and ``runpod``, the URL and key of a stand-in of RunPod whose pods are its machines then. Its
clock is the user's, by the file that ``TEST_CLOCK`` names.
"""

from __future__ import annotations

import fcntl
import fnmatch
import json
import os
import struct
import subprocess
import sys
import time
import urllib.error
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sky_machines as machines

VERSION = "0.14.1"
PROVISION = "--provision"
AUTODOWN = "--autodown"
TRIED = """\
⚙︎ Launching on {infra}.
sky.exceptions.ResourcesUnavailableError: Failed to acquire resources in all zones in {infra} for \
{{{infra}({wanted})}}.

\x1b[0m\x1b[33m↺\x1b[0m Trying other potential resources."""
NONE_LEFT = """\
sky.exceptions.ResourcesUnavailableError: \x1b[31mFailed to provision all possible launchable \
resources.\x1b[0m Relax the task's resource requirements: 1x {infra}({wanted})
To keep retrying until the cluster is up, use the `--retry-until-up` flag.
Reasons for provision failures (for details, please check the log above):
Provision failures (tried 1 infra):

✗ {infra} — (gpus={wanted}, ...)
  Failed to acquire resources in all zones in {infra} for {{{infra}({wanted})}}.{why}
"""
AT_MOST_S = 300.0
"""A process that was left behind ends, whatever becomes of its test."""
UNREADABLE = "\n\x1b[33mFailed to refresh status for {count} cluster{plural}:\x1b[0m"
UNREADABLE_WHY = (
    "  \x1b[1m{name}\x1b[0m: Failed to query RunPod cluster '{name}' status: [KeyError] 'EXITED'"
)
"""As the real 0.14.1 said it on 2026-11-22. It ends with 0, and the row stays as it was."""
State = dict[str, Any]


def main() -> int:
    path, words = Path(sys.argv[1]), sys.argv[2:]
    if words[0] == PROVISION:
        provision(path, words[1])
        return 0

    if words[0] == AUTODOWN:
        autodown(path, words[1], float(words[2]))
        return 0

    def answered(state: State) -> int:
        state.setdefault("asked", []).append(words)
        state.setdefault("from", []).append([os.getcwd(), server(), sorted(os.environ)])
        code = answer(state, words, path)
        for part, changes in state.get("then", {}).items():
            if part in " ".join(words):
                state.update(changes)
        return code

    return changed(path, answered)


def server() -> str:
    """The server that SkyPilot would speak to: of the environment, the project, the user."""
    found = ""
    project = os.environ.get("SKYPILOT_PROJECT_CONFIG") or ".sky.yaml"
    for path in (Path.home() / ".sky" / "config.yaml", Path(project)):
        lines = path.read_text().splitlines() if path.exists() else []
        found = next((x.split()[1] for x in lines if "endpoint:" in x), found)
    return os.environ.get("SKYPILOT_API_SERVER_ENDPOINT") or found


def now() -> float:
    """Real time, and what the test has added to it."""
    clock = os.environ.get("TEST_CLOCK")
    added = struct.unpack("d", Path(clock).read_bytes())[0] if clock else 0.0
    return time.time() + float(added)


def changed(path: Path, change: Callable[[State], int]) -> int:
    """What ``change`` returns; nobody else reads or writes the state meanwhile."""
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state: State = json.loads(path.read_text()) if path.exists() else {}
        code = change(state)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(state))
        part.replace(path)
    return code


def answer(state: State, words: list[str], path: Path) -> int:
    clusters: State = state.setdefault("clusters", {})
    requests: list[Any] = state.setdefault("requests", [])
    verb = words[0]
    line = " ".join(words)
    for part, said in state.get("fail", {}).items():
        if part in line:
            print(said, file=sys.stderr)
            return 1
    if verb == "--version":
        print(f"skypilot, version {state.get('version', VERSION)}")
    elif verb == "launch":
        launch(state, words, path)
    elif line.startswith("api status"):
        name = words[words.index("-c") + 1]
        print("The flag is ignored because the server does not support it yet.")
        rows = [r for r in requests if r["on"] == name]
        if "-a" not in words:
            rows = [r for r in rows if r["status"] in ("PENDING", "RUNNING")]
        print(json.dumps(rows, indent=2))
    elif line.startswith("api logs"):
        log, error = state.get("logs", {}).get(words[-1], ("", ""))
        print(log)
        print(error, file=sys.stderr)
        return int(any(r["request_id"] == words[-1] and r["status"] == "FAILED" for r in requests))
    elif line.startswith("api cancel"):
        for row in requests:
            if row["request_id"] == words[-1]:
                row["status"] = "CANCELLED"
    elif verb == "status" and "said" in state:
        print(state["said"])
    elif verb == "status":
        unreadable = refresh(state, "-r" in words)
        if unreadable:
            print(UNREADABLE.format(count=len(unreadable), plural="s" * (len(unreadable) > 1)))
        for name in unreadable:
            print(UNREADABLE_WHY.format(name=name))
        glob = next(word for word in words if word.startswith("trmc"))
        print(json.dumps([row for name, row in clusters.items() if fnmatch.fnmatch(name, glob)]))
    elif verb == "down":
        if words[-1] not in clusters:
            print("Cluster(s) not found (tip: see `sky status`).")
        else:
            for pod in clusters[words[-1]].get("pods", ()) if "runpod" in state else ():
                machines.ask(state["runpod"], "DELETE", f"/pods/{pod}")
            forget(state, words[-1])
    elif verb == "autostop":
        row = clusters[words[2]]
        row["autostop"], row["to_down"] = int(words[words.index("-i") + 1]), "--down" in words
        row["down_at"] = now() + 60.0 * row["autostop"]
        if "runpod" in state and not state.get("autodown_fails"):
            aside(path, AUTODOWN, words[2], str(row["down_at"]))
    elif verb == "cost-report":
        print(json.dumps(state.get("costs", []), indent=2))
    elif verb == "check":
        if "-o" in words:
            on = {cloud: ["compute"] for cloud in state.get("enabled", [])}
            print(json.dumps({"default": on}, indent=2))
        else:
            print("  AWS: disabled \n    Reason [compute, storage]: AWS credentials are not set.")
    return 0


def launch(state: State, words: list[str], path: Path) -> None:
    name = words[words.index("-c") + 1]
    task = json.loads(Path(words[-1]).read_text())
    state.setdefault("tasks", {})[name] = task
    limit = task["resources"].get("autostop", {"idle_minutes": -1, "down": False})
    request_id = str(uuid.uuid4())
    at = now() if "runpod" in state else state.get("at", 1795264000)
    state["requests"].append(
        {"request_id": request_id, "name": "sky.launch", "status": "RUNNING", "on": name}
    )
    state["clusters"][name] = {
        "name": name, "status": "INIT", "init_kind": "launching", "launched_at": int(at),
        "autostop": limit["idle_minutes"], "to_down": limit["down"], "cloud": None,
    }  # fmt: skip
    if "runpod" in state:
        aside(path, PROVISION, name)
    print(f"YAML to run: {words[-1]}\nRunning on cluster: {name}")
    print(f"Submitted sky.launch request: {request_id}")


def aside(path: Path, *words: str) -> None:
    """A process that outlives this command."""
    with open(path.with_suffix(".log"), "ab") as log:
        subprocess.Popen(
            [sys.executable, "-S", __file__, str(path), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
        )


def autodown(path: Path, name: str, at: float) -> None:
    """What SkyPilot's daemon on the machine does by itself at its limit, with the credential that
    is there, whether or not a server runs on the user's machine. A later limit replaces it."""
    until = time.monotonic() + AT_MOST_S
    while time.monotonic() < until:
        state = json.loads(path.read_text())
        row = state["clusters"].get(name)
        if row is None or row.get("down_at") != at:
            return
        if now() >= at:
            for pod in row.get("pods", ()):
                machines.ask(state["runpod"], "DELETE", f"/pods/{pod}")
            return
        time.sleep(0.2)


def provision(path: Path, name: str) -> None:
    """What the API server does after ``launch --async``."""
    home = Path(os.environ["HOME"])

    def made(state: State) -> int:
        row = state["clusters"].get(name)
        if row is None:
            raise SystemExit("it was called off")
        task = state["tasks"][name]
        row["pods"] = machines.make(state["runpod"], name, task, home)
        # It counts from its last try to provision.
        row["launched_at"] = int(now())
        row |= {"cloud": task["resources"]["infra"].partition("/")[0].upper(), "region": "US"}
        return 0

    def is_up(state: State) -> int:
        if name in state["clusters"]:
            state["clusters"][name] |= {"status": "UP", "init_kind": None}
            for row in state["requests"]:
                if row["on"] == name:
                    row["status"] = "SUCCEEDED"
        return 0

    try:
        changed(path, made)
    except urllib.error.HTTPError as error:
        error.close()
        changed(path, lambda state: fail(state, name, ""))
        return
    state = json.loads(path.read_text())
    pods = state["clusters"][name]["pods"]
    machines.bring_up(state["runpod"], pods, name, home)
    changed(path, is_up)
    machines.start(state["runpod"], pods, name, state["tasks"][name], home)


def fail(state: State, name: str, why: str) -> int:
    """What becomes of a launch that finds nothing to rent: no cluster, and its log says why."""
    resources = state["tasks"][name]["resources"]
    told = {"infra": resources["infra"], "wanted": resources["accelerators"], "why": why}
    del state["clusters"][name]
    for row in state["requests"]:
        if row["on"] == name and row["status"] == "RUNNING":
            row["status"] = "FAILED"
            log = TRIED.format(**told), NONE_LEFT.format(**told)
            state.setdefault("logs", {})[row["request_id"]] = log
    return 0


def refresh(state: State, ask: bool) -> list[str]:
    """Look at every machine; those that have exited, a word which 0.14.1 cannot read."""
    unreadable = list(state.get("exited", []))
    for name, row in list(state["clusters"].items()):
        is_over = row["init_kind"] == "launching" and state.get("at", 0) > row["launched_at"]
        if is_over and "none_left" in state:
            fail(state, name, state["none_left"])
            continue
        if is_over:
            row |= {"status": "UP", "init_kind": None, "cloud": "AWS", "region": "us-east-1"}
        if ask and row.get("pods"):
            pods = [machines.ask(state["runpod"], "GET", f"/pods/{pod}") for pod in row["pods"]]
            gone = [pod is None or pod["status"] == "TERMINATED" for pod in pods]
            if all(gone):
                forget(state, name)
            elif any(gone) and row["status"] == "UP":
                row |= {"status": "INIT", "init_kind": "unhealthy"}
            elif any(pod["status"] == "EXITED" for pod in pods if pod is not None):
                unreadable.append(name)
    return unreadable


def forget(state: State, name: str) -> None:
    row = state["clusters"].pop(name)
    if "runpod" in state:
        machines.config_of(Path(os.environ["HOME"]), name).unlink(missing_ok=True)
        task = state["tasks"][name]
        hourly = task["resources"]["max_hourly_cost"] * task["num_nodes"]
        cost = hourly * (now() - row["launched_at"]) / 3600
        state.setdefault("costs", []).append(
            {"name": name, "status": "TERMINATED", "total_cost": cost}
        )


if __name__ == "__main__":
    sys.exit(main())
