"""Muon and AdamW: what an update looks like, and that their state survives a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from model.families.dense import Dense, Shape
from model.families.trm.model import TRM
from model.families.trm.model import Shape as TrmShape
from model.families.trm.plan import Settings
from model.training.optim import Optimizer, Rules, muon_momentum, muon_scale, orthogonalise


def make(settings: Settings) -> tuple[TRM, Optimizer]:
    model = TRM(TrmShape.of(settings))
    model.initialise(1)
    return model, Optimizer(model, Rules.of(settings))


def fill_gradients(model: nn.Module, seed: int) -> None:
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


def test_a_block_matrix_moves_by_rate_times_shape_factor(settings: Settings) -> None:
    model, optimizer = make(settings)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    fill_gradients(model, 5)
    optimizer.step(0, multiplier=0.5)
    for name, factor in (("blocks.0.gate.weight", 2.0), ("blocks.0.down.weight", 1.0)):
        moved = model.get_parameter(name).detach() - before[name]
        values = torch.linalg.svdvals(moved) / (settings.matrix_lr * 0.5 * factor)
        assert 0.5 < values.min() <= values.max() < 1.3


def test_adam_rates_scale_with_width(settings: Settings) -> None:
    """The first AdamW step is sign(g)·rate, whatever the gradient's size."""
    model, optimizer = make(settings)
    before = model.head.weight.detach().clone()
    fill_gradients(model, 5)
    optimizer.step(0, multiplier=1.0)
    moved = (model.head.weight.detach() - before).abs()
    expected = settings.head_lr * (settings.width / 768) ** -0.5
    assert moved.mean().item() == pytest.approx(expected, rel=1e-4)


def test_weight_decay_spares_the_embedding(settings: Settings) -> None:
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


def test_state_survives_a_file_bit_by_bit(settings: Settings, tmp_path: Path) -> None:
    straight, its_optimizer = make(settings)
    resumed, its_early_optimizer = make(settings)
    for model, optimizer in ((straight, its_optimizer), (resumed, its_early_optimizer)):
        for step in range(3):
            fill_gradients(model, step)
            optimizer.step(step, 1.0)
    save_file(its_early_optimizer.state(), tmp_path / "o.safetensors")
    fresh = Optimizer(resumed, Rules.of(settings))
    fresh.load_state(load_file(tmp_path / "o.safetensors"))
    for model, optimizer in ((straight, its_optimizer), (resumed, fresh)):
        for step in range(3, 6):
            fill_gradients(model, step)
            optimizer.step(step, 0.5)
    for name, parameter in straight.named_parameters():
        assert torch.equal(parameter, resumed.get_parameter(name)), name


def test_state_before_the_first_update_survives_too(settings: Settings) -> None:
    model, optimizer = make(settings)
    state = optimizer.state()
    again = Optimizer(model, Rules.of(settings))
    again.load_state(state)
    fill_gradients(model, 1)
    again.step(0, 1.0)
    assert set(again.state()) > set(state)


def test_state_of_another_model_is_refused(settings: Settings) -> None:
    _, optimizer = make(settings)
    _, wider = make(replace(settings, width=64))
    with pytest.raises(ValueError, match="shape"):
        wider.load_state(optimizer.state())


# -- against references in float64 --------------------------------------------------------------


def dense(**changes: Any) -> Dense:
    shape = Shape(
        *(29, 2, 16, 8, 8),
        hidden=24,
        kv_heads=1,
        **changes,
    )
    model = Dense(shape)
    model.initialise(1)
    generator = torch.Generator().manual_seed(9)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


def muon_by_hand(
    gradients: list[Tensor], weights: Tensor, rules: Rules, rate: float, shape: tuple[int, int]
) -> Tensor:
    """All of Muon's updates of one matrix, from the papers, in float64."""
    rows, columns = shape
    momentum, variance = torch.zeros(shape).double(), torch.zeros(rows).double()
    w = weights.double().clone()
    for step, gradient in enumerate(gradients):
        beta = 0.85 + 0.10 * min(step / 300, 1)
        momentum = beta * momentum + (1 - beta) * gradient.double()
        x = (1 - beta) * gradient.double() + beta * momentum
        x = x / x.pow(2).sum().sqrt()
        if rows > columns:
            x = x.T
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        if rows > columns:
            x = x.T
        if rules.normuon:
            size = x.pow(2).sum().sqrt()
            for row in range(rows):
                mean = x[row].pow(2).sum() / columns
                variance[row] = 0.95 * variance[row] + 0.05 * mean
            x = x / variance.sqrt()[:, None]
            x = x * (size / x.pow(2).sum().sqrt())
        decays = torch.ones(shape).double()
        if rules.cautious_decay:
            decays = (x.sign() == w.sign()).double()
        w = w - rate * rules.weight_decay * decays * w - rate * max(1, rows / columns) ** 0.5 * x
    return w


def adamw_by_hand(
    gradients: list[Tensor], weights: Tensor, rules: Rules, rate: float, decay: float
) -> Tensor:
    """Loshchilov and Hutter 2019, algorithm 2, in float64."""
    w = weights.double().clone()
    m, v = torch.zeros_like(w), torch.zeros_like(w)
    for t, gradient in enumerate(gradients, start=1):
        g = gradient.double()
        m = rules.beta1 * m + (1 - rules.beta1) * g
        v = rules.beta2 * v + (1 - rules.beta2) * g * g
        unbiased = m / (1 - rules.beta1**t), v / (1 - rules.beta2**t)
        w = w - rate * decay * w - rate * unbiased[0] / (unbiased[1].sqrt() + rules.eps)
    return w


@pytest.mark.parametrize("normuon", [False, True])
@pytest.mark.parametrize("cautious_decay", [False, True])
def test_muon_is_the_one_of_its_papers(normuon: bool, cautious_decay: bool) -> None:
    rules = Rules(matrix_lr=0.02, weight_decay=0.3, normuon=normuon, cautious_decay=cautious_decay)
    model = dense(mlp="swiglu", value_embeddings=True)
    optimizer = Optimizer(model, rules)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    seen: dict[str, list[Tensor]] = {name: [] for name in before}
    for step in range(4):
        fill_gradients(model, step)
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            seen[name].append(parameter.grad.clone())
        optimizer.step(step, 0.5)
    for name, rows in (("qkv", (16, 8, 8)), ("up", (24, 24)), ("down", (16,)), ("mix", (16,))):
        full = f"blocks.1.{name}.weight"
        start = 0
        for number in rows:
            part = slice(start, start + number)
            expected = muon_by_hand(
                [g[part] for g in seen[full]],
                before[full][part],
                rules,
                0.01,
                (number, before[full].shape[1]),
            )
            got = model.get_parameter(full)[part].double()
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
            start += number
    for name, rate, decay in (
        ("embedding.weight", 0.2, 0.0),
        ("values.1.weight", 0.2, 0.0),
        ("head.weight", 4e-3, 0.3),
        ("blocks.1.value_gate.weight", 4e-3, 0.3),
    ):
        expected = adamw_by_hand(seen[name], before[name], rules, rate * 0.5, decay)
        got = model.get_parameter(name).double()
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_adamw_alone_takes_every_parameter_at_the_recipes_own_rates() -> None:
    rules = Rules(*("adamw", 1e-3, 2e-3, 3e-3), weight_decay=0.1, beta1=0.9, beta2=0.99, eps=1e-8)
    model = dense(tied=True)
    optimizer = Optimizer(model, rules)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    gradients: dict[str, list[Tensor]] = {name: [] for name in before}
    for step in range(3):
        fill_gradients(model, step)
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            gradients[name].append(parameter.grad.clone())
        optimizer.step(step, 1.0)
    for name, weights in before.items():
        tied = name == "embedding.weight"
        expected = adamw_by_hand(
            gradients[name], weights, rules, 2e-3 if tied else 1e-3, 0.0 if tied else 0.1
        )
        got = model.get_parameter(name).double()
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)


def test_a_recipe_for_adamw_gets_its_usual_constants(settings: Settings) -> None:
    rules = Rules.of(replace(settings, optimizer="adamw"))
    assert (rules.beta1, rules.beta2, rules.eps, rules.width_scale) == (0.9, 0.95, 1e-8, 1.0)
    rules = Rules.of(replace(settings, width=192))
    assert (rules.beta1, rules.beta2, rules.eps, rules.width_scale) == (0.8, 0.95, 1e-10, 2.0)


def test_variances_survive_a_file_and_are_missed_where_they_lack(tmp_path: Path) -> None:
    made = []
    for _ in range(2):
        model = dense()
        optimizer = Optimizer(model, Rules(normuon=True))
        fill_gradients(model, 1)
        optimizer.step(0, 1.0)
        made.append((model, optimizer))
    save_file(made[1][1].state(), tmp_path / "o.safetensors")
    again = Optimizer(made[1][0], Rules(normuon=True))
    again.load_state(load_file(tmp_path / "o.safetensors"))
    for model, optimizer in (made[0], (made[1][0], again)):
        fill_gradients(model, 2)
        optimizer.step(1, 1.0)
    for name, parameter in made[0][0].named_parameters():
        assert torch.equal(parameter, made[1][0].get_parameter(name)), name
    with pytest.raises(KeyError, match="variance"):
        again.load_state(Optimizer(made[0][0], Rules()).state())
