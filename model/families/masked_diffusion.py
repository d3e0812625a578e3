"""What the families that bring blocks of tokens out of masks share: times, the mask, the bound's
bookkeeping. ``block_diffusion`` says what is learnt, and why.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Mapping, Sequence

import torch
from torch import Tensor

from model.data.batch import Draws
from model.families import block_mask, noise
from model.families.attention import FLEX, LEAST_FLEX_HEAD, Mask, why_not_flex
from model.families.cache import Cache
from model.families.dense import Block, Transformer
from model.families.dense_shape import Shape
from model.families.noise import WHOLE, Span
from model.families.protocol import Objective
from model.precision import Left


class MaskedDiffusion(Transformer):
    """A dense transformer whose last id is the mask. What of a row is judged lies at its end, in
    blocks that each have a time of their own."""

    margin = 0.1
    """``evaluate`` draws one time a block: on some thousand tokens that is some percent off."""
    block_of: Tensor
    """(judged,) the number of each judged token's block."""

    def __init__(self, shape: Shape, lengths: Sequence[int], compute_dtype: torch.dtype) -> None:
        """
        Args:
            lengths: of the judged blocks.
        """
        super().__init__(shape, compute_dtype)
        self.mask_id = shape.vocab_size - 1
        self.span = WHOLE
        """Times that training draws from."""
        self.timed = len(lengths)
        """Blocks that have a time."""
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
        tokens = (targets >= 0).sum().clamp_min(1)
        mean = nats.sum() / tokens
        parts = {name: part / tokens for name, part in self._parts(nats).items()}
        return Objective(mean, mean.unsqueeze(0), parts)

    def evaluate(self, ids: Tensor, targets: Tensor, draws: Draws | None = None) -> Tensor:
        with self._without_dropout():
            return self._bound(targets, draws or Draws.alone(len(targets)), WHOLE).unsqueeze(0)

    def tallied(self, nats: Tensor, targets: Tensor, draws: Draws) -> Tensor:
        at = noise.times(draws, self.timed, WHOLE).to(nats.device)
        first = self.sequence - len(self.block_of)
        there = targets[:, first:] >= 0
        shape = (len(targets), self.timed)
        sums = torch.zeros(shape, dtype=torch.float64, device=nats.device)
        sums.index_add_(1, self.block_of, nats[-1][:, first:].double())
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

    @abstractmethod
    def _bound(self, targets: Tensor, draws: Draws, span: Span) -> Tensor:
        """(B, T) what each token adds to the bound."""

    def _parts(self, nats: Tensor) -> Mapping[str, Tensor]:
        """Sums of ``nats`` that are told apart."""
        return {}

    def _states(self, noisy: Tensor, clean: Tensor, at: Tensor, seen: block_mask.Places) -> Tensor:
        """(B, noisy, D) of the noisy ids after the last block, the clean ones beside them.

        Args:
            at: (S,) the place in its row of each of them.
        """
        turn = self._turn(at, noisy.device)
        mask = self._mask(seen)
        h = self._embedded(torch.cat((noisy, clean), dim=1))
        for layer in range(len(self.blocks)):
            h = self._through(layer, h, turn, mask)
        return h[:, : noisy.shape[1]]

    def _embedded(self, ids: Tensor) -> Tensor:
        return self.norm(self.embedding(ids)).to(self.compute_dtype)

    def _head_rows(self) -> Tensor:
        return super()._head_rows()[: self.mask_id]

    def _wants_rule(self, device: torch.device) -> bool:
        return device.type == "cuda"

    def _mask(self, places: block_mask.Places) -> Mask:
        device = places.block_of.device
        if device not in self._seen:
            by_rule = self._wants_rule(device) and self._has_flex
            made = block_mask.tiles if by_rule else block_mask.table
            self._seen[device] = made(places)
        return self._seen[device]
