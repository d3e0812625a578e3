"""Requests to a provider and processor time of a run that waits, while the guard visits its home
too.

Both are the same in every hour but the first, so that a few hours stand for a day.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.contract.huggingface_rig import hub_rig
from tests.contract.runpod_rig import Clocked, Rig, build
from tests.contract.vast_rig import vast
from tests.standins.runpod.standin import GivenClock
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.app import launching, reap
from trmcloud.app.context import Context
from trmcloud.app.pod_request import LaunchData
from trmcloud.app.reconciling import continue_waits, reconcile
from trmcloud.core.clock import Instant
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO
from trmcloud.core.spec.plan import Plan
from trmcloud.options import LaunchRequest
from trmcloud.ports.compute import Compute
from trmcloud.ports.ledger import ControllerId
from trmcloud.ports.machine import Clock
from trmcloud.sim.world.store import SimFiles
from trmcloud.wiring_plans import build_planner

HOUR_S = 3600.0
GUARD_EVERY_S = 300.0
WAITED_H = 2
WAITED = f"{WAITED_H}h"
MOST_PER_HOUR = 60
MOST_PER_THROTTLED_HOUR = 25
"""19 were sent in the first hour and 12 in the second; 303 and 360 while no pause doubled."""
MOST_OF_A_CORE = 0.003
"""0.0007 were measured; a busy machine may need more."""


@dataclass
class Seller:
    """A provider's adapter on its stand-in. ``requests`` are those that came there."""

    provider: str
    hardware: str
    compute: Compute
    clock: GivenClock
    requests: Sequence[Any]


def runpod(rig: Rig) -> Seller:
    return Seller("runpod", "1xA100", rig.compute, rig.clock, rig.standin.requests)


class HandClock(Clock):
    """Moves where a command sleeps; the stand-in looks at the same one."""

    def __init__(self, seller: Seller) -> None:
        self._clock = seller.clock

    def now(self) -> Instant:
        at = self._clock()
        return Instant(at, at - 1_000_000.0, "boot")

    def sleep(self, seconds: float) -> None:
        self._clock.advance(seconds)


class Nothing:
    """No workers, and a link to no pod."""

    def report(self, pod_name: str) -> None:
        return None

    trouble = report

    def running(self) -> frozenset[Any]:
        return frozenset()

    def finished(self) -> tuple[()]:
        return ()


def context_of(seller: Seller, home: Path, who: str) -> Context:
    home.mkdir(exist_ok=True)
    nothing: Any = Nothing()
    return Context(
        home=home,
        clock=HandClock(seller),
        ledger=SqliteLedger(home / "ledger.db"),
        computes={seller.provider: seller.compute},
        links={seller.provider: nothing},
        files=SimFiles(),
        who=ControllerId("here", 1 if who == "command" else 2, who),
        is_alive=lambda controller: True,
        project="p",
        workers=nothing,
        stage_items=lambda run: (),
        folder_on_pod=lambda kind, folder: f"/workspace/{kind}",
        notes={},
    )


def a_plan(seller: Seller, home: Path) -> Plan:
    request = LaunchRequest(
        hardware=seller.hardware, budget="20", provider=[seller.provider], wait_for=WAITED
    )
    planner = build_planner(home)
    return planner.plan(planner.spec(request))


def wait_for_hours(
    seller: Seller, home: Path, once_started: Callable[[], None] = lambda: None
) -> tuple[RunState, Counter[int], float]:
    """(the run, requests by hour, seconds of this thread's processor time)."""
    context = context_of(seller, home, "command")
    plan = a_plan(seller, home)
    assert plan.launchable
    began, began_at = time.thread_time(), seller.clock()
    visited_at = began_at
    asked: Counter[int] = Counter()
    seen = len(seller.requests)
    driver = launching.start(context, plan, data=LaunchData("/data"), run_id="r-0da7aa")
    once_started()

    def watch(run: RunState) -> None:
        nonlocal seen, visited_at
        asked[int((seller.clock() - began_at) / HOUR_S)] += len(seller.requests) - seen
        seen = len(seller.requests)
        if seller.clock() - visited_at >= GUARD_EVERY_S:
            visited_at = seller.clock()
            guard = context_of(seller, home, "guard")
            reap.end(guard, reap.look(guard))
            reconcile(guard)
            continue_waits(guard)

    run = driver.until(lambda run: not run.live, watch)
    return run, asked, time.thread_time() - began


def check_waiting(seller: Seller, home: Path, most: int = MOST_PER_HOUR) -> None:
    run, asked, took_s = wait_for_hours(seller, home)
    assert (run.outcome, run.settled, run.reserved) == (Outcome.NO_MACHINE, ZERO, ZERO)
    share = took_s / (WAITED_H * HOUR_S)
    print(f"{seller.provider}: {dict(asked)} requests by hour, {share:.4%} of a core")
    assert 0 < max(asked.values()) <= most
    assert share <= MOST_OF_A_CORE


def test_an_hour_of_waiting_is_polite_and_cheap(runpod_and_clock: Clocked, tmp_path: Path) -> None:
    rig = build(
        runpod_and_clock, notes=tmp_path / "sightings", requests=tmp_path / "requests" / "r.json"
    )
    rig.standin.control.set(no_capacity=["*"])
    check_waiting(runpod(rig), tmp_path / "home")
    assert rig.standin.control.truth()["pods"] == []


def test_an_hour_of_429_to_everything_is_asked_ever_more_rarely(
    runpod_and_clock: Clocked, tmp_path: Path
) -> None:
    rig = build(
        runpod_and_clock, notes=tmp_path / "sightings", requests=tmp_path / "requests" / "r.json"
    )
    until = rig.clock() + WAITED_H * HOUR_S

    def refuse_everything() -> None:
        rig.standin.control.set(throttled_until=until, graphql_throttled=True)

    run, asked, took_s = wait_for_hours(runpod(rig), tmp_path / "home", refuse_everything)
    assert (run.outcome, run.settled, run.reserved) == (Outcome.NO_MACHINE, ZERO, ZERO)
    share = took_s / (WAITED_H * HOUR_S)
    print(f"{dict(asked)} requests by hour, {share:.4%} of a core")
    assert max(asked.values()) <= MOST_PER_THROTTLED_HOUR
    assert share <= MOST_OF_A_CORE
    assert rig.standin.control.truth()["pods"] == []


def test_nor_are_vast_and_hugging_face_asked_more_often(tmp_path: Path) -> None:
    with vast(tmp_path / "vast") as at_vast:
        at_vast.standin.world.hosts.clear()
        seller = Seller(
            "vast", "1xRTX4090", at_vast.compute, at_vast.clock, at_vast.standin.requests
        )
        check_waiting(seller, tmp_path / "home-v")
        assert at_vast.standin.live() == []
    with hub_rig() as at_hub:
        at_hub.hub.knobs.no_capacity = True
        jobs = at_hub.standin.requests
        check_waiting(
            Seller("huggingface", "1xA100", at_hub.compute, at_hub.clock, jobs), tmp_path / "home-h"
        )
        assert at_hub.hub.live() == []
