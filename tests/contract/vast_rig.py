"""vast.ai's adapter on the stand-in, on a clock that the test moves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.contract.pod_requests import keys
from tests.standins.vast.standin import StandIn, running
from tests.standins.web import GivenClock
from trmcloud.adapters.pod_history import Sightings
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
