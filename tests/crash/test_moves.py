"""A command that is killed at every step of a move: no machine is left, no two train at a time,
and nothing that was uploaded is lost. In the simulator: each call through a port is a step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.drawn import drawn
from tests.sim.test_moves import healthy
from trmcloud.core.control.run_state import State
from trmcloud.sim.play import PlayResult, play
from trmcloud.sim.scenario import Scenario
from trmcloud.sim.world.account import Process
from trmcloud.sim.world.controllers import ProcessKilled
from trmcloud.sim.world.facts import Trap
from trmcloud.sim.world.world import SimWorld


class KilledAtStep:
    """Kills the command at the ``index``-th call through a port from the start of its run's first
    move until the next machine trains; None: only lists them."""

    def __init__(self, index: int | None = None) -> None:
        self.index = index
        self.steps: list[str] = []

    def __call__(self, world: SimWorld, scenario: Scenario) -> None:
        crossing = world.crossing

        def cross(process: Process, point: str) -> None:
            if process.kind == "launch" and self.moves(world, point):
                self.steps.append(point)
                if len(self.steps) - 1 == self.index:
                    world.fire("109", f"killed at {point}")
                    raise ProcessKilled
            crossing(process, point)

        world.crossing = cross  # type: ignore[method-assign]
        # A process asks the world only where something is armed.
        world.armed = AlwaysArmed(world.armed)

    def moves(self, world: SimWorld, point: str) -> bool:
        if point == "MoveStarted.before" and not self.steps:
            return True
        run = next(iter(world.ledger.read().runs.values()), None)
        if run is None or not self.steps:
            return False
        taken = run.generation is not None and run.generation.adopted_at is not None
        return run.move is not None or (taken and run.state is State.RUNNING and not run.trains)


class AlwaysArmed(list[Trap]):
    def __bool__(self) -> bool:
        return True


def moving() -> Scenario:
    """A healthy world whose run moves, with a reaper on another machine."""
    return replace(next(s for s in healthy() if play(s).moves[3]), reaper="server")


SCENARIO = moving()
PARTS, TRIED = 6, 2
"""``make soak-crashes`` tries all."""


def steps_of() -> list[str]:
    listed = KilledAtStep()
    played = play(SCENARIO, listed)
    assert played.moves[3] == 1, "it moves"
    return listed.steps


def killed(index: int) -> PlayResult:
    return play(SCENARIO, KilledAtStep(index))


def test_the_steps_of_a_move_are_all_there() -> None:
    steps = steps_of()
    for event in ("MoveStarted", "PodUp", "AgentUp", "HandedOver", "PodGone", "Settled", "Moved"):
        assert any(step.startswith(event) for step in steps), event
    for call in ("create.before", "create.after", "orders", "bucket", "work.mid"):
        assert call in steps, call


@pytest.mark.slow
@pytest.mark.parametrize("part", drawn(range(PARTS), TRIED))
def test_killed_at_any_step_of_a_move_the_next_commands_end_it_well(part: int) -> None:
    steps = steps_of()
    outcomes = set()
    for index in range(part, len(steps), PARTS):
        played = killed(index)
        assert not played.violation, f"killed at step {index}, {steps[index]}: {played.detail}"
        outcomes.add(played.runs[0][1])
    assert outcomes
    assert "running" not in outcomes
