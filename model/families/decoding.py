"""Drawing a text from a model that gives the logits of the next token."""

from __future__ import annotations

from typing import Iterator, Protocol, Sequence

import torch
from torch import Tensor

from model.families.cache import Cache
from model.families.protocol import Sampling


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
        token = _choose(logits, sampling.temperature, sampling.top_k, generator)
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


def _choose(logits: Tensor, temperature: float, top_k: int, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(logits.argmax())
    if 0 < top_k < len(logits):
        least = logits.topk(top_k).values[-1]
        logits = logits.masked_fill(logits < least, float("-inf"))
    weights = (logits / temperature).softmax(dim=-1)
    return int(weights.multinomial(1, generator=generator))
