"""Which checkpoints of a pod must be brought home before it may end.

Of each phase the best by its metric and the latest: the best is what the run is for, the latest is
what it goes on from. Pure; the controller asks, workers carry.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.contract.bucket_layout import AFTER_HARD_STOP_S
from trmcloud.core.control.action_key import FailureKind
from trmcloud.core.control.actions import PULL
from trmcloud.core.control.run_state import Generation, RunState

if TYPE_CHECKING:
    from trmcloud.core.contract.pod_contract import AgentReport, Kept
    from trmcloud.core.spec.plan import Plan

_SWEEP_WITHIN_S = 30 * 86_400.0
"""A bucket that is out of reach for longer may be gone."""
MOST_PULLS = 3
"""So often a checkpoint that is damaged on its pod is tried before it is given up: it must not keep
the pod alive for nothing. A link that drops is tried until the hard stop."""
MOST_DAMAGED = 4
"""A pod with more checkpoints than that which were given up is not kept alive for others."""


def owes_sweep(run: RunState, now: float) -> bool:
    """Whether the run's bucket may hold what no pod of it was granted, and none can add to it: what
    was signed is good until then, whoever has it."""
    last = run.generation
    if run.live or last is None or last.number == run.swept_generation:
        return False
    granted = [g.hard_stop_at for g in run.generations if g.agent_at is not None]
    if not run.spec.pod_uploads or not granted:
        return False
    over_s = now - max(granted) - AFTER_HARD_STOP_S
    return 0 < over_s < _SWEEP_WITHIN_S


def is_pulled(run: RunState, plan: Plan, generation: Generation) -> bool:
    """Whether the generation's pod stays until what it has was copied here by a controller."""
    if generation.provider == LOCAL:
        return False
    return run.errand is not None or not (plan.spec.volume or plan.spec.pod_uploads)


def is_held(run: RunState, plan: Plan, generation: Generation) -> bool:
    """Whether its agent leaves the end to a controller, which is expected to be there."""
    attended = run.errand is not None or not run.detached
    return attended and is_pulled(run, plan, generation)


def unsaved(run: RunState, report: AgentReport) -> tuple[Kept, ...]:
    """What the pod holds of worth and this run has no copy of: best ones first.

    One that was evaluated since it was copied is among them, for its manifest. A checkpoint that
    came damaged ``MOST_PULLS`` times is passed over, and the next best or latest is wanted in its
    place; of a pod with many of those nothing more is wanted.
    """
    from trmcloud.core.contract.bucket import worth_saving

    damaged = _damaged_pulls(run)
    sound = (
        [kept for kept in report.kept if damaged[pull_name(kept)] < MOST_PULLS]
        if damaged
        else report.kept
    )
    if len(report.kept) - len(sound) > MOST_DAMAGED:
        return ()
    return tuple(kept for kept in worth_saving(sound) if not _is_here(run, kept))


def _is_here(run: RunState, kept: Kept) -> bool:
    copy = run.pulled.get((kept.phase, kept.step))
    if copy is None or copy.sha256 != kept.sha256:
        return False
    return kept.val_bpb is None or copy.val_bpb is not None


def pull_name(kept: Kept) -> str:
    """The part of an action's key that names the checkpoint, its very bits included."""
    return f"{kept.phase}-{kept.step}-{kept.sha256[:8]}"


def pulled_of(name: str) -> tuple[str, int] | None:
    """(phase, step) of what ``pull_name`` named; None where it did not."""
    phase, step, *_ = [*name.rsplit("-", 2), "", ""]
    return (phase, int(step)) if step.isdigit() else None


def _damaged_pulls(run: RunState) -> Counter[str]:
    """By ``pull_name``: how often a copy from the run's present pod came damaged."""
    number = run.generation.number if run.generation is not None else None
    return Counter(
        key.item
        for key, action in run.actions.items()
        if action.failed_kind is FailureKind.DAMAGED
        and (key.generation, key.verb) == (number, PULL)
    )
