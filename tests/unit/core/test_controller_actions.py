"""When an action is tried again, by the functions that ``decide`` asks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.core.runs import AT, apply, running
from trmcloud.core.clock import Unknown
from trmcloud.core.control import events as ev
from trmcloud.core.control.action_key import ActionKey, FailureKind
from trmcloud.core.control.actions import Action, action_key, next_attempt, next_long
from trmcloud.core.control.observation import Observation
from trmcloud.core.control.run_state import STAGE, Generation, RunState

NOBODY = Observation(Unknown(AT), Unknown(AT), Unknown(AT))


def of(run: RunState) -> Generation:
    assert run.generation is not None
    return run.generation


def staged(run: RunState, *, at: float, failed: bool = False) -> RunState:
    key = str(action_key(run, STAGE, 1))
    run = apply(run, ev.ActionStarted(key, STAGE), at=at)
    end: ev.RunEvent = ev.ActionFinished(key, STAGE)
    if failed:
        end = ev.ActionFailed(key, STAGE, FailureKind.ERROR, "lost")
    return apply(run, end, at=at)


def test_an_action_says_what_its_key_says() -> None:
    action = Action(ActionKey("r1", 3, "land", 2))
    assert (action.generation, action.verb, action.id) == (3, "land", "r1/g3/land/2")


@pytest.mark.parametrize(
    ("later_s", "tried"), [(0.0, False), (1.9, False), (2.0, True), (-1.9, False), (-2.0, True)]
)
def test_a_pause_is_over_at_its_end_and_a_clock_set_back_by_more_ends_it(
    later_s: float, tried: bool
) -> None:
    """The first try is followed by a pause of two seconds."""
    run = staged(running(), at=AT, failed=True)
    action = next_attempt(run, STAGE, of(run), "id-1", None, AT + later_s)
    assert (action is not None) is tried


def test_what_a_worker_has_finished_may_be_wanted_again_at_once() -> None:
    run = staged(running(), at=AT)
    action = next_long(run, STAGE, of(run), NOBODY, AT)
    assert action is not None
    assert action.key.attempt == 2
    assert next_long(staged(running(), at=AT, failed=True), STAGE, of(run), NOBODY, AT) is None


def test_what_a_worker_carries_names_its_pod_where_there_is_one() -> None:
    run = running()
    first = next_long(run, STAGE, of(run), NOBODY, AT)
    assert first is not None
    assert first.pod_id == "id-1"
    unmade = next_long(run, STAGE, replace(of(run), pod_id=None), NOBODY, AT)
    assert unmade is not None
    assert unmade.pod_id == ""
