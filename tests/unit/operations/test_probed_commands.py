"""What runs and probes measured, beside what was planned, and the worth of own hardware."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.core.manifests import manifest
from trmcloud.adapters.files import load_recipe
from trmcloud.cli.views.health import format_rows
from trmcloud.cli.views.metrics import target_lines
from trmcloud.cli.views.plan import own_lines
from trmcloud.core.catalog.hardware import GPUS, LocalMachine
from trmcloud.core.catalog.offers import Offer
from trmcloud.core.catalog.torch_builds import POD_TORCH
from trmcloud.core.contract.command import Command
from trmcloud.core.contract.command_terms import MeasuredSteps
from trmcloud.core.contract.pod_contract import GPU_NOTE, GpuCounters, GpuWindow
from trmcloud.core.control import events as ev
from trmcloud.core.control.reason import ReasonKind, make_reason
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.errors import DoesNotFit, NotFoundError, UsageError
from trmcloud.core.money import Usd
from trmcloud.core.planner.command_outlook import CommandProbe, recipe_of
from trmcloud.core.planner.planning import make_plan
from trmcloud.core.planner.roofline import MeasuredSpeed, pick_measured
from trmcloud.core.spec.plan import Candidate, Plan
from trmcloud.core.spec.spec import RunSpec
from trmcloud.core.values import replace
from trmcloud.operations import run_queries
from trmcloud.operations.commands.commands import spec_to_run
from trmcloud.operations.context import Context
from trmcloud.operations.curves import trainings
from trmcloud.operations.curves.trainings import formats_of, judge_target
from trmcloud.operations.launch.run_notes import HomeNotes
from trmcloud.operations.plans import measurements
from trmcloud.operations.plans.measurements import (
    KEPT_NAME,
    measured_in,
    note_measured,
    note_probed,
    probe_of,
    probed_in,
    speeds_of,
)
from trmcloud.operations.plans.plan_views import own_machine
from trmcloud.operations.plans.planning import HOST_W, Planner, own_hardware
from trmcloud.options import LaunchRequest
from trmcloud.sim.rehearsal import is_length_known, rehearse
from trmcloud.wiring_plans import build_planner

# -- probed commands ----------------------------------------------------------------------------
# A command's plan: on the cheapest machine that holds it, and by what its probe measured.


NOW = 1_795_000_000.0
WORDS = ("python", "train.py")
HERE = LocalMachine("2 CPU cores", 2, 16.0)
MEASURED = MeasuredSteps(
    steps=50, fast_s=0.09, step_s=0.1, slow_s=0.12, memory_bytes=10**9, cores=1.0
)
ON_A100 = CommandProbe(
    "r-1", "A100-80GB-SXM", 1, here=False, measured=MEASURED, busy=0.9, used_gb=30.0
)
OFFERS = [
    Offer(sku, gpus, "runpod", "any", f"{gpus}x-{sku}", Usd(rate), False, NOW, "test")
    for sku, gpus, rate in (
        ("L4", 1, "0.40"), ("L4", 8, "3.20"), ("A100-80GB-SXM", 1, "1.80"), ("H100-SXM", 1, "3"),
        ("H100-SXM", 8, "24"),
    )
]  # fmt: skip


def wish(hardware: str = "any", **changed: Any) -> RunSpec:
    inputs = SimpleNamespace(enabled_clouds=list)
    planner = Planner(cast(Any, inputs), Path("none"), lambda: NOW)
    asked = LaunchRequest(**{"hardware": hardware, "budget": "50", **changed})
    return spec_to_run(planner, asked, Command(WORDS))


def plan(spec: RunSpec, probed: CommandProbe | None = None) -> Plan:
    assert spec.command is not None
    recipe = recipe_of(spec.command)
    return make_plan(spec, recipe, OFFERS, NOW, "p-1", local=HERE, probed=probed)


def chosen(spec: RunSpec, probed: CommandProbe | None = None) -> Candidate:
    found = plan(spec, probed).recommended
    assert found is not None
    return found


def texts(candidate: Candidate) -> str:
    return "\n".join(remark.text for remark in candidate.reasons)


def test_any_is_the_cheapest_with_that_memory_and_never_this_machine() -> None:
    assert chosen(wish()).hardware == "1xL4"
    assert chosen(wish(memory=40.0)).hardware == "1xA100"
    assert chosen(wish("8xany")).hardware == "8xL4"
    assert chosen(wish("8xany", typed=("hardware", "budget"))).hardware == "8xL4"
    assert chosen(wish("8xANY", memory=25.0)).hardware == "8xH100"
    with pytest.raises(NotFoundError, match=r"no offered GPU has 400\.0 GB") as caught:
        plan(wish(memory=400.0))
    assert caught.value.next_step.startswith("use any --memory 80")


def test_a_rehearsal_draws_the_length_from_what_the_probe_tells() -> None:
    known, unknown = plan(wish("1xH100", steps=10_000), ON_A100), plan(wish("1xH100"))
    assert known.recommended is not None
    assert unknown.recommended is not None
    assert is_length_known(known.recommended)
    assert not is_length_known(unknown.recommended)
    seconds = known.recommended.phases[0].seconds
    made = rehearse(known, runs=5, faults=(), seed=1, detached=False)
    assert made.outcomes() == {"finished": 5}
    assert all(seconds.p10 <= kept_s <= seconds.p90 for kept_s in made.kept_s)
    assert len(set(made.kept_s)) == 5
    assert made.plan.spec.command == known.spec.command, "its own words, not a habit's"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"hardware": "1xL4", "memory": 3.0}, "--memory works only with any"),
        ({"memory": -1.0}, "--memory takes the GB"),
        ({"memory": float("nan")}, "--memory takes the GB"),
        ({"rate": "3"}, "--rate is the price of this machine"),
        ({"hardware": "0xany"}, "hardware"),
        ({"hardware": ""}, "choose a machine"),
    ],
)
def test_what_does_not_go_with_any_is_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        wish(**changed)


def test_without_a_probe_nothing_is_known_of_its_length() -> None:
    found = chosen(wish(steps=10_000))
    assert (
        "not known: the length, memory and quality of the command; --hours ends it earlier"
        in texts(found)
    )
    seconds = found.phases[0].seconds
    assert seconds.p10 == seconds.p50 == seconds.p90


def test_its_probe_gives_hours_and_dollars_where_the_steps_are_said() -> None:
    found = chosen(wish("1xH100", steps=10_000), ON_A100)
    assert "from its probe r-1, on 1 × A100-80GB-SXM: " in texts(found)
    assert (
        "not known: the length, memory and quality of the command; --hours ends it earlier"
        not in texts(found)
    )
    there = ON_A100.on(SimpleNamespace(processes=1, local=None, gpu=GPUS["H100-SXM"]))  # type: ignore[arg-type]
    assert there is not None
    trained = found.phases[0].seconds
    assert trained.p10 == pytest.approx(10_000 * there.step_s.p10)
    assert trained.p90 == pytest.approx(10_000 * there.step_s.p90)
    assert found.cost_p10 < found.cost_p50 < found.cost_p90 < Usd(50)
    assert found.worst_case < Usd(10), "its stop is tight"
    assert Usd("49.9") < found.limit <= Usd(50), "the budget is what ends it at the latest"
    longer = chosen(wish("1xH100", steps=10_000_000), ON_A100)
    assert longer.phases[0].seconds.p90 <= longer.hard_stop_s, "it is told to stop before"


def test_any_holds_what_its_probe_saw_in_use_and_is_cheapest_by_its_steps() -> None:
    assert chosen(wish(), ON_A100).hardware == "1xA100", "30 GB were in use: no L4"
    fast = chosen(wish(steps=2_000_000, objective="fastest"), ON_A100)
    assert fast.hardware == "1xH100"
    told = texts(chosen(wish("1xL4", steps=100), ON_A100))
    assert "too little memory: 30.0 GB were in use there, but L4 has 24" in told


def test_another_number_of_gpus_and_a_processor_tell_nothing() -> None:
    told = texts(chosen(wish("8xH100", steps=100), ON_A100))
    assert "its probe r-1, on 1 × A100-80GB-SXM, gives no estimate for this" in told
    here = CommandProbe("r-2", HERE.name, 2, here=True, measured=MEASURED)
    assert "r-2, on this machine, gives no estimate" in texts(chosen(wish(steps=100), here))
    local = RunSpec(
        "command", ("train",), "local", processes=2, rate=Usd(1), budget=Usd(5), steps=100,
        command=Command(WORDS),
    )  # fmt: skip
    found = chosen(local, here)
    assert found.phases[0].seconds.p50 == pytest.approx(10.0)


def run(**changed: Any) -> Any:
    candidate = SimpleNamespace(provider="runpod", sku="A100-80GB-SXM", gpus=1)
    values = {
        "run_id": "r-1", "spec": SimpleNamespace(command=Command(WORDS, probe_steps=50)),
        "chosen": candidate, "phases": ("train",), "updated_at": NOW,
    }  # fmt: skip
    return SimpleNamespace(**values | changed)


def context(home: Path, *lines: dict[str, Any]) -> Context:
    files = SimpleNamespace(metrics=lambda run_id, phase: list(lines))
    return cast(Context, SimpleNamespace(home=home, files=files, notes=HomeNotes(home)))


LINE = {
    "kind": "measured", "step": 50, "at": NOW, "steps": 50, "fast_s": 0.09, "step_s": 0.1,
    "slow_s": 0.12, "memory_bytes": 10**9, "cores": 1.0,
}  # fmt: skip


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    window = GpuWindow(20, 60.0, (GpuCounters(90.0, 30e9 / 2**20, 8e4, 1500.0),))
    notes = {GPU_NOTE: window.to_text()}
    monkeypatch.setattr(
        run_queries, "last_report", lambda context, run: SimpleNamespace(notes=notes)
    )
    return notes


def test_a_probe_is_kept_by_its_words(tmp_path: Path) -> None:
    here = context(tmp_path, {"kind": "train", "step": 1}, LINE)
    note_probed(here, run())
    kept = probe_of(tmp_path, WORDS)
    assert kept is not None
    assert kept.busy == pytest.approx(0.9)
    assert kept.used_gb == pytest.approx(30.0, rel=1e-3)
    assert kept.measured == MEASURED
    assert probe_of(tmp_path, (*WORDS, "--lr=1")) is None
    note_probed(here, run(run_id="r-old", updated_at=NOW - 1))
    assert probe_of(tmp_path, WORDS) == kept, "what is older comes too late"
    note_probed(here, run(run_id="r-new", updated_at=NOW + 1))
    assert cast(CommandProbe, probe_of(tmp_path, WORDS)).run_id == "r-new"


def test_what_is_no_probe_is_not_kept(tmp_path: Path) -> None:
    here = context(tmp_path, LINE)
    plain = SimpleNamespace(command=Command(WORDS))
    assert probed_in(here, run(spec=plain)) is None
    assert probed_in(here, run(spec=SimpleNamespace(command=None))) is None
    assert probed_in(context(tmp_path), run()) is None
    note_probed(context(tmp_path, {**LINE, "step_s": float("nan")}), run())
    note_probed(context(tmp_path, {**LINE, "steps": -1}), run())
    note_probed(context(tmp_path, {**LINE, "fast_s": 5.0}), run())
    note_probed(context(tmp_path, {**LINE, "fast_s": 0.0}), run())
    assert not (tmp_path / KEPT_NAME).exists()


@pytest.mark.parametrize(
    "text", ["{", "{}", "[1]", '[{"words": ["python", "train.py"], "at": 1, "probed": {}}]', "null"]
)
def test_a_damaged_file_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / KEPT_NAME).write_text(text)
    assert probe_of(tmp_path, WORDS) is None
    note_probed(context(tmp_path, LINE), run())
    assert probe_of(tmp_path, WORDS) is not None


def test_what_a_pod_tells_beyond_reason_counts_as_all_there_is(
    tmp_path: Path, told: dict[str, str]
) -> None:
    window = GpuWindow(20, 60.0, (GpuCounters(9e8, 9e8, 9e8, 1500.0),))
    told[GPU_NOTE] = window.to_text()
    note_probed(context(tmp_path, LINE), run())
    kept = probe_of(tmp_path, WORDS)
    assert kept is not None
    assert kept.busy == 1.0
    assert kept.least_gb == pytest.approx(GPUS["A100-80GB-SXM"].memory_gb), "it was on one of these"


def test_a_damaged_probe_takes_no_other_with_it(tmp_path: Path) -> None:
    note_probed(context(tmp_path, LINE), run())
    path = tmp_path / KEPT_NAME
    path.write_text(f"[17, {path.read_text()[1:]}")
    assert probe_of(tmp_path, WORDS) is not None


# -- What a run's steps took: beside what was planned, and kept for the plans to come -----------


OFFER = Offer(
    "H100-SXM", 8, "runpod", "any", "8x-h100", Usd("24"), spot=False, priced_at=NOW, source="test"
)
SPEC = RunSpec(recipe="gpt350m", phases=("train",), hardware="8xH100", budget=Usd("500"))


def plan_runs(*measured: MeasuredSpeed) -> Plan:
    return make_plan(SPEC, load_recipe("gpt350m"), [OFFER], NOW, "p-0001", measured=measured)


def run_of(made: Plan, **changed: Any) -> RunState:
    generation = SimpleNamespace(candidate_id=made.candidates[0].id, agent_at=NOW)
    values = {
        "run_id": "r-1", "plan": made, "state": State.CLOSED, "updated_at": NOW,
        "generation": generation, "generations": (generation,), "paces": (),
    }  # fmt: skip
    return cast(RunState, SimpleNamespace(**values | changed))


def paced(made: Plan, step_s: float, **changed: Any) -> ev.PaceMeasured:
    """A pace that the machine's trainer has timed itself."""
    phase = made.candidates[0].phases[-1]
    tokens = phase.settings.tokens_per_step(8)
    told = ev.PaceMeasured(
        1, phase.name, 40, step_s, step_s, step_s, phase.step_s.p50, 1.0, 1.0, 1.0, Usd(1), 900,
        tokens=tokens, torch=POD_TORCH, board="NVIDIA H100 80GB HBM3", code="ab" * 32,
    )  # fmt: skip
    return replace(told, **changed)


def lines(step_s: Any, rows: int = 30) -> list[dict[str, Any]]:
    warm = [{"kind": "train", "step": n, "step_seconds": 60.0} for n in range(2)]
    told = [{"kind": "train", "step": n, "step_seconds": step_s} for n in range(2, rows)]
    return [*warm, {"kind": "eval", "step": 2, "step_seconds": 1e6}, *told]


def context_in(home: Path, logged: list[dict[str, Any]]) -> Context:
    files = SimpleNamespace(metrics=lambda run_id, phase: logged)
    return cast(Context, SimpleNamespace(home=home, files=files, notes=HomeNotes(home)))


@pytest.fixture(autouse=True)
def nothing_mended(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    rows: list[Any] = []
    monkeypatch.setattr(trainings, "recoveries_of", lambda context, run: rows)
    return rows


def test_tokens_a_second_are_told_beside_the_plans(tmp_path: Path) -> None:
    made = plan_runs()
    phase = made.candidates[0].phases[0]
    told = speeds_of(context_in(tmp_path, lines(2 * phase.step_s.p50)), run_of(made))
    assert told is not None
    assert told.planned == pytest.approx(phase.settings.tokens_per_step(8) / phase.step_s.p50)
    assert told.measured == pytest.approx(told.planned / 2)
    assert speeds_of(context_in(tmp_path, lines(1.0, rows=21)), run_of(made)) is None


def test_what_no_such_chip_can_do_is_not_kept(tmp_path: Path) -> None:
    """A pod's lines may say anything; on the peak's other side they would make the next plan."""
    made = plan_runs()
    settings = made.candidates[0].phases[0].settings
    flops = settings.tokens_per_step(8) * settings.work().train_flops
    at_peak_s = flops / (8 * GPUS["H100-SXM"].fp8_tflops * 1e12)
    note_measured(context_in(tmp_path, lines(0.99 * at_peak_s)), run_of(made))
    assert measurements.load_probes(tmp_path) == []
    note_measured(context_in(tmp_path, lines(1.01 * at_peak_s)), run_of(made))
    [kept] = measurements.load_probes(tmp_path)
    assert kept.run_id == "r-1"
    measurements.record_probe(tmp_path, kept._replace(step_s=0.99 * at_peak_s))
    assert measurements.load_probes(tmp_path) == [], "nor what stands in the file"


def test_the_next_plan_takes_it_and_says_when_it_was_measured(tmp_path: Path) -> None:
    before = plan_runs().candidates[0]
    step_s = before.phases[0].step_s.p50
    note_measured(context_in(tmp_path, lines(1.25 * step_s)), run_of(plan_runs()))
    [kept] = measurements.load_probes(tmp_path)
    assert (kept.sku, kept.run_id, kept.steps) == ("H100-SXM", "r-1", 28)
    after = plan_runs(kept).candidates[0]
    assert after.phases[0].step_s.p50 == pytest.approx(1.25 * step_s)
    spread = [p.step_s.p90 / p.step_s.p10 for c in (before, after) for p in c.phases]
    assert spread[1] < spread[0], "less is doubted, though it may be another machine"
    [told] = [remark.text for remark in after.reasons if "measured" in remark.text]
    assert told.endswith("(r-1, H100-SXM at runpod): 1.25 × the model's value")
    assert "measured on 20" in told


def test_a_newer_measurement_takes_the_place_of_an_older_one_alone(tmp_path: Path) -> None:
    made = plan_runs()
    note_measured(context_in(tmp_path, lines(0.3)), run_of(made))
    note_measured(context_in(tmp_path, lines(0.4)), run_of(made, run_id="r-0", updated_at=NOW - 9))
    assert [m.run_id for m in measurements.load_probes(tmp_path)] == ["r-1"]
    note_measured(context_in(tmp_path, lines(0.4)), run_of(made, run_id="r-2", updated_at=NOW + 9))
    assert [(m.run_id, m.step_s) for m in measurements.load_probes(tmp_path)] == [("r-2", 0.4)]


def test_what_is_of_no_one_machine_is_not_kept(tmp_path: Path, nothing_mended: list[Any]) -> None:
    made = plan_runs()
    good = context_in(tmp_path, lines(0.3))
    other = SimpleNamespace(candidate_id="c9", agent_at=None)
    never = SimpleNamespace(**{**vars(run_of(made).generation), "agent_at": None})
    assert measured_in(good, run_of(made)) is not None
    assert measured_in(good, run_of(made, state=State.RUNNING)) is None
    assert measured_in(good, run_of(made, generations=(never,))) is None
    assert measured_in(good, run_of(made, generations=(other, run_of(made).generation)))
    for odd in (None, "fast", -1.0, float("nan"), float("inf"), True):
        assert measured_in(context_in(tmp_path, lines(odd)), run_of(made)) is None
    nothing_mended.append(SimpleNamespace(recovery=SimpleNamespace(changed={"batch": 4})))
    assert measured_in(good, run_of(made)) is None, "its settings were not the plan's"


@pytest.mark.parametrize(
    "odd",
    [{"predicted_s": -1.0}, {"predicted_s": "1"}, {"at": 1e12}, {"at": None}, {"run_id": 7},
     {"run_id": "r" * 99}, {"step_s": True}],
)  # fmt: skip
def test_a_record_that_cannot_be_is_none(tmp_path: Path, odd: dict[str, Any]) -> None:
    good = MeasuredSpeed("H100-SXM", 8, 1.5, 48, 524_288, 10.72e9, at=NOW, run_id="r-1")
    measurements.record_probe(tmp_path, good)
    assert measurements.load_probes(tmp_path) == [good]
    measurements.record_probe(tmp_path, good._replace(**odd))
    assert measurements.load_probes(tmp_path) == []


# -- own hardware -------------------------------------------------------------------------------
# Hardware of one's own: its power in money, and from which worth of an hour renting is better.


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Planner:
    monkeypatch.setenv("TRMCLOUD_HOME", str(tmp_path))
    monkeypatch.delenv("RUNPOD_API_KEY", raising=False)
    return build_planner()


@pytest.fixture
def spec(planner: Planner) -> RunSpec:
    return planner.spec(LaunchRequest(recipe="trm", budget="1000", hardware="8xH100"))


@pytest.fixture
def plan_hardware(planner: Planner, spec: RunSpec) -> Plan:
    return planner.plan(spec)


def test_power_is_paid_by_the_hour(planner: Planner, spec: RunSpec, plan_hardware: Plan) -> None:
    own = own_hardware(planner, spec, plan_hardware, "RTX3090", Usd("0.30"))
    assert (own.hardware, own.watts) == ("1xRTX3090", 350 + HOST_W)
    assert own.per_hour == Usd("0.15")
    hours = own.candidate.hours.p50
    assert float(own.candidate.cost_p50) == pytest.approx(0.15 * hours, rel=0.01)
    free = own_hardware(planner, spec, plan_hardware, "1xRTX3090", Usd(0))
    assert free.candidate.hours == own.candidate.hours
    assert free.candidate.cost_p50 == Usd(0)


def test_renting_is_better_from_the_worth_of_an_hour_that_is_told(
    planner: Planner, spec: RunSpec, plan_hardware: Plan
) -> None:
    own = own_hardware(planner, spec, plan_hardware, "2xRTX4090", Usd("0.12"))
    rented = plan_hardware.recommended
    assert own.rented == rented
    assert rented is not None
    # At that worth both come to the same: money, and hours at their worth.
    worth = float(own.worth_from)
    here = float(own.candidate.cost_p50) + worth * own.candidate.hours.p50
    there = float(rented.cost_p50) + worth * rented.hours.p50
    assert here == pytest.approx(there, abs=0.01)
    assert float(own.rent_per_own_hour) * own.candidate.hours.p50 == pytest.approx(
        float(rented.cost_p50), abs=0.01
    )
    assert own_machine(own).worth_from_per_hour_usd == own.worth_from
    assert own_lines(own)[-1].endswith(f"worth more than {own.worth_from}")


def test_what_is_quicker_than_all_that_is_rented_is_trained_on(
    planner: Planner, spec: RunSpec, plan_hardware: Plan
) -> None:
    own = own_hardware(planner, spec, plan_hardware, "16xB200", Usd("0.10"))
    assert own.rented is None
    assert own_machine(own).rented_hardware is None
    assert "train on your own" in own_lines(own)[-1]


@pytest.mark.parametrize(
    ("hardware", "kwh", "said"),
    [
        ("RTX3090", None, "--own needs a price of electricity"),
        ("RTX3090", Usd("-1"), "is not a price of a kilowatt-hour"),
        ("RTX3090", Usd(30), "is not a price of a kilowatt-hour"),
        ("2x8xH100", Usd(1), "one machine"),
        ("RTX9999", Usd(1), "unknown hardware"),
        ("local", Usd(1), "unknown hardware"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    planner: Planner, spec: RunSpec, plan_hardware: Plan, hardware: str, kwh: Usd | None, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        own_hardware(planner, spec, plan_hardware, hardware, kwh)


def test_a_card_that_is_too_small_says_so(planner: Planner) -> None:
    spec = planner.spec(LaunchRequest(recipe="d32", budget="1000", hardware="8xH100"))
    plan = planner.plan(spec)
    with pytest.raises(DoesNotFit, match="d32 does not fit on your 1xRTXA1000: "):
        own_hardware(planner, spec, plan, "RTXA1000", Usd("0.30"))


# -- What a guide promises beside what a run came to, and which formats its trainings took ------


TRAINED = {"family": "gpt", "data": "openwebtext", "tokenizer": "gpt2"}


def a_run(recipe: str = "gpt350m", data: str = "") -> Any:
    return SimpleNamespace(
        spec=SimpleNamespace(recipe=recipe, data=data), run_id="r-1", trained_here=True
    )


def best(nats: float = 3.2, **settings: str) -> Any:
    made = replace(manifest(step=7000), settings={**TRAINED, **settings})
    return replace(made, step_losses=(nats,), val_bpb=0.98)


def test_a_loss_above_the_guides_fails_and_the_guides_own_arithmetic_is_told() -> None:
    made = judge_target(a_run(), best(), 5400.0)
    assert made is not None
    assert made.passed is False
    first, *why = target_lines(made)
    assert first.startswith("FAILED: validation loss 3.2000 nats per token (0.980 bits per byte)")
    assert first.endswith("after 1.50 h of training; the guide has 3.0781 in 1.5 h")
    assert "172 to 221 %" in why[0]
    assert "1.0B tokens, not 3.78B" in why[1]


def test_a_loss_at_the_guides_passes_and_needs_no_more_words() -> None:
    made = judge_target(a_run(), best(3.0781), 28_800.0)
    assert made is not None
    assert made.passed is True
    assert target_lines(made) == [
        f"passed: validation loss 3.0781 nats per token (0.980 bits per byte) at {best().label} "
        "after 8.00 h of training; the guide has 3.0781 in 1.5 h"
    ]


@pytest.mark.parametrize(
    ("run", "settings"), [(a_run(data="mine.txt"), {}), (a_run(), {"tokenizer": "bpe"})]
)
def test_a_loss_on_other_data_or_tokens_is_not_judged(run: Any, settings: dict[str, str]) -> None:
    made = judge_target(run, best(2.0, **settings), 1.0)
    assert made is not None
    assert made.passed is None
    assert "not judged" in target_lines(made)[0]
    assert "openwebtext in the tokens of gpt2" in target_lines(made)[0]


def test_nothing_is_judged_that_nobody_promised_or_evaluated() -> None:
    assert judge_target(a_run("trm"), best(), 1.0) is None
    assert judge_target(a_run(), None, 1.0) is None
    assert judge_target(a_run(), replace(best(), step_losses=()), 1.0) is None


# -- number formats -----------------------------------------------------------------------------


def verdict_of(monkeypatch: pytest.MonkeyPatch, lines: list[dict[str, Any]]) -> Any:
    monkeypatch.setattr(trainings, "planned_phases", lambda run: [SimpleNamespace(name="train")])
    return SimpleNamespace(files=SimpleNamespace(metrics=lambda run_id, phase: lines))


def test_what_was_taken_and_left_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    context = verdict_of(
        monkeypatch,
        [
            {"kind": "start", "step": 0},
            {"kind": "precision", "step": 0, "taken": "float16", "why": "old", "left": []},
            {"kind": "start", "step": 40},
            {
                "kind": "precision", "step": 40, "taken": "bfloat16", "why": "float8 is slower",
                "left": [["torchao-tensorwise", "torchao is not installed"]],
            },
            {"kind": "attention", "step": 40, "left": [["FlexAttention", "no Triton"]]},
            {"kind": "train", "step": 41},
        ],
    )  # fmt: skip
    assert format_rows(formats_of(context, a_run())) == [
        ("precision", "train: bfloat16: float8 is slower"),
        ("  not", "torchao-tensorwise: torchao is not installed"),
        ("  not", "FlexAttention: no Triton"),
    ]
    [row] = formats_of(context, a_run())
    assert (row.taken, row.step) == ("bfloat16", 40)
    assert [each.code for each in row.notes] == ["taken", "left", "left"]


def test_a_pods_nonsense_is_cut_and_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    line = {
        "kind": "precision", "step": "x", "taken": "a\nb\x1b[31m", "why": "w" * 9999,
        "left": [["one"], "two", ["x", 3], ["y\n", "z"]] + [["n", "m"]] * 99,
    }  # fmt: skip
    rows = format_rows(formats_of(verdict_of(monkeypatch, [line]), a_run()))
    assert rows[0] == ("precision", f"train: a b: {'w' * 240}")
    assert rows[1:3] == [("  not", "x: "), ("  not", "y : z")]
    assert len(rows) == 9
    for bad in ({"kind": "precision", "left": 7}, {"kind": "attention"}):
        assert format_rows(formats_of(verdict_of(monkeypatch, [bad]), a_run())) == []


def test_what_the_trainer_has_timed_teaches_before_what_it_logged(tmp_path: Path) -> None:
    made = plan_runs()
    step_s = 1.3 * made.candidates[0].phases[-1].step_s.p50
    run = run_of(made, paces=(paced(made, step_s),))
    note_measured(context_in(tmp_path, lines(9.0)), run)
    [kept] = measurements.load_probes(tmp_path)
    assert (kept.step_s, kept.steps, kept.provider, kept.torch) == (step_s, 40, "runpod", POD_TORCH)
    assert (kept.board, kept.code) == ("NVIDIA H100 80GB HBM3", "ab" * 32)
    after = plan_runs(kept).candidates[0]
    assert after.phases[-1].step_s.p50 == pytest.approx(step_s)
    [told] = [remark.text for remark in after.reasons if "measured" in remark.text]
    where = f"NVIDIA H100 80GB HBM3 at runpod, torch {POD_TORCH}"
    assert told.endswith(f"(r-1, {where}): 1.30 × the model's value")


def test_a_machine_that_is_not_believed_teaches_nothing(tmp_path: Path) -> None:
    made = plan_runs()
    doubt = make_reason(ReasonKind.FASTER_THAN_PEAK, pace="0.01 s", limit="0.1 s")
    run = run_of(made, paces=(paced(made, 0.5, doubt=doubt),))
    note_measured(context_in(tmp_path, lines(0.5)), run)
    assert measurements.load_probes(tmp_path) == [], "nor do the lines that it logged"


def test_a_plan_prefers_the_torch_then_the_provider_then_the_number_of_gpus() -> None:
    made = plan_runs()
    base = MeasuredSpeed("H100-SXM", 8, 0.5, 40, 1000, 1.0, at=NOW, run_id="base")
    other_torch = base._replace(at=NOW + 9, run_id="torch", torch="2.8.0", provider="runpod")
    elsewhere = base._replace(run_id="elsewhere", torch=POD_TORCH, provider="vast")
    same = base._replace(at=NOW - 9, run_id="same", torch=POD_TORCH, provider="runpod")
    fewer = same._replace(gpus=1, at=NOW + 5, run_id="fewer")
    other_chip = same._replace(sku="H200", run_id="chip")
    found = pick_measured(
        [base, other_torch, elsewhere, fewer, same, other_chip],
        *("H100-SXM",), gpus=8, provider=made.candidates[0].provider,
    )  # fmt: skip
    assert found is same
    assert pick_measured([other_torch, fewer], "H100-SXM", gpus=8, provider="runpod") is fewer
    assert pick_measured([other_chip], "H100-SXM", gpus=8, provider="runpod") is None


def test_measurements_of_another_torch_stand_beside_each_other(tmp_path: Path) -> None:
    made = plan_runs()
    for at, torch in ((NOW, "2.8.0"), (NOW + 1, POD_TORCH), (NOW + 2, POD_TORCH)):
        run = run_of(made, updated_at=at, paces=(paced(made, 0.5, torch=torch),))
        note_measured(context_in(tmp_path, lines(0.5)), run)
    kept = measurements.load_probes(tmp_path)
    assert [(m.torch, m.at) for m in kept] == [(POD_TORCH, NOW + 2), ("2.8.0", NOW)]
