"""A simulated local pod whose watchdog or agent is held by SIGSTOP is killed within its latency."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.sim.play import play
from tests.sim.test_found import world
from trmcloud.core.catalog.providers import traits_of
from trmcloud.sim.scenario import Scenario
from trmcloud.sim.world.account import RentedMachine
from trmcloud.sim.world.world import SimWorld

LATENCY_S = traits_of("local").kill_latency_s


def ended_late_s(watchdog: str, agent: str, *, command: bool, seed: int) -> float:
    """How long after its hard stop the pod of a deaf trainer ended."""
    off = frozenset({"trainer"}) if command else frozenset({"trainer", "controller"})
    looks_every_s = 600.0 if command else 1e7
    scenario = world(
        seed=seed, provider="local", off=off, reaper="none", looks_every_s=looks_every_s
    )
    (wish,) = scenario.wishes
    scenario = replace(scenario, wishes=(replace(wish, detached=not command),))
    pods: list[RentedMachine] = []

    def arm(made: SimWorld, _: Scenario) -> None:
        def strike() -> None:
            (rented,) = (r for r in made.living() if r.pod_id not in made.foreign)
            pods.append(rented)
            for how, stop, kill in (
                (agent, rented.pod.stop_agent, rented.pod.kill_agent),
                (watchdog, rented.pod.stop_watchdog, rented.pod.kill_watchdog),
            ):
                if how:
                    (stop if how == "stop" else kill)()

        made.queue.after(wish.at_s + 30.0, strike)

    played = play(scenario, arm)
    assert played.violation == "", played.detail
    assert pods
    assert pods[0].ended_at is not None
    return pods[0].ended_at - pods[0].due_at


@pytest.mark.parametrize("seed", range(40, 44))
@pytest.mark.parametrize(
    ("watchdog", "agent", "command"),
    [
        ("stop", "stop", True),
        ("stop", "kill", True),
        ("kill", "stop", True),
        ("stop", "", False),
        ("kill", "", False),
        ("", "stop", False),
    ],
    ids=lambda value: str(value) or "runs",
)
def test_one_layer_alone_kills_in_time(watchdog: str, agent: str, command: bool, seed: int) -> None:
    assert -1.0 < ended_late_s(watchdog, agent, command=command, seed=seed) <= LATENCY_S
