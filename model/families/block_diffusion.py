"""Block diffusion (BD3-LM, Arriola et al. 2025): blocks one after the other, each out of noise.

A row x of T tokens is cut into blocks. For each a time t is drawn and each of its tokens hidden
with probability t; the net sees the hidden row beside the clean one (``block_mask``), and predicts
what is hidden. With N tokens that are no padding,

    loss = 1/N · Σ over hidden tokens of −ln p(x) / t

which over t in [0, 1] is a bound from above on the nats of a token (NELBO). What is visible is
copied, and the mask itself never predicted (SUBS, Sahoo et al. 2024): so neither costs anything.

The blocks are the dense transformer's. They are not told the time: a hidden token's distribution
given the visible ones does not depend on it (Ou et al. 2024), and BD3-LM switches it off, too.
"""

from __future__ import annotations

from typing import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from model.data.batch import Draws
from model.data.padding import PAD
from model.families import block_mask, noise
from model.families.attention import FLEX, LEAST_FLEX_HEAD, Mask, why_not_flex
from model.families.block_sampling import generate
from model.families.cache import Cache
from model.families.dense import Block, Transformer
from model.families.dense_shape import Shape
from model.families.noise import WHOLE, Span
from model.families.protocol import Objective, Sampling
from model.precision import DTYPES, Left
from trmcloud.core.errors import UsageError
from trmcloud.core.spec.recipe import PhaseRecipe


def build(settings: PhaseRecipe, device: torch.device) -> BlockDiffusion:
    """Raises: UsageError: settings that cannot go together."""
    shape = Shape.of(settings)
    return BlockDiffusion(shape, settings.block, DTYPES[settings.dtype]).to(device)


class BlockDiffusion(Transformer):
    """The model of this module's docstring. Its last id is the mask."""

    margin = 0.1
    """``evaluate`` draws one time a block: on some thousand tokens that is some percent off."""
    block_of: Tensor

    def __init__(
        self, shape: Shape, block: int, compute_dtype: torch.dtype = torch.float32
    ) -> None:
        """
        Raises:
            UsageError: blocks that do not divide the sequence.
        """
        if shape.sequence % block:
            raise UsageError(f"blocks of {block} do not divide a sequence of {shape.sequence}")
        super().__init__(shape, compute_dtype)
        self.block, self.mask_id = block, shape.vocab_size - 1
        self.span = WHOLE
        """Times that training draws from."""
        lengths = [block] * (shape.sequence // block)
        self.register_buffer("block_of", block_mask.blocks_of(lengths), persistent=False)
        for each in self.blocks:
            assert isinstance(each, Block)
            each.attention_dropout = 0.0  # FlexAttention has none, and a CPU learns the same
        self._seen: dict[torch.device, Mask] = {}
        self._has_flex = shape.head_dim >= LEAST_FLEX_HEAD

    def settle_attention(self) -> Sequence[Left]:
        shape, device = self.shape, self.embedding.weight.device
        if not self._wants_rule(device):
            return ()
        why = why_not_flex(shape.heads, shape.head_dim, self.compute_dtype, device)
        self._has_flex, self._seen = not why, {}
        return (Left(FLEX, f"{why}; SDPA by a table takes its place"),) if why else ()

    def loss(self, ids: Tensor, targets: Tensor, draws: Draws | None = None) -> Objective:
        nats = self._bound(targets, draws or Draws.alone(len(targets)), self.span)
        mean = nats.sum() / (targets != PAD).sum().clamp_min(1)
        return Objective(mean, mean.unsqueeze(0), {})

    def evaluate(self, ids: Tensor, targets: Tensor, draws: Draws | None = None) -> Tensor:
        with self._without_dropout():
            return self._bound(targets, draws or Draws.alone(len(targets)), WHOLE).unsqueeze(0)

    def tallied(self, nats: Tensor, targets: Tensor, draws: Draws) -> Tensor:
        at = noise.times(draws, self._blocks, WHOLE).to(nats.device)
        there = targets != PAD
        shape = (len(targets), self._blocks)
        sums = torch.zeros(shape, dtype=torch.float64, device=nats.device)
        sums.index_add_(1, self.block_of, nats[-1].double())
        lengths = torch.zeros_like(sums).index_add_(1, self.block_of, there.double())
        known = lengths > 0
        return noise.tally(sums[known] / lengths[known], at[known])

    def adapt(self, tallies: Sequence[float]) -> None:
        self.span = noise.least_variance(tallies) or self.span

    def get_extra_state(self) -> Tensor:
        """The span goes with the weights: a run that is resumed draws from the same one."""
        return torch.tensor(self.span, dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        low, high = (float(each) for each in state)
        self.span = Span(low, high)

    def generate(self, start: Sequence[int], sampling: Sampling) -> Iterator[int]:
        return generate(self, start, sampling, self.embedding.weight.device)

    @torch.no_grad()
    def denoise(self, ids: Tensor, cache: Cache, *, keep: bool) -> Tensor:
        """Logits (B, new, V − 1) of one block's tokens, ``cache`` holding the finished blocks
        before it; ``keep``: this one is finished, and is taken up, too."""
        new = ids.shape[1]
        turn = self._turn(slice(cache.length, cache.length + new), ids.device)
        cache.begin(new)
        h = self._embedded(ids)
        for layer, block in enumerate(self.blocks):
            h = block(h, turn, None, None, cache.slot(layer))
        if keep:
            cache.end()
        return self._logits(h)

    def diagnostics(self, nats: Sequence[float]) -> Mapping[str, float]:
        return {"mask_from": self.span.low, "mask_to": self.span.high}

    @property
    def _blocks(self) -> int:
        return self.shape.sequence // self.block

    def _bound(self, targets: Tensor, draws: Draws, span: Span) -> Tensor:
        """(B, T) what each token adds to the bound: 0 where it is visible, or padding."""
        device = targets.device
        at = noise.times(draws, self._blocks, span).to(device)[:, self.block_of]
        hidden = noise.thresholds(draws, self.sequence).to(device) < at
        there = targets != PAD
        clean = targets.where(there, self.mask_id)
        noisy = clean.masked_fill(hidden, self.mask_id)
        nats = self._nats_of(self._noisy_states(noisy, clean), targets)
        return nats * (hidden & there) / at

    def _noisy_states(self, noisy: Tensor, clean: Tensor) -> Tensor:
        """(B, T, D) of the noisy half after the last block."""
        cosines, sines = self._turn(slice(self.sequence), noisy.device)
        turn = torch.cat((cosines, cosines)), torch.cat((sines, sines))
        mask = self._mask(noisy.device)
        h = self._embedded(torch.cat((noisy, clean), dim=1))
        for layer in range(len(self.blocks)):
            h = self._through(layer, h, turn, mask)
        return h[:, : self.sequence]

    def _embedded(self, ids: Tensor) -> Tensor:
        return self.norm(self.embedding(ids)).to(self.compute_dtype)

    def _head_rows(self) -> Tensor:
        return super()._head_rows()[: self.mask_id]

    def _wants_rule(self, device: torch.device) -> bool:
        return device.type == "cuda"

    def _mask(self, device: torch.device) -> Mask:
        if device not in self._seen:
            by_rule = self._wants_rule(device) and self._has_flex
            made = block_mask.tiles if by_rule else block_mask.table
            self._seen[device] = made(self.block_of)
        return self._seen[device]
