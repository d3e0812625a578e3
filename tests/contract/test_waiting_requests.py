"""Requests to a provider and processor time of a run that waits, and of several in one home, while
the guard visits that too.

Both are the same in every hour but the first, so that a few hours stand for a day.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.contract import huggingface_rig, vast_rig
from tests.contract.huggingface_rig import hub_rig
from tests.contract.runpod_rig import Clocked, Rig, build
from tests.contract.vast_rig import vast
from tests.standins.web import GivenClock
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.core.clock import Instant
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO
from trmcloud.core.spec.plan import Plan
from trmcloud.operations.context import Buckets, Caller, Context, PodInputs
from trmcloud.operations.driving import reap
from trmcloud.operations.driving.reconciling import continue_waits, reconcile
from trmcloud.operations.launch import launching
from trmcloud.operations.machines import Machines
from trmcloud.operations.pod_request import LaunchData
from trmcloud.options import LaunchRequest
from trmcloud.ports.compute import Compute, PodItems
from trmcloud.ports.ledger import ControllerId
from trmcloud.ports.machine import Clock
from trmcloud.sim.world.clocks import KeptIntents
from trmcloud.sim.world.store import SimFiles, SimNotes
from trmcloud.wiring_plans import build_planner

HOUR_S = 3600.0
GUARD_EVERY_S = 300.0
LOOK_S = 5.0
WAITED_H = 2
"""Of one run; what is compared with it waits for the first hour, in which most is asked."""
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
    another: Callable[[], Compute]
    """Makes the adapter of one more process of the same home."""


def runpod(clocked: Clocked, folder: Path) -> tuple[Rig, Seller]:
    def made() -> Rig:
        paths = (folder / "sightings", folder / "requests" / "r.json")
        return build(clocked, notes=paths[0], requests=paths[1])

    rig = made()
    requests = rig.standin.requests
    return rig, Seller("runpod", "1xA100", rig.compute, rig.clock, requests, lambda: made().compute)


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


def context_of(
    seller: Seller, home: Path, who: str, compute: Compute | None = None, number: int = 1
) -> Context:
    """``compute``: the process's own adapter; None: the seller's."""
    home.mkdir(exist_ok=True)
    nothing: Any = Nothing()
    return Context(
        home=home,
        clock=HandClock(seller),
        ledger=SqliteLedger(home / "ledger.db"),
        intents=KeptIntents(),
        files=SimFiles(),
        notes=SimNotes(),
        workers=nothing,
        machines=Machines({seller.provider: compute or seller.compute}, {seller.provider: nothing}),
        buckets=Buckets(),
        caller=Caller(
            ControllerId("here", number if who == "command" else 1_000, who),
            lambda controller: True,
        ),
        pods=PodInputs(lambda run: PodItems(), lambda kind, folder: f"/workspace/{kind}"),
    )


def a_plan(seller: Seller, home: Path, hours: int) -> Plan:
    request = LaunchRequest(
        hardware=seller.hardware,
        recipe="trm",
        budget="20",
        provider=[seller.provider],
        wait_for=f"{hours}h",
    )
    planner = build_planner(home)
    return planner.plan(planner.spec(request))


def wait_for_hours(
    seller: Seller, home: Path, hours: int, once_started: Callable[[], None] = lambda: None
) -> tuple[RunState, Counter[int], float]:
    """(the run, requests by hour, seconds of this thread's processor time)."""
    context = context_of(seller, home, "command")
    plan = a_plan(seller, home, hours)
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


def wait_together(seller: Seller, home: Path, number: int) -> tuple[list[RunState], Counter[int]]:
    """``number`` commands that wait side by side; (their runs, requests by hour, but for those of
    the launches themselves)."""
    plan, asked, began_at = a_plan(seller, home, 1), Counter[int](), seller.clock()
    visited_at = began_at
    drivers = []
    for n in range(1, number + 1):
        context = context_of(seller, home, "command", seller.another(), n)
        name = f"r-0da7{n:02x}"
        drivers.append(launching.start(context, plan, data=LaunchData("/data"), run_id=name))
    guards = seller.another()
    seen = len(seller.requests)
    runs = [driver.run() for driver in drivers]
    while any(run.live for run in runs):
        runs = [
            driver.step() if run.live else run for driver, run in zip(drivers, runs, strict=True)
        ]
        if seller.clock() - visited_at >= GUARD_EVERY_S:
            visited_at = seller.clock()
            guard = context_of(seller, home, "guard", guards)
            reap.end(guard, reap.look(guard))
            reconcile(guard)
            continue_waits(guard)
        asked[int((seller.clock() - began_at) / HOUR_S)] += len(seller.requests) - seen
        seen = len(seller.requests)
        seller.clock.advance(LOOK_S)
    return runs, asked


def check_waiting_together(seller: Seller, home: Path, number: int) -> None:
    runs, asked = wait_together(seller, home, number)
    questions = [len(run.generations) for run in runs]
    print(f"{seller.provider}, {number} runs: {dict(asked)} requests by hour, asked {questions}")
    assert {(run.outcome, run.reserved) for run in runs} == {(Outcome.NO_MACHINE, ZERO)}
    assert 0 < max(asked.values()) <= MOST_PER_HOUR
    assert max(questions) <= 2 * min(questions) + 1, "each of them has its turn"


def check_waiting(seller: Seller, home: Path, hours: int) -> None:
    run, asked, took_s = wait_for_hours(seller, home, hours)
    assert (run.outcome, run.settled, run.reserved) == (Outcome.NO_MACHINE, ZERO, ZERO)
    share = took_s / (hours * HOUR_S)
    print(f"{seller.provider}: {dict(asked)} requests by hour, {share:.4%} of a core")
    assert 0 < max(asked.values()) <= MOST_PER_HOUR
    assert share <= MOST_OF_A_CORE


def test_an_hour_of_waiting_is_polite_and_cheap(runpod_and_clock: Clocked, tmp_path: Path) -> None:
    rig, seller = runpod(runpod_and_clock, tmp_path)
    rig.standin.control.set(no_capacity=["*"])
    check_waiting(seller, tmp_path / "home", WAITED_H)
    assert rig.standin.control.truth()["pods"] == []


@pytest.mark.parametrize("number", [2, 5])
@pytest.mark.more
def test_runs_that_wait_together_ask_no_more_often_than_one(
    runpod_and_clock: Clocked, tmp_path: Path, number: int
) -> None:
    rig, seller = runpod(runpod_and_clock, tmp_path)
    rig.standin.control.set(no_capacity=["*"])
    check_waiting_together(seller, tmp_path / "home", number)
    assert rig.standin.control.truth()["pods"] == []


def test_an_hour_of_429_to_everything_is_asked_ever_more_rarely(
    runpod_and_clock: Clocked, tmp_path: Path
) -> None:
    rig, seller = runpod(runpod_and_clock, tmp_path)
    until = rig.clock() + WAITED_H * HOUR_S

    def refuse_everything() -> None:
        rig.standin.control.set(throttled_until=until, graphql_throttled=True)

    run, asked, took_s = wait_for_hours(seller, tmp_path / "home", WAITED_H, refuse_everything)
    assert (run.outcome, run.settled, run.reserved) == (Outcome.NO_MACHINE, ZERO, ZERO)
    share = took_s / (WAITED_H * HOUR_S)
    print(f"{dict(asked)} requests by hour, {share:.4%} of a core")
    assert max(asked.values()) <= MOST_PER_THROTTLED_HOUR
    assert share <= MOST_OF_A_CORE
    assert rig.standin.control.truth()["pods"] == []


@contextlib.contextmanager
def at_vast(folder: Path) -> Iterator[Seller]:
    with vast(folder) as rig:
        rig.standin.world.hosts.clear()
        requests = rig.standin.requests

        def another() -> Compute:
            return vast_rig.build(rig.standin, rig.clock).compute

        yield Seller("vast", "1xRTX4090", rig.compute, rig.clock, requests, another)
        assert rig.standin.live() == []


@contextlib.contextmanager
def at_hugging_face() -> Iterator[Seller]:
    with hub_rig() as rig:
        rig.hub.knobs.no_capacity = True
        requests = rig.standin.requests

        def another() -> Compute:
            return huggingface_rig.another(rig.standin, rig.clock).compute

        yield Seller("huggingface", "1xA100", rig.compute, rig.clock, requests, another)
        assert rig.hub.live() == []


@pytest.mark.more
def test_nor_are_vast_and_hugging_face_asked_more_often(tmp_path: Path) -> None:
    with at_vast(tmp_path / "vast") as seller:
        check_waiting(seller, tmp_path / "home-v", 1)
    with at_hugging_face() as seller:
        check_waiting(seller, tmp_path / "home-h", 1)


@pytest.mark.more
def test_nor_are_they_by_two_runs(tmp_path: Path) -> None:
    with at_vast(tmp_path / "vast") as seller:
        check_waiting_together(seller, tmp_path / "home-v", 2)
    with at_hugging_face() as seller:
        check_waiting_together(seller, tmp_path / "home-h", 2)
