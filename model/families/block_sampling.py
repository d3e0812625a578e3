"""Drawing a text block by block, each out of masks; finished ones are kept as keys and values.

Within a block tokens are uncovered one by one. The time at which the next one is may be skipped
over to (first hitting, Zheng et al. 2024), and which one it is is left to chance, each alike: so a
block of n masks takes n passes and no step size.
"""

from __future__ import annotations

from typing import Iterator, Protocol, Sequence

import torch
from torch import Tensor

from model.families.cache import Cache
from model.families.decoding import choose
from model.families.protocol import Sampling


class Denoiser(Protocol):
    """A model that is asked for one block."""

    mask_id: int

    def denoise(self, ids: Tensor, cache: Cache, *, keep: bool) -> Tensor:
        """Logits (B, new, V − 1) of one block's tokens, ``cache`` holding the finished blocks
        before it; ``keep``: this one is finished, and is taken up, too."""
        ...


class InBlocks(Denoiser, Protocol):
    """One whose texts are made of blocks of one length."""

    block: int

    @property
    def sequence(self) -> int: ...


def generate(
    model: InBlocks, start: Sequence[int], sampling: Sampling, device: torch.device
) -> Iterator[int]:
    """What ``model`` says after ``start``, until it ends the text or ``max_tokens`` are drawn. A
    row begins with its text: the id that ends one does not stand before it, too."""
    size, sequence = model.block, model.sequence
    generator = torch.Generator(device).manual_seed(sampling.seed)
    context = list(start[1:] if start[:1] == [sampling.stop] else start)
    cache = Cache(sequence)
    left = sampling.max_tokens
    while left:
        if len(context) >= sequence:
            # Beyond the trained sequence there are no places: go on from the later half.
            kept = sequence // 2 // size * size
            context, cache = context[len(context) - kept :], Cache(sequence)
        while cache.length + size <= len(context):
            block = context[cache.length : cache.length + size]
            model.denoise(torch.tensor([block], device=device), cache, keep=True)
        known = context[cache.length :]
        block = uncovered(model, known, size, cache, sampling, generator, device)
        made = block[len(known) :][:left]
        for token in made:
            if token == sampling.stop:
                return
            yield token
        context += made
        left -= len(made)


def uncovered(
    model: Denoiser,
    known: list[int],
    size: int,
    cache: Cache,
    sampling: Sampling,
    generator: torch.Generator,
    device: torch.device,
) -> list[int]:
    """The next block's ``size`` ids, of which ``known`` are given. After the id that ends the text
    there are only more of it, as in training."""
    masked = list(range(len(known), size))
    ids = torch.full((1, size), model.mask_id, device=device)
    ids[0, : len(known)] = torch.tensor(known, device=device)
    while masked:
        chosen = int(torch.randint(len(masked), (), generator=generator, device=device))
        place = masked.pop(chosen)
        logits = model.denoise(ids, cache, keep=False)[0, place]
        logits[sampling.known_ids :] = -torch.inf
        ids[0, place] = choose(logits, sampling, generator)
        if ids[0, place] == sampling.stop:
            ids[0, place:] = sampling.stop
            masked = [each for each in masked if each < place]
    return [int(each) for each in ids[0]]
