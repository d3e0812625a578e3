"""nanochat's transformers: the dense shape, and what nanochat has added to it since.

With ``architecture = "nanochat-2026"`` (nanochat 92d63d4 of 2026-07-03), e the normalised
embedding and λ, μ, σ, β learned scalars:

    x = e + σ·sigmoid(g·e[:24])·e of the token before         (smear)
    for every layer i:  x = λᵢ·x + μᵢ·e;  x += Attention(norm(x));  x += MLP(norm(x))
    loss = cross-entropy(head(norm(x − β·x of the middle layer)), targets)     (backout)

Queries and keys are 1.2 times their norm, RoPE's base is 10⁵, and a value embedding's gate reads 12
channels and lets in up to three times.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from model.families import dense
from model.families.cache import Cache
from model.families.dense import Block, Dense, Shape
from model.families.nanochat.plan import GATE_INPUTS, SMEAR_INPUTS
from model.families.protocol import EMBEDDING, MATRIX, RESIDUAL, SMEAR, START, VALUES, Group
from model.machine.precision import DTYPES
from model.machine.tensors import local, span_of
from trmcloud.core.spec.settings import NANOCHAT, PhaseRecipe

_EMBEDDING_STD, _HEAD_STD, _UP_SCALE, _GATE_MOST = 0.8, 0.001, 0.4, 0.02
_BACKOUT = 0.2


def build(settings: PhaseRecipe, device: torch.device) -> Dense:
    """Raises: UsageError: settings that cannot go together."""
    if settings.update_rules != NANOCHAT:
        return dense.build(settings, device)
    return Nanochat(Shape.of(settings), DTYPES[settings.dtype]).to(device)


class NanochatBlock(Block):
    gate_inputs = GATE_INPUTS
    gate_most = 3.0
    qk_scale = 1.2

    def _forward(self, h: Tensor, *given: Any) -> Tensor:
        """``given`` ends with the embedding (B, T, D), the state's scalar and the embedding's."""
        *given_block, start, keep, mix = given
        return super()._forward(keep * h + mix * start, *given_block)


class Nanochat(Dense):
    """The model of this module's docstring."""

    block_class = NanochatBlock
    rope_base = 1e5

    def __init__(self, shape: Shape, compute_dtype: torch.dtype = torch.float32) -> None:
        super().__init__(shape, compute_dtype)
        self.steps_alone = False
        self.keeps = nn.Parameter(torch.ones(shape.depth))
        self.mixes = nn.Parameter(torch.zeros(shape.depth))
        self.smear_gate = nn.Linear(min(SMEAR_INPUTS, shape.width), 1, bias=False)
        self.smear = nn.Parameter(torch.zeros(1))
        self.backout = nn.Parameter(torch.full((1,), _BACKOUT))

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """As nanochat does: matrices are uniform, with std 1/√width; what writes into the residual
        stream starts at zero. Early layers keep more of the state and mix in more of the embedding.
        """
        generator = torch.Generator().manual_seed(seed)
        for name, weight in self.named_parameters():
            made = self._fresh(name, weight.shape, generator)
            local(weight).copy_(made[slice(*span_of(weight))])

    def _fresh(self, name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
        made, (first, *_) = torch.zeros(shape), name.split(".")
        if first in ("embedding", "head"):
            std = _EMBEDDING_STD if first == "embedding" else _HEAD_STD
            return made.normal_(0.0, std, generator=generator)
        if first in ("keeps", "mixes"):
            begin, fall = (1.15, 0.10) if first == "keeps" else (0.20, 0.15)
            return begin - fall * torch.arange(shape[0]) / max(shape[0] - 1, 1)
        if first == "backout":
            return made.fill_(_BACKOUT)
        if first == "smear" or ".mix." in name or ".down." in name:
            return made
        if first == "smear_gate" or ".value_gate." in name:
            return made.uniform_(0.0, _GATE_MOST, generator=generator)
        most = (3.0 / self.shape.width) ** 0.5 * (_UP_SCALE if ".up." in name else 1.0)
        return made.uniform_(-most, most, generator=generator)

    def parameter_groups(self) -> Mapping[str, Group]:
        small = {
            "keeps": RESIDUAL,
            "mixes": START,
            **dict.fromkeys(("smear_gate", "smear", "backout"), SMEAR),
            "values": VALUES,
            "embedding": EMBEDDING,
        }
        groups = dict(super().parameter_groups())
        for name in groups:
            if (first := name.split(".")[0]) in small:
                groups[name] = Group(small[first])
            elif ".value_gate." in name:
                groups[name] = Group(MATRIX)
        return groups

    def _state(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        h, turn = self._embed(ids, cache)
        start = h = self._smear(h, cache)
        middle = h
        scalars = zip(self.keeps.unbind(), self.mixes.unbind(), strict=True)
        passes = zip(self._passes(ids, turn, cache), scalars, strict=True)
        for layer, ((block, given), (keep, mix)) in enumerate(passes):
            h = block(h, *given, start, keep, mix)
            if layer == self.shape.depth // 2:
                middle = h
        return h - self.backout.to(h.dtype) * middle

    def _smear(self, h: Tensor, cache: Cache | None) -> Tensor:
        """(B, T, D) with some of the token before in each token; the first has none before it."""
        if cache is None:
            if h.shape[1] == 1:
                return h
            return torch.cat((h[:, :1], h[:, 1:] + self._smeared(h[:, 1:], h[:, :-1])), dim=1)
        # The cache keeps embeddings as it does keys: of each text, those of its tokens so far.
        kept, _ = cache.slot(SMEAR).extend(h.unsqueeze(1), h.unsqueeze(1))
        before = (cache.places(h.device) - 1).expand(len(h), h.shape[1])
        rows = torch.arange(len(h), device=h.device).unsqueeze(1)
        previous = kept[:, 0][rows, before.clamp_min(0)]
        return h + self._smeared(h, previous) * (before >= 0).unsqueeze(-1)

    def _smeared(self, h: Tensor, previous: Tensor) -> Tensor:
        gate = torch.sigmoid(self.smear_gate(h[..., : self.smear_gate.in_features]))
        return self.smear.to(h.dtype) * gate.to(h.dtype) * previous
