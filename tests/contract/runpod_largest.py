"""The largest create that the product sends to RunPod: real plans, every option, the longest names.

A test holds its size, and a benchmark shows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from trmcloud.adapters.files import load_data_set, load_recipe
from trmcloud.adapters.prices.tables import load_offers
from trmcloud.core.catalog.datasets import files_at_commit
from trmcloud.core.clock import Instant
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.control.run_state import Generation, RunState
from trmcloud.core.money import Usd
from trmcloud.core.planner.planning import make_plan
from trmcloud.core.spec.settings import PHASES
from trmcloud.core.spec.spec import DataSource, RunSpec
from trmcloud.operations.pod_request import LaunchData, pod_request
from trmcloud.ports.compute import PodKeys, PodRequest
from trmcloud.providers.runpod.account import RunPodGraphql
from trmcloud.providers.runpod.api import RunPodApi
from trmcloud.providers.runpod.compute import RunPodCompute
from trmcloud.providers.runpod.create import boot_payload
from trmcloud.providers.runpod.http import Http
from trmcloud.providers.runpod.secrets import ENV_API, ENV_GRAPHQL, pod_environment
from trmcloud.sim.world.store import SimNotes

NOW = 1_795_000_000.123456
RECIPES = ("trm", "trm-tiny", "bd3lm", "hdp")
HARDWARE = ("8xA100", "8xH100", "8xB200", "1xRTX4090", "1xL4")
RUN = "r-" + "9" * 19
LONG_URL = "https://" + "a-proxy." * 28 + "example"
#: A host key of the kind that ``KeyStore`` makes is 400 characters; a user's may be RSA.
KEYS = PodKeys(
    "-----BEGIN OPENSSH PRIVATE KEY-----\n" + "K" * 400 + "\n", "ssh", "ssh-rsa " + "k" * 740
)


def requests() -> Iterator[PodRequest]:
    """Requests as a launch makes them, each with every option that its recipe takes."""
    for recipe in RECIPES:
        for hardware in HARDWARE:
            spec = RunSpec(
                recipe, PHASES, hardware, budget=Usd("5000"), providers=("runpod",),
                bucket="s3://a-bucket/prefix", community=True,
            )  # fmt: skip
            plan = make_plan(spec, load_recipe(recipe), load_offers(NOW), NOW, "p-0000")
            for candidate in plan.candidates[:2]:
                yield _request(plan, candidate)


def _request(plan: Any, candidate: Any) -> PodRequest:
    name = contract.PodName("0a1b2c3d", RUN, 9999, 99_999_999_999)
    generation = Generation(
        9999, str(name), "runpod", candidate.id, candidate.rate,
        NOW + candidate.soft_stop_s, NOW + candidate.hard_stop_s, NOW,
    )  # fmt: skip
    named = load_data_set("openwebtext")
    pinned = DataSource(named.name, files_at_commit(named, "c" * 40, "d" * 64))
    data = LaunchData(source=pinned, hosts="huggingface.co=" + LONG_URL)
    note = {"data_dir": "", "initial_weights": "/weights", "data": data.to_json()}
    world = SimpleNamespace(
        home=Path("/home"),
        notes=SimNotes({RUN: note}),
        pods=SimpleNamespace(
            folder=lambda kind, folder: f"{contract.POD_ROOT}/{kind}/{'0' * 24}",
        ),
    )
    run = RunState(RUN, epoch=9_999)
    made = pod_request(cast(Any, world), run, plan, generation, 9_999, Instant(NOW, 0.0))
    return replace(
        made, region="EUR-IS-1-and-a-longer-one", volume="v" * 32, volume_gb=4000, spot=True,
        lease=replace(made.lease, uploads=True, hold=True),
        check={**made.check, "volume": True},
    )  # fmt: skip


def compute(payload: bytes | None = None) -> RunPodCompute:
    """An adapter that nobody answers, with all that its wiring may add to a pod's environment."""
    http = Http("rpa_none")
    told = pod_environment({ENV_API: LONG_URL + "/v2", ENV_GRAPHQL: LONG_URL})
    return RunPodCompute(
        RunPodApi(http, "http://127.0.0.1:9"),
        RunPodGraphql(http, "http://127.0.0.1:9/graphql"),
        lambda name: KEYS,
        boot_payload if payload is None else lambda: payload,
        image="registry.example/" + "i" * 238,
        environment={**told, contract.ENV_LINGER_S: "100000"},
    )


def bodies() -> Iterator[dict[str, Any]]:
    adapter = compute()
    for request in requests():
        yield adapter.body(request)
