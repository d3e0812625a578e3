"""Which stage a run is in, by its state and by what its pod said; what is carried meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trmcloud.app.run_queries import Errand
from trmcloud.cli.views.run_bar import GONE, PULLING, SENDING, Speed, absence, carried, stage_of
from trmcloud.core.contract.pod_contract import AgentReport
from trmcloud.core.contract.trainer_contract import Heartbeat
from trmcloud.core.control.action_key import ActionKey
from trmcloud.core.control.run_state import ActionState, Generation, RunState, State
from trmcloud.core.money import Usd

POD = Generation(
    number=1,
    pod_name="trmc-0badcafe-r1-g1-1790000000",
    provider="runpod",
    candidate_id="c1",
    rate=Usd("1.79"),
    soft_stop_at=3000.0,
    hard_stop_at=3600.0,
    intended_at=1000.0,
    up_at=1001.0,
)
RUN = RunState("r-1", State.RUNNING, generations=(POD,))
BEAT = Heartbeat("r-1", "fast", 1, 7, "1", 1100.0, "training", 3, 9)


def report(waiting: str) -> AgentReport:
    return AgentReport(
        "r-1", POD.pod_name, 1, 5, 1010.0, 1020.0, (), 3000.0, 3600.0, waiting=waiting
    )


@pytest.mark.parametrize(
    ("waiting", "stage"),
    [
        ("checking", "Checking the machine"),
        ("installing", "Installing"),
        ("files", SENDING),
        ("", "Starting the trainer"),
        ("something newer", "Starting the trainer"),
    ],
)
def test_before_the_trainer_beats_the_agent_says_what_it_waits_for(
    waiting: str, stage: str
) -> None:
    assert stage_of(RUN, None, report(waiting), "") == stage


@pytest.mark.parametrize(
    ("state", "before", "stage"),
    [
        ("starting", "", "Starting the trainer"),
        ("compiling", "Starting the trainer", "Compiling"),
        ("training", "Compiling", "Training fast"),
        ("evaluating", "Training fast", "Training fast"),
        ("landing", "Training fast", "Landing"),
    ],
)
def test_then_the_trainer_does(state: str, before: str, stage: str) -> None:
    assert stage_of(RUN, replace(BEAT, state=state), report("files"), before) == stage


def test_the_way_to_the_end() -> None:
    ending = replace(RUN, state=State.ENDING)
    assert stage_of(ending, BEAT, None, "Training fast") == "Ending the pod"
    assert stage_of(ending, BEAT, None, "Training fast", pulls=True) == PULLING
    assert stage_of(ending, BEAT, None, PULLING) == PULLING  # between one pull and the next
    asked = replace(
        ending, actions={ActionKey("r-1", 1, "terminate", 1): ActionState("terminate", 1200.0)}
    )
    assert stage_of(asked, BEAT, None, PULLING) == "Ending the pod"
    missed = replace(asked, generations=(replace(POD, missed_at=1210.0),))
    assert stage_of(missed, BEAT, None, "Ending the pod") == GONE
    assert absence(missed, 1250.0) == "off runpod's list for 40 s; 5 min 00 s prove it"
    assert stage_of(replace(missed, state=State.SETTLING), BEAT, None, GONE) == "Settling"
    assert stage_of(replace(missed, state=State.CLOSED), BEAT, None, "Settling") == ""


def test_speed_is_that_of_the_last_seconds() -> None:
    speed = Speed()
    key = ActionKey("r-1", 1, "stage", 1)
    assert speed.words(Errand(key, "stage", 0, 0), 0.0) == ""
    assert speed.words(Errand(key, "stage", 0, 100_000_000), 1.0) == "0.0 of 100.0 MB"
    quick = speed.words(Errand(key, "stage", 50_000_000, 100_000_000), 2.0)
    assert quick == "50.0 of 100.0 MB · 25.0 MB/s · 2 s left"
    for second in range(3, 14):
        slow = speed.words(Errand(key, "stage", 50_000_000, 100_000_000), float(second))
    assert slow == "50.0 of 100.0 MB"


def test_what_is_sent_and_what_is_pulled_are_told_apart() -> None:
    errands = [
        Errand(ActionKey("r-1", 1, "stage", 1), "stage", 1_000_000, 2_000_000),
        Errand(
            ActionKey("r-1", 1, "pull", 1, "fast-40-1f3a9c00"), "fast step 40", 3_000_000, 4_000_000
        ),
        Errand(ActionKey("r-1", 1, "pull", 1, "fast-60-1f3a9c00"), "fast step 60", 0, 0),
    ]
    assert carried(errands, Speed(), 0.0) == (
        "1.0 of 2.0 MB",
        ["pulling fast step 40 · 3.0 of 4.0 MB", "pulling fast step 60"],
    )
