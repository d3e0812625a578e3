"""Faults 1–14, 61, 75 and 77: controllers that die, sleep, double, clocks that lie, and a person
who ends a run without its ledger."""

from __future__ import annotations

from functools import partial

from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import LedgerError, StaleEpoch
from trmcloud.operations.driving.drive import RunDriver
from trmcloud.operations.driving.ending import NamedPodEnds, end_run
from trmcloud.sim.faults.arm import Fault, FaultContext, window
from trmcloud.sim.world.account import RentedMachine
from trmcloud.sim.world.clocks import Machine
from trmcloud.sim.world.controllers import Process
from trmcloud.sim.world.world import SimWorld

MINUTE_S, HOUR_S = 60.0, 3600.0
TOO_NEW = "a newer version wrote to the ledger"
_LOOKING = (
    "*", "*", "take_over.after", "terminate.before", "terminate.after", "bill", "bucket",
    "StrayCharged.before", "StrayCharged.after", "StrayBilled.before", "LedgerReconciled.before",
    "ActionStarted.after", "ResultKnown.after", "PodGone.before", "PodGone.after", "Settled.before",
    "Settled.after", "Closed.before", "Billed.before", "BucketSwept.before", "BucketSwept.after",
    "delete-volume.before", "delete-volume.after", "VolumeDeleted.before",
)  # fmt: skip
"""The points at which a process that drives no run may be killed."""


def _kill_at(*points: str) -> Fault:
    def arm(arms: FaultContext) -> None:
        arms.trap(arms.rng.choice(points), "kill", skip=arms.rng.choice((0, 0, 0, 1)))

    return arm


def _asleep(arms: FaultContext) -> None:
    """The laptop's lid is shut, perhaps in the middle of a call."""
    seconds = MINUTE_S * 4320 ** arms.rng.random()
    if arms.rng.random() < 0.4:
        point = arms.rng.choice(("create.before", "PodIntended.after", "ActionStarted.after", "*"))
        skip = arms.rng.randint(0, 12) if point == "*" else 0
        arms.trap(point, "stop", sleep_s=seconds, stops_machine=True, skip=skip)
        return
    laptop = arms.world.laptop

    def shut() -> None:
        laptop.awake = False
        arms.world.observed(arms.number)
        arms.world.queue.after(seconds, wake)

    def wake() -> None:
        laptop.awake = True
        arms.world.wake()

    arms.strike(arms.some_time(), f"the laptop sleeps {seconds / 60:.0f} min", shut)


def _take_over(arms: FaultContext, machine: Machine) -> bool:
    """Another controller seizes a live run; its driver does not know."""
    world = arms.world
    live = [run for run in world.ledger.read().runs.values() if run.live]
    if not live:
        return False
    run: RunState = arms.rng.choice(live)
    process = Process(world, machine, "launch", run.project)

    def seize() -> None:
        epoch = process.world.ledger.take_over(run.run_id, process.who, process.world.wall())
        process.drive(RunDriver(process.world, run.run_id, epoch))

    process.do_and_drive(seize)
    return process.alive


def _two_controllers(arms: FaultContext) -> None:
    def second() -> None:
        if _take_over(arms, arms.world.server):
            arms.world.observed(arms.number)

    arms.strike(arms.some_time(0, 0.8), "a second controller takes over", second)


def _jump(arms: FaultContext) -> None:
    """A clock jumps: the laptop's, or a pod's in the middle of its work."""
    seconds = arms.rng.choice((-1, 1)) * arms.rng.choice((HOUR_S, 24 * HOUR_S))
    if arms.rng.random() < 0.5:
        _shift(arms, arms.world.laptop, seconds, arms.some_time(-0.02, 1.0))
        return

    def jump(rented: RentedMachine) -> None:
        rented.pod.machine.offset_s += seconds
        if arms.rng.random() < 0.3:
            rented.pod.kill_agent()
        rented.pod.wake()

    arms.strike_pod(arms.some_time(0.05, 1.0), f"clock jumps {seconds:+.0f} s", jump, felt=True)


def _shift(arms: FaultContext, machine: Machine, seconds: float, at: float) -> None:
    back_s = arms.rng.uniform(600, 48 * HOUR_S)

    def jump() -> None:
        machine.offset_s += seconds
        arms.world.observed(arms.number)

        def right() -> None:
            machine.offset_s = 0.0
            arms.world.wake()

        arms.world.queue.after(back_s, right)

    arms.strike(at, f"{machine.name}'s clock jumps {seconds:+.0f} s", jump)


def _pod_skew(arms: FaultContext) -> None:
    seconds = arms.rng.choice((-1, 1)) * 10 * 360 ** arms.rng.random()

    def skew() -> None:
        arms.world.knobs.pod_skew_s = seconds
        arms.world.observed(arms.number)

    arms.strike(arms.soon(), f"pods' clocks are {seconds:+.0f} s off", skew)


def _summer_time(arms: FaultContext) -> None:
    _shift(arms, arms.world.laptop, arms.rng.choice((-HOUR_S, HOUR_S)), arms.some_time())


def _stopped(arms: FaultContext) -> None:
    """SIGSTOP for longer than the lease: everything on a pod, or a controller in mid-call."""
    if arms.rng.random() < 0.5:
        whole = arms.scenario.wishes[0].plan.candidates[0].hard_stop_s
        arms.trap("*", "stop", sleep_s=whole * 1.2, skip=arms.rng.randint(0, 30))
        return

    def stop(rented: RentedMachine) -> None:
        pod = rented.pod
        left = pod.lease.hard_stop_at - pod.machine.now().wall
        pod.stopped_until = arms.world.queue.now + max(60.0, left + arms.rng.uniform(60, 7200))

    arms.strike_pod(arms.some_time(0.05, 1.0), "watchdog and agent are stopped", stop, felt=True)


def _zombie(arms: FaultContext) -> None:
    """61: a controller stops in mid-call, another takes over, and the first one resumes."""

    def seize() -> None:
        _take_over(arms, arms.world.server)

    def other() -> None:
        arms.world.queue.after(5.0, seize)

    point = arms.rng.choice(("*", "ActionStarted.after", "orders", "terminate.before"))
    sleep_s, skip = arms.rng.uniform(60, 3600), arms.rng.randint(0, 10)
    arms.trap(point, "stop", sleep_s=sleep_s, skip=skip, then=other)


def _looking_killed(arms: FaultContext) -> None:
    """A command or the guard is killed while it sees to runs and pods that are not its own. Cron
    starts the guard again."""
    world, machines = arms.world, {"laptop": arms.world.laptop, "server": arms.world.server}

    def start_again() -> None:
        if any(process.kind == "reap" for process in world.processes):
            return
        reaper = Process(world, machines[arms.scenario.reaper], "reap")
        reaper.soon(1.0)

    def then() -> None:
        if arms.scenario.reaper in machines:
            world.queue.after(arms.rng.uniform(1, 300), start_again)

    for _ in range(arms.rng.choice((1, 1, 3))):
        point, skip = arms.rng.choice(_LOOKING), arms.rng.choice((0, 0, 1, 5))
        arms.trap(point, "kill", skip=skip, then=then, kinds=("reap", "user"))


def _ended_by_name(arms: FaultContext) -> None:
    """77: a person ends a run while its ledger cannot be used."""
    world, rng = arms.world, arms.rng
    knob = rng.choice(("disk_full_until", "disk_full_until", "ledger_damaged_until"))
    seconds, wait_s = rng.uniform(120, 7200), rng.uniform(1, 100)

    def name_one() -> None:
        runs = [run for run in world.ledger.read().runs.values() if run.live and run.generation]
        if not runs:
            return
        run: RunState = rng.choice(runs)
        process = Process(world, world.laptop, "user")
        process.named = run.run_id
        before = _to_be_ended(world, run.run_id)
        done = process.do(partial(end_run, process.world, run.run_id))
        lived = process.alive
        process.kill()
        if isinstance(done, LedgerError) and not isinstance(done, StaleEpoch):
            world.fail("I2", f"{run.run_id} was to end, as a person said: {done}")
        if not isinstance(done, NamedPodEnds) or not lived:
            return
        world.observed(arms.number)
        for rented in before:
            if rented.pod_id not in world.named_ends:
                world.fail("I2", f"{rented.pod_id} was to end, as a person said, and was not")

    def begin() -> None:
        arms.from_now(knob, seconds)
        world.queue.after(wait_s, name_one)

    arms.strike(arms.some_time(0, 1.0), f"a person ends a run, {knob} for {seconds:.0f} s", begin)


def _to_be_ended(world: SimWorld, run_id: str) -> list[RentedMachine]:
    """The run's pods that a person who names it can end: their provider lists them and answers."""
    knobs, now = world.knobs, world.queue.now
    if now < knobs.deaf_until or not (world.laptop.online and world.laptop.awake):
        return []
    if knobs.list_flickers or world.forgotten or world.armed:
        return []
    mine = [rented for rented in world.living() if rented.run_id == run_id]
    return [rented for rented in mine if now >= max(rented.visible_at, rented.hidden_until)]


FAULTS: dict[str, tuple[str, Fault]] = {
    "1": ("killed before the intent", _kill_at("PodIntended.before", "open.before")),
    "2": ("killed after the intent", _kill_at("PodIntended.after", "open.after")),
    "3": ("killed after the create, before its id", _kill_at("create.after", "create.before")),
    "4": ("killed in the middle of a copy", _kill_at("fetch.mid", "work.mid")),
    "5": ("killed before the delete", _kill_at("terminate.before", "ResultKnown.after")),
    "6": ("killed between delete and settlement", _kill_at("terminate.after", "PodGone.after")),
    "7": ("laptop asleep", _asleep),
    "8": ("ledger's disk full", window("disk_full_until", 30, 4000, "ledger disk full", 0, 1.05)),
    "9": ("two controllers", _two_controllers),
    "10": ("mixed versions", window("ledger_too_new_until", 60, 7200, TOO_NEW, 0, 1.05)),
    "11": ("a clock jumps", _jump),
    "12": ("pods' clocks are skewed", _pod_skew),
    "13": ("a clock is set to local time", _summer_time),
    "14": ("stopped for longer than the lease", _stopped),
    "61": ("a fenced controller continues", _zombie),
    "75": ("killed while it sees to others", _looking_killed),
    "77": ("a person ends a run without its ledger", _ended_by_name),
}
