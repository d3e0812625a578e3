"""What NCCL is told about a rented machine; everything else it finds out better by itself.

NCCL's own guide warns that settings kept for no reason cost speed or hang later. Each one here
answers to something a rented container is known for, and its effect stands in that guide.
"""

from __future__ import annotations

import re
from typing import Mapping

_NVLINK_BOARDS = re.compile(r"\bSXM\d*\b|\bHBM3e?\b|\bG?B[23]00\b|\bH[12]00$", re.IGNORECASE)
_NO_BOARD = re.compile(r"\bPCIe\b|\bNVL\b", re.IGNORECASE)


def has_nvlink(gpu_name: str) -> bool:
    """Whether NVLink joins all GPUs of a host, by the name nvidia-smi gives to one of them.

    SXM parts sit on a switched board; PCIe cards have at best a bridge between two.
    """
    return bool(_NVLINK_BOARDS.search(gpu_name)) and not _NO_BOARD.search(gpu_name)


def nccl_environment(gpu_name: str, count: int, nvlink: bool) -> Mapping[str, str]:
    """NCCL's variables for ``count`` GPUs of one host; none where a GPU has nobody to talk to."""
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
