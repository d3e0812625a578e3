"""A request for one pod, as every provider's adapter is asked, and the keys that it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.trainer_contract import PhaseJob
from trmcloud.core.money import Usd
from trmcloud.ports.compute import PodKeys, PodRequest

RATE = Usd("0.49")
HOST_KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nHOST\n-----END OPENSSH PRIVATE KEY-----\n"


class Clocked(Protocol):
    @property
    def clock(self) -> Callable[[], float]: ...


def keys(name: str) -> PodKeys:
    return PodKeys(HOST_KEY, f"ssh-ed25519 AAAAhost {name}", "ssh-ed25519 AAAAuser me\n")


def request_at(
    now: float,
    sku: str = "L4",
    generation: int = 1,
    *,
    ledger: str = "0a1b2c3d",
    holds: bool = False,
    **more: Any,
) -> PodRequest:
    """``holds``: the pod trains nothing and is kept for its hour."""
    name = str(contract.PodName(ledger, "r1", generation, int(now) + 3600))
    phase = contract.PhaseLease("fast", 0.0, 100.0, 1e15)
    lease = contract.Lease(
        run_id="r1", pod_name=name, epoch=1, granted_at=now, soft_stop_at=now + 3000,
        hard_stop_at=now + 3600, landing_s=60.0, phases=() if holds else (phase,),
        fits_budget=True, min_useful_s=10.0, hold=holds,
    )  # fmt: skip
    job = PhaseJob("r1", "fast", {"steps": 3}, "/d", "/o", processes=1)
    return replace(PodRequest(name, sku, 1, RATE, lease, () if holds else (job,)), **more)


def request(rig: Clocked, sku: str = "L4", generation: int = 1, **more: Any) -> PodRequest:
    return request_at(rig.clock(), sku, generation, **more)
