"""Updates and rates: Muon, AdamW, and the schedule as a function of the step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from model.families.dense import Dense, Shape
from model.families.trm.model import TRM
from model.families.trm.model import Shape as TrmShape
from model.families.trm.plan import Settings
from model.training.optim import Optimizer, Rules, muon_momentum, orthogonalise
from model.training.schedule import (
    CONSTANT,
    COSINE,
    SURPLUS,
    WSD,
    Cooldown,
    Costs,
    Schedule,
    cooldown_of_steps,
    decide_cooldown,
    recent_mean,
    steps_that_fit,
)
from tests.model.models import shaken
from tests.model.test_nanochat import RULES as NANOCHAT_RULES
from tests.model.test_nanochat import SHAPE as NANOCHAT_SHAPE
from tests.model.test_nanochat import ours as nanochat

# -- Muon and AdamW: what an update looks like, and that their state survives a file ------------


def make(settings: Settings) -> tuple[TRM, Optimizer]:
    model = TRM(TrmShape.of(settings))
    model.initialise(1)
    return model, Optimizer(model, Rules.of(settings))


def fill_gradients(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize("shape", [(3, 32, 32), (2, 64, 16), (2, 16, 64)])
def test_orthogonalised_matrices_have_singular_values_near_one(shape: tuple[int, int, int]) -> None:
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


def test_adam_rates_scale_with_width(settings: Settings) -> None:
    """The first AdamW step is sign(g)·rate, whatever the gradient's size."""
    model, optimizer = make(settings)
    before = model.head.weight.detach().clone()
    fill_gradients(model, 5)
    optimizer.step(0, multiplier=1.0)
    moved = (model.head.weight.detach() - before).abs()
    expected = settings.head_lr * (settings.width / 768) ** -0.5
    assert moved.mean().item() == pytest.approx(expected, rel=1e-4)


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
    shape = Shape(*(29, 2, 16, 8, 8), hidden=24, kv_heads=1, **changes)
    return shaken(Dense(shape))


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
                [g[part] for g in seen[full]], before[full][part], rules, 0.01,
                (number, before[full].shape[1]),
            )  # fmt: skip
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


STATES: dict[str, tuple[Callable[[], Any], Rules]] = {
    "muon": (lambda: dense(), Rules()),
    "normuon": (lambda: dense(), Rules(normuon=True)),
    "nanochat-2026": (
        lambda: nanochat(shape=replace(NANOCHAT_SHAPE, kv_heads=2)), NANOCHAT_RULES,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STATES)
def test_state_survives_a_file_and_variances_are_missed(name: str, tmp_path: Path) -> None:
    make_model, rules = STATES[name]

    def stepped(model: nn.Module, optimizer: Optimizer, first: int) -> None:
        for step in range(first, first + 3):
            fill_gradients(model, step)
            optimizer.step(step, 1.0)

    straight, resumed = make_model(), make_model()
    optimizers = [Optimizer(model, rules) for model in (straight, resumed)]
    for model, optimizer in zip((straight, resumed), optimizers, strict=True):
        stepped(model, optimizer, 0)
    save_file(optimizers[1].state(), tmp_path / "o.safetensors")
    again = Optimizer(resumed, rules)
    state = load_file(tmp_path / "o.safetensors")
    again.load_state(state)
    stepped(straight, optimizers[0], 3)
    stepped(resumed, again, 3)
    for weight_name, parameter in straight.named_parameters():
        assert torch.equal(parameter, resumed.get_parameter(weight_name)), weight_name
    if name == "normuon":
        with pytest.raises(KeyError, match="variance"):
            again.load_state(Optimizer(straight, Rules()).state())
    if name == "nanochat-2026":
        variance = "variance.blocks.0.qkv.weight.64"
        assert variance in state
        with pytest.raises(ValueError, match="has shape"):
            again.load_state({**state, variance: torch.zeros(3, 3)})


# -- The rate as a pure function of the step, and the one decision that a deadline asks for -----


costs = st.builds(
    Costs, step_s=st.floats(0.01, 10), evaluation_s=st.floats(0, 30), save_s=st.floats(0, 30),
    eval_every=st.integers(1, 50), save_every=st.integers(1, 50),
)  # fmt: skip


@given(
    steps=st.integers(1, 400), warmup=st.integers(0, 60), fraction=st.floats(0, 1), data=st.data()
)
def test_each_step_trains(steps: int, warmup: int, fraction: float, data: st.DataObject) -> None:
    cooldown = cooldown_of_steps(steps, fraction)
    assert cooldown.end == steps
    step = data.draw(st.integers(0, steps - 1))
    for kind in (WSD, COSINE, CONSTANT):
        schedule = Schedule(kind, steps, warmup, fraction)
        assert 0 < schedule.factor(step, schedule.own_cooldown) <= 1


@given(start=st.integers(0, 500), steps=st.integers(1, 500), step=st.integers(0, 1200))
def test_the_cooldown_only_falls(start: int, steps: int, step: int) -> None:
    cooldown = Cooldown(start, steps)
    schedule = Schedule(WSD, 1000)
    now, later = (schedule.factor(s, cooldown) for s in (step, step + 1))
    assert later <= now
    if start <= step < cooldown.end - 1:
        assert later < now


def test_warm_up_stable_and_one_minus_root_by_hand() -> None:
    cooldown = Cooldown(10, 3)
    rates = [Schedule(WSD, 13, 3).factor(s, cooldown) for s in range(13)]
    assert rates[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert rates[4:10] == [1.0] * 6
    assert rates[10:] == pytest.approx([1 - math.sqrt(t / 4) for t in (1, 2, 3)])


def test_a_topped_up_run_warms_up_anew() -> None:
    rates = [Schedule(WSD, 999, 3).factor(s, None, warm_from=100) for s in range(100, 105)]
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])


@given(costs=costs, first=st.integers(0, 1000), remaining_s=st.floats(0, 500))
def test_as_many_steps_as_fit_and_no_more(costs: Costs, first: int, remaining_s: float) -> None:
    fitting = steps_that_fit(first, remaining_s, costs)
    if fitting:
        assert costs.seconds(first, fitting) <= remaining_s
    assert costs.seconds(first, fitting + 1) > remaining_s or remaining_s == 0


@given(costs=costs, first=st.integers(0, 300), steps=st.integers(1, 200))
def test_time_counts_every_pause_between_steps(costs: Costs, first: int, steps: int) -> None:
    """Against a walk through the steps, as the loop takes them."""
    seconds = 0.0
    for finished in range(first + 1, first + steps + 1):
        seconds += costs.step_s
        if finished == first + steps:
            break
        if finished % costs.save_every == 0 or finished % costs.eval_every == 0:
            seconds += costs.evaluation_s + costs.save_s  # it may be a new best, which is saved
    assert costs.seconds(first, steps) == pytest.approx(seconds)


@given(
    costs=costs,
    step=st.integers(0, 500),
    steps=st.integers(1, 600),
    fraction=st.floats(0, 1),
    elapsed_s=st.floats(0, 2000),
    remaining_s=st.floats(0.1, 1000),
)
def test_a_cooldown_lands_at_the_deadline_or_at_the_last_step(
    costs: Costs, step: int, steps: int, fraction: float, elapsed_s: float, remaining_s: float
) -> None:
    step = min(step, steps - 1)
    made = decide_cooldown(
        step, steps=steps, fraction=fraction, elapsed_s=elapsed_s, remaining_s=remaining_s,
        deadline_at=5.0, costs=costs,
    )  # fmt: skip
    share = min(max(fraction, 0.2), 0.4)
    if fraction == 0.0:
        assert made is None
        return
    if made is None:
        assert remaining_s > share * elapsed_s
        assert step < cooldown_of_steps(steps, fraction).start
        return
    assert (made.start, made.deadline_at) == (step, 5.0)
    assert step < made.end <= steps
    fitting = steps_that_fit(step, remaining_s, costs)
    assert made.steps <= max(1, math.ceil(fitting * SURPLUS))
    if made.end < steps:
        assert made.steps >= fitting, "paid time would be left unused"


def test_the_share_of_the_cooldown_is_held_between_20_and_40_percent() -> None:
    def begins(fraction: float, remaining_s: float) -> bool:
        costs = Costs(1.0, 0.0, 0.0, 100, 100)
        made = decide_cooldown(
            100, steps=1_000_000, fraction=fraction, elapsed_s=100.0, remaining_s=remaining_s,
            deadline_at=0.0, costs=costs,
        )  # fmt: skip
        return made is not None

    assert begins(0.01, 20.0)
    assert not begins(0.01, 21.0)
    assert not begins(0.0, 1.0), "no cooldown was asked for"
    assert begins(0.3, 30.0)
    assert not begins(0.3, 31.0)
    assert begins(0.9, 40.0)
    assert not begins(0.9, 41.0)


@given(st.lists(st.floats(0.1, 1.0), min_size=1, max_size=50))
def test_one_stray_pause_hardly_moves_the_mean(seconds: list[float]) -> None:
    quiet = recent_mean(seconds)
    assert min(seconds) * 0.999 <= quiet <= max(seconds) * 1.001
    assert recent_mean([0.5] * 20 + [1000.0]) <= 0.5 * 23 / 21 + 1e-9
    assert recent_mean([]) == 0.0


def test_a_cooldown_survives_json() -> None:
    for cooldown in (Cooldown(3, 4), Cooldown(3, 4, 12.5), Cooldown(3, 9, 7.0).followed_by(6, 2)):
        assert Cooldown.from_json(cooldown.to_json()) == cooldown


# -- against the formulas, written for every step at once --------------------------------------


def test_a_cosine_falls_from_one_to_its_floor_over_all_steps() -> None:
    schedule = Schedule(COSINE, 1000, warmup_steps=10, floor=0.1)
    assert schedule.own_cooldown is None
    for step in (10, 100, 499, 500, 999):
        progress = (step + 1) / 1001
        expected = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress))
        assert schedule.factor(step, None) == pytest.approx(expected, rel=1e-12)
    assert schedule.factor(999, None) == pytest.approx(0.1, abs=1e-4)
    assert schedule.factor(0, None) == pytest.approx(1 / 11, rel=1e-4)


def test_a_cosine_that_a_deadline_cuts_still_ends_at_its_floor() -> None:
    schedule = Schedule(COSINE, 100_000, cooldown_fraction=0.3, floor=0.1)
    cooldown = Cooldown(1000, 400, 5.0)
    rates = [schedule.factor(step, cooldown) for step in range(990, 1400)]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > 0.99
    assert rates[-1] == pytest.approx(0.1, abs=0.002)
    assert schedule.has_come_down(1399, cooldown)
    assert not schedule.has_come_down(1200, cooldown)


def test_a_constant_rate_stays_and_knows_no_cooldown() -> None:
    schedule = Schedule(CONSTANT, 100, warmup_steps=4, cooldown_fraction=0.3)
    assert schedule.fraction == 0.0
    assert [schedule.factor(step, None) for step in (4, 50, 99, 500)] == [1.0] * 4
    assert not schedule.has_come_down(100, schedule.own_cooldown)


def test_a_cooldown_ends_at_the_floor() -> None:
    schedule = Schedule(WSD, 1000, cooldown_fraction=0.5, floor=0.2)
    cooldown = schedule.own_cooldown
    assert cooldown == Cooldown(500, 500)
    for step in (500, 700, 999):
        t = (step - 499) / 501
        assert schedule.factor(step, cooldown) == pytest.approx(0.2 + 0.8 * (1 - math.sqrt(t)))
    assert schedule.has_come_down(999, cooldown)
    assert not schedule.has_come_down(700, cooldown)
