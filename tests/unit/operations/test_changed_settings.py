"""What a run is resumed with; two commands that reopen it at once."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.plans import a_candidate, a_phase, recorded
from tests.unit.core.manifests import manifest
from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.contract.manifest import CheckpointManifest
from trmcloud.core.control import events as ev
from trmcloud.core.control.budget import Line
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.errors import (
    CheckpointError,
    ConflictError,
    DoesNotFit,
    Outcome,
    ProviderError,
    UsageError,
)
from trmcloud.core.money import ZERO, Usd
from trmcloud.operations.checkpoints.sources import Listing
from trmcloud.operations.context import Caller, Context
from trmcloud.operations.launch import launching
from trmcloud.operations.launch import steering as changes
from trmcloud.operations.launch.steering import ChangedSettings, changed_settings
from trmcloud.ports.ledger import ControllerId

# -- changed settings ---------------------------------------------------------------------------
# What a run is resumed with: what it was trained with, unless the difference is accepted.


CONTEXT: Any = None
CANDIDATE = a_candidate(phases=(a_phase(),))
SETTINGS = CANDIDATE.phases[0].settings
RUN = RunState("r-1", state=State.CLOSED, outcome=Outcome.LANDED, recorded_plan=recorded(CANDIDATE))
DONE = ev.PhaseEnded(1, "fast", "finished", 1000, 1.5, {})
FINISHED = replace(RUN, outcome=Outcome.FINISHED, phases={"fast": DONE})


def trained(**settings: Any) -> CheckpointManifest:
    return manifest(settings=replace(SETTINGS, **settings).to_json(), world_size=1)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Listing]:
    """What the run's places have, to be filled by a test."""
    listings = [Listing((trained(),))]

    class Place:
        def __init__(self, listing: Listing) -> None:
            self.list = lambda: listing

    def sources_of(context: Context, run: RunState) -> list[Place]:
        return [Place(listing) for listing in listings]

    monkeypatch.setattr(changes, "sources_of", sources_of)
    return listings


def test_nothing_typed_and_nothing_different_changes_nothing(found: list[Listing]) -> None:
    assert changed_settings(CONTEXT, RUN, (), accept=False) == ChangedSettings()
    found[:] = [Listing()]
    assert changed_settings(CONTEXT, RUN, (), accept=False) == ChangedSettings()


def test_rates_steps_and_intervals_change_freely(found: list[Listing]) -> None:
    typed = [("steps", 3000), ("matrix_lr", 2e-3), ("save_every", 10), ("loader_workers", 2)]
    made = changed_settings(CONTEXT, RUN, typed, accept=False)
    assert made == ChangedSettings({"fast": dict(typed)})


def test_what_decides_is_refused_by_name_and_told_how_to_accept(found: list[Listing]) -> None:
    typed = [("seed", 7), ("optimizer", "adamw"), ("batch", 16)]
    with pytest.raises(CheckpointError) as refused:
        changed_settings(CONTEXT, RUN, typed, accept=False)
    assert str(refused.value) == (
        "the checkpoint of r-1 was trained with other settings: seed 1337 → 7, optimizer muon → "
        "adamw, sequences a step 32 → 16"
    )
    again = "trmcloud resume r-1 --set seed=7 --set optimizer=adamw --set batch=16 --accept-change"
    assert refused.value.next_step.startswith(again)
    assert changed_settings(CONTEXT, RUN, typed, accept=True) == ChangedSettings(
        {"fast": dict(typed)},
        {"seed": [1337, 7], "optimizer": ["muon", "adamw"], "sequences a step": [32, 16]},
    )


def test_the_newest_checkpoint_counts_wherever_it_lies(found: list[Listing]) -> None:
    newer = replace(trained(seed=7), step=240, created_at=1_790_000_999.0)
    found.append(Listing((newer,)))
    assert changed_settings(CONTEXT, RUN, [("seed", 7)], accept=False).accepted is None
    with pytest.raises(CheckpointError, match="seed 7 → 1337"):
        changed_settings(CONTEXT, RUN, (), accept=False)


def test_another_machines_batch_is_a_change_an_equal_whole_is_none(
    found: list[Listing],
) -> None:
    found[:] = [Listing((trained(batch=8, accumulation=4),))]
    assert changed_settings(CONTEXT, RUN, (), accept=False) == ChangedSettings()
    found[:] = [Listing((trained(batch=8),))]
    with pytest.raises(CheckpointError, match="sequences a step 8 → 32"):
        changed_settings(CONTEXT, RUN, (), accept=False)
    found[:] = [Listing((replace(trained(batch=8), world_size=4),))]
    assert changed_settings(CONTEXT, RUN, (), accept=False) == ChangedSettings()


def test_there_must_be_something_to_accept(found: list[Listing]) -> None:
    with pytest.raises(UsageError, match="has the same settings already"):
        changed_settings(CONTEXT, RUN, (), accept=True)
    with pytest.raises(UsageError, match="has the same settings already"):
        changed_settings(CONTEXT, RUN, [("steps", 3000)], accept=True)
    found[:] = [Listing()]
    with pytest.raises(UsageError, match="has the same settings already"):
        changed_settings(CONTEXT, RUN, [("seed", 7)], accept=True)


@pytest.mark.parametrize(
    ("key", "value"),
    [("width", 1536), ("depth", 24), ("vocab_size", 300), ("data", "c4"), ("keep_best", 5)],
)
def test_shape_data_and_storage_are_the_plans(found: list[Listing], key: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{key} is .* in this run and cannot become {value}"):
        changed_settings(CONTEXT, RUN, [(key, value)], accept=True)
    same = [(key, getattr(SETTINGS, key))]
    assert changed_settings(CONTEXT, RUN, same, accept=False) == ChangedSettings()


def test_settings_that_cannot_be_are_refused(found: list[Listing]) -> None:
    with pytest.raises(UsageError, match="steps must be above zero"):
        changed_settings(CONTEXT, RUN, [("steps", 0)], accept=False)
    with pytest.raises(UsageError, match="trm has no setting 'windows'"):
        changed_settings(CONTEXT, RUN, [("windows", "SL")], accept=False)
    with pytest.raises(DoesNotFit, match=r"fast needs \d+ GB on 1xH100, which has 80"):
        changed_settings(CONTEXT, RUN, [("batch", 4096)], accept=True)


def test_a_preset_brings_what_it_stands_for(found: list[Listing]) -> None:
    run = replace(RUN)
    made = changed_settings(CONTEXT, run, [("preset", "extreme")], accept=False)
    reopened = ev.Reopened(run.cap, settings=made.settings)
    assert run.recorded_plan is not None
    after: Any = (
        run.recorded_plan.with_settings(reopened.settings).plan.candidates[0].phases[0].settings
    )
    assert (after.supervision_weight_base, after.improvement_reward_scale) == (10.0, 2.0)


def test_a_finished_run_goes_on_with_more_steps_alone(found: list[Listing]) -> None:
    for typed in ((), (("steps", 1000),), (("matrix_lr", 1e-3),)):
        with pytest.raises(ConflictError, match="has finished: there is nothing to resume") as no:
            changed_settings(CONTEXT, FINISHED, typed, accept=False)
        assert "trmcloud resume r-1 --set steps=2000" in no.value.next_step
    made = changed_settings(CONTEXT, FINISHED, [("steps", 1001)], accept=False)
    assert made == ChangedSettings({"fast": {"steps": 1001}})


def test_of_two_phases_the_last_one_goes_on(found: list[Listing]) -> None:
    both = a_candidate(phases=(a_phase(), a_phase("extreme")))
    phases = {"fast": DONE, "extreme": replace(DONE, phase="extreme")}
    run = replace(FINISHED, recorded_plan=recorded(both), phases=phases)
    made = changed_settings(CONTEXT, run, [("steps", 2000)], accept=False)
    assert list(made.settings) == ["extreme"]
    landed = replace(run, outcome=Outcome.LANDED, phases={"fast": DONE})
    made = changed_settings(CONTEXT, landed, [("steps", 2000)], accept=False)
    assert list(made.settings) == ["extreme"]


def test_what_lies_on_a_volume_was_trained_as_it_was_told_to(found: list[Listing]) -> None:
    found[:] = [Listing()]
    run = replace(RUN, recorded_plan=recorded(CANDIDATE, volume=True))
    with pytest.raises(CheckpointError, match="seed 1337 → 7"):
        changed_settings(CONTEXT, run, [("seed", 7)], accept=False)
    made = changed_settings(CONTEXT, run, [("seed", 7)], accept=True)
    assert made.accepted == {"seed": [1337, 7]}


def test_a_bucket_that_is_down_is_asked_for_what_is_accepted_alone(
    found: list[Listing],
) -> None:
    found[:] = [Listing(trouble=ProviderError("503"))]
    assert changed_settings(CONTEXT, RUN, (), accept=False) == ChangedSettings()
    with pytest.raises(ProviderError, match="503"):
        changed_settings(CONTEXT, RUN, [("seed", 7)], accept=True)


def test_a_manifest_that_says_nothing_is_left_to_the_trainer(found: list[Listing]) -> None:
    for settings in ({}, {"depth": 2}, {**SETTINGS.to_json(), "batch": "x", "accumulation": None}):
        found[:] = [Listing((manifest(settings=settings),))]
        assert changed_settings(CONTEXT, RUN, (), accept=False) == ChangedSettings()
    hostile = {**SETTINGS.to_json(), "seed": "\x1b[2J\nerror"}
    found[:] = [Listing((manifest(settings=hostile, world_size=1),))]
    with pytest.raises(CheckpointError) as refused:
        changed_settings(CONTEXT, RUN, (), accept=False)
    assert "\x1b" not in str(refused.value)
    assert "\n" not in str(refused.value)


PHASE = a_phase(training=600.0)
PHASE = replace(PHASE, settings=replace(PHASE.settings, batch=6, accumulation=1), tokens=1000)
HERE = a_candidate(provider=LOCAL, hardware=LOCAL, sku="CPU", gpus=2, phases=(PHASE,))
ON_TWO = replace(RUN, recorded_plan=recorded(HERE))


@pytest.mark.parametrize(
    ("processes", "batch", "accumulation"), [(1, 6, 2), (3, 4, 1), (4, 3, 1), (12, 1, 1)]
)
def test_other_processes_share_the_same_global_batch(
    found: list[Listing], processes: int, batch: int, accumulation: int
) -> None:
    settings = HERE.phases[0].settings
    found[:] = [Listing((manifest(settings=settings.to_json(), world_size=2),))]
    made = changed_settings(CONTEXT, ON_TWO, (), accept=False, processes=processes)
    assert made.processes == processes
    run = apply_changes(ON_TWO, made)
    candidate = run.plan.recommended
    assert candidate is not None
    [phase] = candidate.phases
    assert (phase.settings.batch, phase.settings.accumulation) == (batch, accumulation)
    assert phase.settings.global_batch(candidate.world_size) == settings.global_batch(2)
    assert phase.tokens == HERE.phases[0].tokens
    assert phase.parts_s["training"] == pytest.approx(
        HERE.phases[0].parts_s["training"] * 2 / processes
    )
    # The next time nothing is said, and nothing changes.
    assert changed_settings(CONTEXT, run, (), accept=False) == ChangedSettings()
    assert (
        changed_settings(CONTEXT, run, (), accept=False, processes=processes) == ChangedSettings()
    )


def apply_changes(run: RunState, made: ChangedSettings) -> RunState:
    assert run.recorded_plan is not None
    plan = run.recorded_plan.with_settings(made.settings, made.processes)
    return replace(run, recorded_plan=plan)


def test_processes_that_cannot_share_a_batch_are_refused(found: list[Listing]) -> None:
    with pytest.raises(UsageError, match="5 processes cannot share the 12 sequences of a step"):
        changed_settings(CONTEXT, ON_TWO, (), accept=False, processes=5)
    with pytest.raises(UsageError, match="above zero"):
        changed_settings(CONTEXT, ON_TWO, (), accept=False, processes=-1)
    elsewhere = replace(CANDIDATE, gpus=8)
    with pytest.raises(UsageError, match="with one process per GPU"):
        changed_settings(
            *(CONTEXT, replace(RUN, recorded_plan=recorded(elsewhere)), ()),
            accept=False,
            processes=2,
        )


# -- resuming -----------------------------------------------------------------------------------
# Two commands that reopen a run at once: the later one is told so, not that the money is spent.


class OvertakenLedger:
    """A closed run, which another command reopens right after it was first looked at, by the
    command that judges it, with all that was left of its budget reserved."""

    def __init__(self) -> None:
        self.reads = 0

    def read(self) -> Any:
        self.reads += 1
        reserved = ZERO if self.reads == 1 else Usd(3)
        run = SimpleNamespace(
            run_id="r-1", live=self.reads > 1, outcome=Outcome.STOPPED, cap=Usd(4), generation=None,
            spec=SimpleNamespace(recipe="trm"), created_at=0.0,
        )  # fmt: skip
        return SimpleNamespace(
            runs={"r-1": run},
            quarantined={},
            line=lambda level, key: Line(level, key, Usd(4), Usd(1), reserved),
        )

    def driver(self, run_id: str) -> None:
        return None


def test_a_run_reopened_meanwhile_is_not_called_spent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launching, "reconcile", lambda context: None)
    monkeypatch.setattr(launching, "is_driven", lambda context, driver: True)
    context: Any = SimpleNamespace(
        ledger=OvertakenLedger(),
        caller=Caller(controller=ControllerId("here", 1, ""), is_alive=lambda who: None),
        wall=lambda: 0.0,
        take_over=lambda run_id: 1,
    )
    assert not context.ledger.read().runs["r-1"].live, "as its name was looked up"
    with pytest.raises(ConflictError, match="is running already"):
        launching.check_resume(context, "r-1", cap=None)
