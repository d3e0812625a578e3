"""nanochat's update rules where two ranks share the work: the same weights as one rank's, to the
last bit on both, compiled and not.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from model.training.optim import Optimizer, Ranks
from model.training.stepping import compiled_graphs
from tests.model.test_nanochat import RULES, SHAPE, assert_same_update, ours
from tests.waiting import deadline_s

SMALL = replace(SHAPE, depth=3)
"""Of the matrices of one shape, 12 are shared evenly and 3 are not."""


@pytest.mark.slow
@pytest.mark.more
def test_two_ranks_make_the_updates_of_one(tmp_path: Path) -> None:
    given = [sys.executable, "-m", "tests.model.test_nanochat_ranks", str(tmp_path)]
    started = [
        subprocess.Popen(
            [*given, str(rank)],
            cwd=Path(__file__).resolve().parents[2],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for each in started:
        _, told = each.communicate(timeout=deadline_s(400))
        assert each.returncode == 0, told[-4000:]
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    alone = steps(compiled=False, ranks=None)
    before = dict(ours(shape=SMALL).named_parameters())
    for (one, other), (name, weight) in product(zip(*ranks, strict=True), alone.items()):
        assert torch.equal(one[name], other[name]), name
        assert_same_update(one[name], weight, before[name].detach(), 1e-4)


def steps(*, compiled: bool, ranks: Ranks | None) -> dict[str, torch.Tensor]:
    """The weights after three steps."""
    model = ours(shape=SMALL)
    optimizer = Optimizer(model, replace(RULES, compiled=compiled), ranks)
    optimizer.warm_up()
    counted = compiled_graphs()
    assert bool(counted) or not compiled
    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step(step, 1.0 - 0.2 * step)
    assert compiled_graphs() == counted, "a step compiled what the warm-up had not"
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def main(folder: str, rank: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=int(rank), world_size=2
    )
    made = [steps(compiled=each, ranks=Ranks(int(rank), 2)) for each in (False, True)]
    torch.save(made, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
