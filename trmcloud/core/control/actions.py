"""Actions on the outside world: their retries, and the pulls that must precede a pod's end.
Pure.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.contract.bucket_layout import AFTER_HARD_STOP_S
from trmcloud.core.control import events as ev
from trmcloud.core.control.events import ActionKey, FailureKind
from trmcloud.core.control.observation import Observation
from trmcloud.core.control.reason import Reason
from trmcloud.core.control.run_state import GRANT, STAGE, ActionState, Generation, RunState
from trmcloud.core.values import Value

if TYPE_CHECKING:
    from trmcloud.core.contract.pod_contract import AgentReport, CheckpointRef
    from trmcloud.core.spec.plan import Plan

# What is to be done to the outside world for one run, and when it is tried again. Pure.
#
# An action's key is a function of what is tried and how often it was, so that issuing it again is
# safe.

CREATE, LAND, TERMINATE, PULL, SAVE = "create", "land", "terminate", "pull", "save"
EXTEND = "extend"
LONG = frozenset({STAGE, GRANT, PULL})
"""Actions that workers carry out; a stop never waits for one."""

_FIRST_RETRY_S = 1.0
_LONGEST_RETRY_S = 30.0


class Action(Value):
    """Something to be done to the outside world, safe to be done again."""

    key: ActionKey
    pod_id: str = ""
    reason: Reason | None = None

    @property
    def verb(self) -> str:
        return self.key.verb

    @property
    def generation(self) -> int:
        return self.key.generation

    @property
    def id(self) -> str:
        """Its key as the ledger has it."""
        return str(self.key)


class Decision(Value):
    """Facts to append, then things to do. ``wait_s`` hints when to look again."""

    events: tuple[ev.RunEvent, ...] = ()
    actions: tuple[Action, ...] = ()


NOTHING = Decision()


def next_attempt(
    run: RunState,
    verb: str,
    generation: Generation,
    pod_id: str,
    reason: Reason | None,
    now: float,
    *,
    once: bool = False,
    item: str = "",
) -> Action | None:
    """The next try of an action; None while the last one is fresh, or where it is done."""
    attempt, last = last_try(run, verb, item)
    if last is not None and ((once and last.finished) or _too_soon(last, attempt, now)):
        return None
    return Action(action_key(run, verb, attempt + 1, item), pod_id, reason)


def last_try(run: RunState, verb: str, item: str = "") -> tuple[int, ActionState | None]:
    """Return the number of tries of an action in the current generation, and the last try's
    state."""
    tried = run.tries(current_generation(run), verb, item)
    return len(tried), tried[-1] if tried else None


def _too_soon(last: ActionState, attempt: int, now: float) -> bool:
    since = last.ended_at if last.ended_at is not None else last.started_at
    pause_s: float = min(_FIRST_RETRY_S * 2 ** min(attempt, 10), _LONGEST_RETRY_S)
    # A clock that was set back must not put off the next try until it has caught up.
    return -pause_s < now - since < pause_s


def action_key(run: RunState, verb: str, attempt: int, item: str = "") -> ActionKey:
    """The key of a try for the run's present pod."""
    return ActionKey(run.run_id, current_generation(run).number, verb, attempt, item)


def current_generation(run: RunState) -> Generation:
    if run.generation is None:
        raise ValueError(f"{run.run_id} has no generation in state {run.state.value}")
    return run.generation


def next_long(
    run: RunState,
    verb: str,
    generation: Generation,
    seen: Observation,
    now: float,
    *,
    item: str = "",
) -> Action | None:
    """The next try of what a worker carries; None while one does, or shortly after it failed.

    One that was started, has not ended and is in nobody's hands died with its controller.
    """
    attempt, last = last_try(run, verb, item)
    if attempt and action_key(run, verb, attempt, item) in seen.in_flight:
        return None
    if last is not None and not last.finished and _too_soon(last, attempt, now):
        return None
    return Action(action_key(run, verb, attempt + 1, item), generation.pod_id or "")


# Which checkpoints of a pod must be brought home before it may end.
#
# Of each phase the best by its metric and the latest: the best is what the run is for, the latest
# is what it goes on from. Pure; the controller asks, workers carry.

SWEEP_WITHIN_S = 30 * 86_400.0
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
    if run.live or last is None or last.number == run.swept.generation:
        return False
    granted = [g.granted_until for g in run.generations if g.agent_at is not None]
    if not granted:
        return False
    over_s = now - max(granted) - AFTER_HARD_STOP_S
    if not 0 < over_s < SWEEP_WITHIN_S:
        return False
    return run.spec.pod_uploads  # to read the plans of thousands of old runs takes seconds


def is_pulled(run: RunState, plan: Plan, generation: Generation) -> bool:
    """Whether the generation's pod stays until what it has was copied here by a controller."""
    if generation.provider == LOCAL:
        return False
    return run.errand is not None or not (plan.spec.volume or plan.spec.pod_uploads)


def is_held(run: RunState, plan: Plan, generation: Generation) -> bool:
    """Whether its agent leaves the end to a controller, which is expected to be there."""
    attended = run.errand is not None or not run.detached
    return attended and is_pulled(run, plan, generation)


def unsaved(run: RunState, report: AgentReport) -> tuple[CheckpointRef, ...]:
    """Return the checkpoints on the pod that are worth a copy and have none here: best ones first.

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


def _is_here(run: RunState, kept: CheckpointRef) -> bool:
    copy = run.pulled.get((kept.phase, kept.step))
    if copy is None or copy.sha256 != kept.sha256:
        return False
    return kept.val_bpb is None or copy.val_bpb is not None


def pull_name(kept: CheckpointRef) -> str:
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
