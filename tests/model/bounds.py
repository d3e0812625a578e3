"""The bound of masked diffusion by enumeration, and by what a model draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from model.data.batch import RowSelection
from model.families import masked_diffusion

ROWS = 40_000


def nats_of_hidden(model: Any, noisy: Tensor, clean: Tensor, places: Sequence[int]) -> float:
    """Σ of −ln p over hidden ``places`` of ``noisy``, whose answers are the last of ``clean``. SUBS
    written out: the mask has no probability, all other ids share it."""
    noisy = noisy.clone()
    noisy[0, places] = model.mask_id
    states = model._noisy_states(noisy, clean)[0, places]
    rows = model.embedding.weight if model.head is None else model.head.weight
    logits = torch.nn.functional.linear(model.norm(states), rows)
    logits[:, model.mask_id] = -torch.inf
    answers = clean[0, -noisy.shape[1] :][list(places)]
    return float(-logits.log_softmax(-1)[range(len(places)), answers].sum())


def weight(hidden: int, length: int) -> float:
    """∫ t^(m−1)·(1−t)^(L−m) dt."""
    return math.gamma(hidden) * math.gamma(length - hidden + 1) / math.gamma(length + 1)


def check_bound(patch: pytest.MonkeyPatch, model: Any, targets: Tensor, exact: float) -> None:
    """The mean of many draws is ``exact``. Of the same law, they are drawn at once: a weight of 1/t
    takes many rows to come to its mean."""
    generator = torch.Generator().manual_seed(5)
    patch.setattr(
        masked_diffusion,
        "thresholds",
        lambda draws, n: torch.rand(draws.of, n, generator=generator),
    )
    rows, drawn = targets.expand(ROWS, -1), 0.0
    for group in range(2):
        drawn += float(model.evaluate(rows, rows, RowSelection(0, group, range(ROWS), ROWS)).sum())
    assert drawn / (2 * ROWS) == pytest.approx(exact, rel=0.02)
