"""The loss over supervision steps: weighted cross-entropy, minus a reward for improving.

With b = ``weight_base``, s = ``reward_scale``, wᵢ = bⁱ / Σⱼ bʲ and sg = stop-gradient:

    L = [ Σᵢ wᵢ·ℓᵢ  −  s · Σ_{i≥1} (sg(ℓᵢ₋₁) − ℓᵢ) / sg(ℓᵢ₋₁) ] / N

Without sg the reward would pay the model for making an early step worse, and buy its "refinement"
by sabotage. With it, the reward's only gradient is s / ℓᵢ₋₁ more weight on step i ≥ 1.

The two parts are kept apart, because only the first is a cross-entropy: a log of L alone would
show a model getting "better" while it only gets more uneven.
"""

from __future__ import annotations

from typing import NamedTuple, Sequence

import torch
from torch import Tensor

#: Guards the division where a step has memorised its batch to exactly zero nats.
_SMALLEST = 1e-12


class Supervision(NamedTuple):
    """Scalars: ``loss`` is what is minimised, (``ce`` − ``reward``) / N."""

    loss: Tensor
    ce: Tensor
    """Σ wᵢ·ℓᵢ in nats per token."""
    reward: Tensor
    """s · Σ (ℓᵢ₋₁ − ℓᵢ) / ℓᵢ₋₁, without unit."""


def step_weights(steps: int, weight_base: float) -> list[float]:
    """wᵢ = bⁱ / Σⱼ bʲ for i < ``steps``; they sum to 1."""
    powers = [weight_base**step for step in range(steps)]
    return [power / sum(powers) for power in powers]


def supervise(step_losses: Tensor, weight_base: float, reward_scale: float) -> Supervision:
    """The loss of N mean cross-entropies ``step_losses`` (N,) in nats per token."""
    steps = len(step_losses)
    weights = torch.tensor(
        step_weights(steps, weight_base), dtype=step_losses.dtype, device=step_losses.device
    )
    ce = (weights * step_losses).sum()
    before = step_losses[:-1].detach().clamp_min(_SMALLEST)
    reward = reward_scale * ((before - step_losses[1:]) / before).sum()
    return Supervision(loss=(ce - reward) / steps, ce=ce, reward=reward)


def refinement_percent(step_losses: Sequence[float]) -> float:
    """How much lower the last step's loss is than the first's, in percent of the first."""
    first, last = step_losses[0], step_losses[-1]
    return 100.0 * (first - last) / first if first > 0 else 0.0
