"""A checkpoint that was asked for: when that is refused, and where it is found by then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.reasons import quoted
from tests.unit.core.manifests import manifest
from trmcloud.app.checkpoints import shelf
from trmcloud.app.checkpoints.saving import Asked, find_saved, why_not_saved
from trmcloud.app.context import Context
from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.control import events as ev
from trmcloud.core.control.run_state import Generation, RunState, State
from trmcloud.core.money import Usd
from trmcloud.core.outcome import Outcome
from trmcloud.core.spec.plan import Plan, RecordedPlan, plan_to_json
from trmcloud.io.files import write_atomic
from trmcloud.options import LaunchRequest
from trmcloud.wiring import build_context
from trmcloud.wiring_plans import build_planner

POD = "trmc-abcd1234-r1-g1-1790003000"
SAVED = contract.Saves(1, "fast", 120)
KEPT = contract.Kept("fast", 120, "ab" * 32, 1010)
REPORT = contract.AgentReport(
    "r-1", POD, 1, 7, 1.0, 2.0,
    (contract.PhaseReport("fast", contract.PhaseState.RUNNING),), 3.0, 4.0,
    saves=contract.Saves(),
)  # fmt: skip


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    request = LaunchRequest("1xA100", "trm-tiny", "fast", setting=["keep_best=1"])
    planner = build_planner(tmp_path_factory.mktemp("plans"))
    return planner.plan(planner.spec(request), tokens_available=10_000_000)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    monkeypatch.setenv("TRMCLOUD_HOME", str(tmp_path / "home"))
    return build_context()


def run_of(plan: Plan, provider: str = "runpod", **spec: Any) -> RunState:
    plan = replace(plan, spec=replace(plan.spec, **spec))
    generation = Generation(
        number=1, pod_name=POD, provider=provider, candidate_id=plan.candidates[0].id,
        rate=Usd(1), soft_stop_at=1.0, hard_stop_at=2.0, intended_at=0.0, up_at=0.0,
    )  # fmt: skip
    made = RecordedPlan(plan_to_json(plan))
    return RunState("r-1", recorded_plan=made, generations=(generation,), state=State.RUNNING)


def say(world: Context, report: contract.AgentReport) -> None:
    folder = world.home / contract.PODS_DIR / POD
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / contract.REPORT_NAME, contract.dump(report))


def copy_here(world: Context) -> Path:
    folder = world.home / "runs" / "r-1" / "fast" / contract.CHECKPOINTS_DIR / "step-00000120"
    folder.mkdir(parents=True)
    write_atomic(folder / mf.MANIFEST_NAME, mf.to_json(manifest(120, None)))
    return folder


def test_an_answer_counts_for_its_own_pod_and_request(world: Context, plan: Plan) -> None:
    run, asked = run_of(plan), Asked("r-1", 1, 1)
    assert asked.answer(world, run) is None
    say(world, REPORT)
    assert asked.answer(world, run) is None
    say(world, replace(REPORT, saves=SAVED))
    assert asked.answer(world, run) == SAVED
    assert Asked("r-1", 1, 2).answer(world, run) is None
    assert Asked("r-1", 2, 1).answer(world, run) is None, "another pod's"


def test_where_a_pull_saves_it_it_is_safe_once_it_is_pulled(world: Context, plan: Plan) -> None:
    run = run_of(plan)
    assert find_saved(world, run, SAVED) is None
    say(world, replace(REPORT, kept=(KEPT,)))
    place = find_saved(world, run, SAVED)
    assert place is not None
    assert (place.label, place.final) == ("fast/step-00000120", False)
    folder = copy_here(world)
    half = find_saved(world, run, SAVED)
    assert half is not None
    assert not half.final, "its pull is not on record yet"
    run = replace(run, pulled={("fast", 120): ev.Pulled(1, "fast", 120, KEPT.sha256)})
    place = find_saved(world, run, SAVED)
    assert place is not None
    assert place.final
    assert place.words == f"{folder}, pulled and verified"
    assert place.at == shelf.Place(shelf.HERE, str(folder))


def test_a_later_one_stands_for_it_and_an_earlier_one_does_not(world: Context, plan: Plan) -> None:
    run = run_of(plan)
    say(world, replace(REPORT, kept=(replace(KEPT, step=90), replace(KEPT, step=150))))
    place = find_saved(world, run, SAVED)
    assert place is not None
    assert place.kept.step == 150


def test_in_a_bucket_on_a_volume_and_here(world: Context, plan: Plan) -> None:
    bucketed = run_of(plan, bucket="s3://abc/x")
    say(world, replace(REPORT, kept=(KEPT,)))
    there = find_saved(world, bucketed, SAVED)
    assert there is not None
    assert (there.final, there.at) == (False, shelf.Place(shelf.POD, ""))
    say(world, replace(REPORT, kept=(KEPT,), uploaded=(KEPT,)))
    stored = find_saved(world, bucketed, SAVED)
    assert stored is not None
    assert (stored.final, stored.words) == (True, "s3://abc/x/runs/r-1")
    assert stored.at == shelf.Place(shelf.BUCKET, "s3://abc/x/runs/r-1")
    volume = find_saved(world, run_of(plan, volume=True), SAVED)
    assert volume is not None
    assert (volume.final, volume.words) == (True, "its network volume")
    assert volume.at == shelf.Place(shelf.VOLUME, "")
    folder = copy_here(world)
    local = find_saved(world, run_of(plan, provider="local"), SAVED)
    assert local is not None
    assert (local.final, local.words) == (True, str(folder))
    assert local.at == shelf.Place(shelf.HERE, str(folder))


def test_what_does_not_train_is_refused_and_told_why(world: Context, plan: Plan) -> None:
    run = run_of(plan)
    say(world, REPORT)
    assert why_not_saved(world, run) == ""
    ended = replace(run, state=State.CLOSED, outcome=Outcome.FINISHED)
    assert why_not_saved(world, ended) == "it has ended: finished"
    stopped = replace(run, stop=ev.StopRequested("user", quoted("enough")))
    assert why_not_saved(world, stopped) == "it was told to land, and saves by that"
    assert why_not_saved(world, replace(run, state=State.BOOTING)) == "it is booting"
    say(world, replace(REPORT, waiting="installing"))
    assert why_not_saved(world, run) == "its pod is still installing"
    say(world, replace(REPORT, result="finished"))
    assert why_not_saved(world, run) == "its work is done"
    say(world, replace(REPORT, phases=(contract.PhaseReport("fast", contract.PhaseState.ENDED),)))
    assert why_not_saved(world, run) == "no phase runs now"
