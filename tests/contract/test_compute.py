"""The rules of ``test_provider_faults`` for what has no rig: this machine and the simulator."""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.contract.pod_requests import RATE, request_at
from tests.contract.provider_rigs import RIGS
from tests.present import present
from tests.sim.oracle.invariants import Invariants
from trmcloud.core.control.observation import PodSeen
from trmcloud.core.errors import ProviderRefused
from trmcloud.core.money import ZERO, cost
from trmcloud.ports.compute import Compute, PodRequest
from trmcloud.providers.protocol import Site
from trmcloud.providers.registry import ROWS, Providers
from trmcloud.sim.world.controllers import Process
from trmcloud.sim.world.world import SimWorld

ROOT = Path(__file__).resolve().parents[2]
SIMULATED = "simulated"
UNRIGGED = [name for name in ROWS if name not in RIGS]
"""This machine, and what ``scripts/new_provider.py`` has just written."""
_NUMBERS = itertools.count()


@dataclass
class Ground:
    """``on`` lets time pass: a given one on a stand-in, else the real one."""

    compute: Compute
    now: Callable[[], float] = time.time
    on: Callable[[float], None] = time.sleep
    ledger: str = field(
        default_factory=lambda: f"{(os.getpid() << 8 | next(_NUMBERS)) % 2**32:08x}"
    )
    """Another one's for each: pods of this machine are known by name, whoever started them."""

    def request(self, generation: int = 1) -> PodRequest:
        return request_at(self.now(), "L4", generation, ledger=self.ledger, holds=True)

    @property
    def is_real(self) -> bool:
        return self.on is time.sleep

    def named(self, name: str) -> list[PodSeen]:
        pods = self.compute.list_pods()
        return [pod for pod in pods if pod.name == name and pod.status != "gone"]

    def until(self, holds: Callable[[], bool], seconds: float, what: str) -> None:
        step_s = 0.1 if self.is_real else seconds / 50
        deadline = self.now() + seconds
        while not holds():
            assert self.now() < deadline, what
            self.on(step_s)


@pytest.fixture(params=(*UNRIGGED, SIMULATED))
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ground]:
    if request.param != SIMULATED:
        site = Site(tmp_path, {}, str, lambda: ROOT / "model", lambda: [str(ROOT)])
        compute = Providers(site)[request.param].compute(request.param)
        yield Ground(compute)
        for pod in compute.list_pods():
            compute.terminate(pod.pod_id)
    else:
        world = SimWorld(random.Random(7), ("runpod",))
        Invariants(world)
        simulated = Process(world, world.laptop, "launch").world.machines.computes["runpod"]

        def on(seconds: float) -> None:
            world.queue.run_until(world.queue.now + seconds, world.accrue, world.look)

        yield Ground(simulated, lambda: world.queue.now, on)


def test_a_pod_is_listed_under_its_name_at_the_rate_asked_for(ground: Ground) -> None:
    wanted = ground.request()
    pod_id = ground.compute.create(wanted)
    ground.until(lambda: bool(ground.named(wanted.name)), 60, "it is never listed")
    (pod,) = ground.named(wanted.name)
    assert (pod.pod_id, pod.rate) == (pod_id, RATE)
    assert pod.status in ("creating", "running")
    ground.until(lambda: ground.named(wanted.name)[0].status == "running", 900, "never runs")


def test_an_ended_pod_leaves_the_list_and_ending_it_again_is_no_error(ground: Ground) -> None:
    wanted = ground.request()
    pod_id = ground.compute.create(wanted)
    ground.until(lambda: bool(ground.named(wanted.name)), 60, "it is never listed")
    assert ground.compute.terminate(pod_id) is True, "its end was taken"
    ground.until(lambda: not ground.named(wanted.name), 120, "it lives on")
    ground.compute.terminate(pod_id)
    ground.compute.terminate(wanted.name)
    assert ground.named(wanted.name) == []


def test_what_was_never_made_is_ended_without_an_error(ground: Ground) -> None:
    assert ground.compute.terminate(ground.request().name) is False


def test_a_bill_becomes_final_and_is_what_its_time_cost(ground: Ground) -> None:
    wanted = ground.request()
    began_at = ground.now()
    pod_id = ground.compute.create(wanted)
    ground.until(lambda: bool(ground.named(wanted.name)), 60, "it is never listed")
    running = ground.compute.bill(pod_id)
    assert running is None or not running.final
    ground.on(1.0 if ground.is_real else 600.0)
    ground.compute.terminate(pod_id)
    ground.until(lambda: not ground.named(wanted.name), 120, "it lives on")
    life_s = ground.now() - began_at

    def final() -> bool:
        bill = ground.compute.bill(pod_id)
        return bill is not None and bill.final

    ground.until(final, 4000, "its bill is never final")
    bill = present(ground.compute.bill(pod_id))
    assert bill.pod_id == pod_id
    # Disks come on top of the rate where machines are rented.
    assert ZERO < bill.amount <= cost(RATE, life_s * 1.05 + 2)


def unwanted() -> None:
    raise ProviderRefused("another controller has given it up: nothing was sent")


def test_a_request_that_is_not_wanted_any_more_makes_nothing(ground: Ground) -> None:
    wanted = replace(ground.request(), require_wanted=unwanted)
    with pytest.raises(ProviderRefused):
        ground.compute.create(wanted)
    ground.on(0.2 if ground.is_real else 300.0)
    assert ground.named(wanted.name) == []


def test_pods_are_told_apart_by_their_names(ground: Ground) -> None:
    first, second = ground.request(1), ground.request(2)
    made = [ground.compute.create(first), ground.compute.create(second)]
    ground.until(
        lambda: bool(ground.named(first.name) and ground.named(second.name)), 60, "not both"
    )
    ground.compute.terminate(made[0])
    ground.until(lambda: not ground.named(first.name), 120, "it lives on")
    assert [pod.pod_id for pod in ground.named(second.name)] == [made[1]]


# The simulated provider takes a name twice, as RunPod itself does: a controller that relied on its
# adapter to ask only once would show there.
@pytest.mark.parametrize("ground", UNRIGGED, indirect=True)
def test_a_name_is_given_to_one_pod_alone(ground: Ground) -> None:
    wanted = ground.request()
    made = ground.compute.create(wanted)
    ground.until(lambda: bool(ground.named(wanted.name)), 60, "it is never listed")
    assert ground.compute.create(wanted) == made
    assert len(ground.named(wanted.name)) == 1
