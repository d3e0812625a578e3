"""A ledger cannot be used from the middle of a run on: its pod ends at the hard stop."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sim.drawing import draw
from tests.sim.faults import NAMES
from tests.sim.play import PlayResult, play
from trmcloud.core.values import replace
from trmcloud.sim.scenario import Scenario
from trmcloud.sim.world.facts import START_AT
from trmcloud.sim.world.world import SimWorld

BEYOND_S = 3600.0


def alone(seed: int, *, reaper: str) -> Scenario:
    """One run whose trainer, agent and watchdog do nothing: what ends its pod is on this side."""
    made = draw(seed, NAMES, most_faults=1)
    wish = replace(
        made.wishes[0], detached=False, stop_after_s=0.0, resume_after_s=0.0, fetch_after_s=0.0
    )
    return replace(
        made, wishes=(wish,), account_cap=None, reaper=reaper, foreign=False,
        faults=(), fault_seeds=(), off=frozenset({"agent", "watchdog"}),
    )  # fmt: skip


def full_for(knob: str) -> Callable[[SimWorld, Scenario], None]:
    def arm(world: SimWorld, scenario: Scenario) -> None:
        wish = scenario.wishes[0]
        whole_s = wish.plan.candidates[0].hard_stop_s

        def fill() -> None:
            world.fire("8", knob)
            setattr(world.knobs, knob, START_AT + wish.at_s + whole_s + BEYOND_S)
            world.wake()

        world.queue.at(START_AT + wish.at_s + 0.5 * whole_s, fill)

    return arm


def played(seed: int, reaper: str, knob: str) -> PlayResult:
    return play(alone(seed, reaper=reaper), full_for(knob))


@pytest.mark.parametrize(
    "knob", ["disk_full_until", "ledger_damaged_until", "ledger_too_new_until"]
)
@pytest.mark.parametrize("seed", [3, 11, 29, 47])
def test_its_driver_stays_and_ends_it(seed: int, knob: str) -> None:
    done = played(seed, "none", knob)
    assert done.violation == "", done.detail
    assert done.exposed_s == 0.0
    assert done.ended_by == ("controller",)
    assert all(billed <= cap for _, _, billed, cap in done.runs), done.runs
