"""A command's plan: on the cheapest machine that holds it, and by what its probe measured."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trmcloud.app import measured_commands
from trmcloud.app.commands import spec_to_run
from trmcloud.app.context import Context
from trmcloud.app.measured_commands import KEPT_NAME, note_probed, probe_of, probed_in
from trmcloud.app.planning import Planner
from trmcloud.core.catalog.hardware import GPUS, LocalMachine
from trmcloud.core.catalog.offers import Offer
from trmcloud.core.contract.command import Command
from trmcloud.core.contract.command_terms import MeasuredSteps
from trmcloud.core.contract.gpu_counters import GPU_NOTE, GpuCounters, GpuWindow
from trmcloud.core.errors import NotFoundError, UsageError
from trmcloud.core.money import Usd
from trmcloud.core.planner.command_outlook import recipe_of
from trmcloud.core.planner.command_probe import Probed
from trmcloud.core.planner.planning import make_plan
from trmcloud.core.spec.plan import Candidate, Plan
from trmcloud.core.spec.spec import RunSpec
from trmcloud.options import LaunchRequest

NOW = 1_795_000_000.0
WORDS = ("python", "train.py")
HERE = LocalMachine("2 CPU cores", 2, 16.0)
MEASURED = MeasuredSteps(
    steps=50, fast_s=0.09, step_s=0.1, slow_s=0.12, memory_bytes=10**9, cores=1.0
)
ON_A100 = Probed("r-1", "A100-80GB-SXM", 1, here=False, measured=MEASURED, busy=0.9, used_gb=30.0)
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


def plan(spec: RunSpec, probed: Probed | None = None) -> Plan:
    assert spec.command is not None
    recipe = recipe_of(spec.command)
    return make_plan(spec, recipe, OFFERS, NOW, "p-1", local=HERE, probed=probed)


def chosen(spec: RunSpec, probed: Probed | None = None) -> Candidate:
    found = plan(spec, probed).recommended
    assert found is not None
    return found


def texts(candidate: Candidate) -> str:
    return "\n".join(remark.text for remark in candidate.reasons)


def test_any_is_the_cheapest_with_that_memory_and_never_this_machine() -> None:
    assert chosen(wish()).hardware == "1xL4"
    assert chosen(wish(memory=40.0)).hardware == "1xA100"
    assert chosen(wish("8xany")).hardware == "8xL4"
    assert chosen(wish("8xANY", memory=25.0)).hardware == "8xH100"
    with pytest.raises(NotFoundError, match=r"no GPU that is offered has 400\.0 GB") as caught:
        plan(wish(memory=400.0))
    assert caught.value.next_step.startswith("any --memory 80")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"hardware": "1xL4", "memory": 3.0}, "--memory is for a machine"),
        ({"memory": -1.0}, "--memory takes GB"),
        ({"memory": float("nan")}, "--memory takes GB"),
        ({"rate": "3"}, "--rate is the price of this machine"),
        ({"hardware": "0xany"}, "hardware"),
        ({"hardware": ""}, "which machine"),
    ],
)
def test_what_does_not_go_with_any_is_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        wish(**changed)


def test_without_a_probe_nothing_is_known_of_its_length() -> None:
    found = chosen(wish(steps=10_000))
    assert "not known: how long the command takes" in texts(found)
    seconds = found.phases[0].seconds
    assert seconds.p10 == seconds.p50 == seconds.p90


def test_its_probe_gives_hours_and_dollars_where_the_steps_are_said() -> None:
    found = chosen(wish("1xH100", steps=10_000), ON_A100)
    assert "by its probe r-1, on 1 × A100-80GB-SXM: " in texts(found)
    assert "how long the command takes" not in texts(found)
    there = ON_A100.on(SimpleNamespace(processes=1, local=None, gpu=GPUS["H100-SXM"]))  # type: ignore[arg-type]
    assert there is not None
    trained = found.phases[0].seconds
    assert trained.p10 == pytest.approx(10_000 * there.step_s.p10)
    assert trained.p90 == pytest.approx(10_000 * there.step_s.p90)
    assert found.cost_p10 < found.cost_p50 < found.cost_p90 < Usd(50)
    assert Usd("49.9") < found.worst_case <= Usd(50), "the budget is still what ends it"
    longer = chosen(wish("1xH100", steps=10_000_000), ON_A100)
    assert longer.phases[0].seconds.p90 <= longer.hard_stop_s, "it is told to stop before"


def test_any_holds_what_its_probe_saw_in_use_and_is_cheapest_by_its_steps() -> None:
    assert chosen(wish(), ON_A100).hardware == "1xA100", "30 GB were in use: no L4"
    fast = chosen(wish(steps=2_000_000, objective="fastest"), ON_A100)
    assert fast.hardware == "1xH100"
    told = texts(chosen(wish("1xL4", steps=100), ON_A100))
    assert "too little memory: 30.0 GB were in use there, and L4 has 24" in told


def test_another_number_of_gpus_and_a_processor_tell_nothing() -> None:
    told = texts(chosen(wish("8xH100", steps=100), ON_A100))
    assert "its probe r-1, on 1 × A100-80GB-SXM, tells nothing of this" in told
    here = Probed("r-2", HERE.name, 2, here=True, measured=MEASURED)
    assert "r-2, on this machine, tells nothing" in texts(chosen(wish(steps=100), here))
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
    return cast(Context, SimpleNamespace(home=home, files=files))


LINE = {
    "kind": "measured", "step": 50, "at": NOW, "steps": 50, "fast_s": 0.09, "step_s": 0.1,
    "slow_s": 0.12, "memory_bytes": 10**9, "cores": 1.0,
}  # fmt: skip


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    window = GpuWindow(20, 60.0, (GpuCounters(90.0, 30e9 / 2**20, 8e4, 1500.0),))
    notes = {GPU_NOTE: window.to_text()}
    monkeypatch.setattr(
        measured_commands, "last_report", lambda context, run: SimpleNamespace(notes=notes)
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
    assert cast(Probed, probe_of(tmp_path, WORDS)).run_id == "r-new"


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
