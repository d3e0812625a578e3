"""What a run's steps took: beside what was planned, and kept for the plans to come."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trmcloud.adapters.files.recipes import load_recipe
from trmcloud.app import measured_runs, probes
from trmcloud.app.context import Context
from trmcloud.app.measured_runs import measured_in, note_measured, speeds_of
from trmcloud.core.catalog.hardware import GPUS
from trmcloud.core.catalog.offers import Offer
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.money import Usd
from trmcloud.core.planner.calibrated import Measured
from trmcloud.core.planner.planning import make_plan
from trmcloud.core.spec.plan import Plan
from trmcloud.core.spec.spec import RunSpec

NOW = 1_795_000_000.0
OFFER = Offer(
    "H100-SXM", 8, "runpod", "any", "8x-h100", Usd("24"), spot=False, priced_at=NOW, source="test"
)
SPEC = RunSpec(recipe="gpt350m", phases=("train",), hardware="8xH100", budget=Usd("500"))


def plan(*measured: Measured) -> Plan:
    return make_plan(SPEC, load_recipe("gpt350m"), [OFFER], NOW, "p-0001", measured=measured)


def run_of(made: Plan, **changed: Any) -> RunState:
    generation = SimpleNamespace(candidate_id=made.candidates[0].id, agent_at=NOW)
    values = {
        "run_id": "r-1", "plan": made, "state": State.CLOSED, "updated_at": NOW,
        "generation": generation, "generations": (generation,),
    }  # fmt: skip
    return cast(RunState, SimpleNamespace(**values | changed))


def lines(step_s: Any, rows: int = 30) -> list[dict[str, Any]]:
    warm = [{"kind": "train", "step": n, "step_seconds": 60.0} for n in range(2)]
    told = [{"kind": "train", "step": n, "step_seconds": step_s} for n in range(2, rows)]
    return [*warm, {"kind": "eval", "step": 2, "step_seconds": 1e6}, *told]


def context(home: Path, logged: list[dict[str, Any]]) -> Context:
    files = SimpleNamespace(metrics=lambda run_id, phase: logged)
    return cast(Context, SimpleNamespace(home=home, files=files))


@pytest.fixture(autouse=True)
def nothing_mended(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    rows: list[Any] = []
    monkeypatch.setattr(measured_runs, "recovered", lambda context, run: rows)
    return rows


def test_tokens_a_second_are_told_beside_the_plans(tmp_path: Path) -> None:
    made = plan()
    phase = made.candidates[0].phases[0]
    told = speeds_of(context(tmp_path, lines(2 * phase.step_s.p50)), run_of(made))
    assert told is not None
    assert told.planned == pytest.approx(phase.settings.tokens_per_step(8) / phase.step_s.p50)
    assert told.measured == pytest.approx(told.planned / 2)
    assert speeds_of(context(tmp_path, lines(1.0, rows=21)), run_of(made)) is None


def test_what_no_such_chip_can_do_is_not_kept(tmp_path: Path) -> None:
    """A pod's lines may say anything; on the peak's other side they would make the next plan."""
    made = plan()
    settings = made.candidates[0].phases[0].settings
    flops = settings.tokens_per_step(8) * settings.work().train_flops
    at_peak_s = flops / (8 * GPUS["H100-SXM"].fp8_tflops * 1e12)
    note_measured(context(tmp_path, lines(0.99 * at_peak_s)), run_of(made))
    assert probes.load(tmp_path) == []
    note_measured(context(tmp_path, lines(1.01 * at_peak_s)), run_of(made))
    [kept] = probes.load(tmp_path)
    assert kept.run_id == "r-1"
    probes.record(tmp_path, kept._replace(step_s=0.99 * at_peak_s))
    assert probes.load(tmp_path) == [], "nor what stands in the file"


def test_the_next_plan_takes_it_and_says_when_it_was_measured(tmp_path: Path) -> None:
    before = plan().candidates[0]
    step_s = before.phases[0].step_s.p50
    note_measured(context(tmp_path, lines(1.25 * step_s)), run_of(plan()))
    [kept] = probes.load(tmp_path)
    assert (kept.sku, kept.run_id, kept.steps) == ("H100-SXM", "r-1", 28)
    after = plan(kept).candidates[0]
    assert after.phases[0].step_s.p50 == pytest.approx(1.25 * step_s)
    spread = [p.step_s.p90 / p.step_s.p10 for c in (before, after) for p in c.phases]
    assert spread[1] < spread[0], "less is doubted, though it may be another machine"
    [told] = [remark.text for remark in after.reasons if "measured" in remark.text]
    assert told.endswith("(r-1): 1.25 × what is modelled")
    assert "measured on 20" in told


def test_a_newer_measurement_takes_the_place_of_an_older_one_alone(tmp_path: Path) -> None:
    made = plan()
    note_measured(context(tmp_path, lines(0.3)), run_of(made))
    note_measured(context(tmp_path, lines(0.4)), run_of(made, run_id="r-0", updated_at=NOW - 9))
    assert [m.run_id for m in probes.load(tmp_path)] == ["r-1"]
    note_measured(context(tmp_path, lines(0.4)), run_of(made, run_id="r-2", updated_at=NOW + 9))
    assert [(m.run_id, m.step_s) for m in probes.load(tmp_path)] == [("r-2", 0.4)]


def test_what_tells_of_no_one_machine_is_not_kept(
    tmp_path: Path, nothing_mended: list[Any]
) -> None:
    made = plan()
    good = context(tmp_path, lines(0.3))
    other = SimpleNamespace(candidate_id="c9", agent_at=None)
    never = SimpleNamespace(**{**vars(run_of(made).generation), "agent_at": None})
    assert measured_in(good, run_of(made)) is not None
    assert measured_in(good, run_of(made, state=State.RUNNING)) is None
    assert measured_in(good, run_of(made, generations=(never,))) is None
    assert measured_in(good, run_of(made, generations=(other, run_of(made).generation)))
    for odd in (None, "fast", -1.0, float("nan"), float("inf"), True):
        assert measured_in(context(tmp_path, lines(odd)), run_of(made)) is None
    nothing_mended.append(SimpleNamespace(recovery=SimpleNamespace(changed={"batch": 4})))
    assert measured_in(good, run_of(made)) is None, "its settings were not the plan's"


@pytest.mark.parametrize(
    "odd",
    [{"predicted_s": -1.0}, {"predicted_s": "1"}, {"at": 1e12}, {"at": None}, {"run_id": 7},
     {"run_id": "r" * 99}, {"step_s": True}],
)  # fmt: skip
def test_a_record_that_cannot_be_is_none(tmp_path: Path, odd: dict[str, Any]) -> None:
    good = Measured("H100-SXM", 8, 1.5, 48, 524_288, 10.72e9, at=NOW, run_id="r-1")
    probes.record(tmp_path, good)
    assert probes.load(tmp_path) == [good]
    probes.record(tmp_path, good._replace(**odd))
    assert probes.load(tmp_path) == []
