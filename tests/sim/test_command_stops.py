"""Scripts of strangers in faulted worlds: whatever their habit, each is stopped by its deadline, by
the agent, watchdog and controller that run on real machines, and ``Stopping`` itself.

A thousand worlds for each habit, in some minutes: ``TRMCLOUD_COMMAND_WORLDS=1000``,
and ``-o timeout=0``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from math import inf

import pytest

from tests.sim.drawing import draw
from tests.sim.faults import NAMES, arm_all
from tests.sim.play import play
from trmcloud.core.contract.command import Command
from trmcloud.core.values import replace
from trmcloud.sim.scenario import Scenario
from trmcloud.sim.world.account import Pod
from trmcloud.sim.world.trainer import Habit, SimCommand
from trmcloud.sim.world.world import SimWorld

WORLDS = int(os.environ.get("TRMCLOUD_COMMAND_WORLDS", "40"))
HABITS: list[Habit] = [habit for habit in Habit if habit is not Habit.PLAIN]
FIRST = 20_000_000
"""Far from the seeds that are drawn by the code's hash."""
KILL_S = 15.0
"""From the end of the grace until the last process is gone, one that hangs in a driver apart."""


def worlds(habit: Habit) -> Iterator[Scenario]:
    """Those of one phase, as a command has it, in which every layer is at work."""
    for seed in count(FIRST + 1_000_000 * HABITS.index(habit)):
        drawn = draw(seed, NAMES)
        if drawn.off or any(len(wish.shapes) > 1 for wish in drawn.wishes):
            continue
        wishes = []
        for wish in drawn.wishes:
            [shape] = wish.shapes.values()
            command = Command(
                (habit.value,),
                grace_s=shape.eval_s + shape.save_s,  # what the plan's landing reserves
                resume=("resumes", "{checkpoint}") if seed % 2 else (),
            )
            spec = replace(wish.plan.spec, command=command, patience=0)
            wishes.append(replace(wish, plan=replace(wish.plan, spec=spec)))
        yield replace(drawn, wishes=tuple(wishes))


def why_late(pod: Pod, command: SimCommand) -> str:
    """What of a command was there when it must not be any more; empty: nothing."""
    ended_at = pod.rented.ended_at if pod.rented.ended_at is not None else inf
    if command.watcher_died and command.swept_at is None:
        return "its processes live on"
    told_at = min(command.deadline_at, command.told_at or inf)
    gone_at = min(command.swept_at or inf, command.gone_by_watcher_at)
    late_s = gone_at - (told_at + command.command.grace_s + KILL_S)
    if late_s > 0 and not command.watcher_died:
        return f"it is gone {late_s:.0f} s after its grace"
    return "" if gone_at <= ended_at + 1.0 else "it outlives its pod"


@pytest.mark.slow
@pytest.mark.parametrize("habit", HABITS)
def test_a_stop_honours_the_deadline(habit: Habit) -> None:
    made: list[SimWorld] = []

    def arm(world: SimWorld, scenario: Scenario) -> None:
        made.append(world)
        arm_all(world, scenario)

    stopped = faulted = played_worlds = 0
    for scenario in worlds(habit):
        if played_worlds == WORLDS:
            break
        played = play(scenario, arm)
        world = made.pop()
        if not world.commands:
            continue  # nothing could be rented
        played_worlds += 1
        story = "\n".join(f"{told.at:.1f} {told.text}" for told in played.timeline)
        assert not played.violation, f"seed {scenario.seed}: {played.detail}\n{story}"
        for pod, command in world.commands:
            why = why_late(pod, command)
            assert not why, f"seed {scenario.seed}: {why}\n{story}"
        stopped += any(not c.lives(c.deadline_at + 1e7) for _, c in world.commands)
        faulted += bool(played.observed)
    assert stopped == WORLDS
    assert faulted > WORLDS / 2
    print(f"{habit}: {stopped} of {WORLDS} stopped in time, {faulted} of them faulted")
