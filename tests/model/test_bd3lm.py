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
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from model.data.batch import RowSelection
from model.families import masked_diffusion
from model.families.bd3lm.model import BlockDiffusion
from model.families.dense import Block, Shape
from model.families.masked_diffusion import LEAST, SPANS, WHOLE, Span, hidden_within
from trmcloud.core.errors import UsageError

PEER = os.environ.get("TRMCLOUD_BD3LM", "")
needs_peer = pytest.mark.skipif(not PEER, reason="opt-in: make bd3lm PEER_PATH=…")

SHAPE = Shape(vocab_size=23, depth=2, width=32, head_dim=16, sequence=16, mlp="gelu", norm="layer")
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


@pytest.mark.parametrize("block", [2, 3, 5, 16])
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
