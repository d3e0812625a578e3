"""Muon and AdamW: what an update looks like, and that their state survives a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from model.families.trm import TRM, Shape
from model.optim import Optimizer, muon_momentum, muon_scale, orthogonalise
from trmcloud.core.recipe import PhaseRecipe


def make(settings: PhaseRecipe) -> tuple[TRM, Optimizer]:
    model = TRM(Shape.of(settings))
    model.initialise(1)
    return model, Optimizer(model, settings)


def fill_gradients(model: TRM, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize("shape", [(3, 32, 32), (2, 64, 16), (2, 16, 64)])
def test_orthogonalised_matrices_have_singular_values_near_one(
    shape: tuple[int, int, int],
) -> None:
    torch.manual_seed(0)
    u, values, v = torch.linalg.svd(torch.randn(shape), full_matrices=False)
    spread = torch.linspace(1.0, 0.05, values.shape[1])
    values = torch.linalg.svdvals(orthogonalise(u @ torch.diag(37.0 * spread) @ v))
    assert values.min() > 0.5
    assert values.max() < 1.3


def test_orthogonalising_keeps_the_singular_vectors() -> None:
    torch.manual_seed(0)
    matrix = torch.randn(1, 24, 12)
    u, _, v = torch.linalg.svd(matrix[0], full_matrices=False)
    aligned = u.mT @ orthogonalise(matrix)[0] @ v.mT
    assert (aligned - torch.diag(aligned.diagonal())).abs().max() < 1e-4


def test_a_matrix_without_gradient_stays() -> None:
    assert orthogonalise(torch.zeros(1, 8, 8)).abs().max() == 0


def test_momentum_warms_up_over_300_steps() -> None:
    assert [muon_momentum(step) for step in (0, 150, 300, 9000)] == pytest.approx(
        [0.85, 0.90, 0.95, 0.95]
    )


def test_tall_matrices_take_longer_steps() -> None:
    assert muon_scale(64, 16) == 2.0
    assert muon_scale(16, 64) == muon_scale(16, 16) == 1.0


def test_a_block_matrix_moves_by_rate_times_shape_factor(settings: PhaseRecipe) -> None:
    model, optimizer = make(settings)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    fill_gradients(model, 5)
    optimizer.step(0, multiplier=0.5)
    for name, factor in (("blocks.0.gate.weight", 2.0), ("blocks.0.down.weight", 1.0)):
        moved = model.get_parameter(name).detach() - before[name]
        values = torch.linalg.svdvals(moved) / (settings.matrix_lr * 0.5 * factor)
        assert 0.5 < values.min() <= values.max() < 1.3


def test_adam_rates_scale_with_width(settings: PhaseRecipe) -> None:
    """The first AdamW step is sign(g)·rate, whatever the gradient's size."""
    model, optimizer = make(settings)
    before = model.head.weight.detach().clone()
    fill_gradients(model, 5)
    optimizer.step(0, multiplier=1.0)
    moved = (model.head.weight.detach() - before).abs()
    expected = settings.head_lr * (settings.width / 768) ** -0.5
    assert moved.mean().item() == pytest.approx(expected, rel=1e-4)


def test_weight_decay_spares_the_embedding(settings: PhaseRecipe) -> None:
    model, optimizer = make(replace(settings, weight_decay=0.5))
    model.head.weight.data.fill_(1.0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step(0, multiplier=1.0)
    assert torch.equal(model.embedding.weight, before["embedding.weight"])
    assert (model.head.weight < before["head.weight"]).all()
    shrunk = model.get_parameter("blocks.0.query.weight") / before["blocks.0.query.weight"]
    assert shrunk.mean().item() == pytest.approx(1 - 0.5 * settings.matrix_lr, rel=1e-5)


def test_state_survives_a_file_bit_by_bit(settings: PhaseRecipe, tmp_path: Path) -> None:
    straight, its_optimizer = make(settings)
    resumed, its_early_optimizer = make(settings)
    for model, optimizer in ((straight, its_optimizer), (resumed, its_early_optimizer)):
        for step in range(3):
            fill_gradients(model, step)
            optimizer.step(step, 1.0)
    save_file(its_early_optimizer.state(), tmp_path / "o.safetensors")
    fresh = Optimizer(resumed, settings)
    fresh.load_state(load_file(tmp_path / "o.safetensors"))
    for model, optimizer in ((straight, its_optimizer), (resumed, fresh)):
        for step in range(3, 6):
            fill_gradients(model, step)
            optimizer.step(step, 0.5)
    for name, parameter in straight.named_parameters():
        assert torch.equal(parameter, resumed.get_parameter(name)), name


def test_state_before_the_first_update_survives_too(settings: PhaseRecipe) -> None:
    model, optimizer = make(settings)
    state = optimizer.state()
    again = Optimizer(model, settings)
    again.load_state(state)
    fill_gradients(model, 1)
    again.step(0, 1.0)
    assert set(again.state()) > set(state)


def test_state_of_another_model_is_refused(settings: PhaseRecipe) -> None:
    _, optimizer = make(settings)
    _, wider = make(replace(settings, width=64))
    with pytest.raises(ValueError, match="shape"):
        wider.load_state(optimizer.state())
