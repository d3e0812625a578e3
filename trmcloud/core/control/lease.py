"""The lease an agent is given: the Plan's promise, in the words the pod understands."""

from __future__ import annotations

from collections.abc import Collection

from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.contract.command import Command
from trmcloud.core.contract.pod_contract import Lease, PhaseLease
from trmcloud.core.contract.trainer_contract import DONE
from trmcloud.core.contract.worth import StopRules
from trmcloud.core.control.run_state import Generation, RunState
from trmcloud.core.spec.overrides import recoverable
from trmcloud.core.spec.plan import Candidate, PhasePlan

_FIRST_PHASE_SLACK = 1.5
_LEAST_OF_A_COMMAND_S = 1.0
"""Nothing is known of how long its step takes."""
_LEAST_READY_S = 900.0
"""Environment, code and data get at least as long to arrive as a pod gets to boot."""


def phases_to_run(run: RunState, candidate: Candidate) -> tuple[PhasePlan, ...]:
    """The candidate's phases that have not finished yet, in order; none on an errand."""
    done = {name for name, account in run.phases.items() if account.outcome in DONE}
    return tuple(phase for phase in candidate.phases if phase.name not in done)


def make_lease(
    run: RunState,
    candidate: Candidate,
    generation: Generation,
    *,
    epoch: int,
    granted_at: float,
    strict_gate: bool,
    hold: bool = False,
    uploads: bool = False,
    stop: StopRules | None = None,
    set_by_hand: Collection[str] = (),
    last_rungs: Collection[str] = (),
    command: Command | None = None,
) -> Lease:
    """What generation's agent may do, and until when.

    Where two phases share the time, the first may take 1.5 × its P90, or what is left beside the
    second's P90 if that is more; where the budget ends before the recipe, each gets its share of
    the time as the Plan's P50 divide it. ``hold`` and ``uploads``: see ``Lease``;
    ``stop``: when a phase no longer pays; ``set_by_hand`` and ``last_rungs``: see ``recoverable``;
    ``command``: what is run in place of a recipe's trainer.
    """
    rented = candidate.provider != LOCAL
    # A clock set back since the intent must not grant more time than was reserved.
    granted_at = max(granted_at, generation.intended_at)
    phases = phases_to_run(run, candidate)
    available_s = generation.soft_stop_at - granted_at - candidate.startup_s.p50
    expected_s = sum(phase.seconds.p50 for phase in phases)
    fits = candidate.within_budget and sum(p.seconds.p90 for p in phases) <= available_s
    shares = []
    for index, phase in enumerate(phases):
        allowed_s = 0.0
        if index + 1 < len(phases):
            rest_s = sum(p.seconds.p90 for p in phases[index + 1 :])
            allowed_s = (
                max(_FIRST_PHASE_SLACK * phase.seconds.p90, available_s - rest_s)
                if fits
                else available_s * phase.seconds.p50 / expected_s
            )
        shares.append(
            PhaseLease(
                *(phase.name, allowed_s, _trained_s(phase), phase.flops),
                settings=recoverable(phase.settings, set_by_hand, last_rungs),
                stop=stop or StopRules(),
            )
        )
    useful_s = [p.parts_s.get("compile", 0.0) + max(5.0, 3 * p.step_s.p50) for p in phases]
    hang_after_s = traits_of(candidate.provider).hang_after_s
    # A trainer that failed is not started again on one node alone: the others are gone by then.
    max_restarts = Lease.max_restarts if candidate.nodes == 1 else -1
    if command is not None:
        hang_after_s = command.silent_s
        useful_s = [_LEAST_OF_A_COMMAND_S]
        # One that cannot go on from a checkpoint would pay for the same steps again.
        max_restarts = max_restarts if command.resume else -1
    return Lease(
        run_id=run.run_id,
        pod_name=generation.pod_name,
        epoch=epoch,
        granted_at=granted_at,
        soft_stop_at=generation.soft_stop_at,
        hard_stop_at=generation.hard_stop_at,
        landing_s=generation.hard_stop_at - generation.soft_stop_at,
        phases=tuple(shares),
        fits_budget=fits,
        min_useful_s=max(useful_s, default=0.0),
        strict_gate=strict_gate,
        hang_after_s=hang_after_s,
        hold=hold,
        uploads=uploads,
        ready_within_s=max(_LEAST_READY_S, 3 * candidate.startup_s.p90) if rented else 0.0,
        max_restarts=max_restarts,
    )


def _trained_s(phase: PhasePlan) -> float:
    """P50 seconds of a phase but for its wait for data, which says nothing about the next one."""
    return phase.seconds.p50 - phase.parts_s.get("data", 0.0)
