"""Hugging Face's adapter on the stand-in, on a clock that the test moves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.standins.huggingface.hub import Hub
from tests.standins.huggingface.server import StandIn, serving
from tests.standins.web import GivenClock
from trmcloud.adapters.pod_history import Sightings
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.money import Usd
from trmcloud.ports.compute import PodKeys, PodRequest
from trmcloud.providers.huggingface.api import JobsApi
from trmcloud.providers.huggingface.compute import HuggingFaceCompute
from trmcloud.providers.huggingface.http import Http

HOST_KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nHOST\n-----END OPENSSH PRIVATE KEY-----\n"
RATE = Usd("0.80")


def keys(name: str) -> PodKeys:
    return PodKeys(HOST_KEY, f"ssh-ed25519 AAAAhost {name}", "ssh-ed25519 AAAAuser me\n")


@dataclass
class HubRig:
    standin: StandIn
    clock: GivenClock
    compute: HuggingFaceCompute
    api: JobsApi

    @property
    def hub(self) -> Hub:
        return self.standin.hub

    def on(self, seconds: float) -> None:
        with self.hub.lock:
            self.clock.advance(seconds)
            self.hub.settle()

    def asked(self, method: str = "") -> list[str]:
        log = self.standin.requests
        return [f"{r.method} {r.path}" for r in log if not method or r.method == method]


@contextlib.contextmanager
def hub_rig(notes: Path | None = None) -> Iterator[HubRig]:
    clock = GivenClock()
    with serving(Hub(clock)) as standin:
        yield another(standin, clock, notes)


def another(standin: StandIn, clock: GivenClock, notes: Path | None = None) -> HubRig:
    """A command of its own against the same account."""
    http = Http(standin.url, standin.token, now=clock, sleep=clock.advance)
    api = JobsApi(http)
    compute = HuggingFaceCompute(
        api, keys, lambda: b"payload", token=standin.token, now=clock, sightings=Sightings(notes)
    )
    return HubRig(standin, clock, compute, api)


def job_request(rig: HubRig, sku: str = "L4", generation: int = 1, **more: Any) -> PodRequest:
    now = rig.clock()
    name = str(contract.PodName("0a1b2c3d", "r1", generation, int(now) + 3600))
    lease = contract.Lease(
        run_id="r1", pod_name=name, epoch=1, granted_at=now, soft_stop_at=now + 3000,
        hard_stop_at=now + 3600, landing_s=60.0, phases=(), fits_budget=True,
        min_useful_s=10.0, hold=True,
    )  # fmt: skip
    return replace(PodRequest(name, sku, 1, RATE, lease, ()), **more)
