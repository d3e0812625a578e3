"""Hierarchical diffusion: to a question a plan, then an execution, each brought out of noise whole.

A row is a question of up to Q tokens, a plan of up to P and an execution of up to E, each with an
end. Plan and execution are the blocks of block diffusion, of their own lengths; the question is
given, goes in clean alone, and costs nothing:

    [noisy plan ; noisy execution ; clean question ; clean plan]

A noisy plan sees the question, a noisy execution the question and the clean plan, and neither the
other; the clean execution is before nothing, so it is left out. The mask of the guide's source
(a key's segment is not behind the query's, beside block diffusion's mask) hides nothing there that
block diffusion's alone does not: here the segments themselves are the blocks.

The end fills its segment, since how long a text is must be learnt, too. Behind an end there is only
more of it, so where one is visible all behind it is, and costs nothing; the sampler does the same.
What an end costs is added to the last token before it, so the loss

    1/N · Σ over plan and execution of −ln p(x) / t

is a bound on all of both, their lengths included, with N tokens and ends.
"""

from __future__ import annotations

from typing import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from model.data.batch import RowSelection
from model.data.packing import GIVEN, PAD
from model.families import masked_diffusion
from model.families.cache import Cache
from model.families.dense import Shape
from model.families.hdp.plan import Settings
from model.families.masked_diffusion import (
    MaskedDiffusion,
    RowPlaces,
    Span,
    blocks_of,
    uncover_block,
)
from model.families.protocol import Sampling
from model.machine.precision import DTYPES
from trmcloud.core.errors import DataError, UsageError


def build(settings: Settings, device: torch.device) -> PlanDiffusion:
    """Raises: UsageError: settings that cannot go together."""
    shape = Shape.of(settings)
    return PlanDiffusion(shape, settings.segments, DTYPES[settings.dtype]).to(device)


class PlanDiffusion(MaskedDiffusion):
    """The model of this module's docstring. Its last id is the mask."""

    margin = 0.25
    """Fresh weights have no idea of ends, and each costs several tokens then."""
    parts = ("plan", "execution")
    seen_of: Tensor
    """(S,) the segment of each place that goes in: 0 the question's, 1 the plan's, 2 the last."""
    at: Tensor
    """(S,) its place in the row."""

    def __init__(
        self,
        shape: Shape,
        segments: tuple[int, int, int],
        compute_dtype: torch.dtype = torch.float32,
    ) -> None:
        """
        Args:
            segments: Q, P and E.

        Raises:
            UsageError: they do not make up the sequence.
        """
        if sum(segments) != shape.sequence:
            told = ", ".join(map(str, segments))
            raise UsageError(f"segments of {told} do not add up to a sequence of {shape.sequence}")
        super().__init__(shape, segments[1:], compute_dtype)
        self.segments = segments
        question = segments[0]
        row, segment_of = torch.arange(shape.sequence), blocks_of(segments)
        clean = slice(question + segments[1])
        self.register_buffer("at", torch.cat((row[question:], row[clean])), persistent=False)
        seen = torch.cat((segment_of[question:], segment_of[clean]))
        self.register_buffer("seen_of", seen, persistent=False)

    @property
    def most_given(self) -> int:
        return self.segments[0]

    def generate(self, start: Sequence[int], sampling: Sampling) -> Iterator[int]:
        """The plan's ids, the id that ends it, and the execution's.

        Raises:
            DataError: the question is longer than its segment.
        """
        question = list(start[1:] if start[:1] == [sampling.stop] else start)
        room = self.segments[0] - 1
        if len(question) > room:
            raise DataError(
                f"the prompt has {len(question)} tokens; a question may have at most {room}"
            )
        device = self.embedding.weight.device
        generator = torch.Generator(device).manual_seed(sampling.seed)
        cache = Cache(self.sequence)
        block = question + [sampling.stop] * (self.segments[0] - len(question))
        left = sampling.max_tokens
        for number, length in enumerate(self.segments[1:]):
            self.denoise(torch.tensor([block], device=device), cache, keep=True)
            block = uncover_block(self, [], length, cache, sampling, generator, device)
            text = block[: block.index(sampling.stop)] if sampling.stop in block else block
            said = text if number else [*text, sampling.stop]
            yield from said[:left]
            left -= len(said)
            if left <= 0:
                return

    def _bound(self, targets: Tensor, draws: RowSelection, span: Span) -> Tensor:
        """(B, T): 0 for the question, for what is visible and for what lies behind an end."""
        question, device = self.segments[0], targets.device
        clean, ended = self._filled(targets)
        judged, ended = clean[:, question:], ended[:, question:]
        at = masked_diffusion.times(draws, self.timed, span).to(device)[:, self.block_of]
        visible = masked_diffusion.thresholds(draws, judged.shape[1]).to(device) >= at
        hidden = ~(visible | self._behind(visible & ended))
        noisy = judged.masked_fill(hidden, self.mask_id)
        nats = self._nats_of(self._noisy_states(noisy, clean), judged) * hidden / at
        made = torch.zeros_like(targets, dtype=nats.dtype)
        made[:, question:] = self._with_their_ends(nats, ended)
        return made

    def _parts(self, nats: Tensor) -> Mapping[str, Tensor]:
        _, plan, execution = nats.split(self.segments, dim=1)
        return {"plan": plan.sum(), "execution": execution.sum()}

    def _filled(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T) ids with every end up to the end of its segment, and (B, T) where an end is."""
        ids = torch.where(targets <= GIVEN, GIVEN - targets, targets)
        clean, ended = [], []
        for part in ids.split(self.segments, dim=1):
            size = (part != PAD).sum(dim=1, keepdim=True).clamp_min(1)
            end = part.gather(1, size - 1)
            place = torch.arange(part.shape[1], device=part.device)
            ended.append(place >= size - 1)
            clean.append(part.where(place < size, end))
        return torch.cat(clean, dim=1), torch.cat(ended, dim=1)

    def _behind(self, marked: Tensor) -> Tensor:
        """(B, P + E) bool: at or behind a marked place of the same segment."""
        parts = marked.long().split(self.segments[1:], dim=1)
        return torch.cat([part.cummax(dim=1).values for part in parts], dim=1).bool()

    def _with_their_ends(self, nats: Tensor, ended: Tensor) -> Tensor:
        """(B, P + E) nats, those of each segment's end at the last token before it, if any."""
        made = []
        both = zip(
            nats.split(self.segments[1:], dim=1), ended.split(self.segments[1:], dim=1), strict=True
        )
        for part, end in both:
            last = ((~end).sum(dim=1, keepdim=True) - 1).clamp_min(0)
            cost = (part * end).sum(dim=1, keepdim=True)
            made.append((part * ~end).scatter_add(1, last, cost))
        return torch.cat(made, dim=1)

    def _noisy_states(self, noisy: Tensor, clean: Tensor) -> Tensor:
        """(B, P + E, D) after the last block, of (B, P + E) ids beside (B, T) clean ones."""
        question, plan, _ = self.segments
        places = RowPlaces(self.seen_of, noisy.shape[1])
        return self._states(noisy, clean[:, : question + plan], self.at, places)
