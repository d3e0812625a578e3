"""What the simulator found in control, each as a small world or a single decision."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.present import present
from tests.sim.drawing import draw
from tests.sim.faults import arm_all
from tests.sim.kept import KEPT, Kept
from tests.sim.oracle.invariants import Invariants, judge_of
from tests.sim.play import PlayResult, play
from trmcloud.core.clock import Instant
from trmcloud.core.contract.pod_contract import (
    Lease,
    Orders,
    PhaseLease,
    PhaseReport,
    PhaseState,
    PodName,
)
from trmcloud.core.errors import Outcome
from trmcloud.core.money import Usd
from trmcloud.operations.driving.drive import RunDriver
from trmcloud.pod.agent.lease_clock import AnchorNote
from trmcloud.pod.agent.watchdog import Watchdog
from trmcloud.ports.compute import PodRequest
from trmcloud.sim.faults.controller import _to_be_ended
from trmcloud.sim.scenario import Scenario
from trmcloud.sim.world.account import Pod
from trmcloud.sim.world.controllers import Process
from trmcloud.sim.world.facts import Trap, TrueCourse
from trmcloud.sim.world.pod import AgentKilled, SimPod
from trmcloud.sim.world.trainer import Shape
from trmcloud.sim.world.world import SimWorld

SHAPE = Shape("fast", 10_000, 1.0, 1000, 2.0, 1000, 3.0, 5.0, 15.0)


EARLIER = ("local", "runpod", "skypilot", "aws")
"""The providers that could be drawn until 2026-11-25."""


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: kept.name)
def test_a_kept_world_breaks_nothing(kept: Kept) -> None:
    played = play(kept.scenario, arm_all)
    assert played.violation == "", played.detail


def world(*faults: str, seed: int = 40, provider: str = "runpod", **changes: object) -> Scenario:
    """A seed's world with just these faults, one run that nobody stops, on ``provider``."""
    found = next(
        made
        for made in (draw(n, (), among=EARLIER) for n in range(seed, seed + 1000))
        if made.providers == (provider,)
        and len(made.wishes) == 1
        and not made.wishes[0].stop_after_s
    )
    wish = replace(found.wishes[0], resume_after_s=0.0, detached=False)
    made = replace(
        found,
        wishes=(wish,),
        account_cap=None,
        faults=faults,
        fault_seeds=tuple(range(len(faults))),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def held(scenario: Scenario) -> PlayResult:
    played = play(scenario, arm_all)
    assert played.violation == "", played.detail
    return played


def pods_made(played: PlayResult) -> int:
    return sum(" is made as " in line.text for line in played.timeline)


def test_commands_that_look_once_each_settle_a_run() -> None:
    """A killed launch on a provider whose lists lag: reconciling alone must come to an end."""
    played = held(world("6", looks_every_s=600.0, reaper="none"))
    assert played.runs[0][1] != "running"


def test_an_ambiguous_create_is_not_answered_by_a_second_pod() -> None:
    for fault in ("15", "16"):
        played = held(world(fault))
        assert fault in played.observed
        assert pods_made(played) == 1


def test_a_duplicate_is_ended_by_the_controller_that_is_up() -> None:
    played = held(world("17", reaper="none"))
    assert "17" in played.observed
    assert pods_made(played) == 2


@pytest.mark.parametrize("bucket", [False, True])
def test_a_pod_whose_clock_is_behind_is_sent_again_what_it_lost(bucket: bool) -> None:
    """Its container starts anew without its disk, soon after its files had come: by its own clock
    that was before they came."""

    def wipe(made: SimWorld, _: Scenario) -> None:
        made.knobs.pod_skew_s = -3600.0

        def restart() -> None:
            made.living()[0].pod.restart_container(wiped=True)
            made.wake()

        made.queue.after(1500.0, restart)

    scenario = next(
        found
        for found in (world(seed=seed, reaper="none") for seed in range(40, 4000, 7))
        if bool(found.wishes[0].plan.spec.bucket) is bucket
        and not (found.wishes[0].plan.spec.volume or found.off)
        and found.wishes[0].plan.candidates[0].hard_stop_s > 20_000
    )
    played = play(scenario, wipe)
    assert played.violation == "", played.detail
    assert sum(" attempt 1 " in t.text and "from step" in t.text for t in played.timeline) >= 2


def test_an_end_is_not_asked_for_by_one_that_slept_since_it_was_decided_on() -> None:
    """A pod that nobody heard was given up; who had decided so sleeps, and another hears it."""

    def deaf(made: SimWorld, scenario: Scenario) -> None:
        made.fire("64", "nobody hears the pod")
        made.knobs.lies.append(lambda report: None)
        (wish,) = scenario.wishes

        def seize() -> None:
            made.knobs.lies.clear()
            other = Process(made, made.server, "launch", wish.project)

            def drive() -> None:
                epoch = other.world.ledger.take_over(wish.run_id, other.who, other.world.wall())
                other.drive(RunDriver(other.world, wish.run_id, epoch))

            other.do(drive)

        def then() -> None:
            made.queue.after(5.0, seize)

        made.armed.append(
            Trap("61", "ActionStarted.after", "stop", sleep_s=900.0, skip=1, then=then)
        )

    played = play(world(reaper="none", looks_every_s=1e7, off=frozenset()), deaf)
    assert played.violation == "", played.detail
    told = [line.text for line in played.timeline]
    woke = next(n for n, text in enumerate(told) if text == "launch 1 goes on")
    assert "StaleEpoch" in told[woke + 1]
    assert any("agent is done: finished" in text for text in told[woke:])


def test_a_clock_that_is_set_back_puts_no_look_off() -> None:
    """The launch's own clock was a day ahead; after it is set right a second pod turns up, and
    nobody else is there to end it."""
    scenario = world("17", reaper="none", looks_every_s=1e7, off=frozenset())

    def set_back(made: SimWorld, _: Scenario) -> None:
        made.laptop.offset_s = 86_400.0

        def right() -> None:
            made.laptop.offset_s = 0.0

        def twin() -> None:
            (first,) = made.living()
            made.fire("17", "another pod of its name turns up")
            request = PodRequest(first.name, "sim", 8, Usd(1), first.pod.lease, ())
            first.account.make(request)

        made.queue.after(900.0, right)
        made.queue.after(1000.0, twin)

    played = play(scenario, set_back)
    assert played.violation == "", played.detail
    made_at, gone_at = (
        next(t.at for t in played.timeline if text in t.text)
        for text in ("runpod-2 is made", "runpod-2 is deleted by controller")
    )
    assert gone_at - made_at < 120.0


def test_a_guard_that_is_killed_at_its_work_is_started_again_and_goes_on() -> None:
    """Nobody else is there: the run was launched to be left alone."""
    killed: set[str] = set()
    for dice in range(30):
        scenario = world("75", fault_seeds=(dice,), reaper="server", looks_every_s=1e7)
        (wish,) = scenario.wishes
        wish = replace(wish, detached=True, fetch_after_s=0.0)
        played = held(replace(scenario, wishes=(wish,)))
        killed |= {" ".join(t.text.split()[-3:]) for t in played.timeline if "FAULT 75" in t.text}
    assert len(killed) >= 5, killed


def test_a_price_that_rises_after_boot_ends_the_pod() -> None:
    for seed in range(40, 60):
        played = held(world("30", seed=seed))
        if "30" in played.observed:
            assert played.runs[0][1] == Outcome.LOST.value or played.runs[0][2] <= played.runs[0][3]


def test_a_deadline_is_bound_by_what_was_granted() -> None:
    """A pod whose clock is an hour behind wins nothing by it."""
    seen = Instant(wall=1000.0 - 3600.0, boot=50.0, boot_id="a")
    anchor = AnchorNote(seen).anchor(deadline_at=1500.0, granted_at=1000.0)
    assert anchor.seconds_left(seen) == 500.0
    later = Instant(wall=1200.0 - 3600.0, boot=250.0, boot_id="a")
    assert anchor.seconds_left(later) == 300.0


class NoAnchors:
    def read_anchor(self) -> AnchorNote | None:
        return None

    def write_anchor(self, note: AnchorNote) -> None:
        raise AssertionError("there is no lease to be seen")


def test_an_agent_that_is_done_is_not_started_again_on_a_full_disk() -> None:
    guard = Watchdog(NoAnchors())
    now = Instant(1000.0, 50.0, "a")
    look = {"told": False, "result": None}
    started = guard.look(now, None, agent_runs=False, agent_done=False, **look)  # type: ignore[arg-type]
    assert started == Watchdog.START
    ended = guard.look(now, None, agent_runs=False, agent_done=True, **look)  # type: ignore[arg-type]
    assert ended == Watchdog.END


def pod_at_work() -> tuple[SimWorld, Pod]:
    """A pod of its own world whose trainer has been at work for ten minutes."""
    wish = replace(world().wishes[0], run_id="r-1")
    made = SimWorld(random.Random(1), ("runpod",))
    Invariants(made)
    made.forgotten = True  # the request for this pod is not on record
    made.truths["r-1"] = TrueCourse(wish.plan, {"fast": SHAPE})
    start, name = made.queue.now, str(PodName("51a0c0de", "r-1", 1, 1_800_000_000))
    lease = Lease(
        "r-1", name, 1, start, start + 80_000, start + 81_000, 1000.0,
        (PhaseLease("fast", 0.0, 10_000.0, 1.0),), True, 60.0,
    )  # fmt: skip
    account = made.accounts["runpod"]
    pod = account.make(PodRequest(name, "sim", 8, wish.plan.candidates[0].rate, lease, ())).pod
    made.queue.run_until(start + 1200.0, lambda: None, lambda: None)
    return made, pod


def test_a_killed_agents_trainer_goes_on_though_its_start_was_not_reported() -> None:
    made, pod = pod_at_work()
    trainer, report = pod.trainer, pod.report
    assert trainer is not None
    assert report is not None
    assert report.phases[0].state == "running"
    pod.report = replace(report, phases=(PhaseReport("fast"),))
    pod.kill_agent()
    made.queue.run_until(made.queue.now + 60.0, lambda: None, lambda: None)
    assert pod.agent is not None
    assert pod.trainer is trainer
    assert trainer.runs(made.queue.now)
    assert pod.agent.report.phases[0].attempts == 1
    assert made.violation is None


def test_what_a_trainer_said_last_counts_though_its_agent_was_killed_over_it() -> None:
    """Between forgetting the trainer and reporting how it ended."""
    made, pod = pod_at_work()
    assert isinstance(pod, SimPod)
    killed: list[float] = []

    def cross(point: str) -> None:
        if point == "report" and pod.trainer_note is None:
            pod.cross = lambda point: None
            killed.append(made.queue.now)
            raise AgentKilled

    pod.cross = cross
    pod.orders = Orders(epoch=1, land=True)
    pod.wake()
    made.queue.run_until(made.queue.now + 300.0, lambda: None, lambda: None)
    assert len(killed) == 1
    assert pod.report is not None
    [phase] = pod.report.phases
    assert (phase.attempts, phase.outcome, phase.fruitless) == (1, "landed_signal", 0)


def test_a_create_is_not_sent_by_one_that_slept_since_it_was_decided_on() -> None:
    """Its run was closed by somebody else meanwhile, and its reservation is free: a pod made now
    would be nobody's."""

    def asleep(made: SimWorld, scenario: Scenario) -> None:
        made.armed.append(
            Trap("7", "ActionStarted.after", "stop", sleep_s=40 * 3600.0, stops_machine=True)
        )

    played = play(world(looks_every_s=600.0, reaper="server"), asleep)
    assert played.violation == "", played.detail
    assert "7" in played.observed
    assert pods_made(played) == 0


def test_a_pod_that_lost_its_disk_does_not_train_again_what_it_had_finished() -> None:
    made, pod = pod_at_work()
    both = (*pod.lease.phases, PhaseLease("extreme", 0.0, 1e4, 1.0))
    assert isinstance(pod, SimPod)
    pod.lease = replace(pod.lease, phases=both)
    made.truths["r-1"] = replace(
        made.truths["r-1"], shapes={"fast": SHAPE, "extreme": replace(SHAPE, phase="extreme")}
    )
    pod.restart_container(wiped=True)
    pod.orders = Orders(epoch=1, finished=("fast",))
    made.queue.run_until(made.queue.now + 60.0, lambda: None, lambda: None)
    assert pod.trainer is not None
    assert pod.trainer.shape.phase == "extreme"
    assert pod.report is not None
    assert [phase.name for phase in pod.report.phases] == ["extreme"]
    pod.kill_agent()
    made.queue.run_until(made.queue.now + 60.0, lambda: None, lambda: None)
    assert pod.trainer.shape.phase == "extreme"
    assert pod.trainer.attempt == 1


def test_what_is_being_trained_is_not_passed_over() -> None:
    made, pod = pod_at_work()
    pod.orders = Orders(epoch=1, finished=("fast",))
    pod.wake()
    made.queue.run_until(made.queue.now + 60.0, lambda: None, lambda: None)
    assert pod.report is not None
    assert [(phase.name, phase.state) for phase in pod.report.phases] == [
        ("fast", PhaseState.RUNNING)
    ]


def test_a_controller_tells_a_pod_that_lost_its_disk_what_it_had_finished() -> None:
    """A day after fast had finished its container starts anew; the driver is there all along."""
    scenario = next(
        made
        for made in (world(seed=seed) for seed in range(40, 4000, 40))
        if len(made.wishes[0].shapes) == 2
        and made.wishes[0].plan.candidates[0].within_budget
        and made.wishes[0].shapes["fast"].gate_passes
        and not made.wishes[0].plan.spec.volume
    )

    def wipe(made: SimWorld, _: Scenario) -> None:
        def look() -> None:
            run = next(iter(made.ledger.read().runs.values()), None)
            if run is None or "fast" not in run.phases:
                made.queue.after(20.0, look)
                return
            made.living()[0].pod.restart_container(wiped=True)

        made.queue.after(20.0, look)

    played = play(scenario, wipe)
    assert played.violation == "", played.detail
    starts = [line.text for line in played.timeline if " attempt 1 from step 0" in line.text]
    assert [text.split()[1] for text in starts] == ["fast", "extreme", "extreme"]


def test_an_agent_killed_before_it_reports_a_phases_end_does_not_train_it_again() -> None:
    """It has forgotten the trainer by then; what that wrote last is still there."""
    made, pod = pod_at_work()
    trainer = present(pod.trainer)
    assert trainer.ends_at is not None
    made.queue.run_until(trainer.ends_at - 0.1, lambda: None, lambda: None)
    pod.trap("report")
    made.queue.run_until(made.queue.now + 60.0, lambda: None, lambda: None)
    assert any(line.text.endswith("agent is killed") for line in made.timeline)
    assert pod.trainer is trainer
    assert pod.report is not None
    assert (pod.report.phases[0].outcome, pod.report.result) == ("finished", "finished")
    assert made.violation is None


@pytest.mark.parametrize(("late_s", "broken"), [(1.0, ""), (200.0, "I2")])
def test_a_pod_that_nobody_hears_is_due_once_it_can_be_heard(late_s: float, broken: str) -> None:
    """The link comes back long after the last event, and the next one is a little later."""
    made, pod = pod_at_work()
    check, now = judge_of(made), made.queue.now
    made.forgotten = False
    check.exposure.able["r-1"] = now - 10_000.0
    pod.rented.land_by = now
    made.knobs.link_down_until = now + 3000.0
    for later_s in (10.0, 3000.0 + late_s):
        made.queue.now = now + later_s
        check.accrue()
    assert (made.violation.name if made.violation is not None else "") == broken


@pytest.mark.parametrize(
    ("stops", "late_s", "broken"),
    [(True, 1.0, ""), (True, 200.0, "I2"), (False, 1.0, "I2")],
)
def test_a_stopped_pod_that_no_list_has_is_due_once_a_list_has_it(
    stops: bool, late_s: float, broken: str
) -> None:
    """One that still runs says by its agent that it is done: no list is needed for that."""
    made, pod = pod_at_work()
    check, now, rented = judge_of(made), made.queue.now, pod.rented
    made.forgotten = False
    check.exposure.able["r-1"] = now - 10_000.0
    rented.land_by = now
    rented.hidden_until = now + 3000.0
    if stops:
        rented.stop(now)
    for later_s in (10.0, 3000.0 + late_s):
        made.queue.now = now + later_s
        check.accrue()
    assert (made.violation.name if made.violation is not None else "") == broken


def test_a_person_can_end_by_name_what_a_list_has_and_nothing_else() -> None:
    made, pod = pod_at_work()
    made.forgotten = False
    assert _to_be_ended(made, "r-1") == [pod.rented]
    pod.rented.hidden_until = made.queue.now + 60.0
    assert _to_be_ended(made, "r-1") == []
    made.queue.now += 61.0
    assert _to_be_ended(made, "r-1") == [pod.rented]


def test_a_report_is_dated_by_the_pods_clock_and_heard_by_the_true_one() -> None:
    made, pod = pod_at_work()
    link = Process(made, made.laptop, "user").world.machines.links["runpod"]
    assert link.report(pod.name) is not None
    pod.machine.offset_s -= 86_400.0
    pod.rented.hidden_until = made.queue.now + 3000.0
    made.queue.now += 300.0
    later = present(link.report(pod.name))
    assert later.at == pytest.approx(made.queue.now - 86_400.0)
    assert pod.rented.heard
    pod.stop_agent()
    made.queue.now += 300.0
    assert link.report(pod.name) == later, "one that is stopped writes nothing"
    assert not pod.rented.heard
