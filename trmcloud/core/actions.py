"""What is to be done to the outside world for one run, and when it is tried again. Pure.

An action's id is a function of (run, generation, verb, attempt), so that issuing it again is safe.
"""

from __future__ import annotations

from dataclasses import dataclass

from trmcloud.core import events as ev
from trmcloud.core.observation import Observation
from trmcloud.core.run_state import GRANT, STAGE, ActionState, Generation, RunState

CREATE, LAND, TERMINATE, PULL, SAVE = "create", "land", "terminate", "pull", "save"
NO_CAPACITY = "no_capacity"
"""How a create failed whose provider has none left."""
FINAL = "final"
"""How a create failed where every other candidate's would fail as well."""
SAVED = "its work is done, and its checkpoints are here"
"""Why a pod is ended from which everything was pulled that is worth it."""
LONG = frozenset({STAGE, GRANT, PULL})
"""Actions that workers carry out; a stop never waits for one."""

_FIRST_RETRY_S = 1.0
_LONGEST_RETRY_S = 30.0


@dataclass(frozen=True)
class Action:
    """Something to be done to the outside world, safe to be done again."""

    id: str
    verb: str
    generation: int
    pod_id: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Decision:
    """Facts to append, then things to do. ``wait_s`` hints when to look again."""

    events: tuple[ev.RunEvent, ...] = ()
    actions: tuple[Action, ...] = ()


def next_attempt(
    run: RunState,
    verb: str,
    generation: Generation,
    pod_id: str,
    reason: str,
    now: float,
    *,
    once: bool = False,
    name: str = "",
) -> Action | None:
    """The next try of an action; None while the last one is fresh, or where it is done. ``name``
    stands in its id, where a verb may be wanted more than once."""
    attempt, last = last_try(run, name or verb)
    if last is not None and ((once and last.finished) or _too_soon(last, attempt, now)):
        return None
    action_id = name_action(run, name or verb, attempt + 1)
    return Action(action_id, verb, generation.number, pod_id, reason)


def last_try(run: RunState, name: str) -> tuple[int, ActionState | None]:
    """How often an action of the current generation was tried, and how the last try stands."""
    attempt, last = 0, None
    while (state := run.actions.get(name_action(run, name, attempt + 1))) is not None:
        attempt, last = attempt + 1, state
    return attempt, last


def _too_soon(last: ActionState, attempt: int, now: float) -> bool:
    since = last.ended_at if last.ended_at is not None else last.started_at
    pause_s: float = min(_FIRST_RETRY_S * 2 ** min(attempt, 10), _LONGEST_RETRY_S)
    # A clock that was set back must not put off the next try until it has caught up.
    return -pause_s < now - since < pause_s


def name_action(run: RunState, verb: str, attempt: int) -> str:
    return f"{run.run_id}/g{current_generation(run).number}/{verb}/{attempt}"


def current_generation(run: RunState) -> Generation:
    if run.generation is None:
        raise ValueError(f"{run.run_id} has no generation in state {run.state.value}")
    return run.generation


def next_long(
    run: RunState,
    name: str,
    verb: str,
    generation: Generation,
    reason: str,
    seen: Observation,
    now: float,
) -> Action | None:
    """The next try of what a worker carries; None while one does, or shortly after it failed.

    One that was started, has not ended and is in nobody's hands died with its controller.
    """
    attempt, last = last_try(run, name)
    if attempt and name_action(run, name, attempt) in seen.in_flight:
        return None
    if last is not None and not last.finished and _too_soon(last, attempt, now):
        return None
    pod_id = generation.pod_id or ""
    return Action(name_action(run, name, attempt + 1), verb, generation.number, pod_id, reason)
