"""FLOPs and parameters against torch's own counter, on modules of the recipes' shapes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from trmcloud.adapters.recipe_files import load_recipe
from trmcloud.core.flops import BACKWARD_FACTOR, muon_flops, work_of
from trmcloud.core.recipe import PhaseRecipe

torch = pytest.importorskip("torch")
F = torch.nn.functional
nn = torch.nn


def settings_of(name: str) -> PhaseRecipe:
    recipe = load_recipe(name)
    phase = next(iter(recipe.phases))
    gpus = int((recipe.reference_hardware or "1x").partition("x")[0])
    return recipe.resolve(phase, hardware=recipe.reference_hardware, gpus=gpus)


def counted(run: Any) -> int:
    """FLOPs of ``run()`` forward and backward, attention as two matmuls over the whole square."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        run().backward()
    return int(counter.get_total_flops())


class Block(nn.Module):  # type: ignore[misc, name-defined]
    """Attention and MLP of one block; ``condition`` adds DiT's modulation."""

    def __init__(self, s: PhaseRecipe, gated: bool, condition: int = 0) -> None:
        super().__init__()
        hidden = s.hidden or 4 * s.width
        self.heads, self.gated = s.heads, gated
        self.qkv = nn.Linear(s.width, 3 * s.width, bias=False)
        self.mix = nn.Linear(s.width, s.width, bias=False)
        self.up = nn.Linear(s.width, hidden * (2 if gated else 1), bias=False)
        self.down = nn.Linear(hidden, s.width, bias=False)
        self.modulate = nn.Linear(condition, 6 * s.width, bias=False) if condition else None

    def forward(self, x: Any, mask: Any = None, condition: Any = None) -> Any:
        batch, length, width = x.shape
        shift = self.modulate(condition)[:, None] if self.modulate is not None else None
        h = x if shift is None else x * (1 + shift[..., :width]) + shift[..., width : 2 * width]
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(h).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        x = x + self.mix(mixed.transpose(1, 2).reshape(batch, length, width))
        if self.gated:
            gate, up = self.up(x).chunk(2, dim=-1)
            return x + self.down(F.silu(gate) * up)
        return x + self.down(F.relu(self.up(x)) ** 2)


class Model(nn.Module):  # type: ignore[misc, name-defined]
    """Plain blocks; diffusion families see [noisy ; clean] and are judged on the noisy half."""

    def __init__(self, s: PhaseRecipe) -> None:
        super().__init__()
        self.diffusion = s.family in ("bd3lm", "hdp")
        condition = 128 if self.diffusion else 0
        self.embed = nn.Embedding(s.vocab_size, s.width)
        self.blocks = nn.ModuleList(
            Block(s, gated=s.family == "gpt", condition=condition) for _ in range(s.depth)
        )
        if self.diffusion:
            self.time = nn.Sequential(
                nn.Linear(256, 128, bias=False), nn.SiLU(), nn.Linear(128, 128, bias=False)
            )
            self.last = nn.Linear(128, 2 * s.width, bias=False)
        self.head = nn.Linear(s.width, s.vocab_size, bias=False)
        if s.tied:
            self.head.weight = self.embed.weight

    def forward(self, ids: Any) -> Any:
        x = self.embed(torch.cat((ids, ids), dim=1) if self.diffusion else ids)
        mask = condition = None
        if self.diffusion:
            mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device)
            condition = self.time(torch.zeros(len(ids), 256, device=x.device))
        for block in self.blocks:
            x = block(x, mask, condition)
        if self.diffusion:
            x = x[:, : ids.shape[1]] * (1 + self.last(condition)[:, None, : x.shape[2]])
        return F.cross_entropy(self.head(x).flatten(0, 1), ids.flatten())


@pytest.mark.parametrize("name", ["gpt350m", "d24", "d64", "bd3lm", "hdp"])
def test_flops_and_parameters_match_torch_at_full_size(name: str) -> None:
    s = settings_of(name)
    batch = 1 if s.family == "nanochat" else 8
    with torch.device("meta"):
        model = Model(s)
        ids = torch.zeros((batch, s.sequence), dtype=torch.long)
        flops = counted(lambda: model(ids))
    work = work_of(s)
    assert flops == pytest.approx(batch * s.sequence * work.train_flops, rel=0.01)
    assert work.parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("control", [False, True])
def test_trm_matches_the_real_module(control: bool) -> None:
    trm = pytest.importorskip("model.families.trm")
    s = dataclasses.replace(settings_of("trm"), control=control)
    with torch.device("meta"):
        model = trm.TRM(trm.Shape.of(s))
        ids = torch.zeros((1, s.sequence), dtype=torch.long)
        flops = counted(lambda: model.losses(ids, ids).sum())
    work = work_of(s)
    assert flops == pytest.approx(s.sequence * work.train_flops, rel=0.01)
    assert work.parameters == sum(p.numel() for p in model.parameters())


def test_the_guides_models_have_their_true_sizes() -> None:
    assert work_of(settings_of("d64")).parameters == pytest.approx(12.9e9, rel=0.01)
    assert work_of(settings_of("d24")).parameters == pytest.approx(0.68e9, rel=0.01)
    assert work_of(settings_of("gpt350m")).parameters == pytest.approx(354e6, rel=0.01)
    assert work_of(settings_of("gpt350m")).train_flops == pytest.approx(2.43e9, rel=0.01)


def test_trm_costs_what_its_formula_says() -> None:
    s = settings_of("trm")
    layers, width, n, loops, vocab, t = 12, 768, 4, 2, 65536, 1024
    formula = 6 * (16 * layers * width**2 * n * (loops + 1) + n * vocab * width)
    formula += 12 * layers * width * t * n * (loops + 1)
    assert work_of(s).train_flops == pytest.approx(formula)
    assert BACKWARD_FACTOR == 3


def test_newton_schulz_is_counted_per_matrix() -> None:
    s = dataclasses.replace(settings_of("trm"), depth=1, width=128, head_dim=128)
    square = 5 * 6 * 128**3
    wide = 5 * (4 * 128 * 128 * 512 + 2 * 128**3)
    assert muon_flops(work_of(s)) == 4 * square + 3 * wide
