"""Hugging Face's adapter on the stand-in, on a clock that the test moves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.contract.pod_requests import keys, request
from tests.standins.huggingface.hub import Hub
from tests.standins.huggingface.server import StandIn, serving
from tests.standins.web import GivenClock
from trmcloud.adapters.pod_history import Sightings
from trmcloud.core.money import Usd
from trmcloud.ports.compute import PodRequest
from trmcloud.providers.huggingface.api import JobsApi
from trmcloud.providers.huggingface.compute import HuggingFaceCompute
from trmcloud.providers.huggingface.http import Http

RATE = Usd("0.80")


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
    return request(rig, sku, generation, **{"rate": RATE, "holds": True} | more)
