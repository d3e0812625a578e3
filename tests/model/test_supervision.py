"""The loss against numbers worked out by hand, and where its gradient may flow."""

from __future__ import annotations

import pytest
import torch

from model.families.trm.model import refinement_percent, step_weights, supervise


def test_weights_are_those_of_the_presets() -> None:
    assert step_weights(4, 5.0) == pytest.approx([1 / 156, 5 / 156, 25 / 156, 125 / 156])
    assert step_weights(4, 10.0) == pytest.approx([0.0009, 0.0090, 0.0900, 0.9001], abs=1e-4)


def test_the_formula_by_hand() -> None:
    """ℓ = (4, 2, 1), b = 2, s = .5: ce = (1·4 + 2·2 + 4·1)/7, reward = .5·(1/2 + 1/2)."""
    judged = supervise(torch.tensor([4.0, 2.0, 1.0]), weight_base=2.0, reward_scale=0.5)
    assert judged.ce.item() == pytest.approx(12 / 7)
    assert judged.reward.item() == pytest.approx(0.5)
    assert judged.loss.item() == pytest.approx((12 / 7 - 0.5) / 3)


def test_the_reward_pays_nothing_for_a_worse_earlier_step() -> None:
    """dL/dℓ₀ = w₀/N alone; dL/dℓᵢ = (wᵢ + s/ℓᵢ₋₁)/N."""
    losses = torch.tensor([4.0, 2.0, 1.0], requires_grad=True)
    supervise(losses, weight_base=2.0, reward_scale=0.5).loss.backward()
    assert losses.grad is not None
    assert losses.grad.tolist() == pytest.approx(
        [(1 / 7) / 3, (2 / 7 + 0.5 / 4) / 3, (4 / 7 + 0.5 / 2) / 3]
    )
    assert losses.grad.min() > 0, "no loss may ever be worth raising"


def test_without_a_reward_it_is_a_mean_of_cross_entropies() -> None:
    judged = supervise(torch.tensor([3.0, 3.0]), weight_base=10.0, reward_scale=0.0)
    assert judged.ce.item() == pytest.approx(3.0)
    assert judged.loss.item() == pytest.approx(1.5)


def test_one_step_has_no_reward() -> None:
    judged = supervise(torch.tensor([3.0]), weight_base=5.0, reward_scale=1.0)
    assert (judged.loss.item(), judged.reward.item()) == (3.0, 0.0)


def test_a_memorised_step_gives_no_infinity() -> None:
    losses = torch.tensor([0.0, 0.0], requires_grad=True)
    judged = supervise(losses, weight_base=5.0, reward_scale=1.0)
    assert torch.isfinite(judged.loss)


def test_refinement_is_a_share_of_the_first_step() -> None:
    assert refinement_percent([4.0, 3.5, 3.0]) == 25.0
    assert refinement_percent([0.0, 0.0]) == 0.0
