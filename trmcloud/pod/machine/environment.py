"""The container's environment: the provider's variables, those a trainer may see, and NCCL's."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.boards import SXM, classify

# NCCL's settings for a rented machine; everything else it finds out better by itself.
#
# NCCL's own guide warns that settings kept for no reason cost speed or hang later. Each one here
# answers to something a rented container is known for, and its effect stands in that guide.


def has_nvlink(gpu_name: str) -> bool:
    """Whether NVLink joins all GPUs of a host, by the name nvidia-smi gives to one of them.

    SXM parts sit on a switched board; PCIe cards have at best a bridge between two.
    """
    return classify(gpu_name).form == SXM


def nccl_environment(gpu_name: str, count: int, nvlink: bool) -> Mapping[str, str]:
    """NCCL's variables for ``count`` GPUs of one host; none for a single GPU."""
    if count < 2 or not gpu_name:
        return {}
    settings = {
        # Say why a call failed. Without it the trainer's log has "unhandled system error" alone.
        "NCCL_DEBUG": "WARN",
        # All ranks are on this host: they find one another over loopback, which NCCL picks only
        # if told to. A pod's other interfaces may be public, filtered, or lead nowhere, and one
        # that is up but cannot connect makes initialisation fail or hang.
        "NCCL_SOCKET_IFNAME": "lo",
        # No traffic leaves this host. Containers often see the host's InfiniBand devices and may
        # not lock the memory they need: probing them is all risk.
        "NCCL_IB_DISABLE": "1",
    }
    if not nvlink:
        # PCIe access between GPUs: where the host's IOMMU or ACS redirects it, it crawls or
        # hangs, and a tenant can neither see nor change that. NVL means: directly over NVLink
        # (a bridge, if there is one), through host memory otherwise.
        settings["NCCL_P2P_LEVEL"] = "NVL"
    return settings


# The provider's variables for this container, and those that a trainer may see.
#
# A provider sets variables for a container's first process alone: a login shell, or a process
# that a wrapper started, finds them in that process's record.

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
    """Return the values of a name in every provider's ``self_end``."""
    return tuple(text for there in self_ends().values() for text in getattr(there, name, ()))


def install_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the user's settings for installing on pods, unchanged."""
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
    """Return the environment of a pod's agent, and so of its trainer; it imports from these
    sources."""
    here = str(Path(__file__).resolve().parents[3])
    paths = [*filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), here]
    return {
        **for_trainers(environment),
        contract.ENV_POD: pod_name,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "PYTHONUNBUFFERED": "1",
    }
