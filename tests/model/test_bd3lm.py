"""BD3-LM against the published code (kuleshov-group/bd3lms), and the same settings on their own.

Tests against it need its checkout (1c3e8f4): ``TRMCLOUD_BD3LM=PATH``, as ``make bd3lm`` sets it.
Both sides compute in float32 on a CPU. Of the checkout ``models/dit.py``, ``noise_schedule.py`` and
the loss's functions of ``diffusion.py`` run, unchanged. What these import and do not need here is
not installed, so the fixture ``peer`` puts stand-ins into ``sys.modules``: empty modules for hydra,
transformers, omegaconf, flash_attn and the checkout's own dataloader, metrics and utils;
lightning's LightningModule is ``nn.Module``, huggingface_hub's mixin is ``object``, and einops has
the four patterns that ``dit.py`` rearranges by.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from model.data.batch import RowSelection
from model.families import masked_diffusion
from model.families.bd3lm.model import AdaptiveBlock, AdaptiveDiffusion, BlockDiffusion, build
from model.families.bd3lm.plan import CONDITION_WIDTH, Settings
from model.families.cache import Cache
from model.families.dense import Shape
from model.families.masked_diffusion import BATCH_ROWS, LEAST, SPANS, WHOLE, Span, hidden_within
from model.families.protocol import MATRIX, SCALAR
from tests import settings as made
from tests.model.models import shaken
from trmcloud.core.errors import UsageError
from trmcloud.core.planner.memory import predict_memory

PEER = os.environ.get("TRMCLOUD_BD3LM", "")
needs_peer = pytest.mark.skipif(not PEER, reason="opt-in: make bd3lm PEER_PATH=…")

SHAPE = Shape(vocab_size=23, depth=2, width=32, head_dim=16, sequence=16, mlp="gelu", norm="layer")
TANH = replace(SHAPE, mlp="gelu-tanh")
BLOCK = 4
CLIPPED = [span for span in SPANS if span != WHOLE]


def tokens(rows: int, shape: Shape = SHAPE, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, shape.vocab_size - 1, (rows, shape.sequence), generator=generator)


def times_of_tokens(draws: RowSelection, span: Span, blocks: int, block: int) -> Tensor:
    return masked_diffusion.times(draws, blocks, span).repeat_interleave(block, dim=1)


# -- the published code --------------------------------------------------------------------------


def _rearrange(x: Tensor, pattern: str, **sizes: int) -> Tensor:
    """``einops.rearrange`` by the patterns of ``dit.py``."""
    if pattern == "b s (three h d) -> b s three h d":
        return x.unflatten(-1, (sizes["three"], sizes["h"], -1))
    if pattern == "b s h d -> b s (h d)":
        return x.flatten(-2)
    if pattern == "(b h) d -> b h d":
        return x.unflatten(0, (sizes["b"], -1))
    assert pattern == "b h s d -> b s (h d)", pattern
    return x.transpose(1, 2).flatten(-2)


def _stand_ins() -> dict[str, ModuleType]:
    def module(name: str, **parts: Any) -> ModuleType:
        made = ModuleType(name)
        made.__spec__ = ModuleSpec(name, None)
        made.__dict__.update(parts)
        return made

    empty = ("hydra.utils", "omegaconf", "dataloader", "metrics", "flash_attn")
    made = {name: module(name) for name in empty}
    made["hydra"] = module("hydra", utils=made["hydra.utils"])
    made["flash_attn.layers"] = module("flash_attn.layers")
    made["flash_attn.layers.rotary"] = module("flash_attn.layers.rotary")
    made["utils"] = module("utils", print_nans=lambda tensor, name: None)
    made["einops"] = module("einops", rearrange=_rearrange)
    made["lightning"] = module("lightning", LightningModule=nn.Module)
    made["huggingface_hub"] = module("huggingface_hub", PyTorchModelHubMixin=object)
    made["transformers"] = module("transformers", PreTrainedTokenizer=object)
    made["tqdm"] = module("tqdm", tqdm=lambda each: each)
    models = module("models")
    models.__path__ = [os.path.join(PEER, "models")]
    made["models"] = models
    return made


@pytest.fixture(scope="module")
def peer() -> Iterator[Any]:
    """The checkout's ``diffusion``, ``dit`` and ``noise_schedule``."""
    importlib.import_module("torch._dynamo")  # which looks at the real modules
    kept = dict(sys.modules)
    flags = (torch._C._jit_set_profiling_mode(True), torch._C._jit_set_profiling_executor(True))
    sys.modules.update(_stand_ins())
    sys.path.insert(0, PEER)
    try:
        dit = importlib.import_module("models.dit")
        yield SimpleNamespace(
            dit=dit,
            diffusion=importlib.import_module("diffusion"),
            noise_schedule=importlib.import_module("noise_schedule"),
        )
    finally:
        sys.path.remove(PEER)
        for name in set(sys.modules) - set(kept):
            if name.split(".")[0] in ("models", "diffusion", "noise_schedule", *_stand_ins()):
                del sys.modules[name]
        sys.modules.update(kept)
        torch._C._jit_set_profiling_mode(flags[0])
        torch._C._jit_set_profiling_executor(flags[1])


def theirs_with(
    peer: Any, shape: Shape, block: int, backbone: nn.Module | None = None, **training: Any
) -> Any:
    """Their ``Diffusion`` with what its loss reads, as configs/algo/bd3lm.yaml has it but for
    ``ignore_bos``: rows here begin with their text."""
    made = peer.diffusion.Diffusion.__new__(peer.diffusion.Diffusion)
    nn.Module.__init__(made)
    made.config = SimpleNamespace(
        training=SimpleNamespace(**{"resample": True, **training}),
        algo=SimpleNamespace(name="bd3lm", fix_clipping=False),
        model=SimpleNamespace(length=shape.sequence),
    )
    made.backbone, made.noise = backbone, peer.noise_schedule.LogLinearNoise()
    made.vocab_size, made.mask_index = shape.vocab_size, shape.vocab_size - 1
    made.block_size, made.num_tokens = block, shape.sequence
    made.parameterization, made.time_conditioning, made.cross_attn = "subs", False, True
    made.ignore_bos, made.mdlm_loss_scale, made.neg_infinity = False, False, -1e6
    return made


class SameDraws:
    """``torch.rand`` of (rows, tokens): the k-th call gives each row's k-th draw of ours."""

    def __init__(self, draws: RowSelection) -> None:
        self._rows = [np.random.default_rng([draws.seed, draws.group, 1 + r]) for r in draws.rows]
        self.calls = 0

    def __call__(self, rows: int, tokens: int, device: Any = None) -> Tensor:
        self.calls += 1
        each = [chance.random(tokens, dtype=np.float32) for chance in self._rows]
        return torch.from_numpy(np.stack(each))


# -- resample ------------------------------------------------------------------------------------


@needs_peer
@pytest.mark.parametrize("block", [2, 4, 16])
def test_resampled_masks_are_theirs(peer: Any, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shape, drawn_again = SHAPE, 0
    theirs = theirs_with(peer, shape, block)
    x = tokens(32)
    for number, span in enumerate(SPANS):
        draws = RowSelection(3, number, range(32), 32)
        at = times_of_tokens(draws, span, shape.sequence // block, block)
        same = SameDraws(draws)
        monkeypatch.setattr(torch, "rand", same)
        noisy = theirs.q_xt(
            x, at, sampling_eps_min=torch.tensor(span.low), sampling_eps_max=torch.tensor(span.high)
        )
        monkeypatch.undo()
        assert torch.equal(hidden_within(draws, at, block, span), noisy == theirs.mask_index), span
        drawn_again += same.calls - 1
    assert drawn_again > len(CLIPPED)


@pytest.mark.parametrize("block", [2, 5])
@pytest.mark.parametrize("span", SPANS, ids=str)
def test_every_block_has_a_share_within_the_span(block: int, span: Span) -> None:
    draws, blocks = RowSelection(1, 2, range(200), 200), 6
    at = times_of_tokens(draws, span, blocks, block)
    hidden = hidden_within(draws, at, block, span)
    share = hidden.view(-1, block).float().mean(dim=1)
    if span.low > LEAST:
        assert float(share.min()) >= span.low - 1e-6
    else:
        assert not float(share.min()), "blocks with nothing hidden stay where times begin at 0"
    if span.high < 1.0:
        assert float(share.max()) <= span.high + 1e-6
    first = masked_diffusion.thresholds(draws, blocks * block) < at
    kept = first.view(-1, block).float().mean(dim=1)
    low = span.low - 1e-6 if span.low > LEAST else 0.0
    within = ((kept >= low) & (kept <= span.high + 1e-6)).repeat_interleave(block)
    assert torch.equal(hidden.flatten()[within], first.flatten()[within]), "those stay as drawn"
    if span == WHOLE:
        assert within.all()
    for rows in ([7], [150, 3]):
        part = draws._replace(rows=rows)
        assert torch.equal(hidden_within(part, at[rows], block, span), hidden[rows])


def test_training_resamples_and_an_evaluation_does_not() -> None:
    x, draws = tokens(64), RowSelection(5, 0, range(64), 64)
    models = [BlockDiffusion(SHAPE, BLOCK, resample=each) for each in (False, True)]
    for model in models:
        model.initialise(0)
        model.span = Span(0.3, 0.8)
    plain, again = (model.evaluate(x, x, draws) for model in models)
    assert torch.equal(plain, again)
    with torch.no_grad():
        shares = [
            (model._bound(x, draws, model.span) > 0).view(-1, BLOCK).float().mean(dim=1)
            for model in models
        ]
    assert float(shares[0].min()) == 0.0
    assert float(shares[0].max()) == 1.0
    assert set(shares[1].tolist()) == {0.5, 0.75}
    with pytest.raises(UsageError, match="resample needs blocks of two tokens"):
        BlockDiffusion(SHAPE, 1, resample=True)


# -- adaLN ---------------------------------------------------------------------------------------


def disturbed(shape: Shape, block: int) -> AdaptiveDiffusion:
    return shaken(AdaptiveDiffusion(shape, block, resample=True), initial=0, seed=1)


def their_backbone(peer: Any, model: AdaptiveDiffusion) -> Any:
    """Their DIT with the weights of ours. What ours has not is neutral: the weights of norms are 1,
    biases of the MLPs and the head 0."""
    shape = model.shape
    config = SimpleNamespace(
        algo=SimpleNamespace(parameterization="subs", cross_attn=True),
        block_size=model.block,
        loader=SimpleNamespace(eval_batch_size=1),
        model=SimpleNamespace(
            length=shape.sequence, hidden_size=shape.width, cond_dim=CONDITION_WIDTH,
            n_heads=shape.heads, n_blocks=shape.depth, dropout=0.0, tie_word_embeddings=True,
            attn_backend="sdpa", causal_attention=False,
        ),
    )  # fmt: skip
    theirs = peer.dit.DIT(config, shape.vocab_size)
    named = dict(theirs.named_parameters())
    mapped = their_names(model, {name: p.detach() for name, p in model.named_parameters()})
    mapped["vocab_embed.embedding"] = model.norm(mapped["vocab_embed.embedding"])
    with torch.no_grad():
        for name, parameter in named.items():
            if name in mapped:
                parameter.copy_(mapped[name])
            else:
                neutral = 1.0 if ".norm" in name else 0.0
                assert neutral or name.endswith((".mlp.0.bias", ".mlp.2.bias", "linear.bias")), name
                parameter.fill_(neutral)
    assert set(mapped) <= set(named)
    return theirs


def their_names(model: AdaptiveDiffusion, ours: dict[str, Tensor]) -> dict[str, Tensor]:
    """Map our tensors (weights or gradients, by our names) to the published code's names. Its RoPE
    rotates the other way: the second half of each query's and key's channels is negated."""
    made = {
        "vocab_embed.embedding": ours["embedding.weight"],
        "output_layer.linear.weight": ours["head.weight"],
    }
    for part in ("weight", "bias"):
        made[f"output_layer.adaLN_modulation.{part}"] = ours[f"last_modulation.{part}"]
        for layer in (0, 2):
            made[f"sigma_map.mlp.{layer}.{part}"] = ours[f"time.{layer}.{part}"]
    for number in range(model.shape.depth):
        at = f"blocks.{number}"
        turned = ours[f"{at}.qkv.weight"].clone().unflatten(0, (3, model.shape.heads, 2, -1))
        turned[:2, :, 1] *= -1
        made[f"{at}.attn_qkv.weight"] = turned.flatten(0, 3)
        made[f"{at}.attn_out.weight"] = ours[f"{at}.mix.weight"]
        made[f"{at}.mlp.0.weight"] = ours[f"{at}.up.weight"]
        made[f"{at}.mlp.2.weight"] = ours[f"{at}.down.weight"]
        for part in ("weight", "bias"):
            made[f"{at}.adaLN_modulation.{part}"] = ours[f"{at}.modulation.{part}"]
    count = len(made)
    assert count == len(ours), "every parameter of ours is compared"
    return made


@needs_peer
@pytest.mark.parametrize("span", [WHOLE, Span(0.3, 0.8), Span(LEAST, 0.5), Span(0.5, 1.0)], ids=str)
@pytest.mark.parametrize("block", [2, 4, 8])
def test_loss_and_gradients_are_theirs(
    peer: Any, block: int, span: Span, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = disturbed(TANH, block)
    theirs = theirs_with(peer, TANH, block, their_backbone(peer, model))
    theirs.sampling_eps_min = torch.tensor(span.low)
    theirs.sampling_eps_max = torch.tensor(span.high)
    model.span = span
    x, draws = tokens(6, TANH), RowSelection(2, 9, range(6), 6)
    loss = model.loss(x, x, draws).loss
    loss.backward()
    at = times_of_tokens(draws, span, TANH.sequence // block, block)
    monkeypatch.setattr(theirs, "_sample_t", lambda *given: at)
    monkeypatch.setattr(torch, "rand", SameDraws(draws))
    their_loss = theirs._loss(x, torch.ones_like(x)).loss
    monkeypatch.undo()
    their_loss.backward()
    assert loss.item() == pytest.approx(their_loss.item(), abs=1e-4)

    # Our model normalises the embedding; the published model is given the normalised rows, and the
    # gradient with respect to these is passed on through our norm.
    named = dict(theirs.backbone.named_parameters())
    normed = model.norm(model.embedding.weight)
    [of_table] = torch.autograd.grad(
        normed, model.embedding.weight, named["vocab_embed.embedding"].grad
    )
    gradients = {}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        gradients[name] = parameter.grad
    worst = 0.0
    for name, mine in their_names(model, gradients).items():
        other = of_table if name == "vocab_embed.embedding" else named[name].grad
        assert float(other.norm()) > 1e-3, name
        relative = float((mine - other).norm() / other.norm())
        worst = max(worst, relative, float((mine - other).abs().max()))
    print(f"loss {loss.item():.6f} and {their_loss.item():.6f}; gradients within {worst:.1e}")
    assert worst <= 1e-4


def settings_of(**changes: Any) -> Settings:
    kind = {"dtype": "float32", "compile": False, "conditioning": "adaln"}
    found = made.settings_of("bd3lm", "train", **{**kind, **changes})
    assert isinstance(found, Settings)
    return found


@pytest.mark.parametrize("conditioning", ["none", "adaln"])
@pytest.mark.parametrize("tied", [False, True])
def test_a_plan_counts_its_parameters(conditioning: str, tied: bool) -> None:
    settings = settings_of(
        depth=3, width=64, head_dim=16, vocab_size=100, conditioning=conditioning, tied=tied
    )
    model = build(settings, torch.device("cpu"))
    assert sum(p.numel() for p in model.parameters()) == settings.work().parameters
    assert isinstance(model, AdaptiveDiffusion) == (conditioning == "adaln")


def test_blocks_of_one_token_cannot_be_resampled() -> None:
    settings_of(resample=True, block=2, rows="padded").check()
    with pytest.raises(UsageError, match="resample needs larger ones") as error:
        settings_of(resample=True, block=1, rows="padded").check()
    assert error.value.next_step == "--set resample=false"
    with pytest.raises(UsageError, match="conditioning"):
        settings_of(conditioning="time", rows="padded").check()


def test_a_plan_counts_what_modulation_keeps() -> None:
    both = [predict_memory(settings_of(conditioning=each), 1) for each in ("none", "adaln")]
    assert both[1].activations > both[0].activations
    assert both[1].weights > both[0].weights
    assert both[1].logits == both[0].logits


def test_gates_that_start_shut_are_opened_by_learning() -> None:
    def chain(rows: int, seed: int) -> Tensor:
        starts = torch.randint(20, (rows, 1), generator=torch.Generator().manual_seed(seed))
        return (starts + torch.arange(TANH.sequence)) % 20 + 1

    def bound() -> float:
        draws = RowSelection(7, 0, range(64), 64)
        with torch.no_grad():
            return float(model.evaluate(chain(64, 99), chain(64, 99), draws).mean())

    model = AdaptiveDiffusion(TANH, BLOCK)
    model.initialise(0)
    before = bound()
    adam = torch.optim.Adam(model.parameters(), 1e-2)
    for step in range(150):
        x = chain(16, step)
        model.loss(x, x, RowSelection(0, step, range(16), 16)).loss.backward()
        adam.step()
        adam.zero_grad()
    for block in model.blocks:
        assert isinstance(block, AdaptiveBlock)
        assert bool(block.modulation.weight.any())
    assert bound() < 0.6 * before
    kinds = {name: group.kind for name, group in model.parameter_groups().items()}
    assert kinds["blocks.0.modulation.bias"] == kinds["time.0.bias"] == SCALAR
    assert kinds["last_modulation.weight"] == SCALAR
    assert kinds["blocks.0.up.weight"] == MATRIX


@torch.no_grad()
def test_a_block_is_denoised_as_it_is_trained() -> None:
    model, x = disturbed(TANH, BLOCK), tokens(1)
    noisy = x.masked_fill(torch.arange(TANH.sequence) % 3 == 0, model.mask_id)
    trained = model._logits(model._noisy_states(noisy, x))
    cache = Cache(TANH.sequence)
    for start in range(0, TANH.sequence, BLOCK):
        here = slice(start, start + BLOCK)
        asked = model.denoise(noisy[:, here], cache, keep=False)
        torch.testing.assert_close(asked, trained[:, here], atol=1e-4, rtol=1e-4)
        model.denoise(x[:, here], cache, keep=True)


# -- the clip interval ---------------------------------------------------------------------------


def losses(draws: RowSelection, blocks: int, seed: int) -> Tensor:
    """(rows, tokens) nats of a row's tokens, one batch's unlike another's, with a spread that
    depends on the time in a way of its own for each seed."""
    generator = torch.Generator().manual_seed(seed)
    rows, tokens = len(draws.rows), blocks * BLOCK
    at = times_of_tokens(draws, WHOLE, blocks, BLOCK)
    least = torch.rand((), generator=generator)
    spread = 0.2 + (at - least).abs() * torch.rand((), generator=generator)
    level = torch.randn(rows // BATCH_ROWS + 1, generator=generator) * 3
    noise = torch.randn(rows, tokens, generator=generator).abs() + 1
    return noise * spread + level.repeat_interleave(BATCH_ROWS)[:rows, None]


@needs_peer
def test_the_chosen_interval_is_theirs(peer: Any) -> None:
    model = BlockDiffusion(SHAPE, BLOCK)
    blocks, chosen = SHAPE.sequence // BLOCK, set()
    for seed in range(60):
        rows = (300, 1000, 1300)[seed % 3]
        draws = RowSelection(seed, 0, range(rows), rows)
        nats = losses(draws, blocks, seed)
        x = tokens(rows)
        model.span = WHOLE
        model.adapt(tallied_in_parts(model, nats, x, draws, 77))

        theirs = theirs_with(peer, SHAPE, BLOCK)
        theirs.device, theirs.all_gather = torch.device("cpu"), lambda each: each
        theirs.log = lambda *given, **named: None
        theirs.sampling_eps_min, theirs.sampling_eps_max = torch.zeros(()), torch.zeros(())
        at = masked_diffusion.times(draws, blocks, WHOLE)
        each = nats.view(rows, blocks, BLOCK).mean(-1)
        batches = list(zip(each.split(BATCH_ROWS), at.split(BATCH_ROWS), strict=True))
        theirs.metrics = SimpleNamespace(
            valid_vars={
                span: [n[(t >= span.low) & (t <= span.high)] for n, t in batches] for span in SPANS
            }
        )
        theirs._clipped_schedule_search()
        their_span = (theirs.sampling_eps_min.item(), theirs.sampling_eps_max.item())
        assert model.span == pytest.approx(their_span, abs=1e-6), seed
        chosen.add(model.span)
    print(f"{len(chosen)} intervals were chosen")
    assert len(chosen) >= 6


def tallied_in_parts(
    model: BlockDiffusion, nats: Tensor, x: Tensor, draws: RowSelection, size: int
) -> list[float]:
    made = [
        model.tallied(nats[None, start : start + size], x[start : start + size],
                      draws._replace(rows=draws.rows[start : start + size]))
        for start in range(0, draws.of, size)
    ]  # fmt: skip
    return torch.stack(made).sum(dim=0).tolist()


def test_batches_are_rows_numbers_and_not_micro_batches() -> None:
    model = BlockDiffusion(SHAPE, BLOCK)
    draws = RowSelection(4, 0, range(1100), 1100)
    nats, x = losses(draws, 4, 4), tokens(1100)
    whole = torch.tensor(tallied_in_parts(model, nats, x, draws, 1100))
    assert whole.shape == (3 * 3 * len(SPANS),)
    assert whole.view(3, 3, -1)[:, 0, 0].tolist() == [512 * 4, 512 * 4, 76 * 4]
    for size in (1, 300, 512):
        torch.testing.assert_close(
            torch.tensor(tallied_in_parts(model, nats, x, draws, size)), whole
        )
    many = RowSelection(4, 0, [0, 100 * BATCH_ROWS], 101 * BATCH_ROWS)
    told = model.tallied(nats[None, :2], x[:2], many)
    assert told.shape == (100 * 3 * len(SPANS),)
    assert int(told.view(100, 3, -1)[:, 0, 0].sum()) == 4, "a batch too many is left out"


def test_a_batchs_level_is_no_variance() -> None:
    """One span has two batches of little spread, far from each other; the others have more."""
    sums = np.zeros((2, 3, len(SPANS)))
    sign = np.resize([-1.0, 1.0], 100)
    for batch, level in enumerate((0.0, 10.0)):
        for span in range(len(SPANS)):
            each = level + 0.1 * sign if span == 7 else 2.0 * sign
            sums[batch, :, span] = 100, each.sum(), (each**2).sum()
    assert masked_diffusion.least_variance(sums.flatten().tolist()) == SPANS[7]
    pooled = sums.sum(axis=0)  # as a manifest of an earlier version holds them
    assert masked_diffusion.least_variance(pooled.flatten().tolist()) == SPANS[0]
