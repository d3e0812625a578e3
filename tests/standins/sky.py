"""A stand-in of SkyPilot's ``sky`` command: no cloud, no server, one JSON file for its memory.

    python tests/standins/sky.py STATE.json status -o json

It prints what 0.14.1 was seen to print. ``STATE.json`` also takes ``fail``: a word of a command →
what it prints before it ends with 1; and ``at``, epoch seconds: a launch asked for before then
is up.
"""

from __future__ import annotations

import fnmatch
import json
import sys
import uuid
from pathlib import Path
from typing import Any

VERSION = "0.14.1"


def main() -> int:
    path, words = Path(sys.argv[1]), sys.argv[2:]
    state: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    state.setdefault("asked", []).append(words)
    code = answer(state, words)
    path.write_text(json.dumps(state))
    return code


def answer(state: dict[str, Any], words: list[str]) -> int:
    clusters: dict[str, Any] = state.setdefault("clusters", {})
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
        name = words[words.index("-c") + 1]
        task = json.loads(Path(words[-1]).read_text())
        state.setdefault("tasks", {})[name] = task
        limit = task["resources"].get("autostop", {"idle_minutes": -1, "down": False})
        request_id = str(uuid.uuid4())
        requests.append(
            {"request_id": request_id, "name": "sky.launch", "status": "RUNNING", "on": name}
        )
        clusters[name] = {
            "name": name, "status": "INIT", "init_kind": "launching",
            "launched_at": int(state.get("at", 1795264000)),
            "autostop": limit["idle_minutes"], "to_down": limit["down"], "cloud": None,
        }  # fmt: skip
        print(f"YAML to run: {words[-1]}\nRunning on cluster: {name}")
        print(f"Submitted sky.launch request: {request_id}")
    elif line.startswith("api status"):
        name = words[words.index("-c") + 1]
        print("The flag is ignored because the server does not support it yet.")
        rows = [r for r in requests if r["on"] == name]
        if "-a" not in words:
            rows = [r for r in rows if r["status"] in ("PENDING", "RUNNING")]
        print(json.dumps(rows, indent=2))
    elif line.startswith("api cancel"):
        for row in requests:
            if row["request_id"] == words[-1]:
                row["status"] = "CANCELLED"
    elif verb == "status":
        for row in clusters.values():
            if row["init_kind"] == "launching" and state.get("at", 0) > row["launched_at"]:
                row |= {"status": "UP", "init_kind": None, "cloud": "AWS", "region": "us-east-1"}
        glob = next(word for word in words if word.startswith("trmc"))
        found = [row for name, row in clusters.items() if fnmatch.fnmatch(name, glob)]
        print(json.dumps(found))
    elif verb == "down":
        if clusters.pop(words[-1], None) is None:
            print(f"Cluster(s) not found: {words[-1]}.")
    elif verb == "autostop":
        row = clusters[words[2]]
        row["autostop"], row["to_down"] = int(words[words.index("-i") + 1]), "--down" in words
    elif verb == "cost-report":
        print(json.dumps(state.get("costs", []), indent=2))
    elif verb == "check":
        if "-o" in words:
            on = {cloud: ["compute"] for cloud in state.get("enabled", [])}
            print(json.dumps({"default": on}, indent=2))
        else:
            print("  AWS: disabled \n    Reason [compute, storage]: AWS credentials are not set.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
