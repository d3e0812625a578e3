"""What the provider told this container, and what of it a trainer may see.

A provider sets variables for a container's first process alone: a login shell, or a process that a
wrapper started, finds them in that process's record.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from trmcloud.core.contract import pod_contract as contract

RUNPOD_POD_ID = "RUNPOD_POD_ID"
RUNPOD_API_KEY = "RUNPOD_API_KEY"

_TOLD_BY_PREFIX = ("RUNPOD_", "TRMCLOUD_")
#: Never in the environment of a trainer, of what it starts, or of a login.
_SECRETS = frozenset((contract.ENV_HOST_KEY, RUNPOD_API_KEY))
#: Of use to the first process alone, and large.
_FOR_BOOT_ALONE = frozenset(
    (contract.ENV_BOOT, contract.ENV_LEASE, contract.ENV_JOBS, contract.ENV_CHECK)
)

_INSTALL_SETTING = re.compile(contract.ENV_INSTALL_PREFIX + r"[A-Za-z0-9_]+")


def install_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """What the user says of installing on pods: told to them as it is."""
    return {name: text for name, text in environ.items() if _INSTALL_SETTING.fullmatch(name)}


def pod_environment(
    own: Mapping[str, str], first_process: Path = Path("/proc/1/environ")
) -> dict[str, str]:
    """``own``, and beneath it what the provider and control told the container's first process."""
    try:
        lines = first_process.read_bytes().split(b"\0")
    except OSError:
        return dict(own)
    pairs = (line.decode("utf-8", "replace").partition("=") for line in lines)
    told = {name: value for name, _, value in pairs if name.startswith(_TOLD_BY_PREFIX)}
    return {**told, **own}


def for_trainers(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` without keys and without what was meant for the first process."""
    hidden = _SECRETS | _FOR_BOOT_ALONE
    return {name: value for name, value in environment.items() if name not in hidden}


def agent_environment(environment: Mapping[str, str], pod_name: str) -> dict[str, str]:
    """What a pod's agent, and so its trainer, is started with; it imports from these sources."""
    here = str(Path(__file__).resolve().parents[3])
    paths = [*filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), here]
    return {
        **for_trainers(environment),
        contract.ENV_POD: pod_name,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "PYTHONUNBUFFERED": "1",
    }
