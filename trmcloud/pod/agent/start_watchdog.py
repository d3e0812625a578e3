"""A watchdog with a session of its own, and the record by which it is found again."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trmcloud.io.files import read_small
from trmcloud.pod.agent.follow import GUARDIAN_LOG_NAME
from trmcloud.pod.machine import processes

POD_NAME = "pod.json"


def spawn_watchdog(
    words: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> dict[str, Any]:
    """Start ``words`` in the pod's ``folder``; what its record must tell of the process."""
    with open(folder / GUARDIAN_LOG_NAME, "ab") as log:
        child = subprocess.Popen(
            list(words),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=dict(environment),
            start_new_session=True,
        )
    return {"pid": child.pid, "started": processes.started(child.pid) or ""}


def watchdog_of(folder: Path) -> tuple[int, str] | None:
    """(pid, start time) of the watchdog that the pod's record names, alive or not."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        data = json.loads(read_small(folder / POD_NAME) or "null")
        if isinstance(data["pid"], int) and isinstance(data["started"], str):
            return data["pid"], data["started"]
    return None
