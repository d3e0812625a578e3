"""The disks that a plan reserves are those that its launch asks for and the simulator bills."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.contract.runpod_largest import compute
from tests.present import present
from tests.unit.skypilot.rig import KEYS, NAME
from trmcloud.adapters.files import load_recipe, recipe_names
from trmcloud.adapters.prices.tables import load_offers
from trmcloud.core.catalog.providers import TRAITS, rentable, traits_of
from trmcloud.core.clock import Instant
from trmcloud.core.contract.command import PHASE, RECIPE, Command
from trmcloud.core.control.renting import hard_stop_within, storage_beside_disks
from trmcloud.core.control.run_state import Generation, RunState
from trmcloud.core.errors import NotSupported, TrmcloudError
from trmcloud.core.money import Usd, cost
from trmcloud.core.planner.command_outlook import recipe_of
from trmcloud.core.planner.planning import make_plan
from trmcloud.core.spec.plan import Candidate, Plan
from trmcloud.core.spec.spec import DataSource, RunSpec
from trmcloud.core.storage import prices_of
from trmcloud.operations.pod_request import pod_request
from trmcloud.ports.compute import PodRequest
from trmcloud.providers.skypilot.task import make_task
from trmcloud.sim.world.account import RentedMachine
from trmcloud.sim.world.store import SimNotes
from trmcloud.sim.world.world import SimWorld

NOW = 1_795_000_000.0
OFFERS = load_offers(NOW)


def planned(recipe: str, provider: str, **wish: Any) -> Plan | None:
    made = load_recipe(recipe)
    spec = RunSpec(recipe, tuple(made.phases), budget=Usd(5000), providers=(provider,), **wish)
    try:
        return make_plan(spec, made, OFFERS, NOW, "p-0000")
    except TrmcloudError:
        return None  # nothing is offered there, or its shape cannot be planned


def request_of(plan: Plan, candidate: Candidate) -> PodRequest:
    """As a launch makes it."""
    run = RunState("r1", epoch=1)
    stops = NOW + candidate.soft_stop_s, NOW + candidate.hard_stop_s
    rate = candidate.reserved_rate
    pod = Generation(1, NAME, candidate.provider, candidate.id, rate, *stops, NOW)
    notes = SimNotes({"r1": {"data_dir": "/data", "initial_weights": ""}})
    pods = SimpleNamespace(folder=lambda *_: "/on-pod")
    context = SimpleNamespace(home=Path("/home"), notes=notes, pods=pods)
    return pod_request(cast(Any, context), run, plan, pod, 1, Instant(NOW, 0.0))


def asked_gb(request: PodRequest, provider: str) -> int:
    """The GB of disk that a provider is asked for, for each machine."""
    if not prices_of(provider).running:
        return 0  # the disk belongs to the hardware, and no size is asked for
    if TRAITS[provider].route.via:
        task = json.loads(make_task(provider, request, KEYS, "boot.tar.gz", NOW, {}))
        return int(task["resources"]["disk_size"])
    request = replace(request, volume="v") if request.volume_gb else request
    body = compute(b"").body(request)
    return int(body["disk"] + body["mounts"].get("persistent", {"size": 0})["size"])


def billed(request: PodRequest, provider: str) -> Usd:
    """The price of an hour of its disks in a simulated world."""
    alike = next(
        n
        for n in ("runpod", "skypilot", "huggingface", "vast")
        if prices_of(n) == prices_of(provider)
    )
    account = SimWorld(random.Random(1), (alike,)).accounts[alike]
    return Usd.from_micros(RentedMachine(account, "pod", request, 0, NOW).micros(NOW + 3600.0))


@pytest.mark.parametrize("recipe", recipe_names())
def test_sizes_and_prices_are_the_requests_and_the_bills(recipe: str) -> None:
    looked_at = 0
    for provider in rentable():
        for volume in (False, True)[: 1 + TRAITS[provider].machines.network_volumes]:
            plan = planned(recipe, provider, volume=volume)
            for name in plan.launchable[:2] if plan is not None else ():
                assert plan is not None
                looked_at += _is_one(plan, plan.candidate(name))
    assert looked_at >= 4


def _is_one(plan: Plan, candidate: Candidate) -> bool:
    """Compares plan, request and bill of a candidate; False where SkyPilot has no such GPU."""
    provider, request = candidate.provider, request_of(plan, candidate)
    try:
        own_gb = asked_gb(request, provider)
    except NotSupported:
        return False
    month = candidate.nodes * own_gb * prices_of(provider).running
    assert candidate.disk_rate == Usd.from_micros(-(-month // 730))
    assert candidate.disk_rate == billed(request, provider)
    assert candidate.work_gb == request.disk_gb
    assert candidate.volume_gb == request.volume_gb == plan.spec.volume * request.disk_gb
    _is_covered(candidate)
    return True


def _is_covered(candidate: Candidate) -> None:
    """A pod that lives until it is killed costs no more than is reserved, its disks included."""
    traits = traits_of(candidate.provider)
    lived_s = candidate.hard_stop_s + traits.kill_latency_s
    hourly = candidate.reserved_rate + candidate.disk_rate + candidate.volume_rate
    assert cost(hourly, lived_s) <= candidate.worst_case
    run = RunState("r1", reserved=candidate.worst_case)
    assert hard_stop_within(candidate, run, traits) == candidate.hard_stop_s
    # With half as much left, its disks are paid from it too.
    half = Usd.from_micros(candidate.worst_case.micros // 2)
    stop_s = hard_stop_within(candidate, RunState("r1", reserved=half), traits)
    rent = cost(candidate.reserved_rate + candidate.disk_rate, stop_s + traits.kill_latency_s)
    assert not stop_s or rent + storage_beside_disks(candidate) <= half


@pytest.mark.parametrize(
    ("recipe", "provider", "hardware", "gb"),
    [
        ("trm", "runpod", "8xA100", 93),
        ("d64", "runpod", "8xH100", 1081),
        ("trm", "lambda", "8xH100", 143),
        ("d64", "nebius", "8xH100", 1131),
        ("d32", "nebius", "8xH100", 229),
    ],
)
def test_known_sizes(recipe: str, provider: str, hardware: str, gb: int) -> None:
    """Two rules reserved 88, 875, 89, 875 and 154 GB."""
    plan = present(planned(recipe, provider, hardware=hardware))
    candidate = plan.recommended or plan.candidates[0]
    assert asked_gb(request_of(plan, candidate), provider) == gb
    assert candidate.disk_rate == Usd.from_micros(-(-gb * 100_000 // 730))


def test_a_commands_folder_has_room_on_its_disk() -> None:
    spec = RunSpec(
        RECIPE, (PHASE,), "8xH100", budget=Usd(100), providers=("runpod",),
        data="/data", command=Command(("python", "train.py")),
    )  # fmt: skip
    source = DataSource("/data", sent_bytes=200_000_000_001)
    recipe = recipe_of(Command(("python", "train.py")))
    without = make_plan(spec, recipe, OFFERS, NOW, "p-0000").candidates[0]
    made = make_plan(spec, recipe, OFFERS, NOW, "p-0000", source=source).candidates[0]
    assert made.work_gb == without.work_gb + 201
    assert made.hard_stop_s < without.hard_stop_s, "its room is paid for"
