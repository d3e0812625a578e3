"""Block diffusion (BD3-LM, Arriola et al. 2025): blocks one after the other, each out of noise.

A row x of T tokens is cut into blocks. For each a time t is drawn and each of its tokens hidden
with probability t; the net sees the hidden row beside the clean one (``block_mask``), and predicts
what is hidden. With N tokens that are no padding,

    loss = 1/N · Σ over hidden tokens of −ln p(x) / t

which over t in [0, 1] is a bound from above on the nats of a token (NELBO). What is visible is
copied, and the mask itself never predicted (SUBS, Sahoo et al. 2024): so neither costs anything.

The blocks are the dense transformer's, without the time: a hidden token's distribution given the
visible ones does not depend on it (Ou et al. 2024). The published code (kuleshov-group/bd3lms) has
adaLN (Peebles and Xie 2023), whose input its configuration sets to a time of 0 for every token:
``conditioning = "adaln"``. With c = silu(MLP(cosines and sines of 0)), in every block

    s₁, m₁, g₁, s₂, m₂, g₂ = W·c + b
    x += g₁·Attention(norm(x)·(1 + m₁) + s₁);  x += g₂·MLP(norm(x)·(1 + m₂) + s₂)

and the head reads norm(x)·(1 + m) + s.
"""

from __future__ import annotations

from typing import Any, Iterator, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.data.batch import RowSelection
from model.data.packing import PAD
from model.families import masked_diffusion
from model.families.bd3lm.plan import ADALN, CONDITION_WIDTH, TIME_INPUTS, Settings
from model.families.dense import Block, Shape
from model.families.masked_diffusion import WHOLE, MaskedDiffusion, Span, generate, hidden_within
from model.families.protocol import SCALAR, Group, Sampling
from model.machine.precision import DTYPES
from trmcloud.core.errors import UsageError


def build(settings: Settings, device: torch.device) -> BlockDiffusion:
    """Raises: UsageError: settings that cannot go together."""
    shape = Shape.of(settings)
    dtype = DTYPES[settings.dtype]
    kind = AdaptiveDiffusion if settings.conditioning == ADALN else BlockDiffusion
    return kind(shape, settings.block, dtype, resample=settings.resample).to(device)


class BlockDiffusion(MaskedDiffusion):
    """The model of this module's docstring. Its last id is the mask."""

    def __init__(
        self,
        shape: Shape,
        block: int,
        compute_dtype: torch.dtype = torch.float32,
        *,
        resample: bool = False,
    ) -> None:
        """
        Args:
            resample: hide of each block a share within the span that training is clipped to.

        Raises:
            UsageError: blocks that do not divide the sequence, or have no such share.
        """
        if shape.sequence % block:
            raise UsageError(
                f"a sequence of {shape.sequence} is not a multiple of blocks of {block}"
            )
        super().__init__(shape, [block] * (shape.sequence // block), compute_dtype)
        if resample and block == 1:
            raise UsageError("resample needs blocks of two tokens or more")
        self.block, self.resample = block, resample

    def generate(self, start: Sequence[int], sampling: Sampling) -> Iterator[int]:
        return generate(self, start, sampling, self.embedding.weight.device)

    def _bound(self, targets: Tensor, draws: RowSelection, span: Span) -> Tensor:
        """(B, T) what each token adds to the bound: 0 where it is visible, or padding."""
        device = targets.device
        each = masked_diffusion.times(draws, self.timed, span)
        at = each.to(device)[:, self.block_of]
        if self.resample and span != WHOLE:
            of_tokens = each.repeat_interleave(self.block, dim=1)
            hidden = hidden_within(draws, of_tokens, self.block, span).to(device)
        else:
            hidden = masked_diffusion.thresholds(draws, self.sequence).to(device) < at
        there = targets != PAD
        clean = targets.where(there, self.mask_id)
        noisy = clean.masked_fill(hidden, self.mask_id)
        nats = self._nats_of(self._noisy_states(noisy, clean), targets)
        return nats * (hidden & there) / at

    def _noisy_states(self, noisy: Tensor, clean: Tensor) -> Tensor:
        """(B, T, D) of the noisy half after the last block."""
        row = torch.arange(self.sequence, device=noisy.device)
        return self._states(
            noisy,
            clean,
            torch.cat((row, row)),
            masked_diffusion.noisy_and_clean_places(self.block_of),
        )


class AdaptiveBlock(Block):
    """A block with adaLN; its last argument is the condition (1, CONDITION_WIDTH)."""

    def __init__(self, shape: Shape, layer: int) -> None:
        super().__init__(shape, layer)
        self.modulation = nn.Linear(CONDITION_WIDTH, 6 * shape.width)

    def _forward(self, h: Tensor, *given: Any) -> Tensor:
        *given_block, condition = given
        parts = self.modulation(condition).to(h.dtype).chunk(6, dim=-1)
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = parts
        inner = self.norm(h) * (1 + scale) + shift
        h = h + gate * self._drop(self._attend(inner, *given_block))
        inner = self.norm(h) * (1 + mlp_scale) + mlp_shift
        return h + mlp_gate * self._drop(self._think(inner))


class AdaptiveDiffusion(BlockDiffusion):
    """Block diffusion with adaLN, at a time of 0."""

    block_class = AdaptiveBlock

    def __init__(self, shape: Shape, *given: Any, **named: Any) -> None:
        super().__init__(shape, *given, **named)
        self.time = nn.Sequential(
            nn.Linear(TIME_INPUTS, CONDITION_WIDTH),
            nn.SiLU(),
            nn.Linear(CONDITION_WIDTH, CONDITION_WIDTH),
        )
        self.last_modulation = nn.Linear(CONDITION_WIDTH, 2 * shape.width)

    def parameter_groups(self) -> Mapping[str, Group]:
        groups = dict(super().parameter_groups())
        return {
            name: Group(SCALAR) if "modulation." in name or name.startswith("time.") else group
            for name, group in groups.items()
        }

    def _std(self, name: str, weight: Tensor) -> float:
        """The gates start at zero, so what they let through does not."""
        if "modulation." in name:
            return 0.0
        if name.startswith("time."):
            layer = self.time[int(name.split(".")[1])]
            assert isinstance(layer, nn.Linear)
            return float((3 * layer.in_features) ** -0.5)
        if name.split(".")[-2] in ("mix", "down"):
            return float((3 * weight.shape[1]) ** -0.5)
        return super()._std(name, weight)

    def _given(self) -> tuple[Tensor, ...]:
        return (self._condition(),)

    def _condition(self) -> Tensor:
        """(1, CONDITION_WIDTH) of the time 0, whose cosines are 1 and sines 0."""
        at = torch.zeros(1, TIME_INPUTS, device=self.embedding.weight.device)
        at[:, : TIME_INPUTS // 2] = 1.0
        made: Tensor = F.silu(self.time(at))
        return made

    def _normed(self, state: Tensor) -> Tensor:
        shift, scale = self.last_modulation(self._condition()).to(state.dtype).chunk(2, dim=-1)
        return self.norm(state) * (1 + scale) + shift
