"""nanochat's architecture and update rules: against nanochat's own code, and on their own.

Tests against nanochat need its checkout (92d63d4): ``TRMCLOUD_NANOCHAT=PATH``, as ``make nanochat``
sets it. Both sides compute in float32 on a CPU.
"""

from __future__ import annotations

import copy
import itertools
import math
import os
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor import config as inductor

from model.families.dense import Block, Shape
from model.families.nanochat.model import Nanochat, build
from model.families.nanochat.plan import Settings
from model.machine.distributed import World
from model.training.optim import Optimizer, Rules, even_out, orthogonalise_evenly
from model.training.schedule import Schedule
from model.training.stepping import compiled_graphs, warm_up
from tests import settings as made
from tests.model.models import shaken
from trmcloud.core.errors import UsageError

PEER = os.environ.get("TRMCLOUD_NANOCHAT", "")
needs_peer = pytest.mark.skipif(not PEER, reason="opt-in: make nanochat PEER_PATH=…")

SHAPE = Shape(
    vocab_size=128, depth=4, width=64, head_dim=16, sequence=32, mlp="relu2", norm="rms",
    qk_norm=True, logit_cap=15.0, value_embeddings=True,
)  # fmt: skip
RULES = Rules(
    matrix_lr=0.02, embedding_lr=0.3, head_lr=0.008, weight_decay=0.28, steps=40,
    update_rules="nanochat-2026", width_scale=(SHAPE.width / 768) ** -0.5, rate_floor=0.05,
)  # fmt: skip


def ours(seed: int = 0, *, disturbed: bool = True, shape: Shape = SHAPE) -> Nanochat:
    """A model; ``disturbed``: nothing in it is zero, so that every part of it counts."""
    return shaken(Nanochat(shape), 0.05 * disturbed, initial=seed, seed=seed + 1)


def batch(seed: int, rows: int = 4, shape: Shape = SHAPE) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    # Texts with something to learn: each token follows from the one before, with noise.
    ids = torch.randint(0, shape.vocab_size, (rows, shape.sequence + 1), generator=generator)
    for place in range(1, ids.shape[1]):
        known = torch.rand(rows, generator=generator) < 0.8
        follows = (ids[:, place - 1] * 7 + 3) % shape.vocab_size
        ids[:, place] = torch.where(known, follows, ids[:, place])
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def assert_same_update(one: Tensor, other: Tensor, before: Tensor, within: float) -> None:
    """That two weights moved alike, but for two entries: cautious decay turns on a sign, and where
    an update is 0 but for rounding, a weight may decay on one side alone."""
    off, moved = (one - other).abs(), other - before
    turned = off > 0.05 * moved.square().mean().sqrt()
    assert int(turned.sum()) <= 2
    assert off[~turned].norm() <= within * moved.norm()


# -- Against nanochat ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def peer() -> Any:
    """nanochat's model and optimizer, in float32 and uncompiled."""
    os.environ["NANOCHAT_DTYPE"] = "float32"
    sys.path.insert(0, PEER)
    compiled, uncompiled = torch.compile, _as_it_is
    try:
        torch.compile = uncompiled
        from nanochat import gpt, optim  # type: ignore[import-not-found]
    finally:
        torch.compile = compiled
        sys.path.remove(PEER)
    return SimpleNamespace(gpt=gpt, optim=optim)


def _as_it_is(*given: Any, **named: Any) -> Any:
    """``torch.compile`` that compiles nothing."""
    return given[0] if given else lambda made: made


def theirs_of(peer: Any, model: Nanochat) -> Any:
    """nanochat's model with the weights of ours."""
    shape = model.shape
    config = peer.gpt.GPTConfig(
        sequence_len=shape.sequence, vocab_size=shape.vocab_size, n_layer=shape.depth,
        n_head=shape.heads, n_kv_head=shape.kv_heads, n_embd=shape.width, window_pattern="L",
    )  # fmt: skip
    theirs = peer.gpt.GPT(config)
    theirs.init_weights()
    with torch.no_grad():
        for their_name, weight in names_of(theirs, model):
            dict(theirs.named_parameters())[their_name].copy_(weight)
    return theirs


def names_of(theirs: Any, model: Nanochat, *, gradients: bool = False) -> list[tuple[str, Tensor]]:
    """(the name of a parameter of theirs, what ours holds for it)."""

    def held(parameter: Tensor) -> Tensor:
        if not gradients:
            return parameter.detach()
        assert parameter.grad is not None
        return parameter.grad

    made = [
        ("transformer.wte.weight", held(model.embedding.weight)),
        ("lm_head.weight", held(model.head.weight)),  # type: ignore[union-attr]
        ("resid_lambdas", held(model.keeps)),
        ("x0_lambdas", held(model.mixes)),
        ("smear_gate.weight", held(model.smear_gate.weight)),
        ("smear_lambda", held(model.smear)),
        ("backout_lambda", held(model.backout)),
    ]
    for number, table in model.values.items():
        assert isinstance(table, torch.nn.Embedding)
        made.append((f"value_embeds.{number}.weight", held(table.weight)))
    for layer, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        at = f"transformer.h.{layer}"
        parts = held(block.qkv.weight).split(block.splits()["qkv"])
        made += list(zip((f"{at}.attn.c_{x}.weight" for x in "qkv"), parts, strict=True))
        made += [
            (f"{at}.attn.c_proj.weight", held(block.mix.weight)),
            (f"{at}.mlp.c_fc.weight", held(block.up.weight)),
            (f"{at}.mlp.c_proj.weight", held(block.down.weight)),
        ]
        if block.value_gate is not None:
            made.append((f"{at}.attn.ve_gate.weight", held(block.value_gate.weight)))
    assert {name for name, _ in made} == {name for name, _ in theirs.named_parameters()}
    return made


SHAPES = pytest.mark.parametrize(
    "shape", [SHAPE, replace(SHAPE, depth=5, kv_heads=2)], ids=["d4", "grouped-d5"]
)


@needs_peer
@SHAPES
def test_loss_and_gradients_are_nanochats(peer: Any, shape: Shape) -> None:
    model = ours(shape=shape)
    theirs = theirs_of(peer, model)
    ids, targets = batch(5, shape=shape)
    loss, their_loss = model.loss(ids, targets).loss, theirs(ids, targets)
    loss.backward()
    their_loss.backward()
    assert float(loss) == pytest.approx(float(their_loss), abs=1e-4)
    their_gradients = {name: p.grad for name, p in theirs.named_parameters()}
    for name, gradient in names_of(theirs, model, gradients=True):
        off = (gradient - their_gradients[name]).norm() / their_gradients[name].norm()
        assert off < 1e-4, name


def their_optimizer(peer: Any, theirs: Any, rules: Rules) -> Any:
    return theirs.setup_optimizer(
        unembedding_lr=rules.head_lr, embedding_lr=rules.embedding_lr, matrix_lr=rules.matrix_lr,
        weight_decay=rules.weight_decay, scalar_lr=0.5 * rules.matrix_lr / 0.02,
    )  # fmt: skip


def their_step(optimizer: Any, step: int, multiplier: float, rules: Rules) -> None:
    """As nanochat's training loop takes it."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * multiplier
        if group["kind"] == "muon":
            group["momentum"] = rules.momentum(step, multiplier)
            group["weight_decay"] = rules.decay(step)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


@needs_peer
@SHAPES
def test_optimizer_steps_are_nanochats(peer: Any, shape: Shape) -> None:
    model = ours(shape=shape)
    theirs = theirs_of(peer, model)
    optimizer, their = Optimizer(model, RULES), their_optimizer(peer, theirs, RULES)
    for step, multiplier in ((0, 0.3), (1, 1.0), (2, 0.6)):
        before = {name: weight.clone() for name, weight in names_of(theirs, model)}
        generator = torch.Generator().manual_seed(step)
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        named = dict(theirs.named_parameters())
        for name, gradient in names_of(theirs, model, gradients=True):
            named[name].grad = gradient.clone()
        optimizer.step(step, multiplier)
        their_step(their, step, multiplier, RULES)
        for name, weight in names_of(theirs, model):
            assert_same_update(weight, named[name].detach(), before[name], 1e-3)


@needs_peer
def test_its_initial_weights_are_drawn_as_nanochats(peer: Any) -> None:
    shape = replace(SHAPE, width=256, vocab_size=512, hidden=0, kv_heads=0)
    model = ours(disturbed=False, shape=shape)
    theirs = theirs_of(peer, model)
    torch.manual_seed(0)
    theirs.init_weights()
    named = dict(theirs.named_parameters())
    for name, weight in names_of(theirs, model):
        other = named[name].detach()
        close = 6.0 * float(other.std(correction=0)) / other.numel() ** 0.5 + 1e-9
        assert float(weight.mean()) == pytest.approx(float(other.mean()), abs=close), name
        if weight.numel() > 1000:
            assert float(weight.std()) == pytest.approx(float(other.std()), rel=0.05, abs=1e-9), (
                name
            )
        else:
            assert float(weight.abs().max()) <= float(other.abs().max()) * 1.3 + 1e-9, name


@needs_peer
@pytest.mark.parametrize("seed", range(4))
def test_two_hundred_steps_come_to_the_same_loss(peer: Any, seed: int) -> None:
    model = ours(seed, disturbed=False)
    theirs = theirs_of(peer, model)
    rules = replace(RULES, steps=200)
    optimizer, their = Optimizer(model, rules), their_optimizer(peer, theirs, rules)
    last: list[tuple[float, float]] = []
    for step in range(200):
        ids, targets = batch(10_000 * seed + step)
        loss, their_loss = model.loss(ids, targets).loss, theirs(ids, targets)
        loss.backward()
        their_loss.backward()
        multiplier = min(1.0, (step + 1) / 20) if step < 70 else 1.0 - 0.95 * (step - 70) / 130
        optimizer.step(step, multiplier)
        optimizer.zero_grad()
        their_step(their, step, multiplier, rules)
        last.append((float(loss), float(their_loss)))
    mine, other = (sum(each) / 20 for each in zip(*last[-20:], strict=True))
    print(f"seed {seed}: ours {mine:.4f}, nanochat's {other:.4f}")
    assert mine < last[0][0] - 0.5, "something was learnt"
    assert mine == pytest.approx(other, rel=0.01)


# -- On their own -------------------------------------------------------------------------------


def settings_of(**changes: Any) -> Settings:
    parts = {"architecture": "nanochat-2026", "value_embeddings": True}
    kind = {"dtype": "float32", "compile": False}
    found = made.settings_of("nanochat", "train", **{**parts, **kind, **changes})
    assert isinstance(found, Settings)
    return found


@pytest.mark.parametrize("kv_heads", [0, 2])
def test_a_plan_counts_its_parameters(kv_heads: int) -> None:
    settings = settings_of(depth=5, width=64, head_dim=16, vocab_size=100, kv_heads=kv_heads)
    model = build(settings, torch.device("cpu"))
    assert isinstance(model, Nanochat)
    assert sum(p.numel() for p in model.parameters()) == settings.work().parameters


def test_the_plain_architecture_is_untouched() -> None:
    model = build(
        settings_of(architecture="plain", depth=2, width=64, head_dim=16, vocab_size=100),
        torch.device("cpu"),
    )
    assert not isinstance(model, Nanochat)
    assert not any("smear" in name for name, _ in model.named_parameters())


@pytest.mark.parametrize("shape", [(3, 32, 32), (2, 64, 16), (2, 16, 64)])
def test_polar_express_comes_near_to_the_orthogonal_matrix(shape: tuple[int, int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    matrices = torch.randn(shape, generator=generator)
    made = orthogonalise_evenly(37.0 * matrices)
    rows = matrices / matrices.norm(dim=-1, keepdim=True)
    u, _, v = torch.linalg.svd(rows, full_matrices=False)
    wanted = u @ v
    assert ((made - wanted).norm(dim=(-2, -1)) < 0.25 * wanted.norm(dim=(-2, -1))).all()
    variance = torch.zeros(shape[0], shape[1], 1)
    evened = even_out(made, variance)
    norms = evened.norm(dim=(-2, -1))
    assert torch.allclose(norms, torch.full_like(norms, min(shape[1:]) ** 0.5), rtol=1e-4)
    assert not even_out(orthogonalise_evenly(torch.zeros(shape)), variance).any()


def test_momentum_and_decay_fall_with_the_cooldown() -> None:
    rules = replace(RULES, steps=1000)
    assert rules.momentum(0, 0.1) == pytest.approx(0.85)
    assert rules.momentum(200, 1.0) == pytest.approx(0.91)
    assert rules.momentum(600, 1.0) == pytest.approx(0.97)
    assert rules.momentum(999, 0.05) == pytest.approx(0.90)
    assert rules.decay(0) == pytest.approx(0.28)
    assert rules.decay(500) == pytest.approx(0.14)
    assert rules.decay(1000) == pytest.approx(0.0)


def test_a_linear_cooldown_falls_evenly() -> None:
    settings = settings_of(steps=100, warmup_steps=0, cooldown_fraction=0.5, rate_floor=0.05,
                           schedule="wsd-linear")  # fmt: skip
    schedule = Schedule.of(settings)
    factors = [schedule.factor(step, schedule.own_cooldown) for step in range(100)]
    falls = [before - after for before, after in itertools.pairwise(factors[50:])]
    assert factors[49] == 1.0
    assert max(falls) - min(falls) < 1e-9
    assert factors[99] == pytest.approx(0.05 + 0.95 / 51)


def test_these_rules_need_muon() -> None:
    with pytest.raises(UsageError, match="architecture=nanochat-2026 needs Muon"):
        settings_of(optimizer="adamw").check_shape("test")


def test_no_clipping_leaves_gradients_as_they_are() -> None:
    model = ours()
    optimizer = Optimizer(model, RULES)
    for parameter in model.parameters():
        parameter.grad = torch.full(parameter.shape, 3.0)
    norm = optimizer.clip(0.0)
    assert float(norm) == pytest.approx(3.0 * math.sqrt(sum(p.numel() for p in model.parameters())))
    assert all(bool((p.grad == 3.0).all()) for p in model.parameters() if p.grad is not None)


@pytest.mark.slow
@pytest.mark.more
def test_compiled_rules_are_the_same_and_compiled_once() -> None:
    models = [ours(), ours()]
    eager, compiled = (
        Optimizer(model, replace(RULES, compiled=compiled))
        for model, compiled in zip(models, (False, True), strict=True)
    )
    fresh = {name: tensor.clone() for name, tensor in compiled.state().items()}
    before = [each.detach().clone() for each in models[1].parameters()]
    counted = compiled_graphs()
    compiled.warm_up()
    shapes = {(64, 64), (256, 64), (64, 256), (4, 12)}
    assert compiled_graphs() - counted == 2 * len(shapes), "two functions, for each shape"
    assert all(torch.equal(a, b) for a, b in zip(models[1].parameters(), before, strict=True))
    assert all(torch.equal(compiled.state()[name], tensor) for name, tensor in fresh.items())
    counted = compiled_graphs()
    for step, multiplier in ((0, 0.3), (1, 1.0), (2, 0.6)):
        generator = torch.Generator().manual_seed(step)
        for pair in zip(*(model.parameters() for model in models), strict=True):
            gradient = torch.randn(pair[0].shape, generator=generator)
            for parameter in pair:
                parameter.grad = gradient.clone()
        eager.step(step, multiplier)
        compiled.step(step, multiplier)
    assert compiled_graphs() == counted, "a rate, a decay or a momentum compiled again"
    for one, other, first in zip(*(model.parameters() for model in models), before, strict=True):
        assert_same_update(other, one, first, 1e-4)
    resumed_model = copy.deepcopy(models[1])
    resumed = Optimizer(resumed_model, replace(RULES, compiled=True))
    resumed.load_state({name: tensor.clone() for name, tensor in compiled.state().items()})
    for model, optimizer in ((models[1], compiled), (resumed_model, resumed)):
        for parameter in model.parameters():
            parameter.grad = torch.ones(parameter.shape)
        optimizer.step(3, 0.5)
    for one, other in zip(models[1].parameters(), resumed_model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert compiled_graphs() == counted


def test_rules_are_compiled_where_the_run_is() -> None:
    assert Rules.of(settings_of(compile=True)).compiled
    assert not Rules.of(settings_of(compile=False)).compiled


@pytest.mark.slow
def test_rules_that_do_not_compile_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(settings_of(), batch=1, sequence=SHAPE.sequence, vocab_size=128)
    optimizer = Optimizer(ours(), replace(RULES, compiled=True))

    def fail(*given: Any, **named: Any) -> Any:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr("torch._inductor.graph.GraphLowering.run", fail)
    torch._dynamo.reset()
    world = World(0, 1, torch.device("cpu"))
    model = ours()
    uncached = inductor.patch(force_disable_caches=True)
    with uncached, pytest.raises(UsageError, match="compile failed") as refused:
        warm_up(model, model, settings, world, optimizer)
    assert "--set compile=false" in str(refused.value.next_step)
