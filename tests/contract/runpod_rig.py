"""RunPod's adapter on the stand-in, on a clock that the test moves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.contract.pod_requests import keys
from tests.standins.runpod.standin import StandIn
from tests.standins.web import GivenClock
from trmcloud.adapters.pod_history import Sightings
from trmcloud.adapters.request_budget import RequestBudget
from trmcloud.core.catalog.providers import traits_of
from trmcloud.providers.runpod.account import RunPodGraphql
from trmcloud.providers.runpod.api import RunPodApi
from trmcloud.providers.runpod.compute import RunPodCompute
from trmcloud.providers.runpod.create import boot_payload
from trmcloud.providers.runpod.http import Http

Clocked = tuple[StandIn, GivenClock]
A100, L4 = "A100-80GB-SXM", "L4"


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
