"""A watchdog with a session of its own, and the record by which it is found again."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trmcloud.core.contract import pod_contract as contract
from trmcloud.io.files import read_small
from trmcloud.pod.agent.follow import GUARDIAN_LOG_NAME
from trmcloud.pod.machine import processes

POD_NAME = "pod.json"
UNSEEN_S = 2.0
"""How long a pod that nothing saw end may have lasted beyond its last sign."""


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


def noted_end(folder: Path) -> float | None:
    """When the pod in ``folder`` ended (epoch s), as its watchdog noted it."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return float(json.loads(read_small(folder / contract.ENDED_NAME) or "null")["at"])
    return None


def last_sign_of(folder: Path, run_dir: Path) -> float:
    """A moment after the last that the pod in ``folder`` or a trainer below ``run_dir`` wrote."""
    times = [0.0]
    for path in (folder, *folder.glob("*"), *run_dir.glob(f"*/{contract.HEARTBEAT_NAME}")):
        with contextlib.suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(times) + UNSEEN_S


def watchdog_of(folder: Path) -> tuple[int, str] | None:
    """(pid, start time) of the watchdog that the pod's record names, alive or not."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        data = json.loads(read_small(folder / POD_NAME) or "null")
        if isinstance(data["pid"], int) and isinstance(data["started"], str):
            return data["pid"], data["started"]
    return None
