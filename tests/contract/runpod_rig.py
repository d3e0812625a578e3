"""RunPod's adapter on the stand-in, on a clock that the test moves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.standins.runpod.standin import StandIn
from tests.standins.web import GivenClock
from trmcloud.adapters.pod_history import Sightings
from trmcloud.adapters.request_budget import RequestBudget
from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.trainer_contract import PhaseJob
from trmcloud.core.money import Usd
from trmcloud.ports.compute import PodKeys, PodRequest
from trmcloud.providers.runpod.account import RunPodGraphql
from trmcloud.providers.runpod.api import RunPodApi
from trmcloud.providers.runpod.compute import RunPodCompute
from trmcloud.providers.runpod.create import boot_payload
from trmcloud.providers.runpod.http import Http

Clocked = tuple[StandIn, GivenClock]
A100, L4 = "A100-80GB-SXM", "L4"
HOST_KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nHOST\n-----END OPENSSH PRIVATE KEY-----\n"


def keys(name: str) -> PodKeys:
    return PodKeys(HOST_KEY, f"ssh-ed25519 AAAAhost {name}", "ssh-ed25519 AAAAuser me\n")


@dataclass
class Rig:
    standin: StandIn
    clock: GivenClock
    compute: RunPodCompute
    api: RunPodApi

    def asked(self, method: str = "") -> list[str]:
        log = self.standin.requests
        return [f"{r.method} {r.path}" for r in log if not method or r.method == method]

    def on(self, seconds: float) -> None:
        self.standin.control.advance(seconds)


def build(
    clocked: Clocked,
    *,
    key: str | None = None,
    notes: Path | None = None,
    requests: Path | None = None,
) -> Rig:
    """``requests``: the file of the account's request budget; None: there is no budget."""
    standin, clock = clocked

    def sleep(seconds: float) -> None:
        standin.control.advance(seconds)

    budget = None
    if requests is not None:
        limits = traits_of("runpod").request_limits
        budget = RequestBudget(requests, limits, unlimited_unless_told=True, now=clock, sleep=sleep)
    http = Http(standin.api_key if key is None else key, now=clock, sleep=sleep, budget=budget)
    api = RunPodApi(http, standin.url)
    graphql = RunPodGraphql(http, f"{standin.url}/graphql")
    compute = RunPodCompute(api, graphql, keys, boot_payload, now=clock, sightings=Sightings(notes))
    return Rig(standin, clock, compute, api)


def request(rig: Rig, sku: str = L4, generation: int = 1, **more: Any) -> PodRequest:
    name = str(contract.PodName("0a1b2c3d", "r1", generation, int(rig.clock()) + 3600))
    lease = contract.Lease(
        run_id="r1", pod_name=name, epoch=1, granted_at=rig.clock(),
        soft_stop_at=rig.clock() + 3000, hard_stop_at=rig.clock() + 3600, landing_s=60.0,
        phases=(contract.PhaseLease("fast", 0.0, 100.0, 1e15),), fits_budget=True,
        min_useful_s=10.0,
    )  # fmt: skip
    job = PhaseJob("r1", "fast", {"steps": 3}, "/d", "/o", processes=1)
    plain = PodRequest(name=name, sku=sku, gpus=1, rate=Usd("0.49"), lease=lease, jobs=(job,))
    return replace(plain, **more)
