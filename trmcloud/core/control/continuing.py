"""Whether a run whose machine was lost continues on another one, and on which. Pure.

A machine is lost if its agent reported, its pod is proven gone, and neither the user nor this
product had ended it: a spot machine that was taken back, a host that failed or has stopped it for
good, of which only the rest is deleted from here. Its uploads are in the
run's bucket, from which the next pod continues; so at most one save interval is trained twice, and
what was trained while the last checkpoint was still being written and uploaded.

The next machine is the cheapest of those that the plan allows, of whatever provider, that was lost
least often. It is rented by a command that stays; where none is there the run is closed as before,
and ``trmcloud resume`` continues it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.contract.trainer_contract import DONE
from trmcloud.core.control import events as ev
from trmcloud.core.control.actions import TERMINATE
from trmcloud.core.control.reason import ReasonKind, make_reason
from trmcloud.core.control.run_state import Generation, RunState
from trmcloud.core.spec.plan import Candidate, Plan

_HOUR_S = 3600.0
MOST_FRUITLESS = 3
"""So many machines in a row that were lost sooner than one takes to start end the run: something
else than chance ends them."""


def lost_machines(run: RunState, plan: Plan) -> tuple[Generation, ...]:
    """Those of the run's machines, since it was opened or reopened, that trained and were lost."""
    recent = run.generations[run.first_generation - 1 :]
    return tuple(g for g in recent if _was_lost(run, g)) if keeps_uploads(run, plan) else ()


def continues(run: RunState, plan: Plan) -> bool:
    """Whether the run's present machine was lost, and work is left that another is worth renting
    for."""
    lost = lost_machines(run, plan)
    if run.stop is not None or run.result is not None or not lost or lost[-1] != run.generation:
        return False
    done = {name for name, account in run.phases.items() if account.outcome in DONE}
    if all(phase.name in done for phase in plan.candidate(lost[-1].candidate_id).phases):
        return False
    newest = lost[-MOST_FRUITLESS:]
    return len(newest) < MOST_FRUITLESS or not all(_was_fruitless(plan, g) for g in newest)


def cheapest_first(
    run: RunState, plan: Plan, candidates: Sequence[Candidate]
) -> tuple[Candidate, ...]:
    """``candidates`` as a run that lost machines tries them: those that were lost least often
    first, of these the cheapest for the whole work. Without a loss, as they stand in the plan."""
    lost = [g.candidate_id for g in lost_machines(run, plan)]
    if not lost:
        return tuple(candidates)
    return tuple(sorted(candidates, key=lambda c: (lost.count(c.id), _price(c))))


def limit_s(
    run: RunState, plan: Plan, candidate: Candidate, now: float, *, kill_latency_s: float
) -> float:
    """Seconds from ``now`` until the hard stop that the deadline leaves to a machine that follows a
    lost one or was waited for, and that the limit on hours leaves after all earlier machines;
    infinite where neither binds."""
    lost = bool(lost_machines(run, plan))
    left_s = inf
    if plan.spec.deadline_at is not None and (lost or run.wait is not None):
        left_s = plan.spec.deadline_at - now - kill_latency_s
    is_reopened = run.first_generation > 1
    if plan.spec.hours is not None and (lost or is_reopened):
        whole_s = candidate.hard_stop_s
        if is_reopened:  # it has another budget than the one that the plan's stop was made for
            whole_s = candidate.startup_s.p90 + plan.spec.hours * _HOUR_S + candidate.landing_s
        left_s = min(left_s, whole_s - trained_s(run, plan))
    return max(0.0, left_s)


def hours_left_s(run: RunState, plan: Plan) -> float:
    """Seconds of training that the run's limit on hours leaves; infinite without one."""
    return inf if plan.spec.hours is None else plan.spec.hours * _HOUR_S - trained_s(run, plan)


def trained_s(run: RunState, plan: Plan) -> float:
    """Seconds that the run's machines have trained, before it was reopened too: they count against
    a limit on hours."""
    return sum(
        min(worked_s(each), _accounted_s(run, each))
        for each in run.generations
        if not each.legacy.stands_by
        and each.unfit is None
        and plan.candidate(each.candidate_id).phases
    )


def _accounted_s(run: RunState, generation: Generation) -> float:
    """Seconds in the accounts of its phases, without their wait for data; infinite where it left no
    account."""
    mine = [each for each in run.phase_accounts if each.generation == generation.number]
    counted = (s for each in mine for state, s in each.seconds.items() if state != "data")
    return sum(counted) if mine else inf


def worked_s(generation: Generation) -> float:
    """Seconds from its agent's first report to its end; 0 while one of the two is missing."""
    if generation.agent_at is None or generation.ended_at is None:
        return 0.0
    return generation.ended_at - generation.agent_at


def revision(run: RunState, plan: Plan, candidate: Candidate) -> tuple[ev.PlanRevised, ...]:
    """The record that a run continues on ``candidate`` after its machine was lost; none where no
    machine was."""
    if not continues(run, plan) or run.generation is None:
        return ()
    why = make_reason(ReasonKind.MACHINE_LOST, provider=run.generation.provider)
    return (ev.PlanRevised(candidate.id, why),)


def keeps_uploads(run: RunState, plan: Plan) -> bool:
    """Whether another machine has something to continue from."""
    if run.errand is not None or not plan.spec.pod_uploads:
        return False
    spec = plan.spec
    if spec.sweep is not None:
        return spec.nodes == 1  # one on several machines, of an earlier version, ends with them
    return spec.command is None or bool(spec.command.resume)


def _was_lost(run: RunState, generation: Generation) -> bool:
    if generation.provider == LOCAL or generation.agent_at is None or generation.unfit is not None:
        return False
    if generation.legacy.stands_by or generation.legacy.hands_over:
        return False  # it trained nothing, or was told to land
    if generation.ended_at is None or generation.ended_at >= generation.hard_stop_at - 1:
        return False
    tried = run.tries(generation, TERMINATE)
    why = {action.reason.kind for action in tried if action.reason is not None}
    return not tried or why == {ReasonKind.HOST_STOPPED}


def _was_fruitless(plan: Plan, generation: Generation) -> bool:
    """Whether it was lost sooner than it had taken to start."""
    return worked_s(generation) < plan.candidate(generation.candidate_id).startup_s.p50


def _price(candidate: Candidate) -> float:
    rate = candidate.planned_rate or candidate.rate
    return float(rate + candidate.disk_rate) * candidate.hours.p50
