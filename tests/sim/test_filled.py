"""Runs that fill their budget on machines that are slower or faster than was planned: the planner's
own plan, the control's lease, an agent, and a trainer whose end is the clock's."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.sim.faults import arm_all
from tests.sim.play import PlayResult, play
from trmcloud.adapters.files import load_recipe
from trmcloud.core.catalog.offers import Offer
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import Outcome
from trmcloud.core.money import Usd
from trmcloud.core.planner.planning import make_plan
from trmcloud.core.spec.plan import PhasePlan, Plan
from trmcloud.core.spec.spec import RunSpec
from trmcloud.sim.scenario import Scenario, SimRun
from trmcloud.sim.world.facts import START_AT
from trmcloud.sim.world.trainer import Shape
from trmcloud.sim.world.world import SimWorld
from trmcloud.wiring_plans import simulate_providers

simulate_providers()

SPEEDS = (0.75, 0.85, 1.0, 1.15, 1.25)
"""Relative to the plan's P50."""
LEAST_USED = 0.97
HOUR_S = 3600.0


@dataclass(frozen=True)
class Wanted:
    """``least``: of its budget, the share that is trained with. What no schedule can use is start,
    compiling, the landing reserve and the time that ending a machine takes: of a short run they are
    more than 3 %."""

    recipe: str
    phases: tuple[str, ...]
    sku: str
    rate: str
    budget: str
    least: float = LEAST_USED


WANTED = (
    Wanted("speedrun", ("train",), "H100-SXM", "16", "1000"),
    Wanted("gpt350m", ("train",), "H100-SXM", "16", "400"),
    Wanted("d24", ("train",), "A100-80GB-SXM", "12", "600"),
    Wanted("trm", ("fast", "extreme"), "A100-80GB-SXM", "10", "150"),
    Wanted("gpt350m", ("train",), "H100-SXM", "16", "60", 0.90),
)


def a_plan(wanted: Wanted) -> Plan:
    offer = Offer(wanted.sku, 8, "runpod", "any", "i", Usd(wanted.rate), False, START_AT, "test")
    spec = RunSpec(
        recipe=wanted.recipe,
        phases=wanted.phases,
        hardware=f"8x{wanted.sku}",
        budget=Usd(wanted.budget),
        bucket="s3://bucket/sim",
        fill=True,
    )
    plan = make_plan(spec, load_recipe(wanted.recipe), [offer], START_AT, "p-f111")
    assert plan.launchable
    return plan


def as_trained(phase: PhasePlan, speed: float) -> Shape:
    """The phase on a machine whose steps and evaluations take 1 ÷ ``speed`` of what was planned."""
    settings, parts = phase.settings, phase.parts_s
    likely = parts["training"] / phase.step_s.p50
    evaluations = max(1.0, (likely - 1) // settings.eval_every)
    saves = max(1.0, (likely - 1) // settings.save_every)
    return Shape(
        phase.name,
        settings.steps,
        phase.step_s.p50 / speed,
        settings.eval_every,
        parts["evaluation"] / evaluations / speed,
        settings.save_every,
        parts["saving"] / saves,
        parts["start"],
        parts["compile"],
    )


class Keep:
    """Keeps the world that is played."""

    world: SimWorld

    def __call__(self, world: SimWorld, scenario: Scenario) -> None:
        self.world = world
        arm_all(world, scenario)


def played(wanted: Wanted, speed: float) -> tuple[PlayResult, RunState, float, Plan]:
    """(the result, the run, seconds of all its steps, the plan)."""
    plan = a_plan(wanted)
    chosen = plan.candidate(plan.launchable[0])
    shapes = {phase.name: as_trained(phase, speed) for phase in chosen.phases}
    wish = SimRun("r-f111ed", 1.0, plan, shapes, "default", False, 0.0, 0.0, 0.0)
    scenario = Scenario(7, ("runpod",), (wish,), None, "none", False, 900.0, (), ())
    keep = Keep()
    result = play(scenario, keep)
    run = keep.world.ledger.read().runs["r-f111ed"]
    in_steps_s = sum((run.phases[name].step or 0) * shape.step_s for name, shape in shapes.items())
    return result, run, in_steps_s, plan


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("wanted", WANTED, ids=lambda w: f"{w.recipe}-{w.budget}")
def test_the_budget_is_trained_with_whatever_the_speed(wanted: Wanted, speed: float) -> None:
    result, run, in_steps_s, plan = played(wanted, speed)
    assert not result.violation, result.detail
    assert run.outcome is Outcome.LANDED, "the clock ends it, not its steps"
    *before, last = (run.phases[name] for name in wanted.phases)
    assert [account.outcome for account in before] == ["finished"] * len(before)
    assert last.outcome == "landed_deadline"
    hourly = float(Usd(wanted.rate)) + float(plan.candidate(plan.launchable[0]).disk_rate)
    budget = float(Usd(wanted.budget))
    used, billed = in_steps_s / HOUR_S * hourly / budget, result.runs[0][2] / 1e6
    print(f"\n{wanted.recipe}, {budget:,.0f} USD, speed {speed}: {used:.2%} in steps", end="")
    print(f", {billed / budget:.2%} billed for its machine", end="")
    assert used >= wanted.least
    assert billed <= budget
