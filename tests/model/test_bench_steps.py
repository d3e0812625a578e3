"""What is measured beside other trainers are steps of our own trainer: they must still be taken."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bench import reach, train
from model.families.dense_shape import Shape
from model.optim import Rules


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_step_of_ours_is_taken(optimizer: str) -> None:
    shape = Shape(65, 2, 32, 16, 16, hidden=64, kv_heads=2)
    batches = train._batches(65, 2, 16)
    step = train._ours(shape, Rules(optimizer), batches, 2)
    for _ in range(2):
        step()
    plain, adam = train._plain(shape)
    before = [each.detach().clone() for each in plain.parameters()]
    train._plain_step(plain, adam, lambda x, y: plain(x, y).loss, *next(batches))
    assert any(not torch.equal(a, b) for a, b in zip(before, plain.parameters(), strict=True))


def test_a_model_of_ours_reaches_something(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("to be or not to be, that is the question. " * 200)
    cpu_s, nats = reach._ours(reach.Text.read(path), steps=3, seed=1)
    assert cpu_s > 0
    assert 0 < nats < 10
