"""What the provider told this container, and what of it a trainer may see.

A provider sets variables for a container's first process alone: a login shell, or a process that a
wrapper started, finds them in that process's record.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from trmcloud.core.contract import pod_contract as contract

_TOLD_BY_PREFIX = "TRMCLOUD_"
#: Of use to the first process alone, and large.
_FOR_BOOT_ALONE = frozenset(
    (contract.ENV_BOOT, contract.ENV_LEASE, contract.ENV_JOBS, contract.ENV_CHECK)
)

_INSTALL_SETTING = re.compile(contract.ENV_INSTALL_PREFIX + r"[A-Za-z0-9_]+")


@cache
def self_ends() -> Mapping[str, Any]:
    """Each provider's ``self_end`` module that is here, by its folder's name: on a pod the
    provider's own, which was sent with the agent; all of them elsewhere."""
    folders = sorted((Path(__file__).resolve().parents[2] / "providers").glob("*/self_end.py"))
    names = [path.parent.name for path in folders]
    return {name: import_module(f"trmcloud.providers.{name}.self_end") for name in names}


def _said(name: str) -> tuple[str, ...]:
    """What all of them say under a name."""
    return tuple(text for there in self_ends().values() for text in getattr(there, name, ()))


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
    prefixes = (_TOLD_BY_PREFIX, *_said("TOLD_BY_PREFIX"))
    told = {name: value for name, _, value in pairs if name.startswith(prefixes)}
    return {**told, **own}


def for_trainers(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` without keys and without what was meant for the first process."""
    hidden = {contract.ENV_HOST_KEY, *_FOR_BOOT_ALONE, *_said("SECRETS")}
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
