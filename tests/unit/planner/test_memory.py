"""Memory against counts on the meta device and against what the real TRM keeps."""

from __future__ import annotations

import dataclasses
from unittest import mock

import pytest

from bench.peaks import memory_of, rows
from tests.settings import changed
from trmcloud.adapters.files import load_recipe
from trmcloud.core.planner.estimates import outlook_on
from trmcloud.core.planner.memory import (
    COMPILED_SHARE,
    USABLE_SHARE,
    batches,
    kept_values,
    predict_memory,
    state_bytes,
)
from trmcloud.core.planner.roofline import MAX_LOGITS
from trmcloud.core.planner.speed import fit_settings, rented_machine
from trmcloud.core.spec.plan import RemarkTopic
from trmcloud.core.spec.settings import PhaseRecipe
from trmcloud.core.spec.spec import RunSpec

D64 = load_recipe("d64").resolve("train", hardware="8xH100-PCIe", gpus=8)
D24 = load_recipe("d24").resolve("train", hardware="8xH100", gpus=8)
TRM = load_recipe("trm").resolve("fast", hardware="8xH100", gpus=8)


def test_d64_cannot_train_under_ddp_and_can_when_sharded_over_eight() -> None:
    alone = predict_memory(dataclasses.replace(D64, batch=1), 8)
    assert alone.total > 80
    adamw = dataclasses.replace(D64, optimizer="adamw", sharding="fsdp")
    held = predict_memory(adamw, 8)
    assert held.weights + held.gradients + held.optimizer == pytest.approx(25.8, rel=0.01)
    muon = predict_memory(dataclasses.replace(D64, sharding="fsdp"), 8)
    assert muon.weights + muon.gradients + muon.optimizer == pytest.approx(19.3, rel=0.01)
    sharded = dataclasses.replace(D64, sharding="fsdp", activation_checkpointing=True)
    assert predict_memory(sharded, 8).total < 80 * 0.92


def test_checkpointing_saves_activations_alone() -> None:
    plain = predict_memory(TRM, 8)
    spared = predict_memory(dataclasses.replace(TRM, activation_checkpointing=True), 8)
    assert spared.activations < plain.activations / 10
    assert spared._replace(activations=0) == plain._replace(activations=0)


def test_batches_keep_the_whole() -> None:
    assert list(batches(TRM))[:3] == [(32, 2), (16, 4), (8, 8)]
    for batch, accumulation in batches(dataclasses.replace(TRM, batch=14, accumulation=4)):
        assert batch * accumulation == 56


def small(**changes: object) -> PhaseRecipe:
    settings = changed(
        TRM, depth=2, width=128, head_dim=64, vocab_size=512, sequence=128, batch=2,
        supervision_steps=2, dtype="float32", compile=False,
    )  # fmt: skip
    return changed(settings, **changes)


def kept_bytes(settings: PhaseRecipe) -> int:
    """Bytes that the real TRM keeps for its backward pass, weights apart, with the kernels of a
    GPU: a CPU's own norm keeps less."""
    import contextlib

    import torch

    from model.families import layers

    trm = pytest.importorskip("model.families.trm.model")
    bf16 = settings.dtype == "bfloat16"
    model = trm.TRM(trm.Shape.of(settings), torch.bfloat16 if bf16 else torch.float32)
    model.initialise(0)
    own = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    ids = torch.zeros((settings.batch, settings.sequence), dtype=torch.long)
    cast = torch.autocast("cpu", dtype=torch.bfloat16) if bf16 else contextlib.nullcontext()
    with (
        mock.patch.object(layers, "_WIDE", ()),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        cast,
    ):
        losses = model.losses(ids, ids)
    assert losses.requires_grad
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_activations_are_what_the_real_trm_keeps(dtype: str) -> None:
    pytest.importorskip("torch")
    settings = small(dtype=dtype)
    deeper = dataclasses.replace(settings, depth=4)
    real = kept_bytes(deeper) - kept_bytes(settings)
    predicted = predict_memory(deeper, 1).activations - predict_memory(settings, 1).activations
    assert predicted * 1e9 == pytest.approx(real, rel=0.08)


def test_logits_are_what_the_real_trm_keeps() -> None:
    pytest.importorskip("torch")
    settings = small()
    more = dataclasses.replace(settings, vocab_size=4096)
    tokens = settings.batch * settings.sequence
    real = (kept_bytes(more) - kept_bytes(settings)) / (tokens * (4096 - 512) * 2)
    assert real == pytest.approx(8, rel=0.05)


def test_the_head_runs_in_pieces_where_the_trainer_does() -> None:
    head = pytest.importorskip("model.families.layers")
    assert head.MAX_LOGITS == MAX_LOGITS
    assert predict_memory(TRM, 8).logits < 3


def test_optimizer_states_are_what_the_real_optimizer_holds() -> None:
    pytest.importorskip("torch")
    trm = pytest.importorskip("model.families.trm.model")
    optim = pytest.importorskip("model.training.optim")
    settings = small()
    model = trm.TRM(trm.Shape.of(settings))
    model.initialise(0)
    optimizer = optim.Optimizer(model, optim.Rules.of(settings))
    for weight in model.parameters():
        weight.grad = weight.detach() * 0 + 1
    optimizer.step(1, 1.0)
    held = sum(tensor.nbytes for tensor in optimizer.state().values())
    work = settings.work()
    assert held == pytest.approx(state_bytes(settings, work), rel=0.01)
    assert kept_values(settings, work) == 27


# -- published peaks, and a range -----------------------------------------------------------------


def test_published_peaks_are_predicted_and_lie_in_the_range() -> None:
    """What ``python -m bench peaks`` prints: golf's 17M is the one below."""
    found = {row["name"]: (memory_of(row), float(row["peak_gb"])) for row in rows()}
    assert len(found) == 8
    errors = sorted(abs(memory.total / peak - 1) for memory, peak in found.values())
    assert errors[4] < 0.10
    assert errors[-1] < 0.35
    outside = [n for n, (m, peak) in found.items() if not m.least <= peak <= m.most]
    assert len(outside) <= 1, outside


def test_compiled_blocks_of_a_gpu_keep_less() -> None:
    compiled, eager = (predict_memory(changed(TRM, compile=each), 8) for each in (True, False))
    assert compiled.activations == pytest.approx(COMPILED_SHARE * eager.activations)
    here = [predict_memory(changed(TRM, compile=c), 2, on_gpu=False) for c in (True, False)]
    assert here[0].activations == here[1].activations, "a CPU's were counted as they are"


def test_the_range_is_of_activations_and_logits_alone() -> None:
    memory = predict_memory(TRM, 8)
    open_gb = memory.activations + memory.logits
    assert memory.least == pytest.approx(memory.total - 0.2 * open_gb)
    assert memory.most == pytest.approx(memory.total + 0.4 * open_gb)


def test_a_card_is_refused_only_where_the_low_end_does_not_fit() -> None:
    """As memory grows: refused, then tried at one sequence, then planned."""
    asked = changed(D24, batch=1, accumulation=8)
    need = predict_memory(asked, 1)
    seen = []
    for gb in (0.97 * need.least, 1.02 * need.least, 1.02 * need.most):
        machine = rented_machine("H100-SXM", 1)._replace(memory_gb=gb / USABLE_SHARE)
        held = {"batch": 1, "accumulation": 8, "activation_checkpointing": False}
        fitted = fit_settings(asked, machine, held)
        seen.append((fitted.fits(machine), fitted.may_not_fit(machine)))
        assert fitted.settings.batch == 1
    assert seen == [(False, False), (True, True), (True, False)]


def test_what_may_not_fit_says_so_and_comes_after_what_does() -> None:
    """nanochat's d26 runs at a device batch of 16 on 80 GB, which was refused at 111."""
    d26 = changed(D24, depth=26, width=1664, vocab_size=32_768, sequence=2048, batch=16)
    memory = predict_memory(d26, 8)
    assert memory.least < 80 * USABLE_SHARE
    recipe = load_recipe("d24")
    spec = RunSpec(
        "d24", ("train",), "1xH100", overrides=(("batch", 16), ("depth", 26), ("width", 1664))
    )
    machine = rented_machine("H100-SXM", 1)
    found = outlook_on(recipe, spec, machine)
    worst = found.fitted[0].memory
    tight = machine._replace(memory_gb=(worst.total + worst.most) / 2 / USABLE_SHARE)
    told = outlook_on(recipe, spec, tight)
    assert told.fits
    assert not told.is_unsure, "there are smaller micro-batches"
    warnings = [text for about, text in told.reasons if about is RemarkTopic.WARNING]
    assert any("may not fit" in text and "halves the micro-batch" in text for text in warnings)
