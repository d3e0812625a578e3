"""An agent's last report on its way to the bucket, and what it is worth to a run left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.sim.test_found import held, pod_at_work, world
from trmcloud.core.contract.bucket import Grants, PhaseSlots
from trmcloud.core.contract.bucket_layout import slots_of
from trmcloud.core.contract.pod_contract import Orders
from trmcloud.pod.agent.loop import LAST_REPORT_S
from trmcloud.sim.world.account import Pod
from trmcloud.sim.world.world import SimWorld


@pytest.fixture
def at_work() -> tuple[SimWorld, Pod]:
    """A pod that may upload, ten minutes after its trainer began."""
    made, pod = pod_at_work()
    pod.lease = replace(pod.lease, epoch=2, uploads=True)
    slots = {"fast": PhaseSlots(1, slots_of(1, 1))}
    pod.uploader.give(Grants(pod.name, made.queue.now + 90_000, slots, {}))
    pod.wake()
    run_for(made, 60.0)
    return made, pod


def run_for(made: SimWorld, seconds: float) -> None:
    made.queue.run_until(made.queue.now + seconds, lambda: None, lambda: None)


def land(pod: Pod) -> None:
    pod.orders = Orders(epoch=2, land=True)
    pod.wake()


def ended_after_s(made: SimWorld, pod: Pod) -> float:
    """From the agent's result to the pod's end, as far as it is asked for within an hour."""
    began = made.queue.now
    while pod.report is None or pod.report.result is None:
        run_for(made, 0.5)
        assert made.queue.now < began + 3600
    done = made.queue.now
    while pod.running and not pod.ending:
        run_for(made, 0.5)
        assert made.queue.now < done + 3600
    return made.queue.now - done


def test_a_pod_stays_until_its_last_report_is_in_the_bucket(
    at_work: tuple[SimWorld, Pod],
) -> None:
    made, pod = at_work
    assert made.files.words["r-1", 1].result is None, "it tells while it works, too"
    land(pod)
    assert ended_after_s(made, pod) < 5.0
    assert made.files.words["r-1", 1].result == "stopped"


def test_a_store_that_does_not_answer_does_not_hold_it(at_work: tuple[SimWorld, Pod]) -> None:
    made, pod = at_work
    land(pod)
    while pod.report is None or not pod.report.phases[0].outcome:
        run_for(made, 0.5)
    made.knobs.bucket_down_until = made.queue.now + 80_000
    assert LAST_REPORT_S - 1.0 < ended_after_s(made, pod) < LAST_REPORT_S + 5.0
    assert made.files.words["r-1", 1].result is None


@pytest.mark.parametrize(("seed", "outcome"), [(200, "landed"), (400, "finished")])
def test_a_run_left_alone_is_closed_with_what_its_agent_left(seed: int, outcome: str) -> None:
    """Launched with -d, and looked at a day later: its pod has been gone for hours."""
    scenario = world(seed=seed, looks_every_s=86_400.0, reaper="none")
    (wish,) = scenario.wishes
    assert wish.plan.spec.bucket
    played = held(replace(scenario, wishes=(replace(wish, detached=True, fetch_after_s=0.0),)))
    assert played.runs[0][1] == outcome
    assert played.ended_by == ("agent",)
