"""Actions: sweeps of a bucket, pods that wait for a copy, and names of checkpoints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.plans import a_generation, a_plan, recorded
from trmcloud.core.contract.bucket_layout import AFTER_HARD_STOP_S
from trmcloud.core.contract.pod_contract import AgentReport, CheckpointRef
from trmcloud.core.control.actions import (
    PULL,
    SAVE,
    is_held,
    is_pulled,
    owes_sweep,
    pull_name,
    pulled_of,
    unsaved,
)
from trmcloud.core.control.events import ActionKey, FailureKind
from trmcloud.core.control.run_state import ActionState, RunState, State, Swept

BUCKET = {"bucket": "s3://them/runs"}
GRANTED = a_generation(agent_at=1.0)
"""Its hard stop is at 2 s."""
OVER_AT = 2.0 + AFTER_HARD_STOP_S
DAYS_30 = 2_592_000.0


def a_run(*generations: Any, spec: dict[str, Any] = BUCKET, **changes: Any) -> RunState:
    made = RunState("r1", State.CLOSED, recorded(**spec), generations=generations)
    return replace(made, **changes)


@pytest.mark.parametrize(
    ("run", "now", "owes"),
    [
        (a_run(GRANTED), OVER_AT, False),
        (a_run(GRANTED), OVER_AT + 0.5, True),
        (a_run(GRANTED), OVER_AT + DAYS_30 - 1, True),
        (a_run(GRANTED), OVER_AT + DAYS_30, False),
        (a_run(GRANTED, swept=Swept(1)), 100.0, False),
        (a_run(GRANTED, state=State.SETTLING), 100.0, False),
        (a_run(), 100.0, False),
        (a_run(a_generation()), 100.0, False),
        (a_run(GRANTED, a_generation(number=2, hard_stop_at=500.0)), 100.0, True),
        (a_run(GRANTED, replace(GRANTED, number=2, hard_stop_at=500.0)), 100.0, False),
        (a_run(GRANTED, spec={}), 100.0, False),
        (a_run(GRANTED, spec={**BUCKET, "bucket_relayed": True}), 100.0, False),
    ],
)
def test_a_bucket_is_swept_once_nothing_that_was_signed_is_good(
    run: RunState, now: float, owes: bool
) -> None:
    assert owes_sweep(run, now) is owes


@pytest.mark.parametrize(
    ("spec", "provider", "changes", "pulled", "held"),
    [
        ({}, "runpod", {}, True, True),
        ({}, "runpod", {"detached": True}, True, False),
        ({}, "local", {}, False, False),
        ({}, "local", {"errand": "fetch1"}, False, False),
        ({"volume": True}, "runpod", {}, False, False),
        ({"volume": True}, "runpod", {"errand": "fetch1"}, True, True),
        ({"volume": True}, "runpod", {"errand": "fetch1", "detached": True}, True, True),
        (BUCKET, "runpod", {}, False, False),
        ({**BUCKET, "bucket_relayed": True}, "runpod", {}, True, True),
    ],
)
def test_a_pod_waits_for_a_copy_where_nothing_else_keeps_it_and_somebody_is_there(
    spec: dict[str, Any], provider: str, changes: dict[str, Any], pulled: bool, held: bool
) -> None:
    generation = a_generation(provider=provider)
    run = a_run(generation, spec=spec, **changes)
    assert is_pulled(run, a_plan(**spec), generation) is pulled
    assert is_held(run, a_plan(**spec), generation) is held


def test_a_checkpoint_is_known_by_its_pulls_name() -> None:
    name = pull_name(CheckpointRef("very-fast", 40, "1f3a9c00" * 8, 10, 2.0))
    assert name == "very-fast-40-1f3a9c00"
    assert pulled_of(name) == ("very-fast", 40)
    for other in ("stage", "", "fast-x-1f3a9c00"):
        assert pulled_of(other) is None


KEPT = CheckpointRef("fast", 40, "1f3a9c00" * 8, 10, 2.0)
REPORT = AgentReport("r1", "pod", 1, 7, 0.0, 0.0, (), 1.0, 2.0, kept=(KEPT,))


@pytest.mark.parametrize(
    ("times", "generation", "verb", "kind", "wanted"),
    [
        (2, 2, PULL, FailureKind.DAMAGED, True),
        (3, 2, PULL, FailureKind.DAMAGED, False),
        (3, 1, PULL, FailureKind.DAMAGED, True),
        (3, 2, SAVE, FailureKind.DAMAGED, True),
        (3, 2, PULL, FailureKind.ERROR, True),
    ],
)
def test_what_came_damaged_from_this_pod_three_times_is_given_up(
    times: int, generation: int, verb: str, kind: FailureKind, wanted: bool
) -> None:
    failed = ActionState(verb, 1.0, 2.0, kind)
    tries = {
        ActionKey("r1", generation, verb, n, pull_name(KEPT)): failed for n in range(1, times + 1)
    }
    run = a_run(a_generation(number=2), actions=tries)
    assert unsaved(run, REPORT) == ((KEPT,) if wanted else ())


@pytest.mark.parametrize(("hurt", "wanted"), [(0, (40, 60)), (1, (50, 60)), (2, (40, 50))])
def test_for_one_that_came_damaged_the_next_best_or_latest_is_wanted(
    hurt: int, wanted: tuple[int, ...]
) -> None:
    """Of the best, a middling one and the latest, the pod's best and latest are worth a copy."""
    best, between, latest = (
        CheckpointRef("fast", step, f"{step:064x}", 10, bpb)
        for step, bpb in ((40, 2.0), (50, 2.5), (60, 3.0))
    )
    damaged = {1: best, 2: latest}.get(hurt)
    failed = ActionState(PULL, 1.0, 2.0, FailureKind.DAMAGED)
    names = [pull_name(damaged)] if damaged is not None else []
    tries = {ActionKey("r1", 2, PULL, n, name): failed for name in names for n in (1, 2, 3)}
    run = a_run(a_generation(number=2), actions=tries)
    found = unsaved(run, replace(REPORT, kept=(best, between, latest)))
    assert sorted(each.step for each in found) == list(wanted)
