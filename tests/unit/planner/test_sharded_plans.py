"""d64, which no GPU holds: what the planner makes of it, and what its saves cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.planner.test_planning import plan_for
from trmcloud.adapters.files.recipes import load_recipe
from trmcloud.core.catalog.hardware import GPUS, LocalMachine
from trmcloud.core.catalog.offers import Offer
from trmcloud.core.money import Usd, cost
from trmcloud.core.planner.batch_fit import fit_settings
from trmcloud.core.planner.memory import checkpoint_bytes, predict_memory
from trmcloud.core.planner.number_format import assumed_format
from trmcloud.core.planner.speed import (
    predict_phase,
    rented_machine,
    save_s,
    stall_s,
    step_seconds,
    steps_between_saves,
    this_machine,
)
from trmcloud.core.spec.plan import Candidate
from trmcloud.core.spec.recipe import PhaseRecipe

NOW = 1_795_000_000.0
EIGHT = rented_machine("H100-PCIe", 8)
SHARDED: dict[str, Any] = {"sharding": "fsdp", "batch": 4, "accumulation": 8}


@pytest.fixture(scope="module")
def d64() -> PhaseRecipe:
    return load_recipe("d64").resolve("train", hardware="8xH100-PCIe", gpus=8, overrides={})


@pytest.fixture(scope="module")
def guides() -> Candidate:
    """At the guide's $4 per GPU-hour."""
    offer = Offer("H100-PCIe", 8, "runpod", "any", "i", Usd(32), False, NOW, "test")
    wish = {"phases": ("train",), "hardware": "8xH100-PCIe", "budget": Usd(1000)}
    plan = plan_for(load_recipe("d64"), [offer], **wish)
    assert plan.recommended is not None
    assert plan.launchable == (plan.recommended_id,)
    return plan.recommended


def test_it_lands_at_its_guides_31_hours_within_1000_dollars(guides: Candidate) -> None:
    [phase] = guides.phases
    assert guides.worst_case <= Usd(1000)
    assert guides.hard_stop_s / 3600 == pytest.approx(31, abs=0.5)
    assert 29 < guides.soft_stop_s / 3600 < 31
    assert guides.hours.p50 > 100, "its steps take four times as long as the guide says"
    assert any("lands at about step" in remark.text for remark in guides.reasons)
    assert phase.settings.sharding == "fsdp"
    assert guides.memory_need_gb < 80
    assert checkpoint_bytes(phase.settings) == pytest.approx(103e9, rel=0.01)


def test_hourly_saves_cost_cents(guides: Candidate) -> None:
    [phase] = guides.phases
    settings, step_s = phase.settings, phase.step_s.p50
    every = steps_between_saves(settings, step_s)
    assert every * step_s == pytest.approx(3600, abs=step_s)
    # A rank copies an eighth of 103 GB; writing all of them takes minutes, beside training.
    assert stall_s(settings, EIGHT).p50 == pytest.approx(0.05 + 103e9 / 8 / 10e9, rel=0.01)
    assert save_s(settings, EIGHT).p50 > 300
    saves = (settings.steps - 1) // every
    assert phase.parts_s["saving"] == pytest.approx(saves * stall_s(settings, EIGHT).p50)
    assert cost(Usd(32), 31 * stall_s(settings, EIGHT).p50) < Usd("0.50"), "those of 31 hours"


def test_a_save_waits_for_the_one_before(d64: PhaseRecipe) -> None:
    often = replace(d64, **SHARDED, activation_checkpointing=True, save_every=1, save_minutes=0.0)
    phase = predict_phase(often, EIGHT)
    waits = save_s(often, EIGHT).p50 - step_seconds(often, EIGHT)
    assert waits > 0
    assert phase.saving.p50 == pytest.approx(
        (often.steps - 1) * (stall_s(often, EIGHT).p50 + waits), rel=0.01
    )


def test_one_gpu_copies_all_of_what_is_not_shared_out(d64: PhaseRecipe) -> None:
    small = replace(d64, depth=12, width=768)
    whole = stall_s(small, EIGHT).p50
    assert whole == pytest.approx(0.05 + checkpoint_bytes(small) / 10e9)
    assert stall_s(replace(small, sharding="fsdp"), EIGHT).p50 < whole


def test_what_a_processor_saves_is_held_twice(d64: PhaseRecipe) -> None:
    small = replace(d64, depth=4, width=256, head_dim=32, dtype="float32")
    size_gb = checkpoint_bytes(small) / 1e9
    assert predict_memory(small, 2, on_gpu=False).snapshot == pytest.approx(size_gb)
    shared = replace(small, sharding="fsdp")
    assert predict_memory(shared, 2, on_gpu=False).snapshot == pytest.approx(size_gb / 2)
    assert predict_memory(shared, 2).snapshot == 0.0, "a GPU's copy is in its host's memory"
    assert stall_s(small, this_machine(LocalMachine("two cores", 2, 16.0), 2)).p50 == pytest.approx(
        0.05 + size_gb / 3
    )


def test_selective_checkpointing_lies_between_none_and_all(d64: PhaseRecipe) -> None:
    none, selective, full = (
        replace(d64, **SHARDED, activation_checkpointing=some, selective_checkpointing=products)
        for some, products in ((False, False), (True, True), (True, False))
    )
    memory = [predict_memory(each, 8).total for each in (none, selective, full)]
    assert memory[0] > 80 > memory[1] > memory[2]
    seconds = [step_seconds(each, EIGHT) for each in (none, selective, full)]
    assert seconds[0] < seconds[1] < seconds[2]
    # 11 values of the width, as its products and its input are counted by hand.
    work, positions = d64.work(), 4 * 2048
    kept = positions * 4096 * 2 * 64 * (1 + 3 + 1 + 1 + 4 + 1)
    one_block = predict_memory(full, 8).activations - positions * 4096 * 2 * 64 / 1e9
    assert work.block_applications == 64
    assert predict_memory(selective, 8).activations == pytest.approx(kept / 1e9 + one_block)


@pytest.mark.parametrize(("sku", "selective"), [("H100-PCIe", False), ("H200", True)])
def test_what_is_chosen_hangs_on_the_links(d64: PhaseRecipe, sku: str, selective: bool) -> None:
    """Through PCIe fewer passes, and so fewer gathers, are worth products computed again."""
    fitted = fit_settings(d64, rented_machine(sku, 8), {})
    made = fitted.settings
    assert made.sharding == "fsdp"
    assert made.activation_checkpointing
    assert made.selective_checkpointing is selective
    assert made.global_batch(8) == d64.global_batch(8)
    assert fitted.memory.total <= GPUS[sku].memory_gb * 0.92


def test_weights_that_are_shared_out_are_counted_in_bfloat16(d64: PhaseRecipe) -> None:
    gpu = GPUS["H100-PCIe"]
    assert assumed_format(replace(d64, **SHARDED), gpu).dtype == "bfloat16"
    assert assumed_format(d64, gpu).dtype == "float8"
