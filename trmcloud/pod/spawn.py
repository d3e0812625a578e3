"""A guardian with a session of its own, and the record by which it is found again."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trmcloud.pod import processes
from trmcloud.pod.files import read_small
from trmcloud.pod.follow import GUARDIAN_LOG_NAME

POD_NAME = "pod.json"


def spawn_guardian(
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


def guardian_of(folder: Path) -> tuple[int, str] | None:
    """(pid, start time) of the guardian that the pod's record names, alive or not."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        data = json.loads(read_small(folder / POD_NAME) or "null")
        if isinstance(data["pid"], int) and isinstance(data["started"], str):
            return data["pid"], data["started"]
    return None
