"""vast.ai's adapter on the stand-in, on a clock that the test moves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.contract.runpod_rig import keys
from tests.standins.vast.standin import StandIn, running
from tests.standins.web import GivenClock
from trmcloud.adapters.pod_history import Sightings
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.trainer_contract import PhaseJob
from trmcloud.core.money import Usd
from trmcloud.ports.compute import PodRequest
from trmcloud.providers.vast.api import VastApi
from trmcloud.providers.vast.compute import VastCompute
from trmcloud.providers.vast.create import boot_payload


@dataclass
class Rig:
    standin: StandIn
    clock: GivenClock
    compute: VastCompute
    api: VastApi

    def on(self, seconds: float) -> None:
        self.standin.advance(seconds)

    def asked(self, method: str, path: str = "") -> list[str]:
        log = self.standin.requests
        return [r.path for r in log if r.method == method and r.path.startswith(path)]


@contextlib.contextmanager
def vast(folder: Path, **more: Any) -> Iterator[Rig]:
    """The adapter on a stand-in of its own, whose instances are on paper."""
    clock = GivenClock()
    with running(folder, clock=clock, real_pods=False, **more) as standin:
        yield build(standin, clock)


def build(standin: StandIn, clock: GivenClock, notes: Path | None = None) -> Rig:
    api = VastApi(standin.api_key, standin.url, now=clock, sleep=standin.advance)
    compute = VastCompute(api, keys, boot_payload, now=clock, sightings=Sightings(notes))
    return Rig(standin, clock, compute, api)


def request(rig: Rig, sku: str = "L4", generation: int = 1, **more: Any) -> PodRequest:
    now = rig.clock()
    name = str(contract.PodName("0a1b2c3d", "r1", generation, int(now) + 3600))
    lease = contract.Lease(
        run_id="r1", pod_name=name, epoch=1, granted_at=now, soft_stop_at=now + 3000,
        hard_stop_at=now + 3600, landing_s=60.0,
        phases=(contract.PhaseLease("fast", 0.0, 100.0, 1e15),), fits_budget=True,
        min_useful_s=10.0,
    )  # fmt: skip
    job = PhaseJob("r1", "fast", {"steps": 3}, "/d", "/o", processes=1)
    plain = PodRequest(name=name, sku=sku, gpus=1, rate=Usd("0.49"), lease=lease, jobs=(job,))
    return replace(plain, **more)
