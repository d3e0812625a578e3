"""What is to be done to the outside world for one run, and when it is tried again. Pure.

An action's key is a function of what is tried and how often it was, so that issuing it again is
safe.
"""

from __future__ import annotations

from trmcloud.core.control import events as ev
from trmcloud.core.control.action_key import ActionKey
from trmcloud.core.control.observation import Observation
from trmcloud.core.control.reason import Reason
from trmcloud.core.control.run_state import GRANT, STAGE, ActionState, Generation, RunState
from trmcloud.core.values import dataclass

CREATE, LAND, TERMINATE, PULL, SAVE = "create", "land", "terminate", "pull", "save"
LONG = frozenset({STAGE, GRANT, PULL})
"""Actions that workers carry out; a stop never waits for one."""

_FIRST_RETRY_S = 1.0
_LONGEST_RETRY_S = 30.0


@dataclass(frozen=True)
class Action:
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


@dataclass(frozen=True)
class Decision:
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
    """How often an action of the current generation was tried, and how the last try stands."""
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
