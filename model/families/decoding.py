"""Drawing a text from a model that gives the logits of the next token."""

from __future__ import annotations

from typing import Iterator, Protocol, Sequence, runtime_checkable

import torch
from torch import Tensor

from model.families.cache import Cache
from model.families.protocol import Sampling


@runtime_checkable
class NextToken(Protocol):
    """A model that is asked token by token."""

    @property
    def sequence(self) -> int: ...

    def decode(self, ids: Tensor, cache: Cache) -> Tensor:
        """Logits (B, V) for what follows the last of ``ids`` (B, new), ``cache`` holding the
        tokens before them, and taking these up."""
        ...


def generate(
    model: NextToken, start: Sequence[int], sampling: Sampling, device: torch.device
) -> Iterator[int]:
    """What ``model`` says after ``start``, until it ends the text or ``max_tokens`` are drawn."""
    sequence = model.sequence
    generator = torch.Generator(device).manual_seed(sampling.seed)
    context = list(start[-sequence:])
    fresh = context
    cache = Cache(sequence)
    for _ in range(sampling.max_tokens):
        logits = model.decode(torch.tensor([fresh], device=device), cache)[0]
        logits[sampling.known_ids :] = -torch.inf
        token = choose(logits, sampling, generator)
        if token == sampling.stop:
            return
        yield token
        context.append(token)
        fresh = [token]
        if len(context) > sequence:
            # Positions beyond the trained sequence mean nothing to the model: go on from the
            # later half of what there is.
            context = context[-max(1, sequence // 2) :]
            fresh, cache = context, Cache(sequence)


_LEAST_TEMPERATURE = 1e-6
"""Below it the likeliest is taken: logits of about 10 lie as far apart as float32 can tell, and
dividing by much less gives infinity."""


def choose(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """One id by its logits (V,)."""
    if sampling.temperature < _LEAST_TEMPERATURE:
        return int(logits.argmax())
    if 0 < sampling.top_k < len(logits):
        least = logits.topk(sampling.top_k).values[-1]
        logits = logits.masked_fill(logits < least, float("-inf"))
    weights = (logits / sampling.temperature).softmax(dim=-1)
    if sampling.top_p < 1.0:
        weights = _nucleus(weights, sampling.top_p)
    return int(weights.multinomial(1, generator=generator))


def _nucleus(weights: Tensor, share: float) -> Tensor:
    """Only the likeliest, as few as come to ``share`` (Holtzman et al. 2020); always one at least.
    What is left is not brought back to a sum of 1."""
    ordered, places = weights.sort(descending=True)
    before = ordered.cumsum(dim=-1) - ordered
    kept = before < share
    kept[0] = True  # a share that float32 holds for 0
    return torch.zeros_like(weights).scatter(0, places, ordered * kept)
